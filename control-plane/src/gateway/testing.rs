//! Rows and endpoints for the unit tests of the gateway.

use std::sync::Arc;

use http::uri::{Authority, Scheme};
use lifeboat_engines::spec::{DesiredState, EngineKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ids::{Generation, RowId};
use crate::registry::{Demand, Dialects, Endpoint, LastQueue, PromptCache, RowLoad, RowState, RowStatus, RowView};

/// An engine on a loopback port.
pub(super) fn endpoint(port: u16, slots: u32) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        scheme: Scheme::HTTP,
        authority: Authority::try_from(format!("127.0.0.1:{port}")).unwrap(),
        prefix: String::new(),
        authorization: None,
        upstream_model: None,
        slots,
        context: 0,
        cache: PromptCache::Slots { host_tokens: 0 },
        dialects: Dialects::of(EngineKind::Sim),
        load: RowLoad::default(),
        queue: LastQueue::default(),
        ready_since: Instant::now(),
        load_time: None,
        ended: CancellationToken::new(),
    })
}

/// A row without an engine.
pub(super) fn row(model_name: &str, state: RowState) -> RowView {
    RowView {
        id: RowId::new(),
        generation: Generation(1),
        model_name: model_name.to_owned(),
        aliases: Vec::new(),
        engine: EngineKind::Sim,
        desired_state: DesiredState::Running,
        status: RowStatus { state, ..RowStatus::default() },
        endpoint: None,
        demand: Arc::new(Demand::default()),
        room: None,
    }
}
