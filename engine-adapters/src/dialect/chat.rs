//! Chat completions as the other dialects need them: the request that is written, and the reply that is read.
//!
//! Every engine has this dialect; whatever else a client speaks is put through it where its engine lacks it. What a
//! client's value means is decided where its dialect is read; here are the shapes only.

mod reply;
mod request;

pub(super) use reply::{Chunk, End, Event, Piece, Timings, Tokens, unreadable};
pub(super) use request::{Choice, Content, Function, Message, Part, Request, Tool, ToolCall, Url};

/// What is known of the engine a translated request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// llama-server: fields of its own say what chat completions cannot.
    LlamaCpp,
    /// Anything else that has chat completions.
    Other,
}
