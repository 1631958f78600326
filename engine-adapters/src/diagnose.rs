//! Why an engine died, in words a person can act on.
//!
//! The exit code or signal says how, the last log lines often say why, and the host's facts turn "illegal
//! instruction" into the name of what is missing. The causes are tried from the most telling to the least; what
//! nobody recognises is told as it is: the exit code with the engine's own last line.

pub mod causes;

use crate::host::HostFacts;
use crate::spec::Build;

/// Why an engine died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// What happened.
    pub cause: String,
    /// What to do; empty where nobody recognised the cause.
    pub hint: String,
    /// This build cannot work on this host: the next candidate is worth trying, a restart is not.
    pub wrong_build: bool,
}

/// Everything that is known about a death.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death<'a> {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub log: &'a [String],
    pub build: &'a Build,
    pub host: &'a HostFacts,
}

/// Turns a death into a cause. `code` is the exit code if it exited, `signal` the signal if one killed it, `log`
/// its last lines, oldest first.
pub fn diagnose(code: Option<i32>, signal: Option<i32>, log: &[String], build: &Build, host: &HostFacts) -> Diagnosis {
    // A shell reports a death by signal as 128 + its number.
    let by_shell = code.filter(|code| (129..=159).contains(code)).map(|code| code - 128);
    let death = Death { code, signal: signal.or(by_shell), log, build, host };
    causes::ALL.iter().find_map(|cause| cause(&death)).unwrap_or_else(|| causes::plain(&death))
}

#[cfg(test)]
mod tests;
