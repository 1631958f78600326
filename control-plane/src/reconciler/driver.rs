//! Runs the passes: on a wake-up, and every second for what comes by time alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::apply::apply;
use super::plan::{Observed, plan};
use crate::activator::Activator;
use crate::causes::chain;
use crate::ids::RowId;
use crate::registry::{Registry, RowState, Snapshot};
use crate::store::Store;
use crate::supervisor::Supervisor;

/// Time between two looks when nobody asks for one: the grain of idle times.
const TICK: Duration = Duration::from_secs(1);

/// What a pass reads and writes.
#[derive(Debug, Clone)]
pub struct Driver {
    /// Desired rows.
    pub store: Arc<Store>,
    /// Observed rows and demand.
    pub registry: Arc<Registry>,
    /// Row tasks.
    pub supervisor: Arc<Supervisor>,
    /// Asks for a pass.
    pub activator: Activator,
    /// Ends the loop.
    pub token: CancellationToken,
}

impl Driver {
    /// Passes until the token is cancelled. To be spawned once.
    pub async fn run(self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        let mut failing = false;
        loop {
            tokio::select! {
                () = self.token.cancelled() => return,
                () = self.activator.woken() => {}
                _ = tick.tick() => {}
            }
            match self.store.list_servers().await {
                Ok(rows) => {
                    if std::mem::take(&mut first) {
                        for (row, problem) in rows.iter().filter_map(|row| Some((row, row.unreadable.as_ref()?))) {
                            tracing::error!(server.id = %row.id, error = problem, "a server row cannot be read; the others go on");
                        }
                        // An engine whose row nobody can read has no owner either.
                        self.supervisor.end_leftovers(&rows.iter().filter(|row| row.unreadable.is_none()).map(|row| row.id).collect());
                    }
                    let (snapshot, now) = (self.registry.snapshot(), Instant::now());
                    let actions = plan(rows, |id| observe(&snapshot, id, now), &self.supervisor.rows());
                    apply(&self.supervisor, actions);
                    failing = false;
                }
                // What runs goes on running; told once, not every second.
                Err(error) if !failing => {
                    failing = true;
                    tracing::error!(error = %chain(&error), "could not read the server rows, engines stay as they are");
                }
                Err(_) => {}
            }
        }
    }
}

fn observe(snapshot: &Snapshot, id: RowId, now: Instant) -> Observed {
    snapshot.rows.get(&id).map_or_else(Observed::default, |row| Observed {
        state: row.status.state,
        waiting: row.demand.waiting(),
        room: row.room.clone(),
        idle: row.endpoint.as_ref().filter(|_| row.status.state == RowState::Ready).and_then(|endpoint| endpoint.idle_for(now)),
    })
}
