//! One task owns one engine. Others hold a handle.
//!
//! The reconciler says what is wanted of each row; the row's task ([`task`]) works towards it alone: it fetches,
//! sizes, launches, watches, restarts, drains and ends. Nobody else starts or stops an engine.
//!
//! - [`launch`] what comes before the process, [`engine`] its life, [`external`] servers somebody else runs
//! - [`decide`], [`backoff`], [`fingerprint`] the rules, pure; [`publisher`] how a row is shown
//!
//! The process itself is [`crate::engine_process`]'s.

mod backoff;
mod decide;
mod engine;
mod external;
pub mod failure;
mod fingerprint;
mod launch;
mod publisher;
mod run_note;
mod task;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::decide::idle_is_over;
pub use self::engine::longest_stop;
use self::task::{End, Order, RowTask, Shared};
use crate::activator::Activator;
use crate::config::Config;
use crate::engine_process::child::EngineChild;
use crate::engines::Engines;
use crate::hop::Hop;
use crate::host::http::Http;
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
    /// Names this control plane to those it asks.
    pub hop: Hop,
    /// Holds every task.
    pub tracker: TaskTracker,
    /// Hard stop: engines are killed without a drain.
    pub token: CancellationToken,
}

/// What the reconciler wants of one row's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// An engine of this generation, serving.
    Up,
    /// No engine, because the row is stopped.
    Down,
    /// No engine until the next request; only taken if nobody is on it and its idle time is over.
    Asleep,
    /// The same before its idle time is over: another row needs its memory.
    MakeRoom,
}

/// Folder of a row's running engine: records of its guard, its home.
pub fn run_dir(data_dir: &Path, id: RowId) -> PathBuf {
    data_dir.join("run").join(id.to_string())
}

/// Folder of a row's logs (`engine.log`, `engine.log.1`, …).
pub fn log_dir(data_dir: &Path, id: RowId) -> PathBuf {
    data_dir.join("logs").join(id.to_string())
}

/// All row tasks.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    orders: HashMap<RowId, watch::Sender<Order>>,
    // Set once the control plane ends: no task is started any more.
    ending: bool,
}

impl Supervisor {
    /// No tasks yet.
    pub fn new(deps: Deps) -> Self {
        let http = Http::new(deps.config.sources.connect);
        let shared = Shared { deps: Arc::new(deps), turns: Arc::new(Semaphore::new(1)), http };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Makes the row's task work towards `want` at the row's generation. Idempotent, returns at once.
    pub fn ensure(&self, row: ServerRow, want: Want) {
        let mut tasks = self.tasks.lock();
        if tasks.ending {
            return;
        }
        if let Some(orders) = tasks.orders.get(&row.id).filter(|orders| !orders.is_closed()) {
            orders.send_if_modified(|order| {
                let changed = order.want != want || order.row != row;
                (order.want, order.row) = (want, row);
                changed
            });
            return;
        }
        let id = row.id;
        let (orders, seen) = watch::channel(Order { row, want, restarts: 0, end: None });
        self.shared.deps.tracker.spawn(RowTask::new(Arc::clone(&self.shared), seen).run());
        tasks.orders.insert(id, orders);
    }

    /// Ends the row's engine and its task, then forgets it.
    pub fn forget(&self, id: RowId) {
        if let Some(orders) = self.tasks.lock().orders.get(&id) {
            end(orders, End::Forget);
        }
    }

    /// Operator's restart: the engine is drained, ended and started again, cool-down lifted. False if there is no
    /// such row.
    pub fn restart(&self, id: RowId) -> bool {
        let tasks = self.tasks.lock();
        let Some(orders) = tasks.orders.get(&id).filter(|orders| !orders.is_closed()) else { return false };
        orders.send_modify(|order| order.restarts = order.restarts.wrapping_add(1));
        true
    }

    /// Rows that have a task.
    pub fn rows(&self) -> Vec<RowId> {
        let mut tasks = self.tasks.lock();
        tasks.orders.retain(|_, orders| !orders.is_closed());
        tasks.orders.keys().copied().collect()
    }

    /// Folder of a row's logs.
    pub fn log_dir(&self, id: RowId) -> PathBuf {
        log_dir(&self.shared.deps.config.data_dir, id)
    }

    /// Ends the engines of rows that were deleted while no control plane ran. To be called once, with the rows there
    /// are, before any row can be created; the work is done beside.
    pub fn end_leftovers(&self, known: &HashSet<RowId>) {
        let data_dir = self.shared.deps.config.data_dir.clone();
        let kill_after = self.shared.deps.config.supervisor.kill_after;
        let found = std::fs::read_dir(data_dir.join("run")).into_iter().flatten().flatten();
        let left: Vec<RowId> =
            found.filter_map(|entry| entry.file_name().to_str()?.parse::<RowId>().ok()).filter(|id| !known.contains(id)).collect();
        self.shared.deps.tracker.spawn(async move {
            for id in left {
                if let Some(child) = EngineChild::adopt(&run_dir(&data_dir, id)).await {
                    tracing::info!(server.id = %id, engine.pid = child.pid(), "ending the engine of a row that is gone");
                    child.stop(kill_after).await;
                }
                // What cannot be removed is only untidy.
                let _ = tokio::fs::remove_dir_all(run_dir(&data_dir, id)).await;
                let _ = tokio::fs::remove_dir_all(log_dir(&data_dir, id)).await;
            }
        });
    }

    /// Drains and ends every engine; nothing is left behind. Faster, without the drain, once the token of
    /// [`Deps`] is cancelled.
    pub async fn stop_all(&self) {
        self.end_all(End::Stop).await;
    }

    /// Lets go of every engine without ending it (an upgrade re-adopts them).
    pub async fn release_all(&self) {
        self.end_all(End::Release).await;
    }

    async fn end_all(&self, how: End) {
        let ending: Vec<watch::Sender<Order>> = {
            let mut tasks = self.tasks.lock();
            tasks.ending = true;
            tasks.orders.drain().map(|(_, orders)| orders).collect()
        };
        for orders in &ending {
            end(orders, how);
        }
        for orders in ending {
            orders.closed().await;
        }
    }
}

/// An end once ordered is not taken back: a row that is gone stays gone while the control plane stops.
fn end(orders: &watch::Sender<Order>, how: End) {
    orders.send_if_modified(|order| order.end.replace(order.end.unwrap_or(how)).is_none());
}
