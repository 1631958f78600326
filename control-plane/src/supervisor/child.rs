//! One engine process behind its guard: spawn, adopt, wait, stop. Knows nothing of rows or models.
//!
//! Every engine runs under a small guard process (`lifeboat engine-guard`, this same binary) that owns
//! the log files, reaps descendants, records how the engine ended, and ends it when the control plane
//! has been gone for longer than the lease. So spawned and adopted engines are watched in one way.

use std::path::PathBuf;
use std::time::Duration;

use lifeboat_engines::spec::LaunchPlan;

/// What to spawn and where its traces go.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    /// The process.
    pub plan: LaunchPlan,
    /// Folder of this run: guard record, exit record. Created.
    pub run_dir: PathBuf,
    /// Folder of the logs (`engine.log`, `engine.log.1`, …). Created.
    pub log_dir: PathBuf,
    /// File that names the living control plane (pid and start time).
    pub control_file: PathBuf,
    /// How long the engine may live without a control plane; zero = for ever.
    pub lease: Duration,
    /// Log rotation size, bytes.
    pub log_rotate_bytes: u64,
    /// Rotated logs kept.
    pub log_keep: u32,
}

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one killed it.
    pub signal: Option<i32>,
}

/// A running engine process.
#[derive(Debug)]
pub struct EngineChild {}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
#[error("could not start {program}")]
pub struct SpawnError {
    /// The program.
    pub program: PathBuf,
    /// Cause.
    #[source]
    pub source: std::io::Error,
}

impl EngineChild {
    /// Starts the engine under its guard.
    pub async fn spawn(_spec: ChildSpec) -> Result<Self, SpawnError> {
        todo!()
    }

    /// Process id of the engine itself.
    pub fn pid(&self) -> u32 {
        todo!()
    }

    /// Waits for its end. Cancel-safe, may be called again.
    pub async fn wait(&self) -> Exit {
        todo!()
    }

    /// SIGTERM, a second one after `kill_after`, then SIGKILL of the whole group; returns when nothing is left.
    pub async fn stop(&self, _kill_after: Duration) -> Exit {
        todo!()
    }

    /// The last lines of the log, oldest first.
    pub fn last_log_lines(&self, _count: usize) -> Vec<String> {
        todo!()
    }
}
