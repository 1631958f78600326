//! A bounded reader for the header of a GGUF file, and what the header tells about the model.
//!
//! The bytes come from strangers, so no length found in them is believed: nothing is allocated ahead of the
//! bytes that fill it, every count has a cap, every product is checked. The header is read from a slice that
//! may be only the beginning of a file; [`GgufError::NeedMore`] tells a caller how much to fetch (1, 4, 16 …
//! MiB), so that a remote model is inspected without downloading it.
//!
//! - [`header`] the bytes -> keys and tensors
//! - [`tensor`] the tensor types and their sizes
//! - [`facts`] keys and tensors -> [`ModelFacts`](crate::model::ModelFacts)
//! - [`architecture`] what differs between architectures and is not in the header

pub mod architecture;
pub mod facts;
pub mod header;
pub mod tensor;

pub use facts::facts;
pub use header::{Header, read};

/// Why a header cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The slice ends inside the header; the file may be fine.
    #[error("the header goes on beyond the {at_least} bytes that are needed at least")]
    NeedMore {
        /// Bytes from the start of the file that are needed to get any further.
        at_least: u64,
    },
    /// Not a GGUF file at all.
    #[error("this is not a GGUF file")]
    NotGguf,
    /// A GGUF file for big-endian machines.
    #[error("this GGUF file is written for big-endian machines; use the little-endian one")]
    BigEndian,
    /// A version this reader does not know.
    #[error("GGUF version {0} is not known (1 to 3 are)")]
    Version(u32),
    /// A structure that no writer makes.
    #[error("the GGUF header is damaged at byte {at}: {what}")]
    Corrupt {
        /// Where.
        at: u64,
        /// What is wrong there.
        what: String,
    },
    /// A key every model has is missing or has the wrong type.
    #[error("the GGUF header has no usable `{0}`")]
    Missing(String),
    /// The file is fine and not a model that can be served alone.
    #[error("{0}")]
    NotAModel(String),
    /// A tensor type this Lifeboat cannot size.
    #[error("tensor `{name}` has type {kind}, which this Lifeboat does not know")]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// Its type number.
        kind: u32,
    },
    /// Shards are missing, or belong to another model.
    #[error("the model is split into {expected} files, {given} were given")]
    Shards {
        /// What the first shard says.
        expected: u32,
        /// What was handed in.
        given: u32,
    },
}

#[cfg(test)]
mod tests;
