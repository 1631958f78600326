//! The two public dialects, OpenAI's and Anthropic's, as pure functions over bytes.
//!
//! Bodies are forwarded as they are wherever client and engine speak the same dialect; what is read here is read from a
//! copy, within bounds. Where they do not, a translation is built, and what it only hands on stays as it was written.
//!
//! - [`aggregate`] a streamed reply -> the document of one that is not streamed
//! - `chat` the shapes of chat completions, by which all others are translated
//! - [`errors`] one error type -> the object each dialect's clients expect, with stable codes
//! - [`conversation`] a prompt as the pieces that decide what an engine can reuse
//! - [`from_chat`] a chat stream -> the stream of another dialect
//! - [`messages`] Anthropic's Messages <-> chat completions
//! - [`ollama`] Ollama's API <-> chat completions and embeddings
//! - [`request`] the few fields of a request that Lifeboat needs, and the splice of `model`
//! - [`responses`] OpenAI's Responses <-> chat completions
//! - [`resume`] the rest of a reply from another engine
//! - [`sse`] events of a stream, split on the copy
//! - [`usage`] tokens, timings, end and failure of a reply

pub mod aggregate;
mod chat;
pub mod conversation;
pub mod errors;
pub mod from_chat;
pub mod messages;
mod node;
pub mod ollama;
mod raw;
pub mod request;
pub mod responses;
pub mod resume;
pub mod sse;
pub mod usage;

pub use aggregate::Aggregate;
pub use chat::Flavor;
pub use errors::{ApiError, Dialect, ErrorCode};
pub use from_chat::FromChat;
pub use request::{Peek, PeekError, PromptSpans, peek, splice_model};
pub use usage::{BodyReader, StreamReader, Usage};
