//! The control plane itself: version, uptime, what it holds. Every number is measured at the call.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::state::ApiState;
use crate::registry::RowState;

/// The control plane as it is now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    /// Version of this binary.
    pub version: &'static str,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Address listened on.
    pub listen: String,
    /// Where everything is kept.
    pub data_dir: String,
    /// Whether calls need a key.
    pub keys_required: bool,
    /// Whether engines are run; false where only the API is up.
    pub supervising: bool,
    /// Server rows by state.
    #[schema(value_type = std::collections::BTreeMap<String, u32>)]
    pub servers: BTreeMap<&'static str, u32>,
    /// Requests on engines now.
    pub requests_in_flight: u32,
    /// Resident memory of the control plane (engines not counted), from `/proc/self/status`; `null` = not known.
    pub resident_bytes: Option<u64>,
}

/// Version, uptime, counts, memory.
#[utoipa::path(get, path = "/status", tag = "status", responses((status = 200, body = Status)))]
pub async fn show_status(State(state): State<ApiState>) -> Result<Json<Status>, ApiError> {
    let snapshot = state.registry.snapshot();
    let mut servers = BTreeMap::new();
    let mut requests_in_flight = 0;
    for row in snapshot.rows.values() {
        *servers.entry(RowState::as_str(row.status.state)).or_default() += 1;
        requests_in_flight += row.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight());
    }
    let resident_bytes = state.tracker.spawn_blocking(resident_bytes).await.map_err(|error| ApiError::internal(&error))?;
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        uptime_seconds: state.started.elapsed().as_secs(),
        listen: state.config.listen.to_string(),
        data_dir: state.config.data_dir.display().to_string(),
        keys_required: !state.keys.is_open(),
        supervising: state.supervisor.is_some(),
        servers,
        requests_in_flight,
        resident_bytes,
    }))
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
