//! Bytes a launch takes, part by part, and the extras that fill what is left.

use crate::model::{ModelFacts, PrefixReuse};
use crate::spec::{CacheType, MemoryNeed, Task};

/// Tokens the engine computes at once (its `--ubatch-size` default).
pub const UBATCH: u32 = 512;
/// Largest batch for embedding and rerank rows, whose inputs must fit one batch.
pub const MAX_VECTOR_BATCH: u32 = 8192;
/// The process itself: code, libraries, HTTP threads.
pub const PROCESS_BYTES: u64 = 96 << 20;
/// Host cache at most, MiB.
const MAX_CACHE_MIB: u64 = 2048;
/// A host cache below this is not worth having, MiB.
const MIN_CACHE_MIB: u64 = 128;
/// Rewind points of a slot at most: the engine's own default.
const MAX_CHECKPOINTS: u64 = 32;

/// What does not change while slots and context are searched.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// What the row is for.
    pub task: Task,
    /// Format of the keys.
    pub key: CacheType,
    /// Format of the values.
    pub value: CacheType,
    /// Devices used.
    pub devices: u32,
}

impl Shape {
    /// Tokens of one batch: inputs of embedding and rerank rows must fit it whole.
    pub fn ubatch(&self, context: u32) -> u32 {
        match self.task {
            Task::Chat => UBATCH,
            Task::Embedding | Task::Rerank => cells(context).clamp(UBATCH, MAX_VECTOR_BATCH),
        }
    }
}

/// One candidate: how many conversations of what length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Requests at once.
    pub slots: u32,
    /// Tokens of each.
    pub context: u32,
}

/// The engine rounds a context up to a multiple of 256.
pub fn cells(context: u32) -> u32 {
    context.saturating_add(255) / 256 * 256
}

/// Bytes of the KV cache and recurrent state of all slots.
pub fn kv_bytes(model: &ModelFacts, shape: Shape, plan: Plan) -> u64 {
    let all = u64::from(cells(plan.context));
    let batch = shape.ubatch(plan.context);
    let one_slot = model.kv.attention.iter().fold(model.kv.recurrent_bytes, |sum, layer| {
        let kept = layer.window.map_or(all, |window| all.min(u64::from(cells(window.saturating_add(batch)))));
        let token = shape.key.bytes(layer.key.into()).saturating_add(shape.value.bytes(layer.value.into()));
        sum.saturating_add(kept.saturating_mul(token))
    });
    one_slot.saturating_mul(u64::from(plan.slots))
}

/// Bytes one token of context costs in the layers that keep the whole context, default formats.
pub fn kv_bytes_per_token(model: &ModelFacts) -> u64 {
    let full = model.kv.attention.iter().filter(|layer| layer.window.is_none());
    full.map(|layer| CacheType::F16.bytes(u64::from(layer.key) + u64::from(layer.value))).sum()
}

/// Compute buffers and the process. No closed form exists; this is the shape of the largest graph: a few
/// activations as wide as the feed-forward part, the attention mask, logits, and the tokenizer. A device reserves
/// the logits of a whole batch; on the host only those of the tokens that are sampled are ever touched. Measured
/// with `SmolLM2` (2 slots of 8192): 164 MB by this, 76 MB resident.
pub fn compute_bytes(model: &ModelFacts, shape: Shape, plan: Plan) -> u64 {
    let batch = u64::from(shape.ubatch(plan.context));
    let vocabulary = u64::from(model.vocabulary);
    let outputs = match (shape.task, shape.devices) {
        (Task::Chat, 0) => plan.slots.into(),
        (Task::Chat, _) => batch,
        _ => 0,
    };
    let logits = outputs.saturating_mul(vocabulary).saturating_mul(4);
    let width = u64::from(model.embedding_length).saturating_mul(20 + 2 * u64::from(model.experts_used));
    let activations = batch.saturating_mul(width).saturating_mul(4);
    let mask = u64::from(cells(plan.context)).saturating_mul(batch).saturating_mul(6);
    let tables = vocabulary.saturating_mul(300);
    [PROCESS_BYTES, logits, activations, mask, tables].into_iter().fold(0, u64::saturating_add)
}

/// Everything but the extras.
pub fn need(model: &ModelFacts, shape: Shape, plan: Plan) -> MemoryNeed {
    MemoryNeed {
        weights_bytes: model.weight_bytes.saturating_add(model.projector_bytes),
        kv_bytes: kv_bytes(model, shape, plan),
        compute_bytes: compute_bytes(model, shape, plan),
        host_cache_bytes: 0,
    }
}

/// Bytes of one point a slot can be rewound to: recurrent state and what the windows hold. 0 where any token
/// can be cut anyway.
pub fn checkpoint_bytes(model: &ModelFacts, shape: Shape, plan: Plan) -> u64 {
    if matches!(model.prefix_reuse, PrefixReuse::Full | PrefixReuse::None) {
        return 0;
    }
    model.kv.attention.iter().fold(model.kv.recurrent_bytes, |sum, layer| {
        let Some(window) = layer.window else { return sum };
        let token = shape.key.bytes(layer.key.into()).saturating_add(shape.value.bytes(layer.value.into()));
        sum.saturating_add(u64::from(window.min(plan.context)).saturating_mul(token))
    })
}

/// What is bought with the memory left over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extras {
    /// MiB for evicted prompts.
    pub cache_mib: u32,
    /// Rewind points of each slot.
    pub checkpoints: u32,
    /// Bytes of all rewind points.
    pub checkpoint_bytes: u64,
}

impl Extras {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        (u64::from(self.cache_mib) << 20).saturating_add(self.checkpoint_bytes)
    }
}

/// Host cache and rewind points: at most an eighth of the free memory and 2 GiB for the cache, and where rewind
/// points are needed they get at least half of what is left.
pub fn extras(model: &ModelFacts, shape: Shape, plan: Plan, left: u64, free: u64) -> Extras {
    let none = Extras { cache_mib: 0, checkpoints: 0, checkpoint_bytes: 0 };
    if shape.task != Task::Chat || model.prefix_reuse == PrefixReuse::None {
        return none;
    }
    let point = checkpoint_bytes(model, shape, plan).saturating_mul(u64::from(plan.slots));
    let for_cache = if point > 0 { left / 2 } else { left };
    let mib = (free / 8).min(for_cache) >> 20;
    let mib = mib.min(MAX_CACHE_MIB) / 64 * 64;
    let mib = if mib < MIN_CACHE_MIB { 0 } else { mib };
    let points = left.saturating_sub(mib << 20).checked_div(point).unwrap_or(0).min(MAX_CHECKPOINTS);
    Extras {
        cache_mib: u32::try_from(mib).unwrap_or(0),
        checkpoints: u32::try_from(points).unwrap_or(0),
        checkpoint_bytes: points.saturating_mul(point),
    }
}
