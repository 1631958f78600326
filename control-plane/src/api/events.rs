//! `/api/events`: the last events as a list, or, for `Accept: text/event-stream`, all further ones as they
//! come. A client that comes back sends `Last-Event-ID`; a `reset` event tells it to read everything afresh.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};

use super::extract::Params;
use super::page::Page;
use super::state::ApiState;
use crate::events::{Event, Events, Feed};
use crate::host::clock::rfc3339;

/// Events of a list where the caller does not say.
const DEFAULT_LIMIT: usize = 100;
/// A comment goes out this often, so that proxies keep a silent stream open and a dead client is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How many events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventParams {
    /// The last so many; default 100.
    limit: Option<usize>,
}

/// One event.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventView {
    /// For `Last-Event-ID`.
    pub id: String,
    /// `server.changed`, `server.deleted`, `job.changed`.
    pub kind: &'static str,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub at: String,
    /// What it is now; its shape depends on `kind`.
    #[schema(value_type = Object)]
    pub data: Box<RawValue>,
}

/// The last events (oldest first), or a live stream of them.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(EventParams, ("Last-Event-ID" = Option<String>, Header, description = "Streams: the id of the last event seen")),
    responses((status = 200, content((Page<EventView> = "application/json"), (String = "text/event-stream"))))
)]
pub async fn list_events(State(state): State<ApiState>, headers: HeaderMap, Params(params): Params<EventParams>) -> Response {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(header::ACCEPT).is_some_and(|accept| accept.contains("text/event-stream")) {
        return stream(&state, text(header::HeaderName::from_static("last-event-id")));
    }
    let latest = state.events.latest(params.limit.unwrap_or(DEFAULT_LIMIT));
    let shown =
        |event: &Arc<Event>| EventView { id: state.events.id(event), kind: event.kind, at: rfc3339(event.at), data: event.data.clone() };
    Json(Page { data: latest.iter().map(shown).collect(), next_cursor: None }).into_response()
}

fn stream(state: &ApiState, last_id: Option<&str>) -> Response {
    let feed = state.events.follow(last_id);
    let stream = frames(Arc::clone(&state.events), feed);
    let ended = state.stopping.clone();
    let until_stop = futures_util::StreamExt::take_until(stream, ended.cancelled_owned());
    let mut response = Sse::new(until_stop).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // nginx and its like would hold events back until their buffer is full.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn frames(events: Arc<Events>, feed: Feed) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let Feed { reset, missed, live } = feed;
    let first: Vec<SseEvent> = reset.then(reset_frame).into_iter().chain(missed.iter().map(|event| frame(&events, event))).collect();
    let rest = futures_util::stream::unfold((events, live), |(events, mut live)| async move {
        let frame = match live.recv().await {
            Ok(event) => frame(&events, &event),
            Err(RecvError::Lagged(_)) => reset_frame(),
            Err(RecvError::Closed) => return None,
        };
        Some((frame, (events, live)))
    });
    futures_util::StreamExt::map(futures_util::StreamExt::chain(futures_util::stream::iter(first), rest), Ok)
}

fn frame(events: &Events, event: &Event) -> SseEvent {
    SseEvent::default().id(events.id(event)).event(event.kind).data(event.data.get())
}

fn reset_frame() -> SseEvent {
    SseEvent::default().event("reset").data("{}")
}
