//! Connections that wait for the next request to their engine.
//!
//! Engines close idle connections (llama-server after 5 s), so ours are given up before that. A task does it while there are
//! any, and ends with the last of them, or with the soft stop.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connector::Wire;

/// Idle connections are given up before llama-server closes them at 5 s.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// How often that is looked after.
const SWEEP: Duration = Duration::from_millis(500);
/// Idle connections kept for one engine; as many as a row may have slots.
const MAX_KEPT: usize = 256;

/// Whom a connection leads to.
pub(super) type Engine = (Scheme, Authority);

/// A connection, and when it became idle.
#[derive(Debug)]
struct Idle {
    wire: Wire,
    since: Instant,
}

#[derive(Debug, Default)]
struct Kept {
    /// The last one to come is the first to go: what is not needed grows old.
    idle: HashMap<Engine, Vec<Idle>>,
    is_swept: bool,
}

/// All idle connections.
#[derive(Debug)]
pub(super) struct Pool {
    kept: Mutex<Kept>,
    tracker: TaskTracker,
    stopping: CancellationToken,
}

impl Pool {
    /// Keeps nothing once `stopping` is cancelled.
    pub(super) fn new(tracker: TaskTracker, stopping: CancellationToken) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), tracker, stopping })
    }

    /// A connection that was good a moment ago.
    pub(super) fn take(&self, engine: &Engine) -> Option<Wire> {
        let mut kept = self.kept.lock();
        let idle = kept.idle.get_mut(engine)?;
        while let Some(mut last) = idle.pop() {
            if last.since.elapsed() < MAX_IDLE && last.wire.is_quiet() {
                return Some(last.wire);
            }
        }
        None
    }

    /// Keeps a connection on which a reply has just ended.
    pub(super) fn put(self: &Arc<Self>, engine: Engine, wire: Wire) {
        if self.stopping.is_cancelled() {
            return;
        }
        let mut kept = self.kept.lock();
        let idle = kept.idle.entry(engine).or_default();
        if idle.len() < MAX_KEPT {
            idle.push(Idle { wire, since: Instant::now() });
        }
        if !std::mem::replace(&mut kept.is_swept, true) {
            self.tracker.spawn(Arc::clone(self).sweep());
        }
    }

    async fn sweep(self: Arc<Self>) {
        let is_over = || {
            let mut kept = self.kept.lock();
            kept.idle.retain(|_, idle| {
                let old = idle.partition_point(|idle| idle.since.elapsed() >= MAX_IDLE);
                idle.drain(..old);
                !idle.is_empty()
            });
            kept.is_swept = !kept.idle.is_empty();
            !kept.is_swept
        };
        loop {
            tokio::select! {
                () = sleep(SWEEP) => if is_over() { return },
                () = self.stopping.cancelled() => break,
            }
        }
        *self.kept.lock() = Kept::default();
    }
}
