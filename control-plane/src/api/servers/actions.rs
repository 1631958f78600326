//! Start, stop, restart. Start and stop write the desired state; restart asks the row's own task.

use axum::Json;
use axum::extract::State;
use lifeboat_engines::spec::DesiredState;

use super::view::Server;
use super::{changed, find_readable, gone, show};
use crate::api::error::{ApiError, ErrorEnvelope};
use crate::api::extract::ServerId;
use crate::api::state::ApiState;
use crate::ids::RowId;
use crate::registry::RowState;
use crate::store::StoreError;

/// Edits by others between our read and our write before we give up.
const TRIES: usize = 5;

/// Wants the row serving: a stopped row becomes `running` (`on_demand` if it has `idle_seconds`), a sleeping
/// one is loaded now.
#[utoipa::path(
    post, path = "/servers/{id}/start", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    responses((status = 200, body = Server), (status = 404, body = ErrorEnvelope))
)]
pub async fn start_server(State(state): State<ApiState>, ServerId(id): ServerId) -> Result<Json<Server>, ApiError> {
    let server = want(&state, id, |desired, idle_seconds| match (desired, idle_seconds) {
        (DesiredState::Stopped, None) => DesiredState::Running,
        (DesiredState::Stopped, Some(_)) => DesiredState::OnDemand,
        (kept, _) => kept,
    })
    .await?;
    if server.desired_state == DesiredState::OnDemand {
        ask_for(&state, id);
    }
    Ok(server)
}

/// Wants the row stopped; running requests finish first.
#[utoipa::path(
    post, path = "/servers/{id}/stop", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    responses((status = 200, body = Server), (status = 404, body = ErrorEnvelope))
)]
pub async fn stop_server(State(state): State<ApiState>, ServerId(id): ServerId) -> Result<Json<Server>, ApiError> {
    want(&state, id, |_, _| DesiredState::Stopped).await
}

/// Ends the row's engine after its running requests and starts it again; a cool-down is lifted.
#[utoipa::path(
    post, path = "/servers/{id}/restart", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    responses((status = 200, body = Server), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope))
)]
pub async fn restart_server(State(state): State<ApiState>, ServerId(id): ServerId) -> Result<Json<Server>, ApiError> {
    let row = find_readable(&state, id).await?;
    if row.spec.desired_state == DesiredState::Stopped {
        return Err(ApiError::conflict("the row is stopped").hint("start it instead"));
    }
    let Some(supervisor) = &state.supervisor else {
        return Err(ApiError::conflict("no control plane runs on this data directory").hint("run `lifeboat serve`"));
    };
    if !supervisor.restart(id) {
        state.activator.wake();
    }
    show(&state, row).await
}

/// Writes the desired state unless it is so already.
async fn want(state: &ApiState, id: RowId, next: impl Fn(DesiredState, Option<u32>) -> DesiredState) -> Result<Json<Server>, ApiError> {
    for _ in 0..TRIES {
        let row = find_readable(state, id).await?;
        let mut spec = row.spec.clone();
        spec.desired_state = next(spec.desired_state, spec.idle_seconds);
        if spec == row.spec {
            return changed(state, row).await;
        }
        match state.store.update_server(id, Some(row.generation), &spec).await {
            Ok(Some(row)) => return changed(state, row).await,
            Ok(None) => return Err(gone(id)),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::conflict("others kept editing the row").hint("try again"))
}

/// Counts as one waiting request until the row serves, fails, or the wait of a cold start is over.
fn ask_for(state: &ApiState, id: RowId) {
    let demand = state.registry.demand(id).wait();
    state.activator.wake();
    let (state, longest) = (state.clone(), state.config.gateway.cold_start_wait);
    state.tracker.clone().spawn(async move {
        let mut ticks = state.registry.subscribe();
        let settled = async {
            loop {
                let seen = state.registry.snapshot().rows.get(&id).map(|row| (row.status.state, row.desired_state));
                if is_settled(seen) || ticks.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = settled => {}
            () = tokio::time::sleep(longest) => {}
            () = state.stopping.cancelled() => {}
        }
        drop(demand);
    });
}

/// Whether a demand for a row has been met, or cannot be. A row that was stopped a moment ago still shows it, until its
/// task has taken the start over: that is no answer yet.
const fn is_settled(seen: Option<(RowState, DesiredState)>) -> bool {
    matches!(seen, None | Some((RowState::Ready | RowState::Failed, _) | (RowState::Stopped, DesiredState::Stopped)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_stopped_and_is_wanted_again_is_waited_for() {
        for (seen, settled) in [
            (None, true),
            (Some((RowState::Ready, DesiredState::OnDemand)), true),
            (Some((RowState::Failed, DesiredState::OnDemand)), true),
            (Some((RowState::Stopped, DesiredState::Stopped)), true),
            (Some((RowState::Stopped, DesiredState::OnDemand)), false),
            (Some((RowState::Starting, DesiredState::OnDemand)), false),
            (Some((RowState::Sleeping, DesiredState::OnDemand)), false),
        ] {
            assert_eq!(is_settled(seen), settled, "{seen:?}");
        }
    }
}
