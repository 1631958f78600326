//! `/health`, `/ready`, `/metrics`: for scripts, load balancers and scrapers.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use lifeboat_engines::spec::DesiredState;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::state::ApiState;
use crate::keys::Scope;
use crate::registry::{RowState, RowView, Snapshot};
use crate::telemetry::metrics;

/// The process lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: &'static str,
    /// Version of this binary.
    pub version: &'static str,
}

/// Whether a request could be served.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Ready {
    /// At least one row serves, or would on the first request.
    pub ready: bool,
    /// Rows that can serve.
    pub servers: usize,
    /// Why none can.
    pub reason: Option<String>,
}

/// The process lives. Needs no key.
#[utoipa::path(get, path = "/health", tag = "probes", responses((status = 200, body = Health)))]
pub async fn health() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// 200 when at least one row can serve (a sleeping row can), else 503 with the reason. Needs no key.
#[utoipa::path(get, path = "/ready", tag = "probes", responses((status = 200, body = Ready), (status = 503, body = Ready)))]
pub async fn ready(State(state): State<ApiState>) -> Response {
    let answer = if state.stopping.is_cancelled() {
        Ready { ready: false, servers: 0, reason: Some("the control plane is stopping".into()) }
    } else {
        judge(&state.registry.snapshot())
    };
    let status = if answer.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(answer)).into_response()
}

/// Metrics as `OpenMetrics` text. Needs an admin key where keys exist.
#[utoipa::path(get, path = "/metrics", tag = "probes", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(state): State<ApiState>, headers: HeaderMap) -> Result<Response, ApiError> {
    state.keys.authorize(&headers, Scope::Admin)?;
    let text = state.metrics.encode().map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

fn can_serve(row: &RowView) -> bool {
    row.is_ready() || (row.desired_state == DesiredState::OnDemand && row.status.state != RowState::Failed)
}

fn judge(snapshot: &Snapshot) -> Ready {
    let servers = snapshot.rows.values().filter(|row| can_serve(row)).count();
    if servers > 0 {
        return Ready { ready: true, servers, reason: None };
    }
    let mut rows: Vec<_> = snapshot.rows.values().filter(|row| row.desired_state != DesiredState::Stopped).collect();
    rows.sort_by_key(|row| row.id);
    let reason = match rows.first() {
        None if snapshot.rows.is_empty() => "there is no server row".to_owned(),
        None => "every server row is stopped".to_owned(),
        Some(row) => {
            let why = row.status.state_reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let others = rows.len() - 1;
            let more = if others == 0 { String::new() } else { format!(", and {others} more cannot serve either") };
            format!("`{}` is {}{why}{more}", row.model_name, row.status.state.as_str())
        }
    };
    Ready { ready: false, servers, reason: Some(reason) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lifeboat_engines::spec::EngineKind;

    use super::*;
    use crate::ids::{Generation, RowId};
    use crate::registry::{Registry, RowStatus};

    fn judged(rows: &[(DesiredState, RowState, Option<&str>)]) -> Ready {
        let registry = Registry::default();
        for (desired_state, state, reason) in rows {
            registry.publish(RowView {
                id: RowId::new(),
                generation: Generation(1),
                model_name: "chat".into(),
                aliases: Vec::new(),
                engine: EngineKind::Sim,
                desired_state: *desired_state,
                status: RowStatus { state: *state, state_reason: reason.map(str::to_owned), ..RowStatus::default() },
                endpoint: None,
                demand: Arc::default(),
                room: None,
            });
        }
        judge(&registry.snapshot())
    }

    #[test]
    fn a_sleeping_row_counts_as_able_and_everything_else_names_its_reason() {
        use DesiredState::{OnDemand, Running, Stopped};
        assert!(judged(&[(Running, RowState::Failed, None), (OnDemand, RowState::Sleeping, None)]).ready);
        for (rows, reason) in [
            (vec![], "there is no server row"),
            (vec![(Stopped, RowState::Stopped, None)], "every server row is stopped"),
            (vec![(Running, RowState::Failed, Some("no memory"))], "`chat` is failed (no memory)"),
            (vec![(OnDemand, RowState::Failed, None)], "`chat` is failed"),
            (
                vec![(Running, RowState::Starting, None), (Running, RowState::Downloading, None)],
                "`chat` is starting, and 1 more cannot serve either",
            ),
        ] {
            assert_eq!(judged(&rows), Ready { ready: false, servers: 0, reason: Some(reason.into()) });
        }
    }
}
