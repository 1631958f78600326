//! Ollama's API for clients that speak nothing else, put through chat completions (and embeddings).
//!
//! - [`request`] `/api/chat` and `/api/generate` -> a chat request, or a text completion where the prompt is raw
//! - [`reply`] a whole reply -> one object
//! - [`lines`] the events of a stream -> lines of JSON
//! - [`embed`] `/api/embed` and `/api/embeddings`
//!
//! Options that only make sense where Ollama itself loads the model (`num_ctx`, `num_gpu`, `keep_alive`, …) are ignored:
//! here a row says how its model is loaded.

pub mod embed;
pub(super) mod lines;
mod reply;
mod request;

pub use reply::to_object;
pub use request::{Upstream, to_upstream};

use serde_json::json;
use serde_json::value::RawValue;

use super::chat::{End, Timings, Tokens};
use super::raw::Object;

/// Which of the two endpoints a reply is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/api/chat`: a message.
    Chat,
    /// `/api/generate`: a text.
    Generate,
}

/// What every object of a reply says of it.
#[derive(Debug, Clone)]
pub struct Head {
    /// Which endpoint was asked.
    pub endpoint: Endpoint,
    /// The model's name as the client asked.
    pub model: String,
    /// RFC 3339.
    pub created_at: String,
}

/// What a reply says, or one line of it.
#[derive(Debug, Default)]
struct Said<'a> {
    content: &'a str,
    thinking: &'a str,
    calls: Vec<Call<'a>>,
}

#[derive(Debug)]
struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl Call<'_> {
    /// Ollama's arguments are an object. A call that was cut short has none that could be read.
    fn object(&self) -> serde_json::Value {
        let arguments = serde_json::from_str::<&RawValue>(self.arguments).ok().filter(|value| value.get().starts_with('{'));
        json!({ "function": { "name": self.name, "arguments": arguments.map_or_else(|| json!({}), |value| json!(value)) } })
    }
}

impl Head {
    fn object(&self, said: &Said<'_>) -> Object {
        let mut object = Object::default();
        object.put("model", &self.model);
        object.put("created_at", &self.created_at);
        let mut message = Object::default();
        if self.endpoint == Endpoint::Chat {
            message.put("role", "assistant");
        }
        message.put(if self.endpoint == Endpoint::Chat { "content" } else { "response" }, said.content);
        message.put_some("thinking", Some(said.thinking).filter(|thinking| !thinking.is_empty()));
        if !said.calls.is_empty() {
            message.put("tool_calls", &said.calls.iter().map(Call::object).collect::<Vec<_>>());
        }
        match self.endpoint {
            Endpoint::Chat => object.put("message", &message),
            Endpoint::Generate => object.extend(message),
        }
        object
    }

    fn running(&self, said: &Said<'_>) -> Object {
        let mut object = self.object(said);
        object.put("done", &false);
        object
    }

    fn done(&self, said: &Said<'_>, end: &End, tokens: Tokens, timings: Option<Timings>) -> Object {
        let mut object = self.object(said);
        object.put("done", &true);
        object.put("done_reason", if *end == End::Length { "length" } else { "stop" });
        let timings = timings.unwrap_or_default();
        let (prompt, decode) = (nanoseconds(timings.prompt_ms), nanoseconds(timings.predicted_ms));
        object.put("total_duration", &(prompt + decode));
        object.put("load_duration", &0);
        object.put("prompt_eval_count", &tokens.prompt);
        object.put("prompt_eval_duration", &prompt);
        object.put("eval_count", &tokens.completion);
        object.put("eval_duration", &decode);
        object
    }

    /// The answer to a request without a prompt, by which clients have a model loaded.
    pub fn loaded(&self) -> Vec<u8> {
        let mut object = self.object(&Said::default());
        object.put("done", &true);
        object.put("done_reason", "load");
        object.into_bytes()
    }
}

fn nanoseconds(milliseconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration; saturates")]
    let nanoseconds = (milliseconds * 1e6).max(0.0) as u64;
    nanoseconds
}

#[cfg(test)]
mod tests;
