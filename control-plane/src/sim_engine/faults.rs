//! Faults on demand: what they are called, when they strike, what they do to the process.

use std::process::ExitCode;
use std::time::Duration;

use super::args::Settings;
use super::log;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// `crash`: the process dies by SIGABRT.
    Crash,
    /// `exit-zero`: the process ends with exit code 0.
    ExitZero,
    /// `hang`: decoding stops for good for every request; /health goes on answering.
    Hang,
    /// `abort`: the connection is cut without an end of the reply.
    Abort,
    /// `wrong-bytes`: the rest of the reply is neither JSON nor UTF-8.
    WrongBytes,
    /// `error`: HTTP 500 with llama-server's error object; always before the first byte.
    Error,
}

/// A fault and its moment: before this token of the answer (0 = before anything was sent).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub at_token: u32,
}

/// The moment of a fault that names none: late enough that a stream has begun.
const DEFAULT_AT_TOKEN: u32 = 3;

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { kind, at_token: if kind == FaultKind::Error { 0 } else { DEFAULT_AT_TOKEN } }
    }

    /// Reads `crash` or `crash@0`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, at_token) = match text.split_once('@') {
            Some((name, at)) => (name, Some(at.parse().ok()?)),
            None => (text, None),
        };
        let mut fault = Self::new(match name {
            "crash" => FaultKind::Crash,
            "exit-zero" => FaultKind::ExitZero,
            "hang" => FaultKind::Hang,
            "abort" => FaultKind::Abort,
            "wrong-bytes" => FaultKind::WrongBytes,
            "error" => FaultKind::Error,
            _ => return None,
        });
        if let Some(at_token) = at_token.filter(|_| fault.kind != FaultKind::Error) {
            fault.at_token = at_token;
        }
        Some(fault)
    }

    /// Finds `[[sim:crash@0]]` in a prompt.
    pub fn in_prompt(prompt: &str) -> Option<Self> {
        let (_, rest) = prompt.split_once("[[sim:")?;
        Self::parse(rest.split_once("]]")?.0)
    }

    /// What the flags say about the request that comes after `served` others.
    pub fn by_flags(settings: &Settings, served: u64) -> Option<Self> {
        let due = |after: Option<u64>| after.is_some_and(|after| served >= after);
        [
            (settings.crash_after, FaultKind::Crash),
            (settings.exit_zero_after, FaultKind::ExitZero),
            (settings.hang_after, FaultKind::Hang),
            (settings.abort_stream_after, FaultKind::Abort),
            (settings.wrong_bytes_after, FaultKind::WrongBytes),
        ]
        .into_iter()
        .find_map(|(after, kind)| due(after).then(|| Self::new(kind)))
    }
}

/// Dies by SIGABRT.
pub fn crash() -> ! {
    log::line("sim", "simulated crash");
    std::process::abort()
}

/// Ends as if all were well.
pub fn exit_zero() -> ! {
    log::line("sim", "simulated exit with code 0");
    std::process::exit(0)
}

/// A simulated crash shall not leave a core file on the machine that tests it.
pub fn no_core_file() {
    // Where the limit cannot be lowered a core file appears, which harms nothing.
    let _refused =
        rustix::process::setrlimit(rustix::process::Resource::Core, rustix::process::Rlimit { current: Some(0), maximum: Some(0) });
}

/// How long a grandchild lives if nobody ends it.
const GRANDCHILD_LIFE: Duration = Duration::from_secs(3600);

/// Starts a process that leaves the process group, as the workers of some engines do.
#[expect(clippy::disallowed_methods, reason = "the fault is a process that escapes its parent; the product's door would tie it down")]
pub fn spawn_grandchild() {
    let started = std::env::current_exe().and_then(|program| {
        std::process::Command::new(program)
            .args(["sim-engine", "--grandchild"])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
    });
    match started {
        Ok(child) => log::line("sim", &format!("grandchild {}", child.id())),
        Err(error) => log::line("sim", &format!("no grandchild: {error}")),
    }
}

/// The life of that process: a session of its own, then sleep.
pub fn live_as_grandchild() -> ExitCode {
    match rustix::process::setsid() {
        Ok(_session) => {
            std::thread::sleep(GRANDCHILD_LIFE);
            ExitCode::SUCCESS
        }
        Err(_refused) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_fault_is_read_with_and_without_its_moment() {
        for (text, expected) in [
            ("crash", Some(Fault { kind: FaultKind::Crash, at_token: 3 })),
            ("crash@0", Some(Fault { kind: FaultKind::Crash, at_token: 0 })),
            ("wrong-bytes@7", Some(Fault { kind: FaultKind::WrongBytes, at_token: 7 })),
            ("error", Some(Fault { kind: FaultKind::Error, at_token: 0 })),
            ("error@9", Some(Fault { kind: FaultKind::Error, at_token: 0 })),
            ("crash@x", None),
            ("", None),
        ] {
            assert_eq!(Fault::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_prompt_carries_a_fault_between_double_brackets() {
        assert_eq!(Fault::in_prompt("please [[sim:hang@1]] now"), Some(Fault { kind: FaultKind::Hang, at_token: 1 }));
        assert_eq!(Fault::in_prompt("no fault [[sim:hang"), None);
        assert_eq!(Fault::in_prompt("[sim:hang]"), None);
    }

    #[test]
    fn a_flag_strikes_only_after_its_number_of_requests() {
        let settings = Settings::try_parse_from(["sim-engine", "--abort-stream-after", "2"]).unwrap();
        assert_eq!(Fault::by_flags(&settings, 1), None);
        assert_eq!(Fault::by_flags(&settings, 2).map(|fault| fault.kind), Some(FaultKind::Abort));
        assert_eq!(Fault::by_flags(&settings, 9).map(|fault| fault.kind), Some(FaultKind::Abort));
    }
}
