//! The one door to starting helper programs (pip, cmake) and guards. Engines themselves are started by their guard.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

/// What a helper program may see of our environment: where programs, home and temporary files are, the language of
/// messages, and how to get through to a package registry. Tokens, keys and engine settings are not among it.
const PASSED_ON: [&str; 24] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "XDG_CONFIG_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_CONFIG_FILE",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "CC",
    "CXX",
];

fn passed_on() -> impl Iterator<Item = (&'static str, OsString)> {
    PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)))
}

/// A command with an empty environment but for what a program needs to find its tools and its home, no stdin,
/// in a process group of its own, killed when dropped.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn command(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program.as_ref());
    command.env_clear().envs(passed_on());
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

/// As [`command`], for a short question asked from a blocking thread.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn question(program: impl AsRef<Path>) -> std::process::Command {
    let mut command = std::process::Command::new(program.as_ref());
    command.env_clear().envs(passed_on());
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    command
}

/// Runs the tool that follows and ends the whole process group when the other end of standard input closes, which the
/// kernel sees to however the process at that end dies. The tool itself reads nothing.
const WATCHED: &str = r#"exec 3<&0
"$@" 3<&- </dev/null &
tool=$!
( read -r nothing <&3; kill -KILL 0 ) >/dev/null 2>&1 &
wait "$tool"
exit $?"#;

/// A command as [`command`] makes it that does not outlive this process, as long as the near end of its standard input
/// is kept ([`super::tool::run`] does). A death by signal shows as exit code 128 + its number.
pub fn watched(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut watched = command("/bin/sh");
    watched.args(["-c", WATCHED, "sh"]).arg(program.as_ref()).stdin(std::process::Stdio::piped());
    watched
}

/// A command with an empty environment that goes on living after us. It stays in our process group, because only a
/// process that leads no group can begin a session of its own, which is the first thing a guard does.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn guard(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program.as_ref());
    command.env_clear();
    command
}
