//! Signals, soft and hard stop.
//!
//! The first SIGINT or SIGTERM (or a call of [`Lifecycle::stop`]) is the soft stop: no new connections, the
//! running replies finish, engines are drained and ended. A second one, or the deadline, is the hard stop:
//! whatever still runs is cut off. SIGUSR1 is a soft stop that leaves the engines running for the next control
//! plane to take over: an upgrade without a reload. Every task of the process is on one tracker, so that the end of the stop
//! is the end of the last task.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const HANDOVER: &str = "SIGUSR1";

/// The two stops and the tasks that obey them. Cloning gives another handle.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Soft stop: take nothing new, finish what runs.
    pub soft: CancellationToken,
    /// Hard stop: end now.
    pub hard: CancellationToken,
    /// The soft stop leaves the engines to the next control plane. Looked at once the soft stop has begun.
    pub handover: CancellationToken,
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

    /// Begins the soft stop that leaves the engines running.
    pub fn hand_over(&self) {
        self.handover.cancel();
        self.soft.cancel();
    }

    /// Turns the first SIGINT, SIGTERM or SIGUSR1 into the soft stop and the second into the hard one, from now on.
    pub fn obey_signals(&self) -> std::io::Result<()> {
        let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::user_defined1())?];
        self.tracker.spawn(obey(self.clone(), signals));
        Ok(())
    }
}

async fn obey(lifecycle: Lifecycle, [mut interrupt, mut terminate, mut handover]: [Signal; 3]) {
    let mut wait = async || {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = handover.recv() => HANDOVER,
        }
    };
    let first = tokio::select! {
        name = wait() => Some(name),
        () = lifecycle.soft.cancelled() => None,
    };
    match first {
        Some(HANDOVER) => {
            tracing::info!(signal = HANDOVER, "stopping, engines stay for the next control plane");
            lifecycle.hand_over();
        }
        Some(name) => {
            tracing::info!(signal = name, "stopping; a second signal stops at once");
            lifecycle.stop();
        }
        None => {}
    }
    tokio::select! {
        name = wait() => tracing::warn!(signal = name, "stopping at once"),
        // The end of an orderly stop; nobody may wait for this task then.
        () = lifecycle.hard.cancelled() => {}
    }
    lifecycle.stop_now();
}
