//! One task owns one engine. Others hold a handle.

pub mod child;
pub mod logs;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::activator::Activator;
use crate::config::Config;
use crate::engines::Engines;
use crate::ids::RowId;
use crate::models::Models;
use crate::registry::Registry;
use crate::store::Store;
use crate::store::servers::ServerRow;

/// What the supervisor needs of the rest.
#[derive(Debug, Clone)]
pub struct Deps {
    /// Settings.
    pub config: Arc<Config>,
    /// Status columns.
    pub store: Arc<Store>,
    /// Builds.
    pub engines: Arc<Engines>,
    /// Models.
    pub models: Arc<Models>,
    /// Where rows are published.
    pub registry: Arc<Registry>,
    /// Wakes the reconciler after an observed change.
    pub activator: Activator,
    /// Holds every task.
    pub tracker: TaskTracker,
    /// Hard stop.
    pub token: CancellationToken,
}

/// What the reconciler wants of one row's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// An engine of this generation, serving.
    Up,
    /// No engine, because the row is stopped.
    Down,
    /// No engine until the next request; only taken if nobody is on it.
    Asleep,
}

/// All row tasks.
#[derive(Debug)]
pub struct Supervisor {}

impl Supervisor {
    /// No tasks yet.
    pub fn new(_deps: Deps) -> Self {
        todo!()
    }

    /// Makes the row's task work towards `want` at the row's generation. Idempotent, returns at once.
    pub fn ensure(&self, _row: ServerRow, _want: Want) {
        todo!()
    }

    /// Ends the row's engine and its task, then forgets it.
    pub fn forget(&self, _id: RowId) {
        todo!()
    }

    /// Operator's restart: the engine is drained, ended and started again, cool-down lifted.
    pub fn restart(&self, _id: RowId) -> bool {
        todo!()
    }

    /// Rows that have a task.
    pub fn rows(&self) -> Vec<RowId> {
        todo!()
    }

    /// Drains and ends every engine; nothing is left behind.
    pub async fn stop_all(&self) {
        todo!()
    }

    /// Lets go of every engine without ending it (an upgrade re-adopts them).
    pub async fn release_all(&self) {
        todo!()
    }
}
