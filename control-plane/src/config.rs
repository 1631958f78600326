//! Every setting, its default and its bound. Flag over environment over file over default, merged
//! once at start; nothing reads the environment later.
//!
//! The structs below are the sections of `lifeboat.toml`, field for field, so a new setting is one field
//! with its default here (and its bound in `bounds`). An unknown key in the file is refused by name.
//! Durations in the file are seconds (`30`, `0.5`) or text (`"5m"`).

mod args;
mod bounds;
mod duration;
mod load;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

pub use args::{BaseArgs, ConfigArgs};
pub use load::{ConfigError, FILE_NAME, default_data_dir};

/// Where the API listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4180);

/// The merged settings of one run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the API and `/v1` listen. Default 127.0.0.1:4180.
    pub listen: SocketAddr,
    /// Where everything is kept. Default: the platform's data folder (`~/.local/share/lifeboat`).
    pub data_dir: PathBuf,
    /// What is logged, as `level` or `module=level,…`. Default `info`.
    pub log: String,
    /// Limits of the listener and of the REST API.
    pub http: HttpConfig,
    /// Limits of the data plane.
    pub gateway: GatewayConfig,
    /// Who may call.
    pub security: SecurityConfig,
    /// How engines are kept alive.
    pub supervisor: SupervisorConfig,
    /// Where builds and models come from.
    pub sources: SourcesConfig,
    /// Who is told of finished requests.
    pub telemetry: TelemetryConfig,
}

impl Config {
    /// All defaults over this data directory.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            data_dir,
            log: "info".into(),
            http: HttpConfig::default(),
            gateway: GatewayConfig::default(),
            security: SecurityConfig::default(),
            supervisor: SupervisorConfig::default(),
            sources: SourcesConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
    }

    /// The SQLite file.
    pub fn database(&self) -> PathBuf {
        self.data_dir.join("lifeboat.db")
    }
}

/// Reads an address to listen on: an IP address, or `localhost`, and a port. No other name is looked up, because what
/// it means is not ours to decide.
pub fn read_address(text: &str) -> Result<SocketAddr, String> {
    let plain = text.strip_prefix("localhost:").map(|port| format!("{}:{port}", std::net::Ipv4Addr::LOCALHOST));
    plain.as_deref().unwrap_or(text).parse().map_err(|_| {
        format!(
            "`{text}` is no address to listen on: write an IP address or localhost, and a port, for example 127.0.0.1:4180 or [::1]:4180"
        )
    })
}

/// Limits of the listener and of the REST API.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Open connections at once; further ones wait to be accepted. Default 1024.
    pub max_connections: usize,
    /// Open connections of one peer address (an IPv6 /64 is one); further ones are closed at once. This machine itself is
    /// bound by `max_connections` alone. Default 256.
    pub max_connections_per_peer: usize,
    /// Headers of one request. Default 100.
    pub max_headers: usize,
    /// Bytes of a request's head (its line and headers). Default 64 KiB.
    pub max_head_bytes: usize,
    /// A request's head must have arrived within this; it also ends an idle kept-alive connection. Default 60 s.
    #[serde(deserialize_with = "duration::read")]
    pub head_timeout: Duration,
    /// The first head of a connection must have arrived within this. Default 10 s.
    #[serde(deserialize_with = "duration::read")]
    pub first_head_timeout: Duration,
    /// A request's body must have arrived within this after its head. Default 300 s.
    #[serde(deserialize_with = "duration::read")]
    pub body_timeout: Duration,
    /// A client that takes less than 16 KiB of its reply for this long while there is more of it is cut off. Default 60 s.
    #[serde(deserialize_with = "duration::read")]
    pub write_stall: Duration,
    /// Largest body of a REST call, bytes. Default 1 MiB.
    pub max_api_body_bytes: usize,
    /// Events kept for clients that come back with `Last-Event-ID`. Default 512.
    pub event_ring: usize,
    /// Jobs kept after they ended, for their result. Default 64.
    pub ended_jobs: usize,
    /// Jobs (pulls, installs) at work at once. Default 16.
    pub running_jobs: usize,
    /// How long running replies may finish after a stop signal before their connections are cut. Default 30 s.
    #[serde(deserialize_with = "duration::read")]
    pub stop_grace: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_connections_per_peer: 256,
            max_headers: 100,
            max_head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(60),
            first_head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(300),
            write_stall: Duration::from_secs(60),
            max_api_body_bytes: 1 << 20,
            event_ring: 512,
            ended_jobs: 64,
            running_jobs: 16,
            stop_grace: Duration::from_secs(30),
        }
    }
}

/// Limits of the data plane.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Largest request body, bytes. Default 100 MiB, as llama-server.
    pub max_body_bytes: usize,
    /// Bytes of all request bodies held at once. Default 512 MiB.
    pub max_held_bytes: usize,
    /// Waiting requests per slot of a pool. Default 64.
    pub queue_per_slot: usize,
    /// Longest wait for a slot. Default 120 s.
    #[serde(deserialize_with = "duration::read")]
    pub queue_wait: Duration,
    /// Longest wait for a sleeping or starting model. Default 600 s.
    #[serde(deserialize_with = "duration::read")]
    pub cold_start_wait: Duration,
    /// Upstream connect. Default 5 s.
    #[serde(deserialize_with = "duration::read")]
    pub connect: Duration,
    /// From request sent to first byte, before what the prompt's size adds. Default 300 s.
    #[serde(deserialize_with = "duration::read")]
    pub first_byte: Duration,
    /// Added to `first_byte` for each MiB of body. Default 120 s.
    #[serde(deserialize_with = "duration::read")]
    pub first_byte_per_mib: Duration,
    /// Between two chunks of a reply. Default 300 s.
    #[serde(deserialize_with = "duration::read")]
    pub between_chunks: Duration,
    /// A whole request. Default 3600 s.
    #[serde(deserialize_with = "duration::read")]
    pub total: Duration,
    /// A waiting streaming client gets a comment line this often once it has waited that long. Default 10 s.
    #[serde(deserialize_with = "duration::read")]
    pub heartbeat: Duration,
    /// Tokenise and count-tokens calls on one row at once; they need no slot. Default 8.
    pub light_per_row: u32,
    /// Further attempts of a request whose engine failed before the first byte. Default 2.
    pub retries: u32,
    /// Such attempts for each request of a pool, over any longer time: 0.2 = a fifth of its requests may be tried again.
    /// Default 0.2.
    pub retry_share: f64,
    /// Such attempts a pool has in stock whatever its traffic; one comes back each second. Its largest row's slots count where
    /// they are more, so that all requests of one engine that dies go elsewhere. Default 10.
    pub retry_floor: u32,
    /// How long such a request waits for its row to be seen dead, where no other row serves. Default 2 s.
    #[serde(deserialize_with = "duration::read")]
    pub retry_notice: Duration,
    /// A reply that is no stream is held back up to this size, so that a torn one can be tried again. Default 16 MiB.
    pub reply_buffer_bytes: usize,
    /// A reply that is put together from a stream, or told whole at the end of one, may have so much text.
    pub whole_reply_bytes: usize,
    /// Finished requests kept in the request log. Default 200,000 (about 120 MB).
    pub request_log_max_rows: u64,
    /// Days they are kept. Default 14.
    pub request_log_max_days: u32,
    /// Days for which the sums of what each key used are kept. Default 400.
    pub usage_max_days: u32,
    /// Times a stream that breaks off is gone on with on another row, where its kind allows it. 0 = never. Default 2.
    pub resumes: u32,
    /// Largest request, and largest text of its reply, that is kept for that, bytes. Default 1 MiB.
    pub resume_bytes: usize,
    /// Bytes of the index that tells which row has read which prompt. Default 8 MiB.
    pub prefix_index_bytes: usize,
    /// Conversations whose row is remembered. Default 65,536.
    pub conversations: usize,
    /// Sends a row fewer requests at once than its slots while its engine reports a queue of its own. Default true.
    pub learn_limits: bool,
    /// Longest wait for the row that holds a conversation while another one is free, at most half of `queue_wait`.
    /// Default 30 s.
    #[serde(deserialize_with = "duration::read")]
    pub home_wait: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            max_body_bytes: 100 << 20,
            max_held_bytes: 512 << 20,
            queue_per_slot: 64,
            queue_wait: Duration::from_secs(120),
            cold_start_wait: Duration::from_secs(600),
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(300),
            first_byte_per_mib: Duration::from_secs(120),
            between_chunks: Duration::from_secs(300),
            total: Duration::from_secs(3600),
            heartbeat: Duration::from_secs(10),
            light_per_row: 8,
            retries: 2,
            retry_share: 0.2,
            retry_floor: 10,
            retry_notice: Duration::from_secs(2),
            reply_buffer_bytes: 16 << 20,
            whole_reply_bytes: 64 << 20,
            request_log_max_rows: 200_000,
            request_log_max_days: 14,
            usage_max_days: 400,
            resumes: 2,
            resume_bytes: 1 << 20,
            prefix_index_bytes: 8 << 20,
            conversations: 65_536,
            learn_limits: true,
            home_wait: Duration::from_secs(30),
        }
    }
}

/// Who is told of finished requests.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Base URL of a collector that takes OTLP over HTTP as JSON, for example `http://127.0.0.1:4318`; traces go to
    /// `/v1/traces` below it. `LIFEBOAT_OTLP_ENDPOINT`. Default none: no traces.
    pub otlp_endpoint: Option<String>,
    /// Finished requests that may wait for the collector; further ones are dropped and counted. Default 2048.
    pub otlp_queue: usize,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { otlp_endpoint: None, otlp_queue: 2048 }
    }
}

/// Who may call.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecurityConfig {
    /// Host header values accepted beside loopback names and the listen address.
    pub allowed_hosts: Vec<String>,
    /// Browser origins accepted beside our own. Empty = same origin only.
    pub allowed_origins: Vec<String>,
    /// Lifts the allow-list of extra engine arguments. Default false.
    pub open_engine_arguments: bool,
}

/// How engines are kept alive.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisorConfig {
    /// Engines of a control plane that does not return end themselves after this. Zero = never. Default 120 s.
    #[serde(deserialize_with = "duration::read")]
    pub lease: Duration,
    /// A load without any progress (log line, memory growth, CPU time, health change) this long has failed. Default 300 s.
    #[serde(deserialize_with = "duration::read")]
    pub load_stall: Duration,
    /// First pause before a restart; doubles each time. Default 1 s.
    #[serde(deserialize_with = "duration::read")]
    pub restart_backoff: Duration,
    /// Longest pause before a restart. Default 60 s.
    #[serde(deserialize_with = "duration::read")]
    pub restart_backoff_max: Duration,
    /// After this many deaths without `stable_after` of service between, the row cools down as `failed`. Default 5.
    pub restart_limit: u32,
    /// How long a failed row rests; demand does not shorten it. Default 300 s.
    #[serde(deserialize_with = "duration::read")]
    pub cool_down: Duration,
    /// Service time after which earlier deaths are forgotten. Default 60 s.
    #[serde(deserialize_with = "duration::read")]
    pub stable_after: Duration,
    /// How long running requests may finish at a stop or an edit. Default 30 s.
    #[serde(deserialize_with = "duration::read")]
    pub drain: Duration,
    /// From the first stop signal to the kill. Default 5 s.
    #[serde(deserialize_with = "duration::read")]
    pub kill_after: Duration,
    /// Time between health probes of a ready engine. Default 2 s.
    #[serde(deserialize_with = "duration::read")]
    pub probe_every: Duration,
    /// An engine that answers no probe this long is hung. Default 20 s.
    #[serde(deserialize_with = "duration::read")]
    pub hang_after: Duration,
    /// Size at which an engine log is rotated. Default 8 MiB.
    pub log_rotate_bytes: u64,
    /// Rotated logs kept. Default 3.
    pub log_keep: u32,
    /// With requests on an engine, nothing sent and no CPU time used for this long, decoding is dead. Default 120 s.
    #[serde(deserialize_with = "duration::read")]
    pub decode_stall: Duration,
    /// With requests on an engine and nothing sent for this long, decoding is dead whatever the CPU does. It must
    /// exceed the longest honest prompt and the longest reply that is not streamed. Default 1800 s.
    #[serde(deserialize_with = "duration::read")]
    pub decode_silence: Duration,
    /// Bytes of host memory that all engines together may be sized to; 0 = what the machine has free. Default 0.
    pub memory_limit_bytes: u64,
    /// The program that guards engines. `None` = this one; tests name the built binary.
    pub guard_program: Option<PathBuf>,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(120),
            load_stall: Duration::from_secs(300),
            restart_backoff: Duration::from_secs(1),
            restart_backoff_max: Duration::from_secs(60),
            restart_limit: 5,
            cool_down: Duration::from_secs(300),
            stable_after: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            kill_after: Duration::from_secs(5),
            probe_every: Duration::from_secs(2),
            hang_after: Duration::from_secs(20),
            log_rotate_bytes: 8 << 20,
            log_keep: 3,
            decode_stall: Duration::from_secs(120),
            decode_silence: Duration::from_secs(1800),
            memory_limit_bytes: 0,
            guard_program: None,
        }
    }
}

/// Where builds and models come from.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourcesConfig {
    /// Hugging Face hub. `HF_ENDPOINT`; default `https://huggingface.co`.
    pub hf_endpoint: String,
    /// Hub token. `HF_TOKEN`.
    pub hf_token: Option<String>,
    /// GitHub's API. `LIFEBOAT_GITHUB_API`; default `https://api.github.com`.
    pub github_api: String,
    /// Where release files are fetched from. `LIFEBOAT_GITHUB_MIRROR`; default `https://github.com`.
    pub github_mirror: String,
    /// An operator's own llama-server. `LIFEBOAT_LLAMA_SERVER`.
    pub llama_server: Option<PathBuf>,
    /// Folders with models to scan beside our own.
    pub model_dirs: Vec<PathBuf>,
    /// Connect timeout of lookups and downloads; a hub that cannot be reached must not hold up a start. Default 10 s.
    #[serde(deserialize_with = "duration::read")]
    pub connect: Duration,
    /// A download or a lookup that brings no byte this long is broken off and tried again. Default 60 s.
    #[serde(deserialize_with = "duration::read")]
    pub stall: Duration,
    /// Tries of a download in a row that bring nothing new before it fails. Default 5.
    pub attempts: usize,
    /// First pause between two tries; doubles each time, up to 30 s. Default 1 s.
    #[serde(deserialize_with = "duration::read")]
    pub retry_backoff: Duration,
    /// Bytes of disk that a download must leave free. Default 512 MiB.
    pub disk_margin_bytes: u64,
    /// A helper program (pip, cmake, ninja) that shows no sign of life this long is ended. Default 600 s.
    #[serde(deserialize_with = "duration::read")]
    pub tool_stall: Duration,
    /// An engine build that failed its proof is not tried again by itself for this long. Default 1 h.
    #[serde(deserialize_with = "duration::read")]
    pub retry_failed_build: Duration,
}

impl Default for SourcesConfig {
    fn default() -> Self {
        Self {
            hf_endpoint: "https://huggingface.co".into(),
            hf_token: None,
            github_api: "https://api.github.com".into(),
            github_mirror: "https://github.com".into(),
            llama_server: None,
            model_dirs: Vec::new(),
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            attempts: 5,
            retry_backoff: Duration::from_secs(1),
            disk_margin_bytes: 512 << 20,
            tool_stall: Duration::from_secs(600),
            retry_failed_build: Duration::from_secs(3600),
        }
    }
}
