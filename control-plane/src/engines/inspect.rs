//! Asks a build about itself, once: which flags it has, which version it is, which devices it can drive.
//!
//! A build that cannot even say so (a missing library, a processor instruction this host has not) is told from
//! one that merely does not know the question.

use std::path::Path;
use std::time::Duration;

use lifeboat_engines::spec::Build;

use super::record::placed;
use crate::host::spawn;
use crate::host::tool::{self, ToolError, ToolEvent, ToolOutput};

/// Longest a build may take to answer one of the questions; the first one reads its libraries from disk.
const ANSWER: Duration = Duration::from_secs(120);
/// Most lines of an answer that are looked at.
const LINES: usize = 20_000;

/// What a build says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Told {
    pub version: Option<String>,
    pub flags: Vec<String>,
    pub devices: Vec<String>,
}

/// How an engine ended before it had said or done what it should.
#[derive(Debug, Clone)]
pub(super) struct Death {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub lines: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("it could not be asked for its flags")]
    Tool(#[from] ToolError),
    #[error("it died when it was asked for its flags")]
    Died(Death),
}

/// Puts all three questions. `folder` stands for the build's placeholder and serves as home.
pub(super) async fn ask(build: &Build, folder: &Path) -> Result<Told, InspectError> {
    let build = placed(build, folder);
    let (output, help) = question(&build, folder, "--help").await?;
    let flags = flags_of(&help);
    if flags.is_empty() {
        // A signal shows in the code, as a shell shows it.
        let death = Death { code: output.status.code(), signal: None, lines: output.last_lines };
        return Err(InspectError::Died(death));
    }
    let version = if knows(&flags, "--version") { version_of(&question(&build, folder, "--version").await?.1) } else { None };
    let devices =
        if knows(&flags, "--list-devices") { devices_of(&question(&build, folder, "--list-devices").await?.1) } else { Vec::new() };
    Ok(Told { version, flags, devices })
}

fn knows(flags: &[String], flag: &str) -> bool {
    flags.iter().any(|known| known == flag)
}

async fn question(build: &Build, home: &Path, flag: &str) -> Result<(ToolOutput, Vec<String>), ToolError> {
    let mut command = spawn::watched(&build.program);
    command.args(&build.prefix_args).arg(flag).current_dir(home).env_clear();
    command.env("HOME", home).env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8").envs(build.env.iter().cloned());
    let mut lines = Vec::new();
    let output = tool::run(command, ANSWER, |event| {
        if let ToolEvent::Line(line) = event
            && lines.len() < LINES
        {
            lines.push(line.to_owned());
        }
        false
    })
    .await?;
    Ok((output, lines))
}

/// Long flags of a help text. A line about flags begins with one, near its left edge; what follows the names (a
/// value, an explanation) is not looked at.
fn flags_of(lines: &[String]) -> Vec<String> {
    let mut flags: Vec<String> = lines
        .iter()
        .filter(|line| line.trim_start().starts_with('-') && line.len() - line.trim_start().len() < 8)
        .flat_map(|line| line.split([' ', ',', '\t']).filter(|word| !word.is_empty()).take_while(|word| word.starts_with('-')))
        .filter(|word| word.strip_prefix("--").is_some_and(|name| name.starts_with(|first: char| first.is_ascii_lowercase())))
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
        .map(str::to_owned)
        .collect();
    flags.sort();
    flags.dedup();
    flags
}

/// `version: 6500 (abc1234)` of older builds, `version: 0.1.0-dev (build 1, commit 7e4c0a9)` of newer ones.
fn version_of(lines: &[String]) -> Option<String> {
    let text = lines.iter().find_map(|line| line.trim().strip_prefix("version:"))?.trim();
    let first = text.split_whitespace().next()?;
    Some(if first.bytes().all(|byte| byte.is_ascii_digit()) { format!("b{first}") } else { first.to_owned() })
}

/// Names after `Available devices:`.
fn devices_of(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .skip_while(|line| !line.contains("Available devices:"))
        .skip(1)
        .filter_map(|line| line.trim().split_once(": "))
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn long_flags_are_read_from_help_texts_of_both_kinds() {
        let server = "----- common params -----\n\n-h,    --help, --usage                  print usage and exit\n\
            -c,    --ctx-size N                     size of the context, see --keep (default: 0)\n                                        \
            --not-a-flag in an explanation\n--no-ui, --no-webui                     off\n";
        assert_eq!(flags_of(&lines(server)), ["--ctx-size", "--help", "--no-ui", "--no-webui", "--usage"]);
        assert_eq!(flags_of(&lines("usage: x\n  -fa, --flash-attn VALUE\n  --port VALUE")), ["--flash-attn", "--port"]);
        assert_eq!(flags_of(&lines("error: no\n- item")), Vec::<String>::new());
    }

    #[test]
    fn versions_of_old_and_new_builds_are_read() {
        for (text, expected) in [
            ("version: 6500 (abc1234)\nbuilt with cc", Some("b6500")),
            ("load_backend: x\nversion: 0.1.0-dev (build 1, commit 7e4c0a9)", Some("0.1.0-dev")),
            ("version: 2026.10.11549", Some("2026.10.11549")),
            ("nothing", None),
        ] {
            assert_eq!(version_of(&lines(text)).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn devices_are_read_and_none_is_none() {
        let text = "ggml_cuda_init: found 1\nAvailable devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n  Vulkan1: x (1 MiB, 1 MiB free)";
        assert_eq!(devices_of(&lines(text)), ["CUDA0", "Vulkan1"]);
        assert_eq!(devices_of(&lines("Available devices:\n  (none)")), Vec::<String>::new());
        assert_eq!(devices_of(&lines("CUDA0: x")), Vec::<String>::new());
    }
}
