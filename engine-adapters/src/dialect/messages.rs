//! Anthropic's Messages for an engine that only has chat completions.
//!
//! - [`request`] a Messages request -> a chat request
//! - [`content`] the blocks of its messages
//! - [`stamp`] the stamp that Claude Code puts into each request, made harmless
//! - [`reply`] a whole chat reply -> a message
//! - [`events`] the events of a chat stream -> the events of a message
//!
//! What chat completions cannot say is refused with the path of its field, or left out where leaving it out changes
//! nothing but speed (`cache_control`, say). Signatures of thinking cannot be made for a local model: they are empty, and
//! those that come back are ignored.

mod content;
pub(super) mod events;
mod reply;
mod request;
pub mod stamp;

pub use reply::to_message;
pub use request::to_chat;

use serde::Serialize;

use super::chat::{End, Tokens};

/// Tokens as Messages count them: the prompt's without the cached ones.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are Anthropic's")]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

impl Usage {
    fn of(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.prompt.saturating_sub(tokens.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: tokens.cached,
            output_tokens: tokens.completion,
        }
    }
}

/// Why a message ended: the reason, and the sequence where it was one. Engines differ in what they say after calls, so
/// a message with calls always ends in `tool_use` unless it was cut short.
fn stop_reason(end: &End, has_calls: bool) -> (&'static str, Option<&str>) {
    match end {
        End::Length => ("max_tokens", None),
        End::Filter => ("refusal", None),
        _ if has_calls => ("tool_use", None),
        End::Sequence(sequence) => ("stop_sequence", Some(sequence)),
        End::Stop | End::Calls => ("end_turn", None),
    }
}

#[cfg(test)]
mod tests;
