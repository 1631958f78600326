//! All rows of one name, as the rest of the program sees them: how they choose, how hot they are, who waits.
//!
//! A handle on the data plane's admission for those who show or set something; nothing here is on the way of a request.

use std::sync::Arc;

use super::admission::Admission;
pub use super::admission::PoolView;
pub use super::retries::RetriesView;
use crate::activator::Activator;
use crate::config::GatewayConfig;
use crate::registry::Registry;
use crate::routing::Mode;
use crate::telemetry::metrics::Metrics;

/// A handle on all pools.
#[derive(Debug, Clone)]
pub struct Pools(pub(super) Arc<Admission>);

impl Pools {
    /// The pools of this registry. Nothing happens before the gateway's routes are made.
    pub fn new(registry: Arc<Registry>, activator: Activator, metrics: Arc<Metrics>, config: GatewayConfig) -> Self {
        Self(Admission::new(registry, activator, metrics, config))
    }

    /// Sets how the pool of that public name chooses, from now on.
    pub fn set_mode(&self, name: &str, mode: Mode) {
        self.0.set_mode(name, mode);
    }

    /// A pool with the load of its rows that are up; `None` = no row has this name.
    pub fn view(&self, name: &str) -> Option<PoolView> {
        self.0.view(name)
    }
}
