//! OpenAI's Responses for an engine that only has chat completions.
//!
//! - [`request`] a Responses request -> a chat request
//! - [`input`] its input items as the messages of a chat
//! - [`reply`] a whole chat reply -> a response
//! - [`events`] the events of a chat stream -> the events of a response
//!
//! No state is kept: a response cannot be fetched, continued by its id or run in the background, and a request that
//! asks for it is refused by the field's name. Tools are functions; those that OpenAI runs are refused too.

pub(super) mod events;
mod input;
mod reply;
mod request;

pub use reply::to_response;
pub use request::to_chat;

use serde_json::json;
use serde_json::value::RawValue;

use super::ApiError;
use super::chat::{End, Tokens};
use super::raw::{Fields, Object, raw};

/// Fields of a request that its response repeats, and what stands there where the request does not say.
const ECHOED: [(&str, &str); 14] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", "null"),
    ("temperature", "null"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
    ("service_tier", "null"),
];

/// What a response says of itself from its first event to its last.
#[derive(Debug)]
pub struct Head {
    /// Its id.
    pub id: String,
    /// Seconds since 1970.
    pub created_at: i64,
    /// The model's name as the client asked.
    pub model: String,
    echo: Object,
}

impl Head {
    /// For the request in `body`.
    pub fn new(id: String, created_at: i64, model: String, body: &[u8]) -> Self {
        let fields: Fields<'_> = serde_json::from_slice(body).unwrap_or_default();
        let mut echo = Object::default();
        for (name, otherwise) in ECHOED {
            let default = || serde_json::from_str(otherwise).unwrap_or(RawValue::NULL);
            echo.put(name, fields.get(name).unwrap_or_else(default));
        }
        Self { id, created_at, model, echo }
    }

    /// Id of the item at a place of the output.
    fn item_id(&self, prefix: &str, place: usize) -> String {
        format!("{prefix}_{}_{place}", self.id.trim_start_matches("resp_"))
    }

    fn object(&self, state: State<'_>, output: &[Object], tokens: Option<Tokens>) -> Object {
        let (status, error, incomplete) = match state {
            State::Running => ("in_progress", None, None),
            State::Ended(End::Length) => ("incomplete", None, Some("max_output_tokens")),
            State::Ended(End::Filter) => ("incomplete", None, Some("content_filter")),
            State::Ended(_) => ("completed", None, None),
            State::Failed(error) => ("failed", Some(json!({ "code": "server_error", "message": error.message })), None),
        };
        let mut response = Object::default();
        response.put("id", &self.id);
        response.put("object", "response");
        response.put("created_at", &self.created_at);
        response.put("status", status);
        response.put("error", &error);
        response.put("incomplete_details", &incomplete.map(|reason| json!({ "reason": reason })));
        response.put("model", &self.model);
        response.put("output", output);
        for (name, value) in self.echo.iter() {
            response.set(name, value);
        }
        response.put("store", &false);
        response.put("background", &false);
        response.put("usage", &tokens.map(usage));
        response
    }
}

/// Where a response stands.
#[derive(Debug, Clone, Copy)]
enum State<'a> {
    Running,
    Ended(&'a End),
    Failed(&'a ApiError),
}

/// Tokens as Responses count them: the prompt's with the cached ones.
fn usage(tokens: Tokens) -> serde_json::Value {
    json!({
        "input_tokens": tokens.prompt,
        "input_tokens_details": { "cached_tokens": tokens.cached },
        "output_tokens": tokens.completion,
        "output_tokens_details": { "reasoning_tokens": tokens.reasoning },
        "total_tokens": tokens.prompt.saturating_add(tokens.completion),
    })
}

/// One item of the output.
#[derive(Debug)]
enum Item {
    Reasoning(String),
    Message(String),
    Call { index: u64, id: Option<String>, name: String, arguments: String },
}

impl Item {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning(_) => "rs",
            Self::Message(_) => "msg",
            Self::Call { .. } => "fc",
        }
    }

    /// The part of its content, where it has one.
    fn part(&self, text: &str) -> Option<serde_json::Value> {
        match self {
            Self::Reasoning(_) => Some(json!({ "type": "reasoning_text", "text": text })),
            Self::Message(_) => Some(json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })),
            Self::Call { .. } => None,
        }
    }

    /// The text or the arguments so far.
    fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Message(text) | Self::Call { arguments: text, .. } => text,
        }
    }

    /// As it stands in the output: whole, or as it is announced.
    fn object(&self, head: &Head, place: usize, status: &str) -> Object {
        let running = status == "in_progress";
        let mut item = Object::default();
        item.put("id", &head.item_id(self.prefix(), place));
        let content = || raw(&self.part(self.text()).filter(|_| !running).into_iter().collect::<Vec<_>>());
        match self {
            Self::Reasoning(_) => {
                item.put("type", "reasoning");
                item.put("summary", &[(); 0]);
                item.put("content", &content());
            }
            Self::Message(_) => {
                item.put("type", "message");
                item.put("role", "assistant");
                item.put("content", &content());
            }
            Self::Call { id, name, arguments, .. } => {
                item.put("type", "function_call");
                item.put("call_id", &id.clone().unwrap_or_else(|| head.item_id("call", place)));
                item.put("name", name);
                item.put("arguments", if running { "" } else { arguments });
            }
        }
        item.put("status", status);
        item
    }
}

#[cfg(test)]
mod tests;
