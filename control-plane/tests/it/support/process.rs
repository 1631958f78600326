//! Processes as the operating system sees them. The only door of the tests to starting one.

use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

/// A command for a test; clippy keeps every other place from building one.
#[expect(clippy::disallowed_methods, reason = "the tests' one door to starting processes; they may not use the product's")]
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.stdin(Stdio::null());
    command
}

/// Polls `condition` until it gives a value, or panics with `what` after `within`.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, within: Duration, mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// A loopback port that was free a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Sends a signal to one process; false if there is no such process.
pub fn send_signal(pid: u32, signal: Signal) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Whether the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    threads_state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The state letter of a process (`R`, `S`, `T`, `Z`, …); `None` if it is gone.
pub fn threads_state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// The parent of a process.
pub fn parent_of(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

/// The fields of `/proc/<pid>/stat` after the program name, which may itself hold spaces and brackets.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Living processes that name `marker` in their arguments, environment or working directory, each with its command line.
pub fn processes_naming(marker: &Path) -> Vec<(u32, String)> {
    let marker = marker.to_str().unwrap().as_bytes();
    let names = |text: &[u8]| text.windows(marker.len()).any(|window| window == marker);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() || !alive(pid) {
            continue;
        }
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let folder = fs::read_link(entry.path().join("cwd")).map(|path| path.into_os_string().into_encoded_bytes()).unwrap_or_default();
        if names(&arguments) || names(&environment) || names(&folder) {
            found.push((pid, String::from_utf8_lossy(&arguments).replace('\0', " ")));
        }
    }
    found
}

/// A child process of a test: killed when dropped, so that a failed test leaves nothing.
#[derive(Debug)]
pub struct Served(Child);

impl Served {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for its end, at most so long; blocks the thread, because drops call it too.
    pub fn wait_at_most(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it as a power cut would, and reaps it.
    pub fn kill(&mut self) {
        // An error means that it is gone already, which is what is wanted.
        let _gone = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _gone = self.0.kill();
            let _reaped = self.0.wait();
        }
    }
}
