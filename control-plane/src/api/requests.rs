//! Requests of the data plane: those that have ended, from the log, and those under way, from memory, where one can be ended.

mod params;
mod view;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Name, Params};
use super::page::Page;
use super::state::ApiState;
use crate::recorder::log::{self, RequestFilter};

pub use params::{RequestParams, RequestState};
pub use view::Request;

/// Requests, newest first.
///
/// Those that have ended (the default), or those under way (`state=active`), which come on one page and are found by
/// model, key, row and id only.
#[utoipa::path(get, path = "/requests", tag = "requests", params(RequestParams),
    responses((status = 200, body = Page<Request>), (status = 400, body = ErrorEnvelope)))]
pub async fn list_requests(State(state): State<ApiState>, Params(params): Params<RequestParams>) -> Result<Json<Page<Request>>, ApiError> {
    let limit = params.limit()?;
    if params.state == RequestState::Active {
        let all = state.active.list();
        let data = all.iter().map(|active| Request::from(active.as_ref())).filter(|request| params.wants(request)).take(limit).collect();
        return Ok(Json(Page { data, next_cursor: None }));
    }
    let filter = params.filter()?;
    // Who has just seen a reply finds it here.
    state.recorder.flush().await;
    let mut lines = log::list(&state.store, &filter, limit + 1).await?;
    let more = lines.len() > limit;
    lines.truncate(limit);
    let next_cursor = lines.last().filter(|_| more).map(|(number, _)| number.to_string());
    Ok(Json(Page { data: lines.into_iter().map(|(_, event)| event.into()).collect(), next_cursor }))
}

/// One request, under way or ended. Where a client used an id twice, the newest.
#[utoipa::path(
    get, path = "/requests/{id}", tag = "requests", params(("id" = String, Path, description = "Its `x-request-id`")),
    responses((status = 200, body = Request), (status = 404, body = ErrorEnvelope))
)]
pub async fn find_request(State(state): State<ApiState>, Name(id): Name) -> Result<Json<Request>, ApiError> {
    if let Some(active) = state.active.find(&id) {
        return Ok(Json(Request::from(active.as_ref())));
    }
    state.recorder.flush().await;
    let filter = RequestFilter { request_id: Some(id.clone()), ..RequestFilter::default() };
    let found = log::list(&state.store, &filter, 1).await?.pop();
    found.map(|(_, event)| Json(event.into())).ok_or_else(|| ApiError::not_found("request", &id))
}

/// Ends a request that is under way.
///
/// Its client gets the error `cancelled`, in a stream that has begun as an event.
#[utoipa::path(
    post, path = "/requests/{id}/cancel", tag = "requests", params(("id" = String, Path, description = "Its `x-request-id`")),
    responses((status = 202), (status = 404, body = ErrorEnvelope))
)]
pub async fn cancel_request(State(state): State<ApiState>, Name(id): Name) -> Result<StatusCode, ApiError> {
    if !state.active.cancel(&id) {
        return Err(ApiError::not_found("request under way", &id).hint("one that has ended cannot be ended again"));
    }
    tracing::info!(request.id = id, "an operator ends a request");
    Ok(StatusCode::ACCEPTED)
}
