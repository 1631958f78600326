//! Tokens, timings, end and failure of a reply, read from the copy.
//!
//! A streamed event is only parsed when a cheap look says that it holds something of interest; most hold one
//! token of text and are passed over. The looks are for quoted names with their colon, which cannot stand
//! inside a JSON string (there the quotes are escaped), so a model's words never count as its usage.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};
use serde::Deserialize;
use serde_json::Number;

use super::errors::ApiError;
use super::resume::{Generation, Transcript};
use super::sse::SseReader;

/// What a reply took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were taken from the cache.
    pub cached_tokens: u64,
    /// Tokens of the reply.
    pub completion_tokens: u64,
    /// Milliseconds the engine spent on the prompt, where it tells.
    pub prompt_ms: Option<f64>,
    /// Milliseconds the engine spent on the reply, where it tells.
    pub decode_ms: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
struct Reply {
    usage: Option<Counts>,
    timings: Option<Timings>,
    /// Responses events.
    response: Option<Box<Reply>>,
    /// Anthropic's `message_start`.
    message: Option<serde_json::Value>,
}

/// All spellings of all dialects.
#[derive(Debug, Default, Deserialize)]
struct Counts {
    prompt_tokens: Option<Number>,
    completion_tokens: Option<Number>,
    total_tokens: Option<Number>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<Number>,
    output_tokens: Option<Number>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<Number>,
    cache_creation_input_tokens: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    cached_tokens: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
struct Timings {
    cache_n: Option<Number>,
    prompt_n: Option<Number>,
    prompt_ms: Option<Number>,
    predicted_n: Option<Number>,
    predicted_ms: Option<Number>,
}

fn whole(number: Option<&Number>) -> Option<u64> {
    number.and_then(Number::as_u64)
}

impl Counts {
    fn apply(&self, usage: &mut Usage) {
        let details = self.prompt_tokens_details.as_ref().or(self.input_tokens_details.as_ref());
        let cached = whole(details.and_then(|details| details.cached_tokens.as_ref()));
        let read = whole(self.cache_read_input_tokens.as_ref());
        // Anthropic's input tokens leave the cached ones out; everybody else's include them.
        let beside = if self.total_tokens.is_none() {
            read.unwrap_or(0).saturating_add(whole(self.cache_creation_input_tokens.as_ref()).unwrap_or(0))
        } else {
            0
        };
        if let Some(prompt) = whole(self.prompt_tokens.as_ref()) {
            usage.prompt_tokens = prompt;
        } else if let Some(input) = whole(self.input_tokens.as_ref()) {
            usage.prompt_tokens = input.saturating_add(beside);
        }
        if let Some(cached) = cached.or(read) {
            usage.cached_tokens = cached;
        }
        if let Some(completion) = whole(self.completion_tokens.as_ref()).or_else(|| whole(self.output_tokens.as_ref())) {
            usage.completion_tokens = completion;
        }
    }
}

impl Timings {
    /// The engine's own count is exact and is there even where the client did not ask for usage.
    fn apply(&self, usage: &mut Usage) {
        if let Some(computed) = whole(self.prompt_n.as_ref()) {
            let cached = whole(self.cache_n.as_ref()).unwrap_or(0);
            usage.prompt_tokens = computed.saturating_add(cached);
            usage.cached_tokens = cached;
        }
        if let Some(completion) = whole(self.predicted_n.as_ref()) {
            usage.completion_tokens = completion;
        }
        usage.prompt_ms = self.prompt_ms.as_ref().and_then(Number::as_f64).or(usage.prompt_ms);
        usage.decode_ms = self.predicted_ms.as_ref().and_then(Number::as_f64).or(usage.decode_ms);
    }
}

impl Reply {
    fn apply(self, usage: &mut Usage) -> bool {
        let mut found = false;
        if let Some(counts) = self.usage {
            counts.apply(usage);
            found = true;
        }
        if let Some(timings) = self.timings {
            timings.apply(usage);
            found = true;
        }
        if let Some(response) = self.response {
            found |= response.apply(usage);
        }
        let counts = self.message.and_then(|mut message| message.get_mut("usage").map(serde_json::Value::take));
        if let Some(counts) = counts.and_then(|counts| serde_json::from_value::<Counts>(counts).ok()) {
            counts.apply(usage);
            found = true;
        }
        found
    }
}

/// Usage of a whole reply body of chat, completions, responses, messages, embeddings or rerank.
pub fn from_body(body: &[u8]) -> Option<Usage> {
    let reply: Reply = serde_json::from_slice(body).ok()?;
    let mut usage = Usage::default();
    reply.apply(&mut usage).then_some(usage)
}

/// Bytes kept of the beginning of a body.
const HEAD_BYTES: usize = 64 << 10;
/// Bytes kept of the end of a body.
const TAIL_BYTES: usize = 64 << 10;

/// Reads the usage of a body that is not streamed, whatever its size, from its beginning and its end: chat
/// puts it behind the text, embeddings in front of the vectors.
#[derive(Debug, Default)]
pub struct BodyReader {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Bytes were left out between head and tail.
    gap: bool,
}

impl BodyReader {
    /// Takes the next bytes.
    pub fn push(&mut self, chunk: &[u8]) {
        let (head, rest) = chunk.split_at(chunk.len().min(HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(rest);
        // Cut rarely, so that a byte is moved once and not with every chunk.
        if self.tail.len() > 2 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
            self.gap = true;
        }
    }

    /// The usage, once the body has ended.
    pub fn usage(&self) -> Option<Usage> {
        if !self.gap {
            let whole = if self.tail.is_empty() { &self.head } else { &[&self.head[..], &self.tail].concat() };
            return from_body(whole);
        }
        let mut usage = Usage::default();
        let mut found = false;
        for part in [&self.head, &self.tail] {
            if let Some(counts) = value_of::<Counts>(part, b"\"usage\":") {
                counts.apply(&mut usage);
                found = true;
            }
            if let Some(timings) = value_of::<Timings>(part, b"\"timings\":") {
                timings.apply(&mut usage);
                found = true;
            }
        }
        found.then_some(usage)
    }
}

/// The JSON value behind the last place of a name.
fn value_of<'a, T: Deserialize<'a>>(bytes: &'a [u8], name: &[u8]) -> Option<T> {
    let at = memmem::rfind(bytes, name)?;
    serde_json::Deserializer::from_slice(bytes.get(at + name.len()..)?).into_iter().next()?.ok()
}

/// Follows a streamed reply of any dialect.
#[derive(Debug, Default)]
pub struct StreamReader {
    events: SseReader,
    seen: Seen,
    transcript: Option<Box<Transcript>>,
}

#[derive(Debug, Default)]
struct Seen {
    usage: Option<Usage>,
    outputs: u64,
    /// Choices that have ended.
    ends: u64,
    finished: bool,
    error: Option<ApiError>,
}

impl StreamReader {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        let Self { events, seen, transcript } = self;
        events.push(chunk, |data| {
            seen.event(data);
            if let Some(transcript) = transcript {
                transcript.event(data);
            }
        });
    }

    /// Keeps the text of the reply from here on, up to a bound, so that another engine can go on with it.
    pub fn keep_text(&mut self, generation: Generation, limit: usize) {
        self.transcript = Some(Box::new(Transcript::new(generation, limit)));
    }

    /// Forgets the event that was cut off: what comes next is not its rest.
    pub fn cut(&mut self) {
        self.events = SseReader::default();
    }

    /// What was said so far, where it is kept. An event that could not be read spoils it.
    pub fn transcript(&self) -> Option<&Transcript> {
        self.transcript.as_deref().filter(|_| !self.events.has_dropped())
    }

    /// What the engine has told so far.
    pub fn usage(&self) -> Option<Usage> {
        // Some engines tell of several choices as if the last were the only one; each has three events without a token.
        let counted = if self.seen.ends > 1 { self.seen.outputs.saturating_sub(3 * self.seen.ends) } else { 0 };
        self.seen.usage.map(|usage| Usage { completion_tokens: usage.completion_tokens.max(counted), ..usage })
    }

    /// Events from the first that held a piece of the reply on: about one a token, and a few more at the end.
    pub fn outputs(&self) -> u64 {
        self.seen.outputs
    }

    /// The reply is whole. A stream that ends without this has been cut off.
    pub fn is_finished(&self) -> bool {
        self.seen.finished
    }

    /// The engine ended the stream by an error event.
    pub fn error(&self) -> Option<&ApiError> {
        self.seen.error.as_ref()
    }
}

/// Types of events before the first piece of a reply.
const PREAMBLE: [&str; 8] = [
    "message_start",
    "content_block_start",
    "ping",
    "response.created",
    "response.in_progress",
    "response.queued",
    "response.output_item.added",
    "response.content_part.added",
];

/// Types of events that end a whole reply.
const ENDINGS: [&str; 3] = ["message_stop", "response.completed", "response.incomplete"];

/// A quoted name with its colon, ready to be searched for in every event.
struct Name(LazyLock<Finder<'static>>);

impl Name {
    const fn new(find: fn() -> Finder<'static>) -> Self {
        Self(LazyLock::new(find))
    }

    /// What stands behind the name, each time it is there. Writers differ in the space.
    fn values<'a>(&'a self, event: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let length = self.0.needle().len();
        self.0.find_iter(event).filter_map(move |at| Some(event.get(at + length..)?.trim_ascii_start()))
    }

    fn has_value(&self, event: &[u8]) -> bool {
        self.values(event).any(|value| !value.starts_with(b"null"))
    }

    fn has(&self, event: &[u8], beginning: &[u8]) -> bool {
        self.values(event).any(|value| value.starts_with(beginning))
    }
}

static TYPE: Name = Name::new(|| Finder::new("\"type\":"));
static CHOICES: Name = Name::new(|| Finder::new("\"choices\":"));
static ROLE: Name = Name::new(|| Finder::new("\"role\":"));
static CONTENT: Name = Name::new(|| Finder::new("\"content\":"));
static FINISH_REASON: Name = Name::new(|| Finder::new("\"finish_reason\":"));
static STOP: Name = Name::new(|| Finder::new("\"stop\":"));
static USAGE: Name = Name::new(|| Finder::new("\"usage\":"));
static TIMINGS: Name = Name::new(|| Finder::new("\"timings\":"));
static ERROR: Name = Name::new(|| Finder::new("\"error\":"));

/// One of these is the type of the event.
fn has_type(event: &[u8], types: &[&str]) -> bool {
    let is = |value: &[u8], name: &str| {
        value.strip_prefix(b"\"").and_then(|rest| rest.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.starts_with(b"\""))
    };
    TYPE.values(event).any(|value| types.iter().any(|name| is(value, name)))
}

/// An event that only opens the reply: no text yet, or no choice at all.
fn opens_only(event: &[u8]) -> bool {
    has_type(event, &PREAMBLE)
        || CHOICES.has(event, b"[]")
        || (ROLE.values(event).next().is_some()
            && CONTENT.values(event).all(|value| value.starts_with(b"null") || value.starts_with(b"\"\"")))
}

impl Seen {
    fn event(&mut self, event: &[u8]) {
        if event == b"[DONE]" {
            self.finished = true;
            return;
        }
        // Only the first ones are looked at: what follows is one token each but for the last few.
        self.outputs += u64::from(self.outputs > 0 || !opens_only(event));
        // `stop` is llama.cpp's own /completion.
        let ends = FINISH_REASON.has_value(event);
        self.ends += u64::from(ends);
        self.finished = self.finished || ends || has_type(event, &ENDINGS) || STOP.has(event, b"true");
        if USAGE.has_value(event) || TIMINGS.has_value(event) {
            if let Ok(reply) = serde_json::from_slice::<Reply>(event) {
                let mut usage = self.usage.unwrap_or_default();
                if reply.apply(&mut usage) {
                    self.usage = Some(usage);
                }
            }
        } else if self.error.is_none() && ERROR.has_value(event) && is_error(event) {
            self.error = Some(ApiError::from_engine(500, event));
        }
    }
}

/// `{"error":{…}}` or `{"type":"error",…}`; a chunk whose `error` is null is none.
fn is_error(event: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Event {
        error: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice::<Event>(event).is_ok_and(|event| event.error.is_some())
}

#[cfg(test)]
mod tests;
