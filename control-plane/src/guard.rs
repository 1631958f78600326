//! The guard: a small process between the control plane and each engine (`lifeboat engine-guard`, this same binary
//! without an async runtime).
//!
//! Why a process of its own: an engine must outlive a crash of the control plane, yet must not outlive its purpose.
//! The guard owns what has to go on meanwhile: the pipe behind the engine's output and its rotated log files, the
//! collection of every descendant (it is their subreaper), the record by which a new control plane finds the engine
//! again, and the lease that ends an engine whose control plane does not return. Spawned and adopted engines are
//! therefore watched in one way: by the end of their guard.
//!
//! The guard never decides about rows, never talks to the engine, never listens, and puts no secret on a command
//! line: its instructions come through its stdin.

mod exec;
mod lease;
mod log;
mod run;
mod sweep;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lifeboat_engines::spec::LaunchPlan;
use serde::{Deserialize, Serialize};

pub use self::exec::own_program;
use crate::host::process::Identity;

/// The first argument that makes this binary a guard.
pub const COMMAND: &str = "engine-guard";
/// The current log of an engine, in its log folder.
pub const LOG_FILE: &str = "engine.log";
/// Begins every line that the guard itself writes into the log.
pub const MARK: &str = "=== lifeboat: ";
/// Ends the mark of the line written at each start.
pub const STARTED: &str = "engine started";
const RECORD_FILE: &str = "guard.json";
const EXIT_FILE: &str = "exit.json";

/// What a guard is told, through its stdin.
#[derive(Debug, Serialize, Deserialize)]
pub struct Instructions {
    /// The engine.
    pub plan: LaunchPlan,
    /// Folder of this run.
    pub run_dir: PathBuf,
    /// Folder of the logs.
    pub log_dir: PathBuf,
    /// File with the [`Identity`] of the living control plane.
    pub control_file: PathBuf,
    /// How long the engine may live without one; zero = for ever.
    pub lease: Duration,
    /// From the stop signal to the kill, when the lease has ended.
    pub kill_after: Duration,
    /// Log rotation size, bytes.
    pub log_rotate_bytes: u64,
    /// Rotated logs kept.
    pub log_keep: u32,
    /// What the starter wants to find again; means nothing to the guard.
    pub note: serde_json::Value,
}

/// What a guard leaves beside a running engine (`guard.json`), so that another control plane can take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The guard.
    pub guard: Identity,
    /// The engine. Leads its own process group.
    pub engine: Identity,
    /// Digest of the engine's command line.
    pub command_line: String,
    /// Where its output goes.
    pub log_dir: PathBuf,
    /// Unix milliseconds.
    pub started_at: i64,
    /// As instructed.
    pub note: serde_json::Value,
}

impl Record {
    /// The record of a run folder; `None` if there is none that can be read.
    pub fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(run_dir.join(RECORD_FILE)).ok()?).ok()
    }

    fn write(&self, run_dir: &Path) -> io::Result<()> {
        crate::host::files::write_private(&run_dir.join(RECORD_FILE), &serde_json::to_vec(self)?)
    }
}

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one killed it.
    pub signal: Option<i32>,
}

impl Exit {
    /// What the guard of a run folder wrote last; `None` if the guard itself was killed.
    pub fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(run_dir.join(EXIT_FILE)).ok()?).ok()
    }

    fn write(self, run_dir: &Path) -> io::Result<()> {
        crate::host::files::write_private(&run_dir.join(EXIT_FILE), &serde_json::to_vec(&self)?)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("an end nobody saw (its guard was killed)"),
        }
    }
}

/// What a guard answers on its stdout: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The engine's program runs.
    Started(Record),
    /// It does not.
    Failed {
        /// The system's error number, where there is one.
        code: Option<i32>,
        /// In words.
        message: String,
    },
}

/// Removes what an earlier run left in a run folder.
pub fn clear(run_dir: &Path) -> io::Result<()> {
    crate::host::files::remove_if_there(&run_dir.join(RECORD_FILE))?;
    crate::host::files::remove_if_there(&run_dir.join(EXIT_FILE))
}

/// Runs as a guard if the command line says so. To be asked first thing in `main`, before a runtime exists.
pub fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != COMMAND {
        return None;
    }
    Some(if arguments.next().is_some_and(|argument| argument == exec::FLAG) { exec::become_engine() } else { guard() })
}

fn guard() -> ExitCode {
    let mut text = Vec::new();
    let instructions = io::stdin().lock().read_to_end(&mut text).and_then(|_| Ok(serde_json::from_slice::<Instructions>(&text)?));
    drop(text);
    let started = instructions.and_then(run::start);
    let answer = match &started {
        Ok(running) => Answer::Started(running.record().clone()),
        Err(error) => Answer::Failed { code: error.raw_os_error(), message: error.to_string() },
    };
    if let Ok(mut line) = serde_json::to_vec(&answer) {
        line.push(b'\n');
        // A control plane that is gone by now is the lease's business.
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
    match started {
        Ok(running) => running.until_end(),
        Err(_) => ExitCode::FAILURE,
    }
}
