//! The data plane over engines that are scripted byte by byte, on real sockets. No supervisor: rows are published by hand.
#![expect(clippy::disallowed_methods, reason = "tests await the tasks they spawn, or end them with their runtime")]

mod dialects;
mod engine;
mod faults;
mod forwarding;
mod limits;
mod refusals;
mod turned_away;
mod waiting;
mod world;

use engine::{Engine, Received, Step};
use world::World;

/// A chat request for `model`.
fn chat(model: &str, stream: bool) -> serde_json::Value {
    serde_json::json!({ "model": model, "stream": stream, "messages": [{ "role": "user", "content": "hi" }] })
}

/// One frame of a chat stream.
fn token(model: &str, text: &str) -> String {
    format!("data: {{\"choices\":[{{\"finish_reason\":null,\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}],\"model\":\"{model}\"}}\n\n")
}

/// The frames that end a chat stream.
fn ending(model: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{{}}}}],\"model\":\"{model}\",\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":2,\"prompt_tokens_details\":{{\"cached_tokens\":5}}}}}}\n\ndata: [DONE]\n\n"
    )
}
