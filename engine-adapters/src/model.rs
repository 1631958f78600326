//! Facts about a model, whatever file format they were read from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::spec::Task;

/// What the header of a model file tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelFacts {
    /// `general.architecture`, for example `llama`.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Number of parameters (elements of all tensors).
    pub parameters: u64,
    /// Quantisation as people write it: `Q4_K_M`.
    pub quantisation: String,
    /// Bytes of all tensors, shards included.
    pub weight_bytes: u64,
    /// Context the model was trained for.
    pub native_context: u32,
    /// Blocks that hold state.
    pub layers: u32,
    /// Width of the residual stream.
    pub embedding_length: u32,
    /// Entries of the vocabulary; 0 = not told.
    pub vocabulary: u32,
    /// What a token of context costs.
    pub kv: KvLayout,
    /// `general.license`.
    pub licence: Option<String>,
    /// Has a chat template of its own.
    pub chat_template: bool,
    /// What it is for.
    pub task: Task,
    /// The header says how the vectors of tokens become one (embedding and rerank models).
    #[serde(default)]
    pub pooling: bool,
    /// Whether an engine can keep a prefix of a conversation.
    pub prefix_reuse: PrefixReuse,
    /// Experts per layer; 0 for dense models.
    pub experts: u32,
    /// Experts used for a token.
    pub experts_used: u32,
    /// Number of files the model is split in.
    pub shards: u32,
    /// Next-token-prediction layers for speculation.
    pub speculative_layers: u32,
    /// Bytes of the vision/audio projector loaded beside it; 0 = none. Set by whoever found the file.
    #[serde(default)]
    pub projector_bytes: u64,
}

/// Widths of one layer's attention, in elements per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttentionLayer {
    /// Elements of keys a token adds (heads x key length).
    pub key: u32,
    /// Elements of values a token adds; 0 for MLA.
    pub value: u32,
    /// Tokens of the sliding window; `None` = the whole context.
    pub window: Option<u32>,
}

/// What the cache holds, layer by layer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct KvLayout {
    /// Layers with attention.
    pub attention: Vec<AttentionLayer>,
    /// Bytes of recurrent state of one sequence, all layers (f32, no context term).
    pub recurrent_bytes: u64,
}

/// Whether a prefix of a conversation can be kept by the engine (ENGINES 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrefixReuse {
    /// Any prefix, cut at any token.
    Full,
    /// Within the sliding window, or from a checkpoint.
    Window,
    /// Only if the new prompt extends the old one, or from a checkpoint.
    AppendOnly,
    /// Not at all (embedding and rerank models).
    None,
}
