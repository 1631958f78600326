//! The one door to starting helper programs (pip, cmake) and guards. Engines themselves are started by their guard.

use std::path::Path;

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

/// A command with an empty environment but for what a program needs to find its tools and its home, no stdin,
/// in a process group of its own, killed when dropped.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn command(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program.as_ref());
    command.env_clear().envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(std::process::Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

/// A command with an empty environment that goes on living after us. It stays in our process group, because only a
/// process that leads no group can begin a session of its own, which is the first thing a guard does.
#[expect(clippy::disallowed_methods, reason = "this is the one door to starting processes")]
pub fn guard(program: impl AsRef<Path>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program.as_ref());
    command.env_clear();
    command
}
