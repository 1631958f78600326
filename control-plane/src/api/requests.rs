//! The last finished requests of the data plane, from memory: what was asked of whom and how long it took,
//! never what it said.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::Params;
use super::page::Page;
use super::state::ApiState;
use crate::recorder::UsageEvent;

/// Requests of a list where the caller does not say.
const DEFAULT_LIMIT: usize = 100;

/// How many requests.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RequestParams {
    /// The last so many; default 100, at most as many as are kept (`gateway.recent_requests`).
    limit: Option<usize>,
}

/// The last finished requests, newest first.
#[utoipa::path(get, path = "/requests", tag = "requests", params(RequestParams), responses((status = 200, body = Page<UsageEvent>)))]
pub async fn list_requests(State(state): State<ApiState>, Params(params): Params<RequestParams>) -> Json<Page<Arc<UsageEvent>>> {
    Json(Page { data: state.recorder.recent(params.limit.unwrap_or(DEFAULT_LIMIT)), next_cursor: None })
}
