//! Tables for the reader and the facts, and properties over hostile bytes.

use proptest::prelude::*;

use super::facts::{FileKind, kind};
use super::header::{Header, Value};
use super::*;
use crate::model::{AttentionLayer, ModelFacts, PrefixReuse};
use crate::spec::Task;

/// Writes GGUF bytes for tests.
#[derive(Clone, Default)]
struct Writer {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    offset: u64,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Writer {
    fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.extend([string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat());
        self.key_count += 1;
        self
    }
    fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value))
    }
    fn number(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }
    fn numbers(self, key: &str, values: &[u32]) -> Self {
        let body: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, 9, &[&4_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &body].concat())
    }
    fn strings(self, key: &str, count: u32) -> Self {
        let body: Vec<u8> = (0..count).flat_map(|number| string(&number.to_string())).collect();
        self.raw(key, 9, &[&8_u32.to_le_bytes()[..], &u64::from(count).to_le_bytes(), &body].concat())
    }
    fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32) -> Self {
        let sizes: Vec<u8> = dimensions.iter().flat_map(|size| size.to_le_bytes()).collect();
        let count = u32::try_from(dimensions.len()).unwrap();
        self.tensors.extend(
            [string(name), count.to_le_bytes().to_vec(), sizes, kind.to_le_bytes().to_vec(), self.offset.to_le_bytes().to_vec()].concat(),
        );
        self.offset += 64;
        self.tensor_count += 1;
        self
    }
    fn bytes(&self) -> Vec<u8> {
        [&b"GGUF"[..], &3_u32.to_le_bytes(), &self.tensor_count.to_le_bytes(), &self.key_count.to_le_bytes(), &self.keys, &self.tensors]
            .concat()
    }
    fn header(&self) -> Header {
        read(&self.bytes()).unwrap()
    }
    fn facts(&self) -> ModelFacts {
        facts(&self.header(), &[]).unwrap()
    }
}

/// A model of that architecture with 4 layers, 8 heads of 64, 2 of them for keys and values.
fn model(architecture: &str) -> Writer {
    let key = |name: &str| format!("{architecture}.{name}");
    Writer::default()
        .text("general.architecture", architecture)
        .number(&key("block_count"), 4)
        .number(&key("context_length"), 2048)
        .number(&key("embedding_length"), 512)
        .number(&key("attention.head_count"), 8)
        .tensor("token_embd.weight", &[512, 100], 0)
}

fn heads(architecture: &str) -> Writer {
    model(architecture).number(&format!("{architecture}.attention.head_count_kv"), 2)
}

const PLAIN: AttentionLayer = AttentionLayer { key: 128, value: 128, window: None };

#[test]
fn a_plain_model_is_read_with_the_documented_defaults() {
    let facts = heads("llama")
        .text("general.name", "Test")
        .text("general.license", "mit")
        .text("tokenizer.chat_template", "{{ x }}")
        .number("general.file_type", 15)
        .strings("tokenizer.ggml.tokens", 5000)
        .facts();
    assert_eq!(facts.kv.attention, vec![PLAIN; 4]);
    assert_eq!((facts.native_context, facts.layers, facts.vocabulary, facts.shards), (2048, 4, 5000, 1));
    assert_eq!((facts.parameters, facts.weight_bytes), (51_200, 204_800));
    assert_eq!((facts.quantisation.as_str(), facts.licence.as_deref(), facts.chat_template), ("Q4_K_M", Some("mit"), true));
    assert_eq!((facts.task, facts.prefix_reuse), (Task::Chat, PrefixReuse::Full));
    let all_heads = model("llama").facts();
    assert_eq!(all_heads.kv.attention[0], AttentionLayer { key: 512, value: 512, window: None });
}

#[test]
fn the_dominant_tensor_type_names_a_file_without_file_type() {
    let facts = heads("llama").tensor("blk.0.ffn_up.weight", &[512, 4096], 12).facts();
    assert_eq!(facts.quantisation, "Q4_K");
}

#[test]
fn heads_may_differ_by_layer_and_layers_without_heads_keep_nothing() {
    let facts = model("deci").numbers("deci.attention.head_count_kv", &[2, 0, 1, 2]).facts();
    let keys: Vec<_> = facts.kv.attention.iter().map(|layer| layer.key).collect();
    assert_eq!(keys, [128, 64, 128]);
}

#[test]
fn windows_follow_the_array_the_period_or_the_architecture() {
    let windows = |writer: Writer| writer.facts().kv.attention.iter().map(|layer| layer.window).collect::<Vec<_>>();
    let some = Some(1024);
    let gemma = |name: &str| heads(name).number(&format!("{name}.attention.sliding_window"), 1024);
    assert_eq!(windows(gemma("gemma2")), [some, None, some, None]);
    assert_eq!(windows(gemma("gemma3")), [some, some, some, some], "its period is 6");
    assert_eq!(windows(gemma("gemma3").number("gemma3.attention.sliding_window_pattern", 3)), [some, some, None, some]);
    assert_eq!(windows(gemma("smallthinker")), [None, some, some, some]);
    assert_eq!(windows(gemma("gemma4").numbers("gemma4.attention.sliding_window_pattern", &[1, 1, 0, 1])), [some, some, None, some]);
    assert_eq!(windows(gemma("phi3")), [None; 4], "the engine ignores the window of phi3");
    assert_eq!(windows(heads("llama")), [None; 4]);
    assert_eq!(gemma("gemma2").facts().prefix_reuse, PrefixReuse::Window);
}

#[test]
fn windowed_layers_may_have_widths_of_their_own_and_the_last_may_share_a_cache() {
    let facts = heads("gemma4")
        .number("gemma4.attention.sliding_window", 512)
        .numbers("gemma4.attention.sliding_window_pattern", &[1, 0, 1, 0])
        .number("gemma4.attention.key_length", 512)
        .number("gemma4.attention.value_length", 512)
        .number("gemma4.attention.key_length_swa", 256)
        .number("gemma4.attention.value_length_swa", 256)
        .number("gemma4.attention.shared_kv_layers", 1)
        .facts();
    assert_eq!(facts.kv.attention[0], AttentionLayer { key: 512, value: 512, window: Some(512) });
    assert_eq!(facts.kv.attention[1], AttentionLayer { key: 1024, value: 1024, window: None });
    assert_eq!(facts.kv.attention.len(), 3);
}

#[test]
fn mla_keeps_one_row_of_keys_and_no_values() {
    let facts = model("deepseek2")
        .number("deepseek2.attention.head_count_kv", 1)
        .number("deepseek2.attention.key_length", 576)
        .number("deepseek2.attention.value_length", 512)
        .number("deepseek2.attention.key_length_mla", 192)
        .number("deepseek2.attention.value_length_mla", 128)
        .number("deepseek2.expert_count", 64)
        .number("deepseek2.expert_used_count", 6)
        .facts();
    assert_eq!(facts.kv.attention, vec![AttentionLayer { key: 576, value: 0, window: None }; 4]);
    assert_eq!((facts.experts, facts.experts_used), (64, 6));
}

#[test]
fn layers_for_speculation_are_not_in_the_cache() {
    let facts = heads("glm4moe").number("glm4moe.nextn_predict_layers", 1).facts();
    assert_eq!((facts.layers, facts.kv.attention.len(), facts.speculative_layers), (3, 3, 1));
}

#[test]
fn recurrent_and_hybrid_models_keep_state_by_layer() {
    let ssm = |writer: Writer, name: &str| {
        writer
            .number(&format!("{name}.ssm.conv_kernel"), 4)
            .number(&format!("{name}.ssm.inner_size"), 1024)
            .number(&format!("{name}.ssm.state_size"), 16)
            .number(&format!("{name}.ssm.group_count"), 1)
    };
    // 3 * (1024 + 2 * 16) + 16 * 1024 elements of 4 bytes.
    let layer = 4 * (3 * 1056 + 16_384);
    let mamba = ssm(model("mamba2"), "mamba2").facts();
    assert_eq!((mamba.kv.attention.len(), mamba.kv.recurrent_bytes), (0, 4 * layer));
    let jamba = ssm(model("jamba").numbers("jamba.attention.head_count_kv", &[0, 2, 0, 0]), "jamba").facts();
    assert_eq!((jamba.kv.attention.len(), jamba.kv.recurrent_bytes), (1, 3 * layer));
    let qwen = ssm(heads("qwen35"), "qwen35").facts();
    assert_eq!((qwen.kv.attention.len(), qwen.kv.recurrent_bytes), (1, 3 * layer), "one layer of four attends");
    let falcon = ssm(heads("falcon-h1"), "falcon-h1").facts();
    assert_eq!((falcon.kv.attention.len(), falcon.kv.recurrent_bytes), (4, 4 * layer), "every layer does both");
    for facts in [mamba, jamba, qwen, falcon] {
        assert_eq!(facts.prefix_reuse, PrefixReuse::AppendOnly, "{}", facts.architecture);
    }
    let rwkv = model("rwkv7").number("rwkv7.wkv.head_size", 64).facts();
    assert_eq!(rwkv.kv.recurrent_bytes, 4 * 4 * (2 * 512 + 512 * 64));
    let lfm = model("lfm2").numbers("lfm2.attention.head_count_kv", &[0, 2, 0, 2]).number("lfm2.shortconv.l_cache", 3).facts();
    assert_eq!((lfm.kv.attention.len(), lfm.kv.recurrent_bytes), (2, 2 * 4 * 512 * 2));
}

#[test]
fn tasks_are_told_by_architecture_pooling_and_classifier() {
    let task = |writer: Writer| {
        let facts = writer.facts();
        (facts.task, facts.prefix_reuse)
    };
    assert_eq!(task(heads("bert")), (Task::Embedding, PrefixReuse::None));
    assert_eq!(task(heads("bert").number("bert.pooling_type", 4)), (Task::Rerank, PrefixReuse::None));
    assert_eq!(task(heads("bert").tensor("cls.output.weight", &[512, 1], 0)), (Task::Rerank, PrefixReuse::None));
    assert_eq!(task(heads("qwen3").number("qwen3.pooling_type", 3)), (Task::Embedding, PrefixReuse::Full));
    assert_eq!(task(heads("qwen3").number("qwen3.pooling_type", 0)).0, Task::Chat);
    assert_eq!(task(heads("llama-embed").raw("llama-embed.attention.causal", 7, &[0])).0, Task::Embedding);
    assert!(heads("bert").facts().kv.attention.is_empty(), "an encoder keeps no cache");
}

#[test]
fn projectors_adapters_and_later_shards_are_named_and_not_models() {
    let refused = |writer: Writer| match facts(&writer.header(), &[]) {
        Err(GgufError::NotAModel(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(heads("clip")).contains("projector"));
    assert!(refused(heads("llama").text("general.type", "mmproj")).contains("projector"));
    assert!(refused(heads("llama").text("general.type", "adapter")).contains("adapter"));
    assert!(refused(heads("llama").number("split.count", 3).number("split.no", 1)).contains("part 2 of 3"));
    assert_eq!(kind(&heads("clip").header()), FileKind::Projector);
    assert_eq!(kind(&Writer::default().text("general.architecture", "llama").header()), FileKind::Other);
}

#[test]
fn shards_are_summed_and_must_all_be_there() {
    let first = heads("llama").number("split.count", 3).number("split.no", 0).header();
    let shard = |number: u32| Writer::default().number("split.no", number).number("split.count", 3).tensor("x", &[32, 10], 8).header();
    let merged = facts(&first, &[shard(1), shard(2)]).unwrap();
    assert_eq!((merged.shards, merged.weight_bytes, merged.parameters), (3, 204_800 + 2 * 340, 51_200 + 640));
    assert_eq!(facts(&first, &[shard(1)]), Err(GgufError::Shards { expected: 3, given: 2 }));
}

#[test]
fn headers_without_architecture_or_with_absurd_layers_are_refused() {
    assert!(matches!(facts(&Writer::default().tensor("x", &[1], 0).header(), &[]), Err(GgufError::Missing(_))));
    let absurd = Writer::default().text("general.architecture", "llama").number("llama.block_count", u32::MAX).tensor("x", &[1], 0);
    assert!(matches!(facts(&absurd.header(), &[]), Err(GgufError::Missing(_))));
}

#[test]
fn every_shorter_slice_asks_for_more_and_never_for_less_than_it_has() {
    let bytes = heads("llama").strings("tokenizer.ggml.tokens", 20).bytes();
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Err(GgufError::NeedMore { at_least }) => {
                assert!(at_least > length as u64 && at_least <= bytes.len() as u64, "{length}: {at_least}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
    assert!(read(&bytes).is_ok());
}

#[test]
fn other_files_other_versions_and_big_endian_ones_are_told_apart() {
    assert_eq!(read(b"PK\x03\x04"), Err(GgufError::NotGguf));
    assert_eq!(read(b"GG"), Err(GgufError::NeedMore { at_least: 4 }));
    assert_eq!(read(b"GGUF\0\0\0\x03........................"), Err(GgufError::BigEndian));
    assert_eq!(read(b"GGUF\x09\0\0\0........................"), Err(GgufError::Version(9)));
}

#[test]
fn version_1_has_counts_of_four_bytes() {
    let mut bytes = b"GGUF\x01\0\0\0".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(b"k");
    bytes.extend(5_u32.to_le_bytes());
    bytes.extend((-7_i32).to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(b"t");
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(64_u32.to_le_bytes());
    bytes.extend(8_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    let header = read(&bytes).unwrap();
    assert_eq!(header.values["k"], Value::Integer(-7));
    assert_eq!((header.tensors[0].bytes, header.data_offset, header.end_of_data()), (Some(68), 64, 132));
}

#[test]
fn lengths_that_lie_are_damage_and_not_an_allocation() {
    let huge = u64::MAX.to_le_bytes();
    let big = (1_u64 << 40).to_le_bytes();
    let corrupt = |bytes: &[u8]| matches!(read(bytes), Err(GgufError::Corrupt { .. }));
    for number in [huge, big] {
        assert!(corrupt(&[&b"GGUF\x03\0\0\0"[..], &number, &[0; 8]].concat()), "tensor count");
        assert!(corrupt(&[&b"GGUF\x03\0\0\0"[..], &[0; 8], &number].concat()), "key count");
        assert!(corrupt(&Writer::default().raw("k", 8, &number).bytes()), "string");
        assert!(corrupt(&Writer::default().raw("k", 9, &[&8_u32.to_le_bytes()[..], &number].concat()).bytes()), "array");
    }
    // 200 MB of numbers that are not there: the caller is told, nothing is reserved.
    let length = 50_000_000_u64.to_le_bytes();
    let short = Writer::default().raw("k", 9, &[&4_u32.to_le_bytes()[..], &length].concat()).bytes();
    assert!(matches!(read(&short), Err(GgufError::NeedMore { at_least }) if at_least > 200_000_000));
    assert!(corrupt(&Writer::default().raw("k", 99, &[0; 8]).bytes()), "type");
    assert!(corrupt(&Writer::default().raw("k", 9, &[&9_u32.to_le_bytes()[..], &[0; 8]].concat()).bytes()), "nested");
    assert!(corrupt(&Writer::default().number("k", 1).number("k", 1).bytes()), "twice");
    assert!(corrupt(&Writer::default().tensor("t", &[1; 5], 0).bytes()), "dimensions");
    assert!(corrupt(&Writer::default().tensor("t", &[u64::MAX, 2], 0).bytes()), "elements");
    assert!(corrupt(&Writer::default().tensor("t", &[33], 8).bytes()), "rows");
    assert!(corrupt(&Writer::default().number("general.alignment", 24).bytes()), "alignment");
}

#[test]
fn an_unknown_tensor_type_is_named() {
    let error = facts(&heads("llama").tensor("odd", &[32], 77).header(), &[]).unwrap_err();
    assert_eq!(error, GgufError::UnknownTensorType { name: "odd".into(), kind: 77 });
}

#[test]
fn long_strings_and_arrays_are_counted_and_not_kept() {
    let header = Writer::default().text("s", &"x".repeat(300_000)).numbers("a", &vec![1; 5000]).numbers("b", &[1, 2]).header();
    assert_eq!(header.values["s"], Value::LongText(300_000));
    assert_eq!(header.values["a"], Value::Skipped(5000));
    assert_eq!((header.array_length("b"), header.array_length("s")), (Some(2), None));
}

/// Bytes a header holds on to, roughly.
fn kept(header: &Header) -> usize {
    let values: usize = header
        .values
        .iter()
        .map(|(key, value)| {
            key.len()
                + 64
                + match value {
                    Value::Text(text) => text.len(),
                    Value::Integers(numbers) => numbers.len() * 8,
                    _ => 0,
                }
        })
        .sum();
    values + header.tensors.iter().map(|tensor| tensor.name.len() + 64).sum::<usize>()
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_keep_much_more_than_they_are(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = read(&bytes);
        let framed = [&b"GGUF\x03\0\0\0"[..], &bytes].concat();
        if let Ok(header) = read(&framed) {
            prop_assert!(kept(&header) <= framed.len() * 16 + 64);
            let _ = facts(&header, &[]);
        }
    }

    #[test]
    fn a_valid_header_with_changed_bytes_is_read_or_refused(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..16),
        cut in any::<proptest::sample::Index>(),
    ) {
        let whole = heads("gemma3")
            .number("gemma3.attention.sliding_window", 1024)
            .numbers("gemma3.attention.sliding_window_pattern", &[1, 1, 0, 1])
            .strings("tokenizer.ggml.tokens", 50)
            .bytes();
        let mut bytes = whole.clone();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        for slice in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            match read(slice) {
                Ok(header) => {
                    prop_assert!(kept(&header) <= slice.len() * 16 + 64);
                    let _ = facts(&header, &[]);
                }
                Err(GgufError::NeedMore { at_least }) => prop_assert!(at_least > slice.len() as u64),
                Err(_) => {}
            }
        }
    }
}
