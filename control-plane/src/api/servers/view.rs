//! A row as the API shows it: what was asked for and what is observed, in one object. The key of an
//! external engine is never part of it.

use lifeboat_engines::spec::{CacheType, DesiredState, EngineKind, EngineSpec, Resolved, Task};
use serde::Serialize;
use utoipa::ToSchema;

use crate::host::clock::rfc3339;
use crate::ids::{Generation, RowId};
use crate::progress::Progress;
use crate::registry::{RowState, RowStatus, RowView};
use crate::store::servers::ServerRow;

/// A server row. Fields that are `null` among those asked for mean "auto".
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Server {
    /// Its id.
    pub id: RowId,
    /// Raised by every edit.
    pub generation: Generation,
    /// Public model name; rows with the same name form a pool.
    pub model_name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Kind of engine.
    pub engine: EngineKind,
    /// Pinned engine build.
    pub engine_build: Option<String>,
    /// Where the model comes from.
    pub model: Option<String>,
    /// What the model is for.
    pub task: Option<Task>,
    /// Tokens of context of one slot.
    pub context: Option<u32>,
    /// Requests at the same time.
    pub slots: Option<u32>,
    /// CPU threads.
    pub threads: Option<u32>,
    /// Layers on the accelerator.
    pub gpu_layers: Option<u32>,
    /// Devices by the engine's own name.
    pub devices: Option<Vec<String>>,
    /// KV cache format of the keys.
    pub cache_type_k: Option<CacheType>,
    /// KV cache format of the values.
    pub cache_type_v: Option<CacheType>,
    /// Further engine arguments.
    pub extra_args: Vec<String>,
    /// External engines: base URL.
    pub url: Option<String>,
    /// External engines: whether a key is stored for that server.
    pub has_api_key: bool,
    /// External engines: the model name that server knows.
    pub upstream_model: Option<String>,
    /// What the operator wants.
    pub desired_state: DesiredState,
    /// `on_demand` rows: seconds without a request until unload.
    pub idle_seconds: Option<u32>,
    /// Where it stands.
    pub state: RowState,
    /// Why, in words.
    pub state_reason: Option<String>,
    /// Process id of the engine.
    pub pid: Option<u32>,
    /// Base URL of the engine.
    pub endpoint: Option<String>,
    /// Times the engine was started again after a death.
    pub restarts: u32,
    /// Requests on the engine now.
    pub slots_in_use: u32,
    /// What "auto" became, with the arithmetic.
    pub resolved: Option<Resolved>,
    /// The build it runs.
    pub build: Option<String>,
    /// Progress of a download or a load.
    pub progress: Option<Progress>,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// RFC 3339, the last edit.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl Server {
    /// Joins what is wanted and what is observed.
    pub fn new(row: ServerRow, status: RowStatus, slots_in_use: u32) -> Self {
        let status = match &row.unreadable {
            Some(problem) => RowStatus {
                state: RowState::Failed,
                state_reason: Some(format!(
                    "this version of Lifeboat cannot read the row ({problem}); start the one that wrote it, or delete the row"
                )),
                ..RowStatus::default()
            },
            None => status,
        };
        let EngineSpec {
            model_name,
            aliases,
            engine,
            engine_build,
            model,
            task,
            context,
            slots,
            threads,
            gpu_layers,
            devices,
            cache_type_k,
            cache_type_v,
            extra_args,
            url,
            api_key,
            upstream_model,
            desired_state,
            idle_seconds,
        } = row.spec;
        let RowStatus { state, state_reason, pid, endpoint, restarts, resolved, build, progress } = status;
        Self {
            id: row.id,
            generation: row.generation,
            model_name,
            aliases,
            engine,
            engine_build,
            model,
            task,
            context,
            slots,
            threads,
            gpu_layers,
            devices,
            cache_type_k,
            cache_type_v,
            extra_args,
            url,
            has_api_key: api_key.is_some(),
            upstream_model,
            desired_state,
            idle_seconds,
            state,
            state_reason,
            pid,
            endpoint,
            restarts,
            slots_in_use,
            resolved,
            build,
            progress,
            created_at: rfc3339(row.created_at),
            updated_at: rfc3339(row.updated_at),
        }
    }

    /// Joins a row with its view in the registry; a row the reconciler has not looked at yet has none.
    pub fn observed(row: ServerRow, view: Option<&RowView>) -> Self {
        let Some(view) = view else {
            let status = RowStatus { state: before_the_first_look(row.spec.desired_state), ..RowStatus::default() };
            return Self::new(row, status, 0);
        };
        let busy = view.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight());
        Self::new(row, view.status.clone(), busy)
    }
}

/// The state of a row between its creation and the reconciler's first look, milliseconds later.
const fn before_the_first_look(desired: DesiredState) -> RowState {
    match desired {
        DesiredState::Running => RowState::Starting,
        DesiredState::OnDemand => RowState::Sleeping,
        DesiredState::Stopped => RowState::Stopped,
    }
}
