//! A chat reply, whole or event by event, as far as the other dialects can say it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::aggregate::stream_error;
use super::super::{ApiError, ErrorCode};

/// What a reply, or one event of it, brings.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Chunk {
    pub choices: Vec<ChunkChoice>,
    pub usage: Option<Counts>,
    pub timings: Option<Timings>,
}

/// The first choice is the reply; translated requests never ask for more.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct ChunkChoice {
    pub index: u64,
    pub delta: Option<Delta>,
    pub message: Option<Delta>,
    /// Of text completions.
    pub text: Option<String>,
    pub finish_reason: Option<String>,
    /// vLLM and `SGLang`: the stop sequence that ended the reply (a number is a token).
    pub stop_reason: Option<serde_json::Value>,
}

/// A piece of a message, or all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Delta {
    pub content: Option<String>,
    pub reasoning_content: Option<String>,
    /// The name newer builds of vLLM use; some send both.
    pub reasoning: Option<String>,
    pub refusal: Option<String>,
    pub tool_calls: Option<Vec<DeltaCall>>,
}

/// A piece of a call, or all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct DeltaCall {
    pub index: Option<u64>,
    pub id: Option<String>,
    pub function: Option<DeltaFunction>,
}

/// A piece of name and arguments.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct DeltaFunction {
    pub name: Option<String>,
    pub arguments: Option<String>,
}

/// Tokens, as chat completions count them.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(in super::super) struct Counts {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub prompt_tokens_details: Option<PromptDetails>,
    pub completion_tokens_details: Option<CompletionDetails>,
}

/// Of the prompt's tokens.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(in super::super) struct PromptDetails {
    pub cached_tokens: Option<u64>,
}

/// Of the reply's tokens.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(in super::super) struct CompletionDetails {
    pub reasoning_tokens: Option<u64>,
}

/// llama-server's own count, there from the first token on if asked for.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(in super::super) struct Timings {
    pub cache_n: u64,
    pub prompt_n: u64,
    pub prompt_ms: f64,
    pub predicted_n: u64,
    pub predicted_ms: f64,
}

/// A reply's tokens as far as they are known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Tokens {
    /// Of the prompt, cached ones included.
    pub prompt: u64,
    /// Of the prompt, from the cache.
    pub cached: u64,
    /// Of the reply.
    pub completion: u64,
    /// Of the reply, spent on reasoning, where the engine tells.
    pub reasoning: u64,
}

impl Tokens {
    /// Takes over what an event tells.
    pub(in super::super) fn update(&mut self, chunk: &Chunk) {
        if let Some(timings) = chunk.timings {
            self.prompt = timings.prompt_n.saturating_add(timings.cache_n);
            self.cached = timings.cache_n;
            self.completion = timings.predicted_n;
        }
        if let Some(usage) = chunk.usage {
            self.prompt = usage.prompt_tokens.unwrap_or(self.prompt);
            self.completion = usage.completion_tokens.unwrap_or(self.completion);
            if let Some(cached) = usage.prompt_tokens_details.and_then(|details| details.cached_tokens) {
                self.cached = cached.min(self.prompt);
            }
            self.reasoning = usage.completion_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or(0);
        }
    }
}

/// One thing a reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Piece<'a> {
    Reasoning(&'a str),
    Text(&'a str),
    Call { index: u64, id: Option<&'a str>, name: Option<&'a str>, arguments: &'a str },
}

impl Delta {
    /// What it says, in the order in which engines mean it.
    pub(in super::super) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let full = |text: &&String| !text.is_empty();
        let reasoning = self.reasoning_content.as_ref().or(self.reasoning.as_ref()).filter(full).map(|text| Piece::Reasoning(text));
        let text = self.content.as_ref().filter(full).map(|text| Piece::Text(text));
        let refusal = self.refusal.as_ref().filter(full).map(|text| Piece::Text(text));
        let calls = self.tool_calls.iter().flatten().enumerate().map(|(place, call)| {
            let function = call.function.as_ref();
            Piece::Call {
                index: call.index.unwrap_or(place as u64),
                id: call.id.as_deref().filter(|id| !id.is_empty()),
                name: function.and_then(|function| function.name.as_deref()).filter(|name| !name.is_empty()),
                arguments: function.and_then(|function| function.arguments.as_deref()).unwrap_or_default(),
            }
        });
        reasoning.into_iter().chain(text).chain(refusal).chain(calls)
    }
}

/// Why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum End {
    /// The model was done.
    Stop,
    /// One of the client's stop sequences came.
    Sequence(String),
    /// No more tokens were allowed, or there was no room for them.
    Length,
    /// Tools are to be called.
    Calls,
    /// The engine would not say it.
    Filter,
}

impl ChunkChoice {
    /// What it says.
    pub(in super::super) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let text = self.text.as_deref().filter(|text| !text.is_empty()).map(Piece::Text);
        self.delta.iter().chain(&self.message).flat_map(Delta::pieces).chain(text)
    }

    /// Why the reply ended, if it did.
    pub(in super::super) fn end(&self) -> Option<End> {
        Some(match (self.finish_reason.as_deref()?, &self.stop_reason) {
            ("length" | "max_tokens", _) => End::Length,
            ("tool_calls" | "function_call", _) => End::Calls,
            ("content_filter", _) => End::Filter,
            (_, Some(serde_json::Value::String(sequence))) => End::Sequence(sequence.clone()),
            _ => End::Stop,
        })
    }
}

/// What one event of a chat stream is.
#[derive(Debug)]
pub(in super::super) enum Event {
    /// A part of the reply.
    Chunk(Chunk),
    /// The stream is complete.
    Done,
    /// The engine failed.
    Error(ApiError),
    /// Of no interest.
    Nothing,
}

impl Event {
    /// Reads the data of one event.
    pub(in super::super) fn read(data: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Failed<'a> {
            #[serde(borrow)]
            error: Option<&'a RawValue>,
        }
        if data == b"[DONE]" {
            return Self::Done;
        }
        if data.trim_ascii() == b"null" {
            return Self::Nothing;
        }
        let has_error = memchr::memmem::find(data, b"\"error\"").is_some();
        if has_error && let Ok(Failed { error: Some(error) }) = serde_json::from_slice(data) {
            return Self::Error(stream_error(data, error));
        }
        match serde_json::from_slice(data) {
            Ok(chunk) => Self::Chunk(chunk),
            Err(error) => Self::Error(unreadable(&error)),
        }
    }
}

/// A reply that is no chat completion.
pub(in super::super) fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::new(ErrorCode::UpstreamFailed, format!("the engine's reply is no chat completion: {error}"))
}
