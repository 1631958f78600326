//! The guard's life: start the engine, watch it, clean up behind it.

use std::io::{self, PipeReader};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::time::Instant;

use super::lease::{Lease, control_plane_lives};
use super::log::{RotatedLog, pump};
use super::{Exit, Instructions, Record, STARTED, exec, sweep};
use crate::host::process::{self, Identity};

/// How often the guard looks at the lease.
const TICK: Duration = Duration::from_secs(1);
/// What the log may still take after everybody has gone.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Signals that ask the guard to go. It stays: it goes when the engine has gone.
const DEAF_TO: [i32; 4] =
    [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP, signal_hook::consts::SIGQUIT];

/// A guard with its engine.
#[derive(Debug)]
pub struct Running {
    instructions: Instructions,
    record: Record,
    log: Arc<Mutex<RotatedLog>>,
    output: PipeReader,
}

/// Starts the engine as instructed.
pub fn start(instructions: Instructions) -> io::Result<Running> {
    // Away from the terminal: neither its Ctrl-C nor its end is for engines. And should this guard be killed, its
    // session is where the control plane finds what it left.
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    for signal in DEAF_TO {
        // A handler, because the engine would inherit "ignored" but never inherits a handler.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    crate::host::files::create_private_dir(&instructions.run_dir)?;
    crate::host::files::create_private_dir(&instructions.log_dir)?;
    let mut log = RotatedLog::open(instructions.log_dir.clone(), instructions.log_rotate_bytes, instructions.log_keep);
    log.mark(&format!("{STARTED}: {}", instructions.plan.program.display()));

    let (output, input) = io::pipe()?;
    let started = exec::start_engine(&instructions.plan, &instructions.run_dir, &input);
    drop(input);
    let pid = started.inspect_err(|error| log.mark(&format!("could not start {}: {error}", instructions.plan.program.display())))?.id();
    let (Some(guard), Some(engine)) = (Identity::current(), Identity::of(pid)) else {
        return Err(io::Error::other("/proc does not show the new process"));
    };
    let record = Record {
        guard,
        engine,
        command_line: process::command_line_digest(pid).unwrap_or_default(),
        log_dir: instructions.log_dir.clone(),
        started_at: crate::host::clock::unix_millis(),
        note: instructions.note.clone(),
    };
    if let Err(error) = record.write(&instructions.run_dir) {
        // An engine nobody could find again must not run.
        process::signal_group(pid, Signal::KILL);
        return Err(error);
    }
    Ok(Running { instructions, record, log: Arc::new(Mutex::new(log)), output })
}

impl Running {
    /// What the guard has written about it.
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Watches the engine until it ends, then ends what it left behind.
    pub fn until_end(self) -> ExitCode {
        let Self { instructions, mut record, log, output } = self;
        let (ended_tx, ended) = channel();
        std::thread::spawn(move || sweep::collect(&ended_tx));
        let pumping = {
            let log = Arc::clone(&log);
            std::thread::spawn(move || pump(output, &log))
        };

        let exit = watch(&instructions, &mut record, &ended, &log);
        process::signal_group(record.engine.pid, Signal::KILL);
        sweep::kill_descendants(&ended);
        let deadline = Instant::now() + LAST_OUTPUT;
        while !pumping.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        log.lock().mark(&format!("engine ended: {exit}"));
        // Whoever waits reads an end nobody saw if this cannot be written (a full disk).
        let written = exit.write(&instructions.run_dir).is_ok();
        let _ = crate::host::files::remove_if_there(&instructions.run_dir.join(super::RECORD_FILE));
        if written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Who started this guard, as long as it lives.
fn parent() -> Option<u32> {
    u32::try_from(rustix::process::getppid()?.as_raw_nonzero().get()).ok()
}

/// Returns when the engine has ended, by itself or by the end of the lease.
fn watch(instructions: &Instructions, record: &mut Record, ended: &Receiver<(u32, Exit)>, log: &Mutex<RotatedLog>) -> Exit {
    let engine = record.engine.pid;
    let mut lease = Lease::new(instructions.lease);
    let mut stopping: Option<Instant> = None;
    loop {
        match ended.recv_timeout(TICK) {
            Ok((pid, exit)) if pid == engine => return exit,
            Err(RecvTimeoutError::Disconnected) => return Exit::default(),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        let now = Instant::now();
        if let Some(since) = stopping {
            if now.saturating_duration_since(since) >= instructions.kill_after {
                process::signal_group(engine, Signal::KILL);
            }
        } else if lease.has_ended(control_plane_lives(&instructions.control_file, parent()), now) {
            log.lock().mark("no control plane came back within the lease, ending the engine");
            process::signal_group(engine, Signal::TERM);
            process::signal_group(engine, Signal::CONT);
            stopping = Some(now);
        }
        note_new_command_line(instructions, record);
    }
}

/// An engine behind a launcher script changes its command line when the script becomes the engine.
fn note_new_command_line(instructions: &Instructions, record: &mut Record) {
    if let Some(digest) = process::command_line_digest(record.engine.pid)
        && digest != record.command_line
    {
        record.command_line = digest;
        // Tried again at the next look if the disk was full.
        if record.write(&instructions.run_dir).is_err() {
            record.command_line.clear();
        }
    }
}
