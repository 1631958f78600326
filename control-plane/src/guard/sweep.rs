//! Collects every process that descends from the engine, and kills those that outlive it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Signal, WaitOptions};
use tokio::time::Instant;

use crate::guard::Exit;
use crate::host::process;

/// Between two rounds of killing what is left.
const ROUND: Duration = Duration::from_millis(10);
/// After this the guard gives up on processes that even SIGKILL does not end (stuck in a device driver).
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells about every child that ends, until there is none left; then hangs up. Runs in a thread of its own.
pub fn collect(ended: &Sender<(u32, Exit)>) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let exit = Exit { code: status.exit_status(), signal: status.terminating_signal() };
                // The receiver outlives this thread, and if it did not there would be nobody to tell.
                let _ = ended.send((pid.as_raw_nonzero().get().unsigned_abs(), exit));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Kills all descendants until none is left. They are ours even if they left the engine's group and session,
/// because orphans below a subreaper are handed to it.
pub fn kill_descendants(ended: &Receiver<(u32, Exit)>) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        for pid in process::descendants(std::process::id()) {
            process::signal(pid, Signal::KILL);
        }
        if let Err(RecvTimeoutError::Disconnected) = ended.recv_timeout(ROUND) {
            return;
        }
    }
}
