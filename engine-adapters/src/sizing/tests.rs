//! Tables for sizing. Numbers in the comments are done by hand.

use super::*;
use crate::host::{CpuFacts, Device, Libc, MemoryFacts, Tools, Vendor};
use crate::model::{AttentionLayer, KvLayout, PrefixReuse};
use crate::spec::CacheType;
use crate::validate::tests::row;

/// A CPU host with that many GiB free and that many cores.
pub(crate) fn host(free_gib: u64, cores: u32) -> HostFacts {
    HostFacts {
        os: "linux".into(),
        arch: "x86_64".into(),
        libc: Libc::Glibc { major: 2, minor: 36 },
        cpu: CpuFacts {
            model: "test".into(),
            features: ["avx2", "fma"].map(String::from).into(),
            logical: cores * 2,
            physical: cores,
            performance: cores,
            quota_cores: None,
        },
        memory: MemoryFacts { total_bytes: 64 << 30, available_bytes: free_gib << 30, limit_bytes: None, source: "test".into() },
        devices: vec![],
        tools: Tools::default(),
    }
}

fn gpu(total_gib: u64, free_gib: u64) -> Device {
    Device {
        vendor: Vendor::Nvidia,
        name: "test".into(),
        memory_total_bytes: total_gib << 30,
        memory_free_bytes: free_gib << 30,
        driver: Some("580.65.06".into()),
        architecture: Some("8.9".into()),
        unreachable: None,
    }
}

/// SmolLM2-135M: 30 layers, 3 KV heads of 64: 23,040 bytes a token.
pub(crate) fn smollm2() -> ModelFacts {
    ModelFacts {
        architecture: "llama".into(),
        name: Some("SmolLM2 135M Instruct".into()),
        parameters: 134_515_008,
        quantisation: "Q4_1".into(),
        weight_bytes: 96_576_768,
        native_context: 8192,
        layers: 30,
        embedding_length: 576,
        vocabulary: 49_152,
        kv: KvLayout { attention: vec![AttentionLayer { key: 192, value: 192, window: None }; 30], recurrent_bytes: 0 },
        licence: Some("apache-2.0".into()),
        chat_template: true,
        task: Task::Chat,
        pooling: false,
        prefix_reuse: PrefixReuse::Full,
        experts: 0,
        experts_used: 0,
        shards: 1,
        speculative_layers: 0,
        projector_bytes: 0,
    }
}

/// An 8B model of 4.9 GB: 32 layers, 8 KV heads of 128: 131,072 bytes a token, 131,072 tokens.
fn eight_billion() -> ModelFacts {
    ModelFacts {
        weight_bytes: 4_900_000_000,
        native_context: 131_072,
        layers: 32,
        embedding_length: 4096,
        vocabulary: 128_256,
        kv: KvLayout { attention: vec![AttentionLayer { key: 1024, value: 1024, window: None }; 32], recurrent_bytes: 0 },
        ..smollm2()
    }
}

fn sized(change: impl FnOnce(&mut EngineSpec), model: &ModelFacts, host: &HostFacts) -> Result<Resolved, SizingError> {
    let mut spec = row("llama_cpp");
    change(&mut spec);
    resolve(&spec, model, host)
}

#[test]
fn a_small_model_gets_its_own_context_and_slots_by_cores() {
    let resolved = sized(|_| (), &smollm2(), &host(8, 2)).unwrap();
    assert_eq!((resolved.slots, resolved.context, resolved.threads), (2, 8192, 2));
    assert_eq!(resolved.memory.kv_bytes, 2 * 8192 * 23_040);
    assert_eq!(resolved.gpu_layers, Some(0));
    let resolved = sized(|_| (), &smollm2(), &host(8, 8)).unwrap();
    assert_eq!((resolved.slots, resolved.threads), (4, 8));
}

#[test]
fn kv_per_token_is_counted_over_the_layers_that_keep_everything() {
    assert_eq!(need::kv_bytes_per_token(&smollm2()), 23_040);
    assert_eq!(need::kv_bytes_per_token(&eight_billion()), 131_072);
}

#[test]
fn threads_stay_within_the_whole_cores_of_the_quota() {
    for (quota, threads) in [(None, 8), (Some(3.9), 3), (Some(0.5), 1), (Some(100.0), 8)] {
        let mut machine = host(8, 8);
        machine.cpu.quota_cores = quota;
        assert_eq!(auto_threads(&machine), threads, "{quota:?}");
    }
}

#[test]
fn a_context_that_does_not_fit_is_shortened_but_stays_a_multiple_of_256() {
    let model = eight_billion();
    let machine = host(14, 8);
    let resolved = sized(|_| (), &model, &machine).unwrap();
    assert!(resolved.context < model.native_context && resolved.context >= 8192 && resolved.context % 256 == 0, "{}", resolved.context);
    assert!(resolved.memory.total_bytes() <= machine.memory.available_bytes);
    let one_more = need::need(&model, shape(&model), need::Plan { slots: resolved.slots, context: resolved.context + 256 });
    assert!(one_more.total_bytes() > machine.memory.available_bytes / 10 * 9, "a longer one would have fitted");
}

fn shape(model: &ModelFacts) -> need::Shape {
    need::Shape { task: model.task, key: CacheType::F16, value: CacheType::F16, devices: 0 }
}

#[test]
fn slots_are_given_up_before_the_context_becomes_uncomfortable() {
    let resolved = sized(|_| (), &eight_billion(), &host(8, 8)).unwrap();
    assert!(resolved.slots < 4 && resolved.context >= 8192, "{} x {}", resolved.slots, resolved.context);
}

#[test]
fn a_row_that_does_not_fit_shows_the_sum_and_a_cure_that_fits() {
    let model = eight_billion();
    let machine = host(8, 8);
    let error = sized(
        |spec| {
            spec.slots = Some(1);
            spec.context = Some(65_536);
        },
        &model,
        &machine,
    )
    .unwrap_err();
    let SizingError::DoesNotFit { arithmetic, hint, short } = error else { panic!("{error}") };
    assert!(arithmetic.starts_with("weights 4.9 GB + KV 8.6 GB + compute "), "{arithmetic}");
    assert!(arithmetic.contains("> 8.6 GB free (context 65536 x slots 1)"), "{arithmetic}");
    assert_eq!(short.of, Pool::Host);
    let roomier =
        HostFacts { memory: MemoryFacts { available_bytes: (8 << 30) + short.bytes, ..machine.memory.clone() }, ..machine.clone() };
    assert!(sized(|spec| (spec.slots, spec.context) = (Some(1), Some(65_536)), &model, &roomier).is_ok(), "{} more is enough", short.bytes);
    let context: u32 = hint.strip_prefix("fits with context ").unwrap().split(' ').next().unwrap().parse().unwrap();
    let cured = sized(
        |spec| {
            spec.slots = Some(1);
            spec.context = Some(context);
        },
        &model,
        &machine,
    );
    assert!(cured.is_ok(), "{hint}");
}

#[test]
fn weights_larger_than_memory_have_no_other_cure_than_a_smaller_model() {
    let error = sized(|_| (), &eight_billion(), &host(4, 8)).unwrap_err();
    let SizingError::DoesNotFit { hint, .. } = error else { panic!("{error}") };
    assert_eq!(hint, "needs a smaller quantisation or a smaller model on this host");
}

#[test]
fn what_the_row_says_is_never_changed() {
    let resolved = sized(
        |spec| {
            spec.slots = Some(3);
            spec.context = Some(1000);
            spec.threads = Some(7);
        },
        &smollm2(),
        &host(8, 2),
    )
    .unwrap();
    assert_eq!((resolved.slots, resolved.context, resolved.threads), (3, 1000, 7));
    assert_eq!(resolved.memory.kv_bytes, 3 * 1024 * 23_040, "the engine rounds 1000 up to 1024");
}

#[test]
fn quantised_caches_take_less() {
    let kv = |format| {
        sized(|spec| (spec.cache_type_k, spec.cache_type_v) = (Some(format), Some(format)), &smollm2(), &host(8, 2))
            .unwrap()
            .memory
            .kv_bytes
    };
    // 34 bytes of 32 elements instead of 64.
    assert_eq!(kv(CacheType::Q8_0), 2 * 8192 * 30 * (204 + 204));
    assert_eq!(kv(CacheType::F32), 2 * kv(CacheType::F16));
}

#[test]
fn sliding_windows_stop_growing_and_rewind_points_are_charged() {
    let mut model = smollm2();
    model.native_context = 131_072;
    model.prefix_reuse = PrefixReuse::Window;
    for (index, layer) in model.kv.attention.iter_mut().enumerate() {
        layer.window = (index % 6 < 5).then_some(1024);
    }
    let resolved = sized(|spec| (spec.slots, spec.context) = (Some(1), Some(32_768)), &model, &host(16, 4)).unwrap();
    // 25 layers keep 1024 + 512 tokens, 5 keep all; 768 bytes a token and layer.
    assert_eq!(resolved.memory.kv_bytes, 768 * (25 * 1536 + 5 * 32_768));
    assert_eq!(resolved.context_checkpoints, 32);
    let points = 32 * 25 * 1024 * 768;
    assert_eq!(resolved.memory.host_cache_bytes, (u64::from(resolved.host_cache_mib) << 20) + points);
}

#[test]
fn recurrent_state_is_paid_once_a_slot_whatever_the_context() {
    let mut model = smollm2();
    model.kv = KvLayout { attention: vec![], recurrent_bytes: 1_000_000 };
    model.prefix_reuse = PrefixReuse::AppendOnly;
    let kv = |context| sized(|spec| (spec.slots, spec.context) = (Some(3), Some(context)), &model, &host(8, 4)).unwrap().memory.kv_bytes;
    assert_eq!((kv(1024), kv(8192)), (3_000_000, 3_000_000));
}

#[test]
fn the_host_cache_is_an_eighth_of_the_free_memory_at_most_2_gib_and_nothing_when_tight() {
    assert_eq!(sized(|_| (), &smollm2(), &host(64, 4)).unwrap().host_cache_mib, 2048);
    assert_eq!(sized(|_| (), &smollm2(), &host(4, 4)).unwrap().host_cache_mib, 512);
    let mut tight = host(1, 1);
    tight.memory.available_bytes = 700 << 20;
    assert_eq!(sized(|_| (), &smollm2(), &tight).unwrap().host_cache_mib, 0);
}

#[test]
fn a_device_with_room_takes_all_layers() {
    let mut machine = host(16, 8);
    machine.devices = vec![gpu(24, 23)];
    let resolved = sized(|_| (), &eight_billion(), &machine).unwrap();
    assert_eq!(resolved.gpu_layers, Some(33));
    assert!(resolved.memory.total_bytes() - resolved.memory.host_cache_bytes <= 23 << 30);
}

#[test]
fn a_device_too_small_is_left_to_the_engine_to_fill() {
    let mut machine = host(16, 8);
    machine.devices = vec![gpu(4, 3)];
    let resolved = sized(|_| (), &eight_billion(), &machine).unwrap();
    assert_eq!(resolved.gpu_layers, None);
    assert!(resolved.arithmetic.iter().any(|line| line.contains("the engine places what fits")), "{:?}", resolved.arithmetic);
}

#[test]
fn unreachable_devices_and_those_of_another_build_do_not_count() {
    let mut machine = host(16, 8);
    machine.devices = vec![Device { unreachable: Some("no /dev/nvidia0".into()), ..gpu(24, 23) }];
    assert_eq!(sized(|_| (), &smollm2(), &machine).unwrap().gpu_layers, Some(0));
    machine.devices = vec![gpu(24, 23)];
    assert_eq!(sized(|spec| spec.gpu_layers = Some(0), &smollm2(), &machine).unwrap().gpu_layers, Some(0));
    assert_eq!(sized(|spec| spec.devices = Some(vec!["none".into()]), &smollm2(), &machine).unwrap().gpu_layers, Some(0));
}

#[test]
fn every_decision_has_a_line_with_its_numbers() {
    let lines = sized(|_| (), &smollm2(), &host(8, 2)).unwrap().arithmetic.join("\n");
    for part in [
        "threads 2: 2 performance cores of 4 threads",
        "slots 2: for 2 threads",
        "context 8192 per slot: the model's own",
        "KV 377 MB = 2 x 8192",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
}

#[test]
fn layers_or_devices_asked_for_where_there_is_no_device_are_refused() {
    for change in [|spec: &mut EngineSpec| spec.gpu_layers = Some(10), |spec: &mut EngineSpec| spec.devices = Some(vec!["CUDA0".into()])] {
        let error = sized(change, &smollm2(), &host(8, 2)).unwrap_err();
        assert!(error.to_string().contains("asks for a device"), "{error}");
    }
}

#[test]
fn a_device_in_the_hosts_memory_is_not_counted_twice() {
    let mut machine = host(16, 8);
    machine.devices = vec![Device { memory_total_bytes: 0, memory_free_bytes: 0, ..gpu(0, 0) }];
    let resolved = sized(|_| (), &eight_billion(), &machine).unwrap();
    assert_eq!(resolved.gpu_layers, Some(33));
    assert!(resolved.memory.total_bytes() <= machine.memory.available_bytes, "{:?}", resolved.arithmetic);
}
