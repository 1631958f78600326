//! The one door to starting helper programs (pip, cmake). Engines are started by `supervisor::child`.

use std::path::Path;

/// A command with an empty environment but for what a program needs to find its tools and its home, no stdin,
/// in a process group of its own, killed when dropped.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn command(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program.as_ref());
    command.stdin(std::process::Stdio::null()).process_group(0).kill_on_drop(true);
    command
}
