//! Models over REST: what is on disk, pulling, looking before pulling, removing, folders to scan. A source is
//! a text with slashes and colons, so it travels in the query and in bodies, never in a path.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Body, Params};
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::causes::chain;
use crate::download::DownloadError;
use crate::jobs::{JobError, JobKind, JobView};
use crate::models::{Inspection, LocalModel, ModelFolder, ModelsError};

/// Which model.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ModelSource {
    /// `hf:owner/repo[:quant or file]`, `https://…`, a local path, `pip:package`.
    pub source: String,
}

/// A folder with models.
#[derive(Debug, Deserialize, Serialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FolderPath {
    /// Absolute path.
    #[schema(value_type = String)]
    #[param(value_type = String)]
    pub path: PathBuf,
}

/// Every complete model: those pulled, then those of the registered folders.
#[utoipa::path(get, path = "/models", tag = "models", params(PageParams), responses((status = 200, body = Page<LocalModel>)))]
pub async fn list_models(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<Arc<LocalModel>>>, ApiError> {
    Ok(Json(Page::cut(state.models.list().await?, &page, |model| model.source.clone())?))
}

/// Pulls a model: a job that goes on where an earlier one stopped. Done at once if the model is here.
#[utoipa::path(
    post, path = "/models", tag = "models", request_body = ModelSource,
    responses((status = 202, body = JobView), (status = 422, body = ErrorEnvelope))
)]
pub async fn pull_model(State(state): State<ApiState>, Body(wanted): Body<ModelSource>) -> Result<(StatusCode, Json<JobView>), ApiError> {
    let source = state.models.parse(&wanted.source)?.canonical();
    let models = Arc::clone(&state.models);
    let job = state.jobs.start(JobKind::ModelPull, &source.clone(), |progress| async move {
        let model = models.ensure(&source, &progress).await.map_err(ApiError::from)?;
        serde_json::to_value(&model).map_err(|error| JobError::from(ApiError::internal(&error)))
    })?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

/// What a model is and what it needs on this host. Of a remote model only the header is fetched.
#[utoipa::path(
    get, path = "/models/inspect", tag = "models", params(ModelSource),
    responses((status = 200, body = Inspection), (status = 422, body = ErrorEnvelope), (status = 502, body = ErrorEnvelope))
)]
pub async fn inspect_model(State(state): State<ApiState>, Params(wanted): Params<ModelSource>) -> Result<Json<Inspection>, ApiError> {
    Ok(Json(state.models.inspect(&wanted.source).await?))
}

/// Removes a pulled model, or what an unfinished pull left. A model that a row uses is kept.
#[utoipa::path(
    delete, path = "/models", tag = "models", params(ModelSource),
    responses((status = 204), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope))
)]
pub async fn remove_model(State(state): State<ApiState>, Params(wanted): Params<ModelSource>) -> Result<StatusCode, ApiError> {
    let in_use: Vec<String> = state.store.list_servers().await?.into_iter().filter_map(|row| row.spec.model).collect();
    if state.models.remove(&wanted.source, &in_use).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("model", &wanted.source))
    }
}

/// The folders that are scanned for models.
#[utoipa::path(get, path = "/models/folders", tag = "models", responses((status = 200, body = Page<ModelFolder>)))]
pub async fn list_model_folders(State(state): State<ApiState>) -> Result<Json<Page<ModelFolder>>, ApiError> {
    Ok(Json(Page { data: state.models.list_dirs().await?, next_cursor: None }))
}

/// Registers a folder to be scanned. Nothing in it is ever changed.
#[utoipa::path(
    post, path = "/models/folders", tag = "models", request_body = FolderPath,
    responses((status = 201, body = FolderPath), (status = 422, body = ErrorEnvelope))
)]
pub async fn register_model_folder(
    State(state): State<ApiState>,
    Body(folder): Body<FolderPath>,
) -> Result<(StatusCode, Json<FolderPath>), ApiError> {
    let path = state.models.register_dir(&folder.path).await?;
    Ok((StatusCode::CREATED, Json(FolderPath { path })))
}

/// Forgets a registered folder; its files stay.
#[utoipa::path(
    delete, path = "/models/folders", tag = "models", params(FolderPath),
    responses((status = 204), (status = 404, body = ErrorEnvelope))
)]
pub async fn unregister_model_folder(State(state): State<ApiState>, Params(folder): Params<FolderPath>) -> Result<StatusCode, ApiError> {
    if state.models.unregister_dir(&folder.path).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("registered folder", &folder.path.display().to_string()))
    }
}

impl From<ModelsError> for ApiError {
    fn from(error: ModelsError) -> Self {
        let text = chain(&error);
        let unprocessable = |code| Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, text.clone());
        match &error {
            ModelsError::BadSource(_) | ModelsError::NoChoice { .. } => unprocessable("invalid_source").field("source"),
            ModelsError::BadFolder { .. } => unprocessable("invalid_field").field("path"),
            ModelsError::NotAModel { .. } => unprocessable("not_a_model"),
            ModelsError::NotServable { .. } => unprocessable("not_servable"),
            ModelsError::NoSuchPath { .. } => Self::new(StatusCode::NOT_FOUND, "not_found", text),
            ModelsError::NotHere(_) | ModelsError::InUse { .. } | ModelsError::NotOurs(_) => Self::conflict(text),
            ModelsError::Download { cause: DownloadError::DiskFull { .. }, .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", text)
            }
            ModelsError::Lookup { .. } | ModelsError::Download { .. } | ModelsError::Pip { .. } => {
                Self::new(StatusCode::BAD_GATEWAY, "source_failed", text)
            }
            ModelsError::Io { .. } | ModelsError::Lost => Self::internal(&error),
        }
    }
}
