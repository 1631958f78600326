//! What the handlers of the REST API work with.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::activator::Activator;
use crate::config::Config;
use crate::engines::Engines;
use crate::events::Events;
use crate::gateway::Pools;
use crate::gateway::active::ActiveRequests;
use crate::jobs::Jobs;
use crate::keys::Keys;
use crate::models::Models;
use crate::recorder::Recorder;
use crate::registry::Registry;
use crate::store::Store;
use crate::supervisor::Supervisor;
use crate::telemetry::metrics::Metrics;

/// Handles on everything the API reads and changes.
#[derive(Debug)]
pub struct ApiDeps {
    /// Settings.
    pub config: Arc<Config>,
    /// Desired rows and keys.
    pub store: Arc<Store>,
    /// Living keys.
    pub keys: Arc<Keys>,
    /// Observed rows.
    pub registry: Arc<Registry>,
    /// Wakes the reconciler after a desired change.
    pub activator: Activator,
    /// Models on disk.
    pub models: Arc<Models>,
    /// Engine builds.
    pub engines: Arc<Engines>,
    /// Row tasks; `None` where only the API is up and no engine is run.
    pub supervisor: Option<Arc<Supervisor>>,
    /// Long work.
    pub jobs: Arc<Jobs>,
    /// What has changed.
    pub events: Arc<Events>,
    /// How requests are shared among the rows of one name.
    pub pools: Pools,
    /// The numbers of `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Writes the request log.
    pub recorder: Arc<Recorder>,
    /// Requests under way.
    pub active: Arc<ActiveRequests>,
    /// When this control plane started.
    pub started: Instant,
    /// Holds small tasks.
    pub tracker: TaskTracker,
    /// The soft stop: long-lived replies end.
    pub stopping: CancellationToken,
}

/// A cheap handle.
#[derive(Debug, Clone)]
pub struct ApiState(Arc<ApiDeps>);

impl ApiState {
    /// Shares the handles.
    pub fn new(deps: ApiDeps) -> Self {
        Self(Arc::new(deps))
    }
}

impl std::ops::Deref for ApiState {
    type Target = ApiDeps;
    fn deref(&self) -> &ApiDeps {
        &self.0
    }
}
