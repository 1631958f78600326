//! Engine builds over REST: what is installed, what there is for this host, installing, switching, removing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use lifeboat_engines::spec::EngineKind;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Body, Name, Params};
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::causes::chain;
use crate::engines::{CandidateView, EnginesError, InstallRequest, InstalledBuild};
use crate::jobs::{JobError, JobKind, JobView};

/// Which kind of engine.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EngineOf {
    /// Default `llama_cpp`.
    #[serde(default = "llama_cpp")]
    pub engine: EngineKind,
}

const fn llama_cpp() -> EngineKind {
    EngineKind::LlamaCpp
}

/// Every build that is here, failed ones included.
#[utoipa::path(get, path = "/engines", tag = "engines", params(PageParams), responses((status = 200, body = Page<InstalledBuild>)))]
pub async fn list_engines(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<InstalledBuild>>, ApiError> {
    Ok(Json(Page::cut(state.engines.list().await?, &page, |installed| installed.build.id.clone())?))
}

/// Every way to get a build, best first, each that is not taken with its reason.
#[utoipa::path(
    get, path = "/engines/candidates", tag = "engines", params(EngineOf),
    responses((status = 200, body = Page<CandidateView>))
)]
pub async fn list_engine_candidates(
    State(state): State<ApiState>,
    Params(of): Params<EngineOf>,
) -> Result<Json<Page<CandidateView>>, ApiError> {
    Ok(Json(Page { data: state.engines.candidates(of.engine).await?, next_cursor: None }))
}

/// Installs a build: fetched, verified, unpacked, proved with a model, activated. One installation of a kind
/// at a time: asking again while one runs gives the same job.
#[utoipa::path(
    post, path = "/engines", tag = "engines", request_body = InstallRequest,
    responses((status = 202, body = JobView), (status = 422, body = ErrorEnvelope))
)]
pub async fn install_engine(
    State(state): State<ApiState>,
    Body(wanted): Body<InstallRequest>,
) -> Result<(StatusCode, Json<JobView>), ApiError> {
    let kind = wanted.engine.unwrap_or_else(llama_cpp);
    if kind != EngineKind::LlamaCpp {
        return Err(EnginesError::NotManaged { engine: kind }.into());
    }
    let engines = Arc::clone(&state.engines);
    let job = state.jobs.start(JobKind::EngineInstall, &wanted.describe(), |progress| async move {
        let installed = engines.install(wanted, &progress).await.map_err(ApiError::from)?;
        serde_json::to_value(&installed).map_err(|error| JobError::from(ApiError::internal(&error)))
    })?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

/// Makes an installed build the active one. Rows that run keep theirs until their next start.
#[utoipa::path(
    post, path = "/engines/{id}/activate", tag = "engines", params(("id" = String, Path, description = "Id of the build")),
    responses((status = 200, body = InstalledBuild), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope))
)]
pub async fn activate_engine(State(state): State<ApiState>, Name(id): Name) -> Result<Json<InstalledBuild>, ApiError> {
    Ok(Json(state.engines.activate(&id).await?))
}

/// Goes back to the build that was active before.
#[utoipa::path(
    post, path = "/engines/rollback", tag = "engines", request_body = EngineOf,
    responses((status = 200, body = InstalledBuild), (status = 409, body = ErrorEnvelope))
)]
pub async fn rollback_engine(State(state): State<ApiState>, Body(of): Body<EngineOf>) -> Result<Json<InstalledBuild>, ApiError> {
    Ok(Json(state.engines.rollback(of.engine).await?))
}

/// Removes a build that is neither active nor pinned by a row.
#[utoipa::path(
    delete, path = "/engines/{id}", tag = "engines", params(("id" = String, Path, description = "Id of the build")),
    responses((status = 204), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope))
)]
pub async fn remove_engine(State(state): State<ApiState>, Name(id): Name) -> Result<StatusCode, ApiError> {
    let rows = state.store.list_servers().await?.into_iter();
    let pinned_by: Vec<String> = rows.filter(|row| row.spec.engine_build.as_ref() == Some(&id)).map(|row| row.spec.model_name).collect();
    state.engines.remove(&id, &pinned_by).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl From<EnginesError> for ApiError {
    fn from(error: EnginesError) -> Self {
        let text = chain(&error);
        match &error {
            EnginesError::NotInstalled { .. } => Self::new(StatusCode::NOT_FOUND, "not_found", text),
            EnginesError::NoneUsable { .. } => Self::conflict(text).code("no_usable_build"),
            EnginesError::CandidateFailed { .. } | EnginesError::NotUsable { .. } => Self::conflict(text).code("build_not_usable"),
            EnginesError::NoPrevious { .. } | EnginesError::InUse { .. } => Self::conflict(text),
            EnginesError::NotManaged { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", text).field("engine"),
            EnginesError::NoSuchCandidate { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", text).field("candidate"),
            EnginesError::Io { .. } | EnginesError::Lost => Self::internal(&error),
        }
    }
}
