//! Wakes the reconciler. Carries no data: the reconciler reads the world itself, so a lost or a
//! doubled wake-up changes nothing but the time of the next look.

use std::sync::Arc;

use tokio::sync::Notify;

/// A cheap handle; clone it into whatever changes desired rows or demand.
#[derive(Debug, Clone, Default)]
pub struct Activator(Arc<Notify>);

impl Activator {
    /// Asks for one more pass. Any number of calls before that pass count as one.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Waits for the next call of [`Activator::wake`], or returns at once if one is pending.
    pub async fn woken(&self) {
        self.0.notified().await;
    }
}
