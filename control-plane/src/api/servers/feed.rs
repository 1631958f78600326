//! Turns changes of the registry into events. Looks at most a few times a second, so that a download's
//! progress is a handful of events and not a flood.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lifeboat_engines::spec::DesiredState;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::events::Events;
use crate::ids::{Generation, RowId};
use crate::registry::{Registry, RowStatus, RowView};

/// The least time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The data of `server.changed`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerChanged {
    /// The row.
    pub id: RowId,
    /// The generation observed.
    pub generation: Generation,
    /// Public model name.
    pub model_name: String,
    /// What the operator wants.
    pub desired_state: DesiredState,
    /// What is observed.
    #[serde(flatten)]
    pub status: RowStatus,
}

/// The data of `server.deleted`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerDeleted {
    /// The row that was.
    pub id: RowId,
}

/// Publishes changes until `token` ends it.
pub async fn run(registry: Arc<Registry>, events: Arc<Events>, token: CancellationToken) {
    let mut ticks = registry.subscribe();
    let mut known = HashMap::new();
    loop {
        ticks.mark_unchanged();
        tell(&registry, &events, &mut known);
        tokio::select! {
            () = token.cancelled() => return,
            changed = ticks.changed() => if changed.is_err() { return },
        }
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

fn tell(registry: &Registry, events: &Events, known: &mut HashMap<RowId, Arc<RowView>>) {
    let snapshot = registry.snapshot();
    known.retain(|id, _| {
        let stays = snapshot.rows.contains_key(id);
        if !stays {
            events.publish("server.deleted", &ServerDeleted { id: *id });
        }
        stays
    });
    for (id, row) in &snapshot.rows {
        let told = known.insert(*id, Arc::clone(row));
        let same = |told: &RowView| told.generation == row.generation && told.status == row.status && told.model_name == row.model_name;
        if !told.is_some_and(|told| same(&told)) {
            let (model_name, status) = (row.model_name.clone(), row.status.clone());
            let change = ServerChanged { id: *id, generation: row.generation, model_name, desired_state: row.desired_state, status };
            events.publish("server.changed", &change);
        }
    }
}

#[cfg(test)]
mod tests {
    use lifeboat_engines::spec::EngineKind;

    use super::*;
    use crate::registry::RowState;

    fn view(id: RowId, state: RowState) -> RowView {
        RowView {
            id,
            generation: Generation(1),
            model_name: "chat".into(),
            aliases: Vec::new(),
            engine: EngineKind::Sim,
            desired_state: DesiredState::Running,
            status: RowStatus { state, ..RowStatus::default() },
            endpoint: None,
            demand: Arc::default(),
            room: None,
        }
    }

    #[test]
    fn each_change_is_told_once_and_a_row_that_goes_is_told_too() {
        let (registry, events, mut known) = (Registry::default(), Events::new(16), HashMap::new());
        let id = RowId::new();
        let kinds = |events: &Events| events.latest(16).iter().map(|event| event.kind).collect::<Vec<_>>();
        registry.publish(view(id, RowState::Starting));
        tell(&registry, &events, &mut known);
        registry.publish(view(id, RowState::Starting));
        tell(&registry, &events, &mut known);
        assert_eq!(kinds(&events), ["server.changed"]);
        registry.publish(view(id, RowState::Ready));
        tell(&registry, &events, &mut known);
        registry.remove(id);
        tell(&registry, &events, &mut known);
        assert_eq!(kinds(&events), ["server.changed", "server.changed", "server.deleted"]);
        assert!(events.latest(2)[0].data.get().contains("\"state\":\"ready\""));
    }
}
