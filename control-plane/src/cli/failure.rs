//! How a command fails: the exit code, the line, the chain, the hint.
//!
//! Commands return `anyhow::Result`; a [`Failure`] anywhere in the chain decides exit code and hint, so
//! that an exit code is chosen where the reason is known and never guessed from a text. An error without
//! one exits with 1.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;

use crate::causes::causes;

/// Reasons a script can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything without a code of its own.
    Failed,
    /// The command line is wrong.
    Usage,
    /// A running server is needed and none answers.
    NotRunning,
    /// There is no such thing.
    NotFound,
    /// Somebody else changed it, holds it or uses the address.
    Conflict,
    /// The key is missing, wrong or lacks the scope.
    Denied,
    /// This host, this value or this state does not allow it.
    Refused,
    /// Ctrl-C.
    Interrupted,
}

impl Kind {
    /// The exit code of the process.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotRunning => 3,
            Self::NotFound => 4,
            Self::Conflict => 5,
            Self::Denied => 6,
            Self::Refused => 7,
            Self::Interrupted => 130,
        }
    }

    /// The name in `--json` failures.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotRunning => "not_running",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A failure with its exit code and, where there is one, the cure.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    kind: Kind,
    message: String,
    hint: Option<String>,
    #[source]
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// What failed, in one line.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, cause: None }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Why.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Which exit code it gets.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Prints the failure to the error stream and gives the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_closed_pipe(error) {
        // Whoever read our output has enough of it (`| head`): no failure.
        return ExitCode::SUCCESS;
    }
    // Printing can only fail if nobody reads the error stream.
    let _ = io::stderr().lock().write_all(render(error, json).as_bytes());
    ExitCode::from(kind_of(error).code())
}

fn kind_of(error: &anyhow::Error) -> Kind {
    find(error).map_or(Kind::Failed, Failure::kind)
}

fn find(error: &anyhow::Error) -> Option<&Failure> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn render(error: &anyhow::Error, json: bool) -> String {
    let hint = find(error).and_then(|failure| failure.hint.as_deref());
    let causes = causes(error.as_ref());
    if json {
        let body = json!({"error": {"code": kind_of(error).as_str(), "message": error.to_string(), "causes": causes, "hint": hint}});
        return format!("{body}\n");
    }
    let mut text = format!("error: {error}\n");
    for cause in causes {
        text.push_str("  because: ");
        text.push_str(&on_lines(&cause));
        text.push('\n');
    }
    if let Some(hint) = hint {
        text.push_str("hint: ");
        text.push_str(hint);
        text.push('\n');
    }
    text
}

/// A long list of reasons, one a line.
fn on_lines(text: &str) -> String {
    const ONE_LINE: usize = 160;
    if text.len() <= ONE_LINE { text.to_owned() } else { text.replace("; ", ";\n           ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_its_line_then_the_chain_then_the_hint() {
        let error = anyhow::Error::new(
            Failure::new(Kind::Conflict, "could not listen on 127.0.0.1:4180")
                .caused_by(io::Error::other("address in use"))
                .hint("choose another address with --listen"),
        );
        assert_eq!(
            render(&error, false),
            "error: could not listen on 127.0.0.1:4180\n  because: address in use\nhint: choose another address with --listen\n"
        );
        assert_eq!(kind_of(&error), Kind::Conflict);
    }

    #[test]
    fn a_failure_below_context_still_decides_the_exit_code() {
        let error = anyhow::Error::new(Failure::new(Kind::NotFound, "no such row")).context("could not start it");
        assert_eq!(kind_of(&error).code(), 4);
    }

    #[test]
    fn an_error_without_a_failure_exits_with_one() {
        assert_eq!(kind_of(&anyhow::anyhow!("anything")).code(), 1);
    }

    #[test]
    fn a_json_failure_can_be_parsed() {
        let error = anyhow::Error::new(Failure::new(Kind::Denied, "the key is not valid").hint("set LIFEBOAT_API_KEY"));
        let parsed: serde_json::Value = serde_json::from_str(&render(&error, true)).unwrap();
        assert_eq!(parsed["error"]["code"], "denied");
        assert_eq!(parsed["error"]["hint"], "set LIFEBOAT_API_KEY");
    }
}
