//! Tables for the catalog: hosts against candidates, names against patterns.

use super::*;
use crate::host::{Device, Libc, Tools, Vendor};
use crate::sizing::tests::host as plain;

fn host() -> HostFacts {
    HostFacts { tools: Tools { python: Some("3.11.7".into()), ..Tools::default() }, ..plain(16, 4) }
}

fn nvidia(driver: &str, capability: &str) -> Device {
    Device {
        vendor: Vendor::Nvidia,
        name: "RTX".into(),
        memory_total_bytes: 24 << 30,
        memory_free_bytes: 23 << 30,
        driver: Some(driver.into()),
        architecture: Some(capability.into()),
        unreachable: None,
    }
}

fn verdict(id: &str, host: &HostFacts) -> Verdict {
    candidates(EngineKind::LlamaCpp, host).into_iter().find(|candidate| candidate.id == id).unwrap().verdict
}

fn reason(id: &str, host: &HostFacts) -> String {
    match verdict(id, host) {
        Verdict::Rejected(reason) => reason,
        other => panic!("{id}: {other:?}"),
    }
}

fn taken(host: &HostFacts) -> Vec<String> {
    let all = candidates(EngineKind::LlamaCpp, host);
    all.into_iter().filter(|candidate| candidate.verdict == Verdict::Taken).map(|candidate| candidate.id).collect()
}

fn release(id: &str, host: &HostFacts) -> ReleaseSource {
    match candidates(EngineKind::LlamaCpp, host).into_iter().find(|candidate| candidate.id == id).unwrap().source {
        Source::Release(release) => release,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_catalog_parses_and_its_ids_are_unique() {
    let catalog: Catalog = toml::from_str(include_str!("../catalog.toml")).unwrap();
    let mut ids: Vec<_> = catalog.candidate.iter().map(|entry| (entry.engine, entry.id.as_str())).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), catalog.candidate.len());
    for entry in &catalog.candidate {
        if let Source::Pip(pip) = &entry.source {
            assert!(pip.sha256s().all(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())));
        }
    }
}

#[test]
fn a_cpu_host_takes_the_release_and_then_the_wheel() {
    let debian_12 = HostFacts { libc: Libc::Glibc { major: 2, minor: 36 }, ..host() };
    assert_eq!(taken(&debian_12), ["release-cpu", "pip-xllamacpp"]);
    assert!(matches!(verdict("path", &debian_12), Verdict::OptIn(_)));
    assert_eq!(reason("release-vulkan", &debian_12), "this host has no GPU");
    assert_eq!(reason("release-cuda-13", &debian_12), "needs glibc 2.39, this host has 2.36");
    assert_eq!(reason("source", &debian_12), "needs cmake, which was not found");
}

#[test]
fn an_old_or_another_c_library_is_named() {
    let old = HostFacts { libc: Libc::Glibc { major: 2, minor: 31 }, ..host() };
    assert_eq!(taken(&old), ["pip-xllamacpp"]);
    let musl = HostFacts { libc: Libc::Musl, ..host() };
    assert_eq!(taken(&musl), Vec::<String>::new());
    assert_eq!(reason("pip-xllamacpp", &musl), "needs glibc 2.17, this host has musl");
    let raspberry = HostFacts { arch: "aarch64".into(), ..host() };
    assert_eq!(reason("release-cpu-arm64", &raspberry), "needs glibc 2.39, this host has 2.36");
    assert_eq!(taken(&raspberry), ["pip-xllamacpp"]);
}

#[test]
fn python_must_be_there_and_new_enough() {
    let none = HostFacts { tools: Tools::default(), ..host() };
    assert_eq!(reason("pip-xllamacpp", &none), "needs Python 3.10 with pip, which was not found");
    let old = HostFacts { tools: Tools { python: Some("3.9.2".into()), ..Tools::default() }, ..host() };
    assert_eq!(reason("pip-xllamacpp", &old), "needs Python 3.10, this host has 3.9.2");
}

#[test]
fn the_wheel_for_the_newest_cpus_is_rejected_on_others_and_only_offered_on_those() {
    assert_eq!(reason("pip-skulk-vulkan", &host()), "needs a CPU with avx512f and amx_tile, this one has avx2");
    let mut new = host();
    new.cpu.features.extend(["avx512f", "amx_tile"].map(String::from));
    assert!(matches!(verdict("pip-skulk-vulkan", &new), Verdict::OptIn(_)));
}

#[test]
fn macs_and_windows_machines_have_their_own_releases() {
    let mac = HostFacts { os: "macos".into(), arch: "aarch64".into(), libc: Libc::Other, ..host() };
    assert_eq!(taken(&mac), ["release-macos-arm64", "pip-xllamacpp"]);
    let windows = HostFacts { os: "windows".into(), libc: Libc::Other, ..host() };
    assert_eq!(taken(&windows), ["release-windows-cpu", "pip-xllamacpp"]);
}

#[test]
fn cuda_follows_driver_and_compute_capability() {
    let with = |driver: &str, capability: &str| HostFacts {
        libc: Libc::Glibc { major: 2, minor: 39 },
        devices: vec![nvidia(driver, capability)],
        ..host()
    };
    let ada = with("580.65.06", "8.9");
    assert_eq!(taken(&ada), ["release-cuda-13", "release-cuda-12", "release-vulkan", "release-cpu", "pip-xllamacpp"]);
    assert_eq!(release("release-cuda-13", &ada).newest, None, "it holds machine code for 8.9");
    let hopper = with("580.65.06", "9.0");
    assert_eq!(release("release-cuda-13", &hopper).newest, Version::parse("13.0"), "the driver must compile the code");
    assert_eq!(release("release-cuda-12", &hopper).newest.unwrap().major, 12);
    assert_eq!(reason("release-cuda-13", &with("570.26", "8.9")), "CUDA 13 needs driver 580 or newer, this host has 570");
    assert_eq!(reason("release-cuda-13", &with("590.1", "6.1")), "CUDA 13 builds need compute capability 7.5, RTX has 6.1");
    assert_eq!(release("release-cuda-12", &with("570.26", "6.1")).newest, Version::parse("12.8"));
    assert_eq!(release("release-cuda-12", &with("550.54.14", "8.6")).newest, None);
    assert_eq!(release("release-cuda-12", &with("550.54.14", "9.0")).newest, Version::parse("12.4"));
    assert_eq!(reason("release-cuda-12", &with("535.1", "8.6")), "CUDA 12 needs driver 550 or newer, this host has 535");
    assert_eq!(release("release-cuda-13", &with("610.1", "9.0")).newest, None);
}

#[test]
fn a_device_that_is_there_but_cannot_be_used_is_not_called_absent() {
    let mut machine = HostFacts { libc: Libc::Glibc { major: 2, minor: 39 }, ..host() };
    machine.devices = vec![Device { unreachable: Some("no /dev/nvidiactl".into()), ..nvidia("580.1", "8.9") }];
    assert_eq!(reason("release-cuda-13", &machine), "RTX is there but cannot be used: no /dev/nvidiactl");
}

#[test]
fn rocm_is_taken_for_compiled_targets_only() {
    let amd = |gfx: &str| HostFacts {
        libc: Libc::Glibc { major: 2, minor: 39 },
        devices: vec![Device { vendor: Vendor::Amd, architecture: Some(gfx.into()), ..nvidia("", "") }],
        ..host()
    };
    assert_eq!(taken(&amd("gfx1100")), ["release-rocm", "release-vulkan", "release-cpu", "pip-xllamacpp"]);
    assert_eq!(reason("release-rocm", &amd("gfx803")), "is not compiled for this GPU (gfx803)");
}

#[test]
fn only_nightly_tags_are_numbers() {
    for (tag, number) in
        [("b11434", Some(11_434)), ("v0.7.0", None), ("b", None), ("b12x", None), ("bb1", None), ("11434", None), ("b+1", None)]
    {
        assert_eq!(nightly_number(tag), number, "{tag}");
    }
}

/// The files of b11434 that a careless pattern would confuse.
const NAMES: [&str; 12] = [
    "llama-b11434-bin-ubuntu-x64.tar.gz",
    "llama-b11434-bin-ubuntu-vulkan-x64.tar.gz",
    "llama-b11434-bin-ubuntu-arm64.tar.gz",
    "llama-b11434-bin-ubuntu-cuda-12.8-x64.tar.gz",
    "llama-b11434-bin-ubuntu-cuda-13.4-x64.tar.gz",
    "llama-b11434-bin-ubuntu-cuda-13.4-arm64.tar.gz",
    "cudart-llama-b11434-bin-ubuntu-cuda-12.8-x64.tar.gz",
    "cudart-llama-b11434-bin-ubuntu-cuda-13.4-x64.tar.gz",
    "llama-b11434-bin-ubuntu-rocm-10.0-x64.tar.gz",
    "llama-b11434-bin-win-cuda-12.4-x64.zip",
    "cudart-llama-bin-win-cuda-12.4-x64.zip",
    "llama-b11434-ui.tar.gz",
];

fn picked(asset: &str, companion: Option<&str>, major: Option<u32>, newest: Option<&str>) -> Result<(String, Option<String>), String> {
    let source =
        ReleaseSource { asset: asset.into(), companion: companion.map(str::to_owned), major, newest: newest.and_then(Version::parse) };
    pick_asset(&source, "b11434", NAMES).map(|picked| (picked.asset, picked.companion))
}

#[test]
fn assets_are_picked_by_pattern_with_the_runtime_of_the_same_version() {
    let cuda = "llama-{tag}-bin-ubuntu-cuda-{version}-x64.tar.gz";
    let cudart = Some("cudart-llama-{tag}-bin-ubuntu-cuda-{version}-x64.tar.gz");
    assert_eq!(picked("llama-{tag}-bin-ubuntu-x64.tar.gz", None, None, None), Ok((NAMES[0].into(), None)));
    assert_eq!(picked(cuda, cudart, Some(13), None), Ok((NAMES[4].into(), Some(NAMES[7].into()))));
    assert_eq!(picked(cuda, cudart, Some(12), None), Ok((NAMES[3].into(), Some(NAMES[6].into()))));
    assert_eq!(
        picked(cuda, cudart, Some(13), Some("13.0")),
        Err("release b11434 is for toolkit 13.4, this host's driver runs 13.0 at most".into())
    );
    assert!(picked(cuda, cudart, Some(14), None).unwrap_err().contains("has no file like"));
    let windows = picked("llama-{tag}-bin-win-cuda-{version}-x64.zip", Some("cudart-llama-bin-win-cuda-{version}-x64.zip"), Some(12), None);
    assert_eq!(windows, Ok((NAMES[9].into(), Some(NAMES[10].into()))));
    let alone = picked("llama-{tag}-bin-ubuntu-cuda-{version}-arm64.tar.gz", Some("cudart-{tag}-{version}"), Some(13), None);
    assert!(alone.unwrap_err().contains("no runtime archive"));
}

#[test]
fn the_simulated_engine_is_built_in_and_external_ones_have_no_builds() {
    assert_eq!(candidates(EngineKind::Sim, &host())[0].source, Source::BuiltIn);
    assert!(candidates(EngineKind::External, &host()).is_empty());
}
