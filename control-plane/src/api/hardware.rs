//! This machine as the catalog and the sizing see it.

use axum::Json;
use axum::extract::State;
use lifeboat_engines::host::HostFacts;

use super::error::ApiError;
use super::state::ApiState;
use crate::host::facts;

/// Processors, memory, devices and tools, measured now.
#[utoipa::path(get, path = "/hardware/profile", tag = "hardware", responses((status = 200, body = HostFacts)))]
pub async fn hardware_profile(State(state): State<ApiState>) -> Result<Json<HostFacts>, ApiError> {
    let measured = state.tracker.spawn_blocking(facts::measure).await;
    measured.map(Json).map_err(|error| ApiError::internal(&error))
}
