//! The last step before the engine's own program: this binary once more, which ties itself to the guard's life and
//! then becomes the engine. Doing it here needs no code between fork and exec, and so nothing unsafe.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use lifeboat_engines::spec::LaunchPlan;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Second argument of this step.
pub const FLAG: &str = "--exec";
/// Carries the plan: an environment is as private as the engine's own will be, a command line is not.
const PLAN: &str = "LIFEBOAT_ENGINE_PLAN";

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    guard: u32,
    plan: LaunchPlan,
}

/// This program's own file, also when it has been replaced on disk since.
pub fn own_program() -> io::Result<std::path::PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

/// Starts the engine in a process group of its own, and returns once its program runs.
#[expect(clippy::disallowed_methods, reason = "the guard's door to starting the engine")]
pub fn start_engine(plan: &LaunchPlan, folder: &Path, output: &io::PipeWriter) -> io::Result<Child> {
    let step = serde_json::to_string(&Step { guard: std::process::id(), plan: plan.clone() })?;
    let (outcome, held_open) = io::pipe()?;
    let mut command = Command::new(own_program()?);
    command.arg0("lifeboat").args([super::COMMAND, FLAG]).env_clear().env(PLAN, step);
    // The write end stays open in the new process until its program has been replaced: then we read its end.
    command.stdin(Stdio::from(held_open)).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.current_dir(folder).process_group(0).spawn()?;
    drop(command);
    match read_outcome(outcome) {
        Ok(()) => Ok(child),
        Err(error) => {
            child.wait()?;
            Err(error)
        }
    }
}

/// Nothing = the engine runs. Else the error number of the failed exec.
fn read_outcome(mut outcome: PipeReader) -> io::Result<()> {
    let mut bytes = Vec::new();
    outcome.read_to_end(&mut bytes)?;
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Err(_) if bytes.is_empty() => Ok(()),
        Err(_) => Err(io::Error::other("the step before the engine's program failed")),
        Ok(code) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code))),
    }
}

/// Runs in the new process: becomes the engine, or ends with what prevented it.
pub fn become_engine() -> ExitCode {
    let Ok(outcome) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let error = try_to_become_engine().err().unwrap_or_else(|| io::Error::other("exec returned"));
    let code = error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
    // Without a reader there is nobody left to tell.
    let _ = std::fs::File::from(outcome).write_all(&code.to_ne_bytes());
    ExitCode::FAILURE
}

#[expect(clippy::disallowed_methods, reason = "the guard's door to starting the engine")]
fn try_to_become_engine() -> io::Result<()> {
    let text = std::env::var_os(PLAN).map(OsString::into_encoded_bytes).unwrap_or_default();
    let Step { guard, plan } = serde_json::from_slice(&text)?;
    // Should the guard be killed, the kernel ends the engine too; the check below closes the gap before this call.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().is_none_or(|parent| u32::try_from(parent.as_raw_nonzero().get()) != Ok(guard)) {
        return Err(io::Error::from(rustix::io::Errno::SRCH));
    }
    let mut command = Command::new(&plan.program);
    command.args(&plan.args).env_clear().envs(plan.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    Err(command.exec())
}
