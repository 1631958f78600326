//! Signals, soft and hard stop.
//!
//! The first SIGINT or SIGTERM (or a call of [`Lifecycle::stop`]) is the soft stop: no new connections, the
//! running replies finish, engines are drained and ended. A second one, or the deadline, is the hard stop:
//! whatever still runs is cut off. Every task of the process is on one tracker, so that the end of the stop
//! is the end of the last task.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The two stops and the tasks that obey them. Cloning gives another handle.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Soft stop: take nothing new, finish what runs.
    pub soft: CancellationToken,
    /// Hard stop: end now.
    pub hard: CancellationToken,
    /// Every task of the process.
    pub tracker: TaskTracker,
}

impl Lifecycle {
    /// Nothing stopped yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the soft stop.
    pub fn stop(&self) {
        self.soft.cancel();
    }

    /// Begins the hard stop (and the soft one).
    pub fn stop_now(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Turns the first SIGINT or SIGTERM into the soft stop and the second into the hard one, from now on.
    pub fn obey_signals(&self) -> std::io::Result<()> {
        let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
        self.tracker.spawn(obey(self.clone(), signals));
        Ok(())
    }
}

async fn obey(lifecycle: Lifecycle, [mut interrupt, mut terminate]: [Signal; 2]) {
    let mut wait = async || {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    };
    tokio::select! {
        name = wait() => tracing::info!(signal = name, "stopping; a second signal stops at once"),
        () = lifecycle.soft.cancelled() => {}
    }
    lifecycle.stop();
    tokio::select! {
        name = wait() => tracing::warn!(signal = name, "stopping at once"),
        // The tracker is closed when everything but us has been told to end; nobody may wait for this task then.
        () = lifecycle.hard.cancelled() => {}
    }
    lifecycle.stop_now();
}
