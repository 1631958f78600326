//! A release site on loopback, engines that are small scripts, and a store over both.
//!
//! The scripts answer `--help` like llama-server and serve through the simulated engine, so that a proof runs the way
//! it does for real: guard, process, health, one token.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use lifeboat::config::Config;
use lifeboat::download::Downloads;
use lifeboat::engines::Engines;
use lifeboat::host::http::Http;
use lifeboat::models::Models;
use lifeboat_engines::host::{CpuFacts, Device, HostFacts, Libc, MemoryFacts, Tools, Vendor};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::support::processes_naming;

const LIFEBOAT: &str = env!("CARGO_BIN_EXE_lifeboat");
const REPOSITORY: &str = "/ggml-org/llama.cpp";

/// What an engine script does when it is started to serve.
pub const SERVES: &str = "LIFEBOAT_SIM_API_KEY=\"$LLAMA_API_KEY\" exec \"$LIFEBOAT\" sim-engine --port \"$port\"";

/// A stand-in for llama-server. `serve` is shell code that finds `$port`; `devices` is what `--list-devices` names.
pub fn script(serve: &str, devices: &str) -> Vec<u8> {
    format!(
        "#!/bin/sh\nLIFEBOAT={LIFEBOAT}\ncase \"$1\" in\n--help) echo '-m,    --model FNAME   a model'; echo '--version  x'; echo '--list-devices  x'; exit 0;;\n\
         --version) echo 'version: 6500 (abc1234)' >&2; exit 0;;\n--list-devices) printf 'Available devices:\\n{devices}'; exit 0;;\nesac\n\
         while [ $# -gt 0 ]; do [ \"$1\" = --port ] && port=$2; shift; done\n{serve}\n"
    )
    .into_bytes()
}

/// A `.tar.gz` of files: name, content, mode.
pub fn archive(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// The usual archive of a tag: a server that works.
pub fn release_archive(tag: &str, serve: &str, devices: &str) -> Vec<u8> {
    archive(&[(&format!("llama-{tag}/llama-server"), &script(serve, devices), 0o755), (&format!("llama-{tag}/LICENSE"), b"MIT", 0o644)])
}

/// Answers by path, and what was asked.
#[derive(Default)]
struct Pages {
    pages: HashMap<String, Vec<u8>>,
    asked: Vec<String>,
}

/// A site shaped like the release pages and their API. Ends with the test's runtime.
pub struct Site {
    pub base: String,
    pages: Arc<Mutex<Pages>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Site {
    #[expect(clippy::disallowed_methods, reason = "the test's runtime ends it")]
    pub async fn start() -> Self {
        let pages = Arc::<Mutex<Pages>>::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&pages));
        let serving = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Self { base: format!("http://{address}"), pages, serving }
    }

    /// Stops answering.
    pub fn vanish(&self) {
        self.serving.abort();
    }

    pub fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        self.pages.lock().pages.insert(path.to_owned(), body.into());
    }

    /// Names the tag to use.
    pub fn promote(&self, tag: &str) {
        self.put(&format!("{REPOSITORY}/releases/latest/download/nightly-tag.txt"), format!("{tag}\n"));
    }

    /// Publishes a release with right digests.
    pub fn publish(&self, tag: &str, assets: &[(&str, Vec<u8>)]) {
        let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let with_digests: Vec<_> = assets.iter().map(|(name, bytes)| (*name, bytes.clone(), Some(hex(bytes)))).collect();
        self.publish_as(tag, &with_digests);
    }

    /// Publishes a release that says of its files what it is told to say.
    pub fn publish_as(&self, tag: &str, assets: &[(&str, Vec<u8>, Option<String>)]) {
        let listed: Vec<_> = assets
            .iter()
            .map(|(name, bytes, digest)| {
                serde_json::json!({ "name": name, "size": bytes.len(), "digest": digest.as_ref().map(|digest| format!("sha256:{digest}")) })
            })
            .collect();
        let release = serde_json::json!({ "tag_name": tag, "assets": listed });
        let stable = serde_json::json!({ "tag_name": "v0.7.0", "assets": [{ "name": "nightly-tag.txt", "size": 7 }] });
        self.put(&format!("/repos{REPOSITORY}/releases/tags/{tag}"), release.to_string());
        self.put(&format!("/repos{REPOSITORY}/releases?per_page=100"), serde_json::json!([stable, release]).to_string());
        for (name, bytes, _) in assets {
            self.put(&format!("{REPOSITORY}/releases/download/{tag}/{name}"), bytes.clone());
        }
    }

    /// Paths asked for so far that hold `part`.
    pub fn asked(&self, part: &str) -> usize {
        self.pages.lock().asked.iter().filter(|path| path.contains(part)).count()
    }
}

async fn answer(State(pages): State<Arc<Mutex<Pages>>>, request: Request) -> Response {
    let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
    let mut pages = pages.lock();
    pages.asked.push(path.clone());
    pages.pages.get(&path).map_or_else(|| http::StatusCode::NOT_FOUND.into_response(), |body| body.clone().into_response())
}

/// A data directory with a small model, and a store over it. Its drop asserts that no process is left.
pub struct Bench {
    dir: tempfile::TempDir,
    pub site: Site,
    config: Config,
}

impl Bench {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::start().await;
        let models = dir.path().join("models");
        std::fs::create_dir(&models).unwrap();
        std::fs::write(models.join("small.gguf"), small_model()).unwrap();
        let mut config = Config::new(dir.path().join("data"));
        config.sources.model_dirs = vec![models];
        (config.sources.github_api, config.sources.github_mirror) = (site.base.clone(), site.base.clone());
        config.sources.connect = Duration::from_secs(2);
        config.sources.attempts = 1;
        config.sources.disk_margin_bytes = 0;
        config.supervisor.guard_program = Some(LIFEBOAT.into());
        config.supervisor.kill_after = Duration::from_secs(2);
        std::fs::create_dir(&config.data_dir).unwrap();
        Self { dir, site, config }
    }

    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// A folder of builds.
    pub fn builds(&self) -> PathBuf {
        self.config.data_dir.join("engines/llama_cpp")
    }

    /// A store as after a start of the control plane.
    pub fn store_on(&self, host: fn() -> HostFacts) -> Engines {
        let downloads = Downloads::new(Http::new(self.config.sources.connect), &self.config.sources);
        let models = Models::new(&self.config, downloads.clone(), host);
        Engines::new(Arc::new(self.config.clone()), downloads, models, host)
    }

    pub fn store(&self) -> Engines {
        self.store_on(cpu_host)
    }

    /// A program of the operator's.
    pub fn program(&self, serve: &str) -> PathBuf {
        let path = self.dir.path().join("own-server");
        let mut file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).open(&path).unwrap();
        file.write_all(&script(serve, "")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// Names in the folder of builds that an interrupted installation leaves.
    pub fn leftovers(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.builds()).into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with('.') || name == "downloads").collect()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(processes_naming(self.dir.path()), [], "processes are left behind");
        }
    }
}

/// A machine with a processor alone, on which nothing but releases fits.
pub fn cpu_host() -> HostFacts {
    HostFacts {
        os: "linux".into(),
        arch: "x86_64".into(),
        libc: Libc::Glibc { major: 2, minor: 40 },
        cpu: CpuFacts {
            model: "test".into(),
            features: ["avx2".to_owned()].into(),
            logical: 2,
            physical: 2,
            performance: 2,
            quota_cores: None,
        },
        memory: MemoryFacts { total_bytes: 8 << 30, available_bytes: 6 << 30, limit_bytes: None, source: "test".into() },
        devices: vec![],
        tools: Tools::default(),
    }
}

/// The same with a graphics card.
pub fn cuda_host() -> HostFacts {
    let device = Device {
        vendor: Vendor::Nvidia,
        name: "RTX".into(),
        memory_total_bytes: 24 << 30,
        memory_free_bytes: 23 << 30,
        driver: Some("600.1".into()),
        architecture: Some("8.9".into()),
        unreachable: None,
    };
    HostFacts { devices: vec![device], ..cpu_host() }
}

/// A chat model of a few kilobytes, whole in structure.
fn small_model() -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let text = |key: &str, value: &str| [string(key), 8_u32.to_le_bytes().to_vec(), string(value)].concat();
    let number = |key: &str, value: u32| [string(key), 4_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat();
    let keys = [
        text("general.architecture", "llama"),
        text("tokenizer.chat_template", "{{ messages }}"),
        number("llama.block_count", 2),
        number("llama.context_length", 2048),
        number("llama.embedding_length", 64),
        number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2),
    ];
    let tensor = [string("token_embd.weight"), 1_u32.to_le_bytes().to_vec(), 256_u64.to_le_bytes().to_vec(), vec![0; 4 + 8]].concat();
    let counts = [1_u64.to_le_bytes(), (keys.len() as u64).to_le_bytes()].concat();
    let mut file = [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts, keys.concat(), tensor].concat();
    file.resize(file.len().next_multiple_of(32) + 256 * 4, 0);
    file
}
