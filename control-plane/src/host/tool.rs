//! Runs a helper program to its end: reads its output line by line, watches that it gets on, and ends
//! it with its whole process group when it does not, when nobody waits any more, or when this process dies.
//!
//! There is no limit on the time a tool may take (a source build takes an hour on a small board), only
//! on the time it may show no sign of life. Output is bounded: long lines are cut, few are kept.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::Instant;

/// Bytes kept of one line.
const LINE_BYTES: usize = 4096;
/// Lines kept for the error message.
const KEPT_LINES: usize = 40;
/// How often the watcher is asked for a sign of life.
const TICK: Duration = Duration::from_millis(250);
/// How long output may trickle in from grandchildren once the tool itself has ended.
const LINGER: Duration = Duration::from_secs(1);

/// What a watcher hears.
#[derive(Debug, Clone, Copy)]
pub enum ToolEvent<'a> {
    /// The tool printed a line (stdout or stderr). Always a sign of life.
    Line(&'a str),
    /// A moment has passed: the watcher answers whether it sees work going on (a file that grows).
    Tick,
}

/// How a tool ended.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its last lines, oldest first.
    pub last_lines: Vec<String>,
}

/// Why a tool has no exit status.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be started.
    #[error("could not start {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It ran, but its end could not be read.
    #[error("lost track of {program}")]
    Lost {
        /// The program.
        program: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It showed no sign of life for too long and was ended.
    #[error("{program} showed no progress for {} s and was ended", stall.as_secs())]
    Stalled {
        /// The program.
        program: PathBuf,
        /// The limit that passed.
        stall: Duration,
    },
}

/// Runs `command` (from `host::spawn::watched`) to its end. `watch` hears every line and, between
/// lines, ticks; it returns whether it saw a sign of life. Dropping the future ends the tool.
pub async fn run(mut command: Command, stall: Duration, mut watch: impl FnMut(ToolEvent<'_>) -> bool) -> Result<ToolOutput, ToolError> {
    let program = named(&command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| ToolError::Start { program: program.clone(), source })?;
    let _group = Group(child.id());
    // Closed by our end, however it comes; nothing is ever written to it.
    let _lifeline = child.stdin.take();
    let (mut out, mut err) = (LineReader::new(child.stdout.take()), LineReader::new(child.stderr.take()));
    let mut kept = VecDeque::with_capacity(KEPT_LINES);
    let mut tick = tokio::time::interval(TICK);
    let mut alive_at = Instant::now();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        let lines = tokio::select! {
            biased;
            lines = out.read(), if out.is_open() => lines,
            lines = err.read(), if err.is_open() => lines,
            status = child.wait(), if ended.is_none() => {
                let status = status.map_err(|source| ToolError::Lost { program: program.clone(), source })?;
                ended = Some((status, Instant::now()));
                Vec::new()
            }
            _ = tick.tick() => {
                if watch(ToolEvent::Tick) {
                    alive_at = Instant::now();
                }
                Vec::new()
            }
        };
        for line in lines {
            watch(ToolEvent::Line(&line));
            alive_at = Instant::now();
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
        if let Some((status, at)) = ended
            && (at.elapsed() >= LINGER || !(out.is_open() || err.is_open()))
        {
            return Ok(ToolOutput { status, last_lines: kept.into() });
        }
        if ended.is_none() && alive_at.elapsed() >= stall {
            return Err(ToolError::Stalled { program, stall });
        }
    }
}

/// The tool behind the shell that watches over it.
fn named(command: &Command) -> PathBuf {
    command.as_std().get_args().nth(3).map_or_else(|| command.as_std().get_program().into(), PathBuf::from)
}

/// Ends the tool's process group when the run is over or given up: a compiler or an installer's
/// helper must not outlive the one who asked.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = self.0.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // No such group is the usual case: everything has ended by itself.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Splits a pipe into lines of bounded length; a carriage return ends a line too (progress bars).
struct LineReader<R> {
    pipe: Option<R>,
    buffer: [u8; 4096],
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    fn new(pipe: Option<R>) -> Self {
        Self { pipe, buffer: [0; 4096], line: Vec::new() }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads once (cancel-safe: one `read` call) and returns the lines completed by it.
    async fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(pipe) = self.pipe.as_mut() else { return lines };
        let count = pipe.read(&mut self.buffer).await.unwrap_or(0);
        if count == 0 {
            self.pipe = None;
            self.finish(&mut lines);
            return lines;
        }
        for index in 0..count {
            match self.buffer.get(index).copied() {
                Some(b'\n' | b'\r') => self.finish(&mut lines),
                Some(byte) if self.line.len() < LINE_BYTES => self.line.push(byte),
                _ => {}
            }
        }
        lines
    }

    fn finish(&mut self, lines: &mut Vec<String>) {
        if !self.line.is_empty() {
            lines.push(String::from_utf8_lossy(&self.line).into_owned());
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::spawn;

    fn shell(script: &str) -> Command {
        let mut command = spawn::watched("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    #[tokio::test]
    async fn lines_of_both_pipes_are_heard_and_the_status_is_told() {
        let mut heard = Vec::new();
        let output = run(shell("echo one; printf 'two\\rthree\\n'; echo four >&2; exit 3"), Duration::from_secs(20), |event| {
            if let ToolEvent::Line(line) = event {
                heard.push(line.to_owned());
            }
            false
        })
        .await
        .unwrap();
        assert_eq!(output.status.code(), Some(3));
        heard.sort();
        assert_eq!(heard, ["four", "one", "three", "two"]);
        assert_eq!(output.last_lines.len(), 4);
    }

    #[tokio::test]
    async fn a_tool_without_a_sign_of_life_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sh -c 'echo $$ > {0}; exec sleep 600' & wait", pid_file.display());
        let failure = run(shell(&script), Duration::from_millis(600), |_| false).await.unwrap_err();
        assert!(matches!(failure, ToolError::Stalled { .. }), "{failure:?}");
        wait_until_gone(std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap()).await;
    }

    #[tokio::test]
    async fn a_death_by_signal_shows_as_a_shell_shows_it_and_a_missing_tool_as_127() {
        let killed = run(shell("kill -ILL $$"), Duration::from_secs(20), |_| false).await.unwrap();
        assert_eq!(killed.status.code(), Some(128 + 4));
        let missing = run(spawn::watched("/no/such/tool"), Duration::from_secs(20), |_| false).await.unwrap();
        assert_eq!(missing.status.code(), Some(127));
        assert!(missing.last_lines[0].contains("/no/such/tool"), "{:?}", missing.last_lines);
    }

    #[tokio::test]
    async fn a_tool_ends_with_all_its_children_when_the_one_who_asked_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let mut child = shell(&format!("sh -c 'echo $$ > {0}; exec sleep 600' & wait", pid_file.display())).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let pid = loop {
            if let Ok(pid) = std::fs::read_to_string(&pid_file).unwrap_or_default().trim().parse::<u32>() {
                break pid;
            }
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        // What the kernel does with the pipe of a process that was killed.
        drop(child.stdin.take());
        child.wait().await.unwrap();
        wait_until_gone(pid).await;
    }

    async fn wait_until_gone(pid: u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        // Ended, or a zombie that its new parent has not collected yet.
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| !text.contains(") Z ")) {
            assert!(Instant::now() < deadline, "{pid} lives on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_watcher_that_sees_work_keeps_a_silent_tool_alive() {
        let output = run(shell("sleep 1.2; echo done"), Duration::from_millis(600), |_| true).await.unwrap();
        assert_eq!(output.last_lines, ["done"]);
    }

    #[tokio::test]
    async fn an_endless_line_is_cut() {
        let output = run(shell("head -c 100000 /dev/zero | tr '\\0' x; echo"), Duration::from_secs(20), |_| false).await.unwrap();
        assert_eq!(output.last_lines.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES]);
    }
}
