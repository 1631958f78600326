//! Goes on with a reply on another engine after the one that wrote it is gone.
//!
//! An engine goes on with a conversation whose last message is the assistant's, so what was sent is put there. That
//! gives the client the same reply only where the text is all there is to it: no call, no reasoning, no second choice
//! and no grammar stands half way. Whatever is not surely so is not resumed; the stream then ends by its error event.
//!
//! - [`transcript`] what was sent so far, gathered on the hot path
//! - [`request`] the request that goes on from there
//! - [`stitch`] the second engine's stream as the rest of the first one's

mod request;
mod stitch;
mod transcript;

pub use request::resume;
pub use stitch::Stitch;
pub use transcript::Transcript;

/// What kind of reply it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// A chat completion.
    Chat,
    /// A text completion.
    Text,
}

#[cfg(test)]
mod tests;
