//! Tokens, timings, end and failure of a reply, read from the copy.
//!
//! A streamed event is only parsed when a cheap look says that it holds something of interest; most hold one
//! token of text and are passed over. The looks are for quoted names with their colon, which cannot stand
//! inside a JSON string (there the quotes are escaped), so a model's words never count as its usage.

use serde::Deserialize;
use serde_json::Number;

use super::errors::ApiError;
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
    let at = (0..bytes.len().saturating_sub(name.len())).rev().find(|at| bytes[*at..].starts_with(name))?;
    serde_json::Deserializer::from_slice(bytes.get(at + name.len()..)?).into_iter().next()?.ok()
}

/// Follows a streamed reply of any dialect.
#[derive(Debug, Default)]
pub struct StreamReader {
    events: SseReader,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    usage: Option<Usage>,
    has_output: bool,
    finished: bool,
    error: Option<ApiError>,
}

impl StreamReader {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        let seen = &mut self.seen;
        self.events.push(chunk, |data| seen.event(data));
    }

    /// What the engine has told so far.
    pub fn usage(&self) -> Option<Usage> {
        self.seen.usage
    }

    /// The first piece of the reply itself has come (the time of this is the time to first token).
    pub fn has_output(&self) -> bool {
        self.seen.has_output
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

/// Events before the first piece of a reply.
const PREAMBLE: [&str; 9] = [
    "\"type\":\"message_start\"",
    "\"type\":\"content_block_start\"",
    "\"type\":\"ping\"",
    "\"type\":\"response.created\"",
    "\"type\":\"response.in_progress\"",
    "\"type\":\"response.queued\"",
    "\"type\":\"response.output_item.added\"",
    "\"type\":\"response.content_part.added\"",
    "\"content\":null",
];

/// Events that end a whole reply.
const ENDINGS: [&str; 5] = [
    "\"finish_reason\":\"",
    "\"type\":\"message_stop\"",
    "\"type\":\"response.completed\"",
    "\"type\":\"response.incomplete\"",
    // llama.cpp's own /completion
    "\"stop\":true",
];

impl Seen {
    fn event(&mut self, data: &[u8]) {
        if data == b"[DONE]" {
            self.finished = true;
            return;
        }
        let Ok(text) = std::str::from_utf8(data) else { return };
        if !self.has_output {
            self.has_output = !PREAMBLE.iter().any(|mark| text.contains(mark)) && !text.contains("\"choices\":[]");
        }
        self.finished = self.finished || ENDINGS.iter().any(|mark| text.contains(mark));
        if text.contains("\"usage\":{") || text.contains("\"timings\":{") {
            if let Ok(reply) = serde_json::from_str::<Reply>(text) {
                let mut usage = self.usage.unwrap_or_default();
                if reply.apply(&mut usage) {
                    self.usage = Some(usage);
                }
            }
        } else if self.error.is_none() && text.contains("\"error\":") && is_error(text) {
            self.error = Some(ApiError::from_engine(500, data));
        }
    }
}

/// `{"error":{…}}` or `{"type":"error",…}`; a chunk whose `error` is null is none.
fn is_error(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Event {
        error: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Event>(text).is_ok_and(|event| event.error.is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(usage: Option<Usage>) -> (u64, u64, u64) {
        let usage = usage.unwrap();
        (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    }

    const CHAT: &str = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"\"usage\":{\"prompt_tokens\":1}"}}],"model":"m","usage":{"completion_tokens":7,"prompt_tokens":30,"total_tokens":37,"prompt_tokens_details":{"cached_tokens":12}},"timings":{"cache_n":12,"prompt_n":18,"prompt_ms":20.5,"predicted_n":7,"predicted_ms":100}}"#;

    #[test]
    fn bodies_of_all_endpoints_are_read() {
        assert_eq!(counts(from_body(CHAT.as_bytes())), (30, 12, 7));
        assert_eq!(from_body(CHAT.as_bytes()).unwrap().prompt_ms, Some(20.5));
        let messages = br#"{"type":"message","usage":{"cache_read_input_tokens":12,"input_tokens":18,"output_tokens":7}}"#;
        assert_eq!(counts(from_body(messages)), (30, 12, 7));
        let responses = br#"{"object":"response","usage":{"input_tokens":30,"output_tokens":7,"total_tokens":37,"input_tokens_details":{"cached_tokens":12}}}"#;
        assert_eq!(counts(from_body(responses)), (30, 12, 7));
        let embeddings = br#"{"object":"list","usage":{"prompt_tokens":5,"total_tokens":5},"data":[]}"#;
        assert_eq!(counts(from_body(embeddings)), (5, 0, 0));
        assert_eq!(from_body(br#"{"usage":null}"#), None);
        assert_eq!(from_body(b"nonsense"), None);
    }

    #[test]
    fn odd_numbers_are_ignored_and_not_believed() {
        let body = br#"{"usage":{"prompt_tokens":-5,"completion_tokens":1.5,"total_tokens":null}}"#;
        assert_eq!(counts(from_body(body)), (0, 0, 0));
    }

    #[test]
    fn large_bodies_are_read_from_their_ends() {
        let vectors = "0.123456,".repeat(200_000);
        let embeddings = format!(r#"{{"usage":{{"prompt_tokens":5,"total_tokens":5}},"data":[{vectors}0]}}"#);
        let chat = CHAT.replace("\"model\":\"m\"", &format!("\"x\":[{vectors}0]"));
        for (body, expected) in [(embeddings, (5, 0, 0)), (chat, (30, 12, 7))] {
            let mut reader = BodyReader::default();
            for chunk in body.as_bytes().chunks(8192) {
                reader.push(chunk);
                assert!(reader.head.len() + reader.tail.len() <= HEAD_BYTES + 3 * TAIL_BYTES);
            }
            assert_eq!(counts(reader.usage()), expected);
        }
        let mut middling = BodyReader::default();
        middling.push(CHAT.replace("\"model\":\"m\"", &format!("\"x\":\"{}\"", "y".repeat(100_000))).as_bytes());
        assert_eq!(counts(middling.usage()), (30, 12, 7));
    }

    fn follow(text: &str) -> StreamReader {
        let mut reader = StreamReader::default();
        for chunk in text.as_bytes().chunks(7) {
            reader.push(chunk);
        }
        reader
    }

    #[test]
    fn a_chat_stream_is_followed_to_its_end() {
        let start = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}]}\n\n";
        let token = "data: {\"choices\":[{\"delta\":{\"content\":\"hi \\\"usage\\\":{\"},\"finish_reason\":null}]}\n\n";
        let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":1,\"prompt_n\":2,\"predicted_n\":3}}\n\ndata: [DONE]\n\n";
        assert!(!follow(start).has_output());
        let middle = follow(&[start, token].concat());
        assert!(middle.has_output() && !middle.is_finished() && middle.usage().is_none());
        let whole = follow(&[start, token, end].concat());
        assert!(whole.is_finished() && whole.error().is_none());
        assert_eq!(counts(whole.usage()), (3, 1, 3));
    }

    #[test]
    fn an_anthropic_stream_gathers_its_usage_from_two_events() {
        let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":18,\"cache_read_input_tokens\":12,\"output_tokens\":0}}}\n\n";
        let block =
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
        let delta =
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n";
        let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        assert!(!follow(&[start, block].concat()).has_output());
        let whole = follow(&[start, block, delta, end].concat());
        assert!(whole.has_output() && whole.is_finished());
        assert_eq!(counts(whole.usage()), (30, 12, 7));
    }

    #[test]
    fn a_responses_stream_ends_with_its_usage() {
        let whole = follow(
            "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":7,\"total_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":12}}}}\n\n",
        );
        assert!(whole.has_output() && whole.is_finished());
        assert_eq!(counts(whole.usage()), (30, 12, 7));
    }

    #[test]
    fn an_error_in_the_stream_is_told_and_a_null_one_is_not() {
        let failed = follow("data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n");
        assert_eq!(failed.error().unwrap().message, "boom");
        assert!(!failed.is_finished());
        assert!(follow("data: {\"error\":null,\"choices\":[]}\n\n").error().is_none());
    }

    #[test]
    fn a_stream_that_is_cut_off_is_not_finished() {
        assert!(!follow("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\ndata: [DO").is_finished());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut stream = StreamReader::default();
            stream.push(&bytes);
            stream.push(&[b"data: {\"usage\":{", &bytes[..], b"}}\n\n"].concat());
            let mut body = BodyReader::default();
            body.push(&bytes);
            let _ = body.usage();
        }
    }
}
