//! What a stream has said so far, read from its events as they pass.
//!
//! This runs for every token, so there is no parsing: names are searched for as in [`super::super::usage`] (with their
//! quotes, which cannot stand inside a string), and the text is kept as it stands in the JSON, escapes and all. It is
//! read only if it is needed.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::Generation;

/// The text of one reply, up to a bound.
#[derive(Debug)]
pub struct Transcript {
    generation: Generation,
    limit: usize,
    /// Inside of a JSON string.
    escaped: Vec<u8>,
    pieces: u64,
    /// The first event, from which the reply's id is read when it is needed.
    first: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// All that was said is in here.
    Whole,
    /// The reply has ended.
    Ended,
    /// Something was said that cannot be gone on with, or more than the bound.
    Spoiled,
}

/// Largest first event that is kept, bytes.
const FIRST_BYTES: usize = 4096;

static CONTENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"content\":"));
static TEXT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"text\":"));
static FINISH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\":"));
static CALLS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"tool_calls\":"));
/// `reasoning` and `reasoning_content`.
static REASONING: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"reasoning"));
static REFUSAL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"refusal\":"));

/// What stands behind a name, without the space some writers put there.
fn behind<'a>(finder: &Finder<'_>, event: &'a [u8]) -> Option<&'a [u8]> {
    let at = finder.find(event)?;
    Some(event.get(at + finder.needle().len()..)?.trim_ascii_start())
}

fn says_nothing(value: &[u8]) -> bool {
    [&b"null"[..], b"\"\"", b"[]"].iter().any(|nothing| value.starts_with(nothing))
}

/// The inside of the string a value begins with.
fn inside(value: &[u8]) -> Option<&[u8]> {
    let text = value.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', text.get(from..)?)?;
        if text.get(at) == Some(&b'"') {
            return text.get(..at);
        }
        from = at + 2;
    }
}

impl Transcript {
    /// An empty one, which gives up beyond `limit` bytes.
    pub fn new(generation: Generation, limit: usize) -> Self {
        Self { generation, limit, escaped: Vec::new(), pieces: 0, first: Vec::new(), state: State::Whole }
    }

    /// Takes the data of one event.
    pub fn event(&mut self, event: &[u8]) {
        if self.state != State::Whole || event == b"[DONE]" {
            return;
        }
        if self.first.is_empty() && event != b"null" && event.len() <= FIRST_BYTES {
            self.first = event.to_vec();
        }
        let name = if self.generation == Generation::Chat { &*CONTENT } else { &*TEXT };
        let text = behind(name, event).filter(|value| !value.starts_with(b"null")).map(inside);
        let spoils = match text {
            Some(None) => true,
            Some(Some(text)) if self.escaped.len() + text.len() > self.limit => true,
            Some(Some(text)) => {
                self.escaped.extend_from_slice(text);
                self.pieces += u64::from(!text.is_empty());
                false
            }
            None => false,
        };
        if spoils || (self.generation == Generation::Chat && says_more(event)) {
            self.state = State::Spoiled;
            self.escaped = Vec::new();
        } else if behind(&FINISH, event).is_some_and(|value| !value.starts_with(b"null")) {
            self.state = State::Ended;
        }
    }

    /// The text, if all that was said is text, the reply has not ended and the bound was kept. Empty = nothing was said.
    pub fn text(&self) -> Option<String> {
        if self.state != State::Whole {
            return None;
        }
        serde_json::from_slice(&[b"\"", &self.escaped[..], b"\""].concat()).ok()
    }

    /// Pieces of text so far: about as many tokens.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// The first event of the stream; empty if there was none, or one too large to keep.
    pub(super) fn first(&self) -> &[u8] {
        &self.first
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }
}

/// The event has a piece of something that is no text.
fn says_more(event: &[u8]) -> bool {
    let calls = behind(&CALLS, event).is_some_and(|value| !says_nothing(value));
    let refusal = || behind(&REFUSAL, event).is_some_and(|value| !says_nothing(value));
    let reasoning = || {
        REASONING.find_iter(event).any(|at| {
            let rest = event.get(at + REASONING.needle().len()..).unwrap_or_default();
            let value = rest.strip_prefix(b"_content").unwrap_or(rest).strip_prefix(b"\":");
            value.is_some_and(|value| !says_nothing(value.trim_ascii_start()))
        })
    };
    calls || refusal() || reasoning()
}
