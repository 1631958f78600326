//! Keys and tensors -> what the rest of Lifeboat wants to know about a model.

use std::collections::BTreeMap;

use super::GgufError;
use super::architecture::{self, Windows};
use super::header::{Header, Value};
use super::tensor::{file_type_name, layout};
use crate::model::{AttentionLayer, KvLayout, ModelFacts};
use crate::spec::Task;

/// More layers than any model has; a bound for what is computed per layer.
const MAX_LAYERS: u64 = 4096;

/// What a file is, by `general.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A language model.
    Model,
    /// A vision or audio projector that goes beside a model.
    Projector,
    /// A low-rank adapter.
    Adapter,
    /// Something else (a vocabulary, an importance matrix).
    Other,
}

/// What this file is.
pub fn kind(header: &Header) -> FileKind {
    match header.text("general.type") {
        Some("mmproj") => FileKind::Projector,
        Some("adapter") => FileKind::Adapter,
        Some("model") | None => match header.text("general.architecture") {
            Some("clip") => FileKind::Projector,
            // Every shard but the first has tensors and no architecture.
            _ if header.tensors.is_empty() && header.split().is_none() => FileKind::Other,
            _ => FileKind::Model,
        },
        Some(_) => FileKind::Other,
    }
}

/// The facts of a model: keys of the first file, tensors of all. `others` are the further shards, in any order.
pub fn facts(first: &Header, others: &[Header]) -> Result<ModelFacts, GgufError> {
    check_kind(first)?;
    let given = u32::try_from(others.len()).unwrap_or(u32::MAX).saturating_add(1);
    let shards = first.split().map_or(1, |(_, count)| count);
    if given != shards {
        return Err(GgufError::Shards { expected: shards, given });
    }
    let keys = Keys::new(first)?;
    let all = || std::iter::once(first).chain(others);
    let mut weight_bytes = 0_u64;
    for header in all() {
        weight_bytes = weight_bytes.saturating_add(header.tensor_bytes()?);
    }
    let parameters = all().flat_map(|header| &header.tensors).fold(0_u64, |sum, tensor| sum.saturating_add(tensor.elements));
    let task = keys.task(first, others);
    let kv = if architecture::is_encoder(keys.architecture) { KvLayout::default() } else { keys.kv() };
    let has_windows = kv.attention.iter().any(|layer| layer.window.is_some());
    let has_recurrence = kv.recurrent_bytes > 0;
    Ok(ModelFacts {
        architecture: keys.architecture.to_owned(),
        name: first.text("general.name").filter(|name| !name.trim().is_empty()).map(str::to_owned),
        parameters,
        quantisation: quantisation(first, others),
        weight_bytes,
        native_context: keys.small("context_length"),
        layers: u32::try_from(keys.layers).unwrap_or(0),
        embedding_length: keys.small("embedding_length"),
        vocabulary: keys.vocabulary(first),
        kv,
        licence: first.text("general.license").map(str::to_owned),
        chat_template: first.values.keys().any(|key| key == "tokenizer.chat_template" || key.starts_with("tokenizer.chat_template.")),
        task,
        pooling: keys.number("pooling_type").is_some_and(|kind| kind > 0),
        prefix_reuse: architecture::prefix_reuse(keys.architecture, has_windows, has_recurrence),
        experts: keys.small("expert_count"),
        experts_used: keys.small_max("expert_used_count"),
        shards,
        speculative_layers: keys.small("nextn_predict_layers"),
        projector_bytes: 0,
    })
}

fn check_kind(header: &Header) -> Result<(), GgufError> {
    let what = match kind(header) {
        FileKind::Model => {
            return match header.split() {
                Some((number, count)) if number > 0 => {
                    Err(GgufError::NotAModel(format!("this is part {} of {count} of a model; name the first part", u64::from(number) + 1)))
                }
                _ => Ok(()),
            };
        }
        FileKind::Projector => "a vision or audio projector, which is loaded beside a model",
        FileKind::Adapter => "an adapter (LoRA), which is loaded on top of a model",
        FileKind::Other => "a file without a model in it",
    };
    Err(GgufError::NotAModel(format!("this GGUF file is {what}")))
}

/// The name from `general.file_type`, else the type that holds the most bytes.
fn quantisation(first: &Header, others: &[Header]) -> String {
    let named = first.integer("general.file_type").and_then(|number| u32::try_from(number).ok()).and_then(file_type_name);
    if let Some(name) = named {
        return name.to_owned();
    }
    let mut by_type: BTreeMap<u32, u64> = BTreeMap::new();
    for tensor in std::iter::once(first).chain(others).flat_map(|header| &header.tensors) {
        let sum = by_type.entry(tensor.kind).or_default();
        *sum = sum.saturating_add(tensor.bytes.unwrap_or(0));
    }
    let dominant = by_type.iter().max_by_key(|(_, bytes)| **bytes).and_then(|(kind, _)| layout(*kind));
    dominant.map_or_else(|| "unknown".to_owned(), |(name, _, _)| name.to_owned())
}

/// The keys of one architecture.
struct Keys<'a> {
    header: &'a Header,
    architecture: &'a str,
    /// Layers without those for speculation.
    layers: u64,
}

impl<'a> Keys<'a> {
    fn new(header: &'a Header) -> Result<Self, GgufError> {
        let architecture = header
            .text("general.architecture")
            .filter(|name| !name.is_empty() && name.len() <= 64)
            .ok_or_else(|| GgufError::Missing("general.architecture".into()))?;
        let mut keys = Self { header, architecture, layers: 0 };
        let blocks = keys.number("block_count").ok_or_else(|| GgufError::Missing(format!("{architecture}.block_count")))?;
        if blocks > MAX_LAYERS {
            return Err(GgufError::Missing(format!("{architecture}.block_count (it says {blocks})")));
        }
        keys.layers = blocks.saturating_sub(keys.number("nextn_predict_layers").unwrap_or(0));
        Ok(keys)
    }

    fn value(&self, name: &str) -> Option<&'a Value> {
        self.header.values.get(&format!("{}.{name}", self.architecture))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.header.integer(&format!("{}.{name}", self.architecture))
    }

    /// A number that fits 32 bits, else 0.
    fn small(&self, name: &str) -> u32 {
        self.number(name).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
    }

    /// The same where the key may be an array: its largest element.
    fn small_max(&self, name: &str) -> u32 {
        match self.value(name) {
            Some(Value::Integers(numbers)) => numbers.iter().filter_map(|number| u32::try_from(*number).ok()).max().unwrap_or(0),
            _ => self.small(name),
        }
    }

    /// A number for one layer, where the key holds either one for all or one each.
    fn at_layer(&self, name: &str, layer: u64) -> Option<u64> {
        match self.value(name)? {
            Value::Integers(numbers) => numbers.get(usize::try_from(layer).ok()?).and_then(|number| u64::try_from(*number).ok()),
            _ => self.number(name),
        }
    }

    fn vocabulary(&self, header: &Header) -> u32 {
        let tokens = header.array_length("tokenizer.ggml.tokens").and_then(|length| u32::try_from(length).ok());
        tokens.filter(|length| *length > 0).unwrap_or_else(|| self.small("vocab_size"))
    }

    fn task(&self, first: &Header, others: &[Header]) -> Task {
        // 0 none, 1 mean, 2 first token, 3 last token, 4 rank
        let pooling = self.number("pooling_type");
        let has = |name: &str| std::iter::once(first).chain(others).flat_map(|header| &header.tensors).any(|tensor| tensor.name == name);
        let ranks = pooling == Some(4) || (architecture::is_encoder(self.architecture) && (has("cls.output.weight") || has("cls.weight")));
        if ranks {
            Task::Rerank
        } else if architecture::is_encoder(self.architecture)
            || matches!(pooling, Some(1..=3))
            || self.number("attention.causal") == Some(0)
        {
            Task::Embedding
        } else {
            Task::Chat
        }
    }

    /// What each layer adds to the cache.
    fn kv(&self) -> KvLayout {
        let windows = self.windows();
        // Some architectures let the last layers read the cache of earlier ones.
        let with_cache = self.layers.saturating_sub(self.shared_layers());
        let mut layout = KvLayout::default();
        for layer in 0..self.layers {
            let recurrent = self.is_recurrent(layer);
            if recurrent {
                layout.recurrent_bytes = layout.recurrent_bytes.saturating_add(self.recurrent_bytes(layer));
            }
            if recurrent && !architecture::has_both_in_every_layer(self.architecture) || layer >= with_cache {
                continue;
            }
            if let Some(attention) = self.attention(layer, windows) {
                layout.attention.push(attention);
            }
        }
        layout
    }

    fn shared_layers(&self) -> u64 {
        match (self.number("attention.shared_kv_layers"), self.architecture) {
            (Some(shared), _) => shared,
            // The engine keeps a cache for the first 20 layers of this one.
            (None, "gemma3n") => self.layers.saturating_sub(20),
            (None, _) => 0,
        }
    }

    fn is_recurrent(&self, layer: u64) -> bool {
        let architecture = self.architecture;
        if architecture::is_recurrent(architecture) || architecture::has_both_in_every_layer(architecture) {
            return true;
        }
        if !architecture::is_hybrid(architecture) {
            return false;
        }
        if let Some(listed) = self.at_layer("attention.recurrent_layers", layer) {
            return listed != 0;
        }
        if let Some(Value::Integers(heads)) = self.value("attention.head_count_kv") {
            let feeds_forward = self.at_layer("feed_forward_length", layer).unwrap_or(0) > 0;
            let none = usize::try_from(layer).ok().and_then(|layer| heads.get(layer)).is_some_and(|heads| *heads == 0);
            // nemotron_h has layers that are neither attention nor recurrent but feed forward only.
            return none && !(architecture.starts_with("nemotron_h") && feeds_forward);
        }
        let interval = self.number("full_attention_interval").or_else(|| architecture::attention_interval(architecture));
        interval.is_some_and(|interval| interval > 0 && !(layer + 1).is_multiple_of(interval))
    }

    /// Window of each layer that has one: tokens, and which layers.
    fn windows(&self) -> Option<(u32, Windows)> {
        let tokens = self.number("attention.sliding_window").or_else(|| architecture::implied_window(self.architecture))?;
        let tokens = u32::try_from(tokens).ok().filter(|tokens| *tokens > 0)?;
        // llama4 attends in chunks of a fixed size, whatever the header says.
        let tokens = if self.architecture == "llama4" { 8192 } else { tokens };
        let default = architecture::windows(self.architecture);
        let pattern = match self.value("attention.sliding_window_pattern") {
            Some(Value::Integer(period)) if default != Windows::Never => {
                u64::try_from(*period).map_or(default, |period| default.with_period(period))
            }
            _ => default,
        };
        Some((tokens, pattern))
    }

    fn has_window(&self, layer: u64, windows: Option<(u32, Windows)>) -> Option<u32> {
        let (tokens, pattern) = windows?;
        let covered = match self.value("attention.sliding_window_pattern") {
            Some(Value::Integers(_)) if self.architecture != "phi3" => {
                self.at_layer("attention.sliding_window_pattern", layer).unwrap_or(0) != 0
            }
            _ => pattern.covers(layer),
        };
        covered.then_some(tokens)
    }

    fn attention(&self, layer: u64, windows: Option<(u32, Windows)>) -> Option<AttentionLayer> {
        let heads = self.at_layer("attention.head_count", layer).unwrap_or(0);
        let kv_heads = self.at_layer("attention.head_count_kv", layer).unwrap_or(heads);
        if kv_heads == 0 {
            return None;
        }
        let window = self.has_window(layer, windows);
        let first_heads = self.at_layer("attention.head_count", 0).filter(|heads| *heads > 0).unwrap_or(heads);
        let default = self.number("embedding_length").unwrap_or(0).checked_div(first_heads).unwrap_or(0);
        let length = |name: &str| {
            let swa = window.is_some().then(|| self.number(&format!("attention.{name}_swa"))).flatten();
            swa.or_else(|| self.number(&format!("attention.{name}"))).unwrap_or(default)
        };
        let width = |length: u64| u32::try_from(length.saturating_mul(kv_heads)).unwrap_or(u32::MAX);
        if self.is_mla() {
            // One row of keys shared by all heads; the values are computed from it.
            return Some(AttentionLayer { key: u32::try_from(length("key_length")).unwrap_or(u32::MAX), value: 0, window });
        }
        Some(AttentionLayer { key: width(length("key_length")), value: width(length("value_length")), window })
    }

    fn is_mla(&self) -> bool {
        self.number("attention.key_length_mla").is_some_and(|length| length > 0)
    }

    /// Bytes of recurrent state of one sequence in one layer (f32).
    fn recurrent_bytes(&self, layer: u64) -> u64 {
        let number = |name: &str| self.number(name).unwrap_or(0);
        let embedding = number("embedding_length");
        let product = |numbers: &[u64]| numbers.iter().fold(1_u64, |product, number| product.saturating_mul(*number));
        let heads = self
            .at_layer("attention.head_count", layer)
            .filter(|heads| *heads > 0)
            .or_else(|| self.at_layer("attention.head_count", 0))
            .unwrap_or(0);
        let convolution = number("ssm.conv_kernel");
        let elements = if number("wkv.head_size") > 0 {
            let shifts = self.number("token_shift_count").unwrap_or(2);
            product(&[shifts, embedding]).saturating_add(product(&[embedding, number("wkv.head_size")]))
        } else if number("shortconv.l_cache") > 0 {
            product(&[embedding, number("shortconv.l_cache") - 1])
        } else if self.architecture == "minimax-01" {
            product(&[number("attention.key_length"), number("attention.key_length"), heads])
        } else if number("kda.head_dim") > 0 {
            let width = number("kda.head_dim");
            let kernel = if convolution > 0 { convolution - 1 } else { 3 };
            product(&[3, kernel, heads, width]).saturating_add(product(&[width, width, heads]))
        } else {
            let (inner, state) = (number("ssm.inner_size"), number("ssm.state_size"));
            let groups = product(&[2, number("ssm.group_count"), state]);
            product(&[convolution.saturating_sub(1), inner.saturating_add(groups)]).saturating_add(product(&[state, inner]))
        };
        elements.saturating_mul(4)
    }
}
