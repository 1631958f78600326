//! One engine process behind its guard: spawn, adopt, wait, stop. Knows nothing of rows or models.
//!
//! Every engine runs under a small guard process (see [`crate::guard`]) that owns the log files, reaps descendants,
//! records how the engine ended, and ends it when the control plane has been gone for longer than the lease. So
//! spawned and adopted engines are watched in one way: an engine has ended when its guard has.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lifeboat_engines::spec::LaunchPlan;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::logs;
pub use crate::guard::Exit;
use crate::guard::{Answer, Instructions, Record};
use crate::host::process::{self, Usage, Watch};
use crate::host::{files, spawn};

/// What to spawn and where its traces go.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    /// The process.
    pub plan: LaunchPlan,
    /// Folder of this run: guard record, exit record. Created.
    pub run_dir: PathBuf,
    /// Folder of the logs (`engine.log`, `engine.log.1`, …). Created.
    pub log_dir: PathBuf,
    /// File that names the living control plane ([`crate::host::instance`]).
    pub control_file: PathBuf,
    /// How long the engine may live without a control plane; zero = for ever.
    pub lease: Duration,
    /// From the first stop signal to the kill, when the lease ends it.
    pub kill_after: Duration,
    /// Log rotation size, bytes.
    pub log_rotate_bytes: u64,
    /// Rotated logs kept.
    pub log_keep: u32,
    /// The program that runs as guard. `None` = this one.
    pub guard_program: Option<PathBuf>,
    /// Kept in the record, private to this user, for whoever adopts the engine.
    pub note: serde_json::Value,
}

/// Longest wait for the guard's answer: it only has to start a program.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest answer, bytes.
const ANSWER_BYTES: u64 = 1 << 20;
/// From the second stop signal to the kill.
pub const SECOND_SIGNAL: Duration = Duration::from_secs(1);
/// From the kill until its guard must have gone too; the guard itself gives up on unkillable processes after 10 s.
const SWEEP: Duration = Duration::from_secs(15);

/// A running engine process. Dropping the handle does not end the engine.
#[derive(Debug)]
pub struct EngineChild {
    run_dir: PathBuf,
    record: Record,
    guard: Watch,
}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
#[error("could not start {program}")]
pub struct SpawnError {
    /// The program.
    pub program: PathBuf,
    /// Cause.
    #[source]
    pub source: io::Error,
}

/// A guard whose engine nobody has taken over: it does not speak, or whoever waited for it has gone. Its drop ends both,
/// because a handle that is only dropped would let them live. Declared after the handle of the process, so that the id is
/// still that of the guard.
struct Unclaimed(Option<u32>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(guard) = self.0 else { return };
        for pid in process::descendants(guard).into_iter().chain([guard]) {
            process::signal(pid, Signal::KILL);
        }
    }
}

impl EngineChild {
    /// Starts the engine under its guard. The run folder must belong to no running engine.
    pub async fn spawn(spec: ChildSpec) -> Result<Self, SpawnError> {
        let program = spec.plan.program.clone();
        Self::try_spawn(spec).await.map_err(|source| SpawnError { program, source })
    }

    /// Whoever stops waiting half way leaves nothing behind ([`Unclaimed`]).
    async fn try_spawn(spec: ChildSpec) -> io::Result<Self> {
        files::create_private_dir(&spec.run_dir)?;
        crate::guard::clear(&spec.run_dir)?;
        let run_dir = spec.run_dir.clone();
        let program = spec.guard_program.map_or_else(crate::guard::own_program, Ok)?;
        let instructions = serde_json::to_vec(&Instructions {
            plan: spec.plan,
            run_dir: spec.run_dir,
            log_dir: spec.log_dir,
            control_file: spec.control_file,
            lease: spec.lease,
            kill_after: spec.kill_after,
            log_rotate_bytes: spec.log_rotate_bytes,
            log_keep: spec.log_keep,
            note: spec.note,
        })?;
        let mut command = spawn::guard(program);
        command.arg0("lifeboat").arg(crate::guard::COMMAND);
        // The folder this process was started in may have to be unmounted while the engine lives on.
        command.current_dir(&run_dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = command.spawn()?;
        let mut unclaimed = Unclaimed(guard.id());
        let (Some(mut stdin), Some(stdout)) = (guard.stdin.take(), guard.stdout.take()) else {
            return Err(io::Error::other("the guard has no pipes"));
        };
        let exchange = async {
            stdin.write_all(&instructions).await?;
            drop(stdin);
            let mut line = Vec::new();
            BufReader::new(stdout.take(ANSWER_BYTES)).read_until(b'\n', &mut line).await?;
            Ok::<_, io::Error>(line)
        };
        let answer = match tokio::time::timeout(ANSWER, exchange).await {
            Ok(Ok(line)) if !line.is_empty() => serde_json::from_slice(&line).map_err(io::Error::from),
            Ok(Ok(_)) => Err(io::Error::other("the guard ended without an answer")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the guard did not answer")),
        };
        match answer {
            Ok(Answer::Started(record)) => {
                let guard = Watch::open(record.guard.clone())?;
                unclaimed.0 = None;
                Ok(Self { run_dir, record, guard })
            }
            Ok(Answer::Failed { code: Some(code), .. }) => Err(io::Error::from_raw_os_error(code)),
            Ok(Answer::Failed { code: None, message }) => Err(io::Error::other(message)),
            Err(error) => Err(error),
        }
    }

    /// Takes over the engine that another control plane left in a run folder, if it is still the same process under
    /// its guard. Whatever else is left there is ended first.
    pub async fn adopt(run_dir: &Path) -> Option<Self> {
        let record = Record::read(run_dir)?;
        let guarded = record.guard.lives();
        if !guarded && !record.engine.lives() {
            return None;
        }
        let child = Self { guard: Watch::open(record.guard.clone()).ok()?, run_dir: run_dir.to_owned(), record };
        let same_program = process::command_line_digest(child.record.engine.pid).is_some_and(|digest| digest == child.record.command_line);
        if guarded && child.record.engine.lives() && same_program {
            return Some(child);
        }
        child.kill().await;
        None
    }

    /// Process id of the engine itself.
    pub const fn pid(&self) -> u32 {
        self.record.engine.pid
    }

    /// What the starter had kept.
    pub const fn note(&self) -> &serde_json::Value {
        &self.record.note
    }

    /// Folder of its logs.
    pub fn log_dir(&self) -> &Path {
        &self.record.log_dir
    }

    /// What the engine's process group has used so far. Read off the async threads: it looks through all of /proc.
    pub async fn usage(&self) -> Usage {
        let pid = self.pid();
        // A reading that is lost looks like movement, and the next one is compared with it.
        tokio::task::spawn_blocking(move || process::group_usage(pid)).await.unwrap_or_default()
    }

    /// Waits for its end. Cancel-safe, may be called again.
    pub async fn wait(&self) -> Exit {
        self.guard.ended().await;
        if let Some(exit) = Exit::read(&self.run_dir) {
            return exit;
        }
        // The guard was killed: what it watched over must not go on. Its session holds nothing else.
        loop {
            let left = process::session_members(self.record.guard.pid);
            if left.is_empty() {
                return Exit::default();
            }
            for pid in left {
                process::signal(pid, Signal::KILL);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGTERM, a second one after `kill_after`, then SIGKILL of the whole group; returns when nothing is left.
    pub async fn stop(&self, kill_after: Duration) -> Exit {
        for patience in [kill_after, SECOND_SIGNAL] {
            self.signal(Signal::TERM);
            // A stopped process does not hear the signal until it goes on.
            self.signal(Signal::CONT);
            if let Ok(exit) = tokio::time::timeout(patience, self.wait()).await {
                return exit;
            }
        }
        self.kill().await
    }

    /// SIGKILL of the whole group at once; returns when nothing is left.
    pub async fn kill(&self) -> Exit {
        self.signal(Signal::KILL);
        if let Ok(exit) = tokio::time::timeout(SWEEP, self.wait()).await {
            return exit;
        }
        // The guard hangs or was stopped: its part of the work is done here.
        let guard = &self.record.guard;
        if guard.lives() {
            for pid in process::descendants(guard.pid).into_iter().chain([guard.pid]) {
                process::signal(pid, Signal::KILL);
            }
        }
        tokio::time::timeout(SWEEP, self.wait()).await.unwrap_or_default()
    }

    /// Signals the engine's group, unless the engine's id may belong to somebody else by now.
    fn signal(&self, signal: Signal) {
        if self.record.engine.lives() {
            process::signal_group(self.pid(), signal);
        }
    }

    /// The last lines of the log, oldest first.
    pub fn last_log_lines(&self, count: usize) -> Vec<String> {
        logs::last_lines_of_run(&self.record.log_dir, count)
    }
}
