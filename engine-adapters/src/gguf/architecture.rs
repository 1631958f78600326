//! What differs between architectures and is not written in the header: window patterns where the file names
//! none, which keep state that cannot be cut, which only make vectors. By llama.cpp b11434 (ENGINES 6.2-6.4).

use crate::model::PrefixReuse;

/// How the layers with a sliding window are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// No layer has one, whatever the header says.
    Never,
    /// All but the last of every `period` layers.
    LastIsFull(u64),
    /// All but the first of every `period` layers.
    FirstIsFull(u64),
    /// Every layer with attention.
    All,
}

impl Windows {
    /// Whether this layer has a window.
    pub fn covers(self, layer: u64) -> bool {
        match self {
            Self::Never => false,
            Self::All | Self::LastIsFull(0) | Self::FirstIsFull(0) => true,
            Self::LastIsFull(period) => layer % period < period - 1,
            Self::FirstIsFull(period) => !layer.is_multiple_of(period),
        }
    }

    /// The same shape with the period a header names.
    #[must_use]
    pub fn with_period(self, period: u64) -> Self {
        match self {
            Self::FirstIsFull(_) => Self::FirstIsFull(period),
            _ => Self::LastIsFull(period),
        }
    }
}

/// The pattern of an architecture whose header names a window but no pattern.
pub fn windows(architecture: &str) -> Windows {
    match architecture {
        "gemma2" | "gpt-oss" => Windows::LastIsFull(2),
        "gemma3n" => Windows::LastIsFull(5),
        "gemma3" | "gemma-embedding" => Windows::LastIsFull(6),
        "cohere2" | "llama4" | "exaone4" | "exaone-moe" | "olmo2" | "afmoe" | "mellum" | "muse-glimmer" => Windows::LastIsFull(4),
        "plamo3" => Windows::LastIsFull(8),
        "cohere2moe" | "smallthinker" | "laguna" => Windows::FirstIsFull(4),
        "modern-bert" => Windows::FirstIsFull(3),
        "lfm2" | "lfm2moe" | "deepseek4" => Windows::All,
        // Everybody else either writes the pattern as an array or has no window the engine honours (phi3 names one that it ignores).
        _ => Windows::Never,
    }
}

/// A window the engine applies even where the header names none.
pub fn implied_window(architecture: &str) -> Option<u64> {
    match architecture {
        "gemma2" => Some(4096),
        "llama4" => Some(8192),
        _ => None,
    }
}

/// Every layer is recurrent.
pub fn is_recurrent(architecture: &str) -> bool {
    matches!(architecture, "mamba" | "mamba2" | "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7")
}

/// Some layers are recurrent, or the state cannot be cut for another reason.
pub fn is_hybrid(architecture: &str) -> bool {
    matches!(
        architecture,
        "jamba"
            | "falcon-h1"
            | "plamo2"
            | "granitehybrid"
            | "lfm2"
            | "lfm2moe"
            | "nemotron_h"
            | "nemotron_h_moe"
            | "qwen3next"
            | "qwen35"
            | "qwen35moe"
            | "qwen4exp"
            | "kimi-linear"
            | "kimi-k3"
            | "bailingmoe3"
            | "glm5-next"
            | "deepseek4"
            | "minimax-01"
    )
}

/// Attention and recurrence side by side in every layer.
pub fn has_both_in_every_layer(architecture: &str) -> bool {
    architecture == "falcon-h1"
}

/// One layer of this many attends, the others are recurrent, where the file does not say otherwise.
pub fn attention_interval(architecture: &str) -> Option<u64> {
    match architecture {
        "qwen3next" | "qwen35" | "qwen35moe" | "qwen4exp" => Some(4),
        "minimax-01" => Some(8),
        _ => None,
    }
}

/// Encoders: they only make vectors or scores and keep no cache.
pub fn is_encoder(architecture: &str) -> bool {
    matches!(
        architecture,
        "bert"
            | "modern-bert"
            | "nomic-bert"
            | "nomic-bert-moe"
            | "neo-bert"
            | "jina-bert-v2"
            | "jina-bert-v3"
            | "eurobert"
            | "gemma-embedding"
            | "clef"
            | "t5encoder"
    )
}

/// Whether a prefix of a conversation can be kept (ENGINES 6.4).
pub fn prefix_reuse(architecture: &str, has_windows: bool, has_recurrence: bool) -> PrefixReuse {
    if is_encoder(architecture) {
        PrefixReuse::None
    } else if has_recurrence || is_recurrent(architecture) || is_hybrid(architecture) {
        PrefixReuse::AppendOnly
    } else if has_windows {
        PrefixReuse::Window
    } else {
        PrefixReuse::Full
    }
}
