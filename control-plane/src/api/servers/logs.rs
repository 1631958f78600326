//! A row's engine log as plain text: the last lines, and on request every further one as it comes, across
//! rotations and restarts of the engine.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderValue, header};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use utoipa::IntoParams;

use super::find;
use crate::api::error::{ApiError, ErrorEnvelope};
use crate::api::extract::{Params, ServerId};
use crate::api::state::ApiState;
use crate::engine_process::logs::{self, Tail};
use crate::supervisor::log_dir;

/// Lines where the caller does not say.
const DEFAULT_LINES: usize = 200;
/// The most lines at once.
const MOST_LINES: usize = 10_000;
/// Time between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogParams {
    /// Lines from the end to begin with. Default 200, at most 10000.
    lines: Option<usize>,
    /// Go on with new lines as they come.
    #[serde(default)]
    follow: bool,
}

/// The log of the row's engine.
#[utoipa::path(
    get, path = "/servers/{id}/logs", tag = "servers",
    params(("id" = String, Path, description = "Id of the row"), LogParams),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 404, body = ErrorEnvelope))
)]
pub async fn show_logs(
    State(state): State<ApiState>,
    ServerId(id): ServerId,
    Params(params): Params<LogParams>,
) -> Result<Response, ApiError> {
    find(&state, id).await?;
    let folder = log_dir(&state.config.data_dir, id);
    let count = params.lines.unwrap_or(DEFAULT_LINES).min(MOST_LINES);
    let opened = spawn_blocking(move || open(&folder, count)).await;
    let (text, tail) = opened.map_err(|error| ApiError::internal(&error))?;
    let body = if params.follow {
        let first = futures_util::stream::iter([Ok(Bytes::from(text))]);
        Body::from_stream(first.chain(follow(tail)).take_until(state.stopping.clone().cancelled_owned()))
    } else {
        Body::from(text)
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The last lines and a tail that begins where they end.
fn open(folder: &Path, count: usize) -> (String, Tail) {
    let mut tail = Tail::from_end(folder);
    let mut lines = logs::last_lines(folder, count);
    // What was written between the two reads is in the tail, and may be at the end of the lines as well.
    let new = tail.new_lines();
    let doubled = (0..=new.len()).rev().find(|doubled| lines.ends_with(&new[..*doubled])).unwrap_or(0);
    lines.extend(new.into_iter().skip(doubled));
    (joined(&lines), tail)
}

fn follow(tail: Tail) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures_util::stream::unfold(tail, |mut tail| async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (lines, read) = spawn_blocking(move || (tail.new_lines(), tail)).await.ok()?;
            if !lines.is_empty() {
                return Some((Ok(Bytes::from(joined(&lines))), read));
            }
            tail = read;
        }
    })
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}
