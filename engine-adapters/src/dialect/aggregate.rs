//! Puts a streamed chat or text completion together into the document the engine gives for `stream: false`.
//!
//! llama-server notices a vanished client only on streams, so it is always asked for one; a client that did not ask for
//! a stream gets this document instead. Fields, their order and every number are the engine's own: a test compares with
//! its replies. What differs, on purpose: where a conversation ends with an assistant's message that the engine goes on
//! with, the engine's own document repeats that message and this one, like the stream, holds the new text only.
//!
//! A stream that broke off, told an error or had an event that could not be read never becomes a document.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::raw::{Fields, Object, is_null, raw, string};
use super::sse::SseReader;
use super::{ApiError, ErrorCode};

/// One reply being put together.
#[derive(Debug)]
pub struct Aggregate {
    events: SseReader,
    reply: Reply,
    limit: usize,
}

#[derive(Debug, Default)]
struct Reply {
    /// Fields of the document beside those that have a place of their own here.
    fields: Object,
    choices: BTreeMap<u64, Choice>,
    /// The choice the last event was about: usage comes behind its choice's end, in an event without any.
    current: u64,
    done: bool,
    error: Option<ApiError>,
    /// Bytes of the reply's own text.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Choice {
    content: Content,
    finish_reason: Option<Box<RawValue>>,
    logprobs: Option<Logprobs>,
    fields: Object,
    usage: Option<Box<RawValue>>,
    timings: Option<Box<RawValue>>,
}

#[derive(Debug)]
enum Content {
    /// A chat message.
    Message(Message),
    /// Plain text.
    Text(String),
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

#[derive(Debug, Default)]
struct Message {
    role: Option<Box<RawValue>>,
    content: String,
    /// `reasoning_content`, `refusal` and whatever else comes piece by piece.
    texts: Vec<(String, String)>,
    tool_calls: BTreeMap<u64, ToolCall>,
    fields: Object,
}

#[derive(Debug, Default)]
struct ToolCall {
    id: Option<Box<RawValue>>,
    name: String,
    arguments: String,
    fields: Object,
}

/// Lists that grow, by name, and what is no list.
#[derive(Debug, Default)]
struct Logprobs {
    lists: Vec<(String, Vec<Box<RawValue>>)>,
    fields: Object,
}

impl Aggregate {
    /// An empty reply; one that needs more than `limit` bytes is given up.
    pub fn new(limit: usize) -> Self {
        Self { events: SseReader::default(), reply: Reply::default(), limit }
    }

    /// Takes the next bytes of the stream. An error is the reply.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        let reply = &mut self.reply;
        self.events.push(chunk, |data| reply.event(data));
        if let Some(error) = &reply.error {
            return Err(error.clone());
        }
        if reply.bytes > self.limit || self.events.has_dropped() {
            return Err(broken("the engine's reply is larger than one that is not streamed may be; ask for `stream`: true"));
        }
        Ok(())
    }

    /// The stream has said that it is complete; nothing of interest follows.
    pub fn is_done(&self) -> bool {
        self.reply.done
    }

    /// The document, once the stream has ended.
    pub fn finish(self) -> Result<Vec<u8>, ApiError> {
        let reply = self.reply;
        if let Some(error) = reply.error {
            return Err(error);
        }
        if !reply.done || reply.choices.is_empty() || reply.choices.values().any(|choice| choice.finish_reason.is_none()) {
            return Err(broken("the engine's reply broke off"));
        }
        Ok(reply.document().into_bytes())
    }
}

fn broken(message: &str) -> ApiError {
    ApiError::new(ErrorCode::UpstreamFailed, message)
}

/// What an error event says; its own code is the status it would have had.
pub(super) fn stream_error(event: &[u8], error: &RawValue) -> ApiError {
    let code = serde_json::from_str::<Fields<'_>>(error.get()).ok().and_then(|fields| fields.get("code")?.get().parse().ok());
    ApiError::from_engine(code.filter(|code| (400..600).contains(code)).unwrap_or(500), event)
}

fn objects(value: &RawValue) -> Vec<Fields<'_>> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn index(fields: &Fields<'_>) -> u64 {
    fields.get("index").and_then(|value| value.get().parse().ok()).unwrap_or(0)
}

/// What several choices used, each of which was told as if it were the only one: the prompt once, every reply.
fn together(mut usages: Vec<Box<RawValue>>) -> Option<Box<RawValue>> {
    let first = if usages.is_empty() { return None } else { usages.remove(0) };
    let number = |usage: &RawValue, name: &str| {
        let fields = serde_json::from_str::<Fields<'_>>(usage.get()).unwrap_or_default();
        fields.get(name).and_then(|value| value.get().parse::<u64>().ok()).unwrap_or(0)
    };
    let more: u64 = usages.iter().map(|usage| number(usage, "completion_tokens")).sum();
    if more == 0 {
        return Some(first);
    }
    let mut sum = Object::default();
    for (name, value) in serde_json::from_str::<Fields<'_>>(first.get()).unwrap_or_default().iter() {
        match name {
            "completion_tokens" | "total_tokens" => sum.put(Cow::Owned(name.to_owned()), &(number(&first, name) + more)),
            _ => sum.set(name, value),
        }
    }
    Some(raw(&sum))
}

impl Reply {
    fn event(&mut self, data: &[u8]) {
        // llama-server begins some streams with an event that is `null`.
        if self.error.is_some() || self.done || data.trim_ascii() == b"null" {
            return;
        }
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let Ok(fields) = serde_json::from_slice::<Fields<'_>>(data) else {
            self.error = Some(broken("the engine's stream holds an event that is no JSON object"));
            return;
        };
        if let Some(error) = fields.get("error") {
            self.error = Some(stream_error(data, error));
            return;
        }
        for choice in fields.get("choices").map(objects).unwrap_or_default() {
            self.current = index(&choice);
            self.bytes += self.choices.entry(self.current).or_default().take(&choice);
        }
        for (name, value) in fields.iter().filter(|(_, value)| !is_null(value)) {
            match name {
                // Of the stream only.
                "choices" | "object" | "prompt_progress" => {}
                "usage" | "timings" => {
                    let choice = self.choices.entry(self.current).or_default();
                    let place = if name == "usage" { &mut choice.usage } else { &mut choice.timings };
                    *place = Some(value.to_owned());
                }
                _ => self.fields.set(name, value),
            }
        }
    }

    fn document(mut self) -> Object {
        let is_chat = self.choices.values().any(|choice| matches!(choice.content, Content::Message(_)));
        let usage = together(self.choices.values_mut().filter_map(|choice| choice.usage.take()).collect());
        let timings = self.choices.values_mut().find_map(|choice| choice.timings.take());
        let choices: Vec<_> = self.choices.into_iter().map(|(index, choice)| choice.document(index)).collect();
        let mut document = Object::default();
        document.put("choices", &choices);
        for name in ["created", "model", "system_fingerprint"] {
            document.put_some(name, self.fields.take(name));
        }
        document.put("object", if is_chat { "chat.completion" } else { "text_completion" });
        document.put_some("usage", usage);
        document.put_some("id", self.fields.take("id"));
        document.extend(self.fields);
        document.put_some("timings", timings);
        document
    }
}

impl Choice {
    /// Takes one event's part of this choice; gives the bytes it added.
    fn take(&mut self, fields: &Fields<'_>) -> usize {
        let mut added = 0;
        for (name, value) in fields.iter() {
            match name {
                "index" => {}
                "delta" => {
                    if matches!(&self.content, Content::Text(text) if text.is_empty()) {
                        self.content = Content::Message(Message::default());
                    }
                    if let (Content::Message(message), Ok(delta)) = (&mut self.content, serde_json::from_str::<Fields<'_>>(value.get())) {
                        added += message.take(&delta);
                    }
                }
                "text" => {
                    if let (Content::Text(text), Some(more)) = (&mut self.content, string(value)) {
                        text.push_str(&more);
                        added += more.len();
                    }
                }
                "finish_reason" => {
                    if !is_null(value) {
                        self.finish_reason = Some(value.to_owned());
                    }
                }
                "logprobs" => {
                    if let Ok(logprobs) = serde_json::from_str::<Fields<'_>>(value.get()) {
                        self.logprobs.get_or_insert_default().take(&logprobs);
                        added += value.get().len();
                    }
                }
                _ => self.fields.set(name, value),
            }
        }
        added
    }

    fn document(self, index: u64) -> Object {
        let mut choice = Object::default();
        let logprobs = self.logprobs.map(Logprobs::document);
        match self.content {
            Content::Message(message) => {
                choice.put_some("finish_reason", self.finish_reason);
                choice.put("index", &index);
                choice.put("message", &message.document());
                choice.extend(self.fields);
                choice.put_some("logprobs", logprobs);
            }
            Content::Text(text) => {
                choice.put("text", &text);
                choice.put("index", &index);
                choice.put("logprobs", &logprobs);
                choice.put_some("finish_reason", self.finish_reason);
                choice.extend(self.fields);
            }
        }
        choice
    }
}

impl Message {
    fn take(&mut self, delta: &Fields<'_>) -> usize {
        let mut added = 0;
        for (name, value) in delta.iter().filter(|(_, value)| !is_null(value)) {
            match (name, string(value)) {
                ("role", _) => self.role = Some(value.to_owned()),
                ("content", Some(more)) => {
                    self.content.push_str(&more);
                    added += more.len();
                }
                ("tool_calls", _) => {
                    for call in objects(value) {
                        added += self.tool_calls.entry(index(&call)).or_default().take(&call);
                    }
                }
                (_, Some(more)) => {
                    added += more.len();
                    match self.texts.iter_mut().find(|(field, _)| field == name) {
                        Some((_, text)) => text.push_str(&more),
                        None => self.texts.push((name.to_owned(), more.into_owned())),
                    }
                }
                (_, None) => self.fields.set(name, value),
            }
        }
        added
    }

    fn document(self) -> Object {
        let mut message = Object::default();
        message.put("role", &self.role.unwrap_or_else(|| raw("assistant")));
        message.put("content", &self.content);
        for (name, text) in self.texts {
            message.put(Cow::Owned(name), &text);
        }
        message.extend(self.fields);
        if !self.tool_calls.is_empty() {
            let calls: Vec<_> = self.tool_calls.into_values().map(ToolCall::document).collect();
            message.put("tool_calls", &calls);
        }
        message
    }
}

impl ToolCall {
    fn take(&mut self, fields: &Fields<'_>) -> usize {
        let mut added = 0;
        for (name, value) in fields.iter().filter(|(_, value)| !is_null(value)) {
            match name {
                "index" | "type" => {}
                "id" => self.id = Some(value.to_owned()),
                "function" => {
                    let function = serde_json::from_str::<Fields<'_>>(value.get()).unwrap_or_default();
                    // The name comes whole, and with some engines in every piece.
                    if let Some(name) = function.get("name").and_then(string).filter(|_| self.name.is_empty()) {
                        self.name.push_str(&name);
                    }
                    if let Some(more) = function.get("arguments").and_then(string) {
                        self.arguments.push_str(&more);
                        added += more.len();
                    }
                }
                _ => self.fields.set(name, value),
            }
        }
        added
    }

    fn document(self) -> Object {
        let mut function = Object::default();
        function.put("name", &self.name);
        function.put("arguments", &self.arguments);
        let mut call = Object::default();
        call.put("type", "function");
        call.put("function", &function);
        call.put_some("id", self.id);
        call.extend(self.fields);
        call
    }
}

impl Logprobs {
    fn take(&mut self, fields: &Fields<'_>) {
        for (name, value) in fields.iter() {
            let Ok(more) = serde_json::from_str::<Vec<Box<RawValue>>>(value.get()) else {
                self.fields.set(name, value);
                continue;
            };
            match self.lists.iter_mut().find(|(list, _)| list == name) {
                Some((_, list)) => list.extend(more),
                None => self.lists.push((name.to_owned(), more)),
            }
        }
    }

    fn document(self) -> Object {
        let mut logprobs = Object::default();
        for (name, list) in self.lists {
            logprobs.put(Cow::Owned(name), &list);
        }
        logprobs.extend(self.fields);
        logprobs
    }
}

#[cfg(test)]
mod tests;
