//! Long work over REST: where it stands, and breaking it off.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Name, Params};
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::jobs::JobView;

/// Jobs at work and those that ended lately, oldest first.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(PageParams), responses((status = 200, body = Page<JobView>)))]
pub async fn list_jobs(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<JobView>>, ApiError> {
    Page::cut(state.jobs.list(), &page, |job| job.id.to_string()).map(Json)
}

/// One job.
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "Id of the job")),
    responses((status = 200, body = JobView), (status = 404, body = ErrorEnvelope))
)]
pub async fn find_job(State(state): State<ApiState>, Name(id): Name) -> Result<Json<JobView>, ApiError> {
    let job = id.parse().ok().and_then(|id| state.jobs.find(id));
    job.map(Json).ok_or_else(|| ApiError::not_found("job", &id))
}

/// Breaks a job off. What it has fetched so far stays, so that a new one goes on from there.
#[utoipa::path(
    delete, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "Id of the job")),
    responses((status = 202), (status = 404, body = ErrorEnvelope))
)]
pub async fn cancel_job(State(state): State<ApiState>, Name(id): Name) -> Result<StatusCode, ApiError> {
    let cancelled = id.parse().is_ok_and(|id| state.jobs.cancel(id));
    if cancelled { Ok(StatusCode::ACCEPTED) } else { Err(ApiError::not_found("job", &id)) }
}
