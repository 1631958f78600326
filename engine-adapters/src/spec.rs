//! Plain types that describe an engine: the row as written, what "auto" became, the process to start.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The kinds of engine Lifeboat drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// llama.cpp's HTTP server, whichever build runs here.
    LlamaCpp,
    /// The simulated engine: timing, faults and scale without a model.
    Sim,
    /// A server somebody else runs: probed, balanced and accounted, never started or stopped.
    External,
}

impl Task {
    /// The name used in rows and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
        }
    }
}

impl EngineKind {
    /// The name used in rows, paths and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama_cpp",
            Self::Sim => "sim",
            Self::External => "external",
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the operator wants of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DesiredState {
    /// Keep it serving.
    #[default]
    Running,
    /// Keep it down.
    Stopped,
    /// Load on the first request, unload after `idle_seconds` without one.
    OnDemand,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Chat and text completion.
    Chat,
    /// Vectors for text.
    Embedding,
    /// Scores for query/document pairs.
    Rerank,
}

/// Number format of one half of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheType {
    /// 32-bit float.
    F32,
    /// 16-bit float (the engine's default).
    #[default]
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit blocks.
    Q8_0,
    /// 5-bit blocks with minimum.
    Q5_1,
    /// 5-bit blocks.
    Q5_0,
    /// 4-bit blocks with minimum.
    Q4_1,
    /// 4-bit blocks.
    Q4_0,
    /// 4-bit non-linear blocks.
    Iq4Nl,
}

impl CacheType {
    /// The engine's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    /// Bytes of that many elements, rounded up (ENGINES 6.3).
    pub const fn bytes(self, elements: u64) -> u64 {
        let (bytes, block) = match self {
            Self::F32 => (4, 1),
            Self::F16 | Self::Bf16 => (2, 1),
            Self::Q8_0 => (34, 32),
            Self::Q5_1 => (24, 32),
            Self::Q5_0 => (22, 32),
            Self::Q4_1 => (20, 32),
            Self::Q4_0 | Self::Iq4Nl => (18, 32),
        };
        elements.saturating_mul(bytes).div_ceil(block)
    }

    /// Whether it is a block format (quantised values need flash attention).
    pub const fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// A server row as its operator wrote it. `None` means "auto": stored as auto, resolved at each launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    /// The public model name. Rows with the same name form a pool. 1 to 256 characters, any script.
    pub model_name: String,
    /// Further names that answer to this row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Which kind of engine.
    pub engine: EngineKind,
    /// A pinned engine build id; auto = the active build of that kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_build: Option<String>,
    /// Where the model comes from: `hf:owner/repo[:quant or file]`, `https://…`, a local path, `pip:package`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the model is for; auto = from the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Tokens of context that ONE slot (one conversation) may use; auto = from memory, at most the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 256)]
    pub context: Option<u32>,
    /// Requests served at the same time; auto = from memory and cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 256)]
    pub slots: Option<u32>,
    /// CPU threads; auto = performance cores within the cgroup quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Layers on the accelerator; auto = as many as fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<u32>,
    /// Devices by the engine's own name (`CUDA0`); auto = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// KV cache format of the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_type_k: Option<CacheType>,
    /// KV cache format of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_type_v: Option<CacheType>,
    /// Further engine arguments, checked against the adapter's allow-list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_args: Vec<String>,
    /// External engines: base URL, `http://host:port[/prefix]` (without `/v1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// External engines: the key that server wants. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// External engines: the model name that server knows; auto = the only model it lists, else `model_name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_model: Option<String>,
    /// What the operator wants.
    #[serde(default)]
    pub desired_state: DesiredState,
    /// `on_demand` rows: seconds without a request, after the last byte sent, until unload. Default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub idle_seconds: Option<u32>,
}

impl EngineSpec {
    /// A row with everything on auto.
    pub fn new(model_name: impl Into<String>, engine: EngineKind) -> Self {
        Self {
            model_name: model_name.into(),
            aliases: Vec::new(),
            engine,
            engine_build: None,
            model: None,
            task: None,
            context: None,
            slots: None,
            threads: None,
            gpu_layers: None,
            devices: None,
            cache_type_k: None,
            cache_type_v: None,
            extra_args: Vec::new(),
            url: None,
            api_key: None,
            upstream_model: None,
            desired_state: DesiredState::default(),
            idle_seconds: None,
        }
    }
}

/// Seconds an `on_demand` row stays loaded after its last byte, where the row does not say.
pub const DEFAULT_IDLE_SECONDS: u32 = 300;

/// What "auto" became at a launch, with the arithmetic that led there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Resolved {
    /// What the model is used for.
    pub task: Task,
    /// Tokens of context of one slot.
    pub context: u32,
    /// Requests at the same time.
    pub slots: u32,
    /// CPU threads (0 where the engine has none of its own).
    pub threads: u32,
    /// Layers offloaded, 0 on a host without a device; `None` = the engine places what fits, or has no layers.
    pub gpu_layers: Option<u32>,
    /// KV cache format of the keys.
    pub cache_type_k: CacheType,
    /// KV cache format of the values.
    pub cache_type_v: CacheType,
    /// MiB of host memory the engine may keep for evicted prompts.
    pub host_cache_mib: u32,
    /// Points a slot can be rewound to, kept in host memory (sliding-window and recurrent models; 0 for others).
    #[serde(default)]
    pub context_checkpoints: u32,
    /// How the vectors of an input's tokens become one, where the row makes vectors and the model does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<String>,
    /// Bytes it needs, by part.
    pub memory: MemoryNeed,
    /// One line a decision: what was chosen and the numbers behind it.
    pub arithmetic: Vec<String>,
}

/// Bytes an engine needs, by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct MemoryNeed {
    /// Model weights.
    pub weights_bytes: u64,
    /// KV cache (and recurrent state) of all slots.
    pub kv_bytes: u64,
    /// Compute buffers and runtime.
    pub compute_bytes: u64,
    /// Host cache for evicted prompts and rewind points.
    pub host_cache_bytes: u64,
}

impl MemoryNeed {
    /// The sum, saturating.
    pub const fn total_bytes(&self) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.compute_bytes).saturating_add(self.host_cache_bytes)
    }
}

/// An engine build that is installed here: how to start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Unique among installed builds, usable as a directory name, for example `llama_cpp-pip-2026.10.11549`.
    pub id: String,
    /// Which kind of engine.
    pub engine: EngineKind,
    /// The version its maker gave it.
    pub version: String,
    /// Program to execute.
    #[schema(value_type = String)]
    pub program: PathBuf,
    /// Arguments before any of the launch plan (a launcher script and its library folder, say).
    pub prefix_args: Vec<String>,
    /// Environment this build needs (library path).
    pub env: Vec<(String, String)>,
    /// Long flags its `--help` lists, without values. Empty = not probed: assume the current set.
    pub flags: Vec<String>,
    /// Devices its `--list-devices` names (`CUDA0`, `Vulkan0`). Empty = it computes on the CPU alone.
    #[serde(default)]
    pub devices: Vec<String>,
    /// A request may name the slot it is served in. Its proof tells; a build proved before it was asked is taken to do so.
    #[serde(default = "yes")]
    pub takes_slot: bool,
}

const fn yes() -> bool {
    true
}

/// Everything an adapter needs to write a launch plan.
#[derive(Debug, Clone)]
pub struct LaunchInput<'a> {
    /// The row.
    pub spec: &'a EngineSpec,
    /// Its resolved values.
    pub resolved: &'a Resolved,
    /// The build to start.
    pub build: &'a Build,
    /// First file of the model, where the engine loads one.
    pub model_path: Option<&'a std::path::Path>,
    /// Vision/audio projector beside the model.
    pub mmproj_path: Option<&'a std::path::Path>,
    /// Loopback port to listen on.
    pub port: u16,
    /// Random key only the control plane knows.
    pub api_key: &'a str,
    /// A writable folder that serves as HOME.
    pub home: &'a std::path::Path,
}

/// The exact process to start. The environment is complete: nothing is inherited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Program to execute.
    pub program: PathBuf,
    /// All arguments. Never a secret: other users can read them.
    pub args: Vec<String>,
    /// The whole environment, secrets included.
    pub env: Vec<(String, String)>,
}

/// What the health path said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Serves.
    Ready,
    /// Alive, still loading.
    Loading,
    /// Answers, but not as a working engine would.
    Broken,
}

/// What a kind of engine can do and needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Needs an installed build.
    pub needs_build: bool,
    /// Loads a model file that Lifeboat must have on disk.
    pub needs_model: bool,
    /// GET path of the cheap health answer.
    pub health_path: &'static str,
    /// GET path of what it says of its model, where it says anything of use.
    pub props_path: Option<&'static str>,
}

/// A row that cannot be, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong, with the limit.
    pub problem: String,
    /// The cure.
    pub hint: String,
}
