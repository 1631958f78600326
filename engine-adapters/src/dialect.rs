//! The two public dialects, OpenAI's and Anthropic's, as pure functions over bytes.
//!
//! Bodies are forwarded as they are wherever client and engine speak the same dialect; what is read here is read from a
//! copy, within bounds. Where they do not, a translation is built, and what it only hands on stays as it was written.
//!
//! - [`aggregate`] a streamed reply -> the document of one that is not streamed
//! - [`errors`] one error type -> the object each dialect's clients expect, with stable codes
//! - [`request`] the few fields of a request that Lifeboat needs, and the splice of `model`
//! - [`sse`] events of a stream, split on the copy
//! - [`usage`] tokens, timings, end and failure of a reply

pub mod aggregate;
pub mod errors;
mod raw;
pub mod request;
pub mod sse;
pub mod usage;

pub use aggregate::Aggregate;
pub use errors::{ApiError, Dialect, ErrorCode};
pub use request::{Peek, PeekError, peek, splice_model};
pub use usage::{BodyReader, StreamReader, Usage};
