//! Which build of which engine fits this host, best first, each rejection with its reason.
//!
//! The list is data (`catalog.toml`); the rules that need arithmetic (drivers, compute capabilities, the C
//! library) are in [`rules`]. A verdict is a forecast: only the proof (a generated token) makes a build usable,
//! and a candidate the operator names may be tried whatever the verdict.

pub mod asset;
pub mod rules;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::HostFacts;
use crate::spec::EngineKind;

pub use asset::{Picked, nightly_number, pick_asset};
pub use rules::Version;

/// The repository of the official releases.
pub const REPOSITORY: &str = "ggml-org/llama.cpp";

/// One way to get a build, and whether it fits this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Candidate {
    /// Stable name: `release-cuda-13`, `pip-xllamacpp`.
    pub id: String,
    /// Which kind of engine it is.
    pub engine: EngineKind,
    /// For people.
    pub label: String,
    /// Where it comes from.
    pub source: Source,
    /// It is for an accelerator: a build that sees none is of no use.
    pub accelerated: bool,
    /// It is for another system or processor than this host's.
    pub foreign: bool,
    /// Whether it is taken.
    pub verdict: Verdict,
}

/// Whether a candidate is taken without being asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "reason")]
pub enum Verdict {
    /// Fits; tried in order.
    Taken,
    /// Fits, but only taken when the operator asks for it.
    OptIn(String),
    /// Does not fit this host.
    Rejected(String),
}

/// Where a build comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "type", deny_unknown_fields)]
pub enum Source {
    /// A program of the operator's.
    Path,
    /// An asset of an official release.
    Release(ReleaseSource),
    /// A wheel, through the pip client.
    Pip(PipSource),
    /// A source package, built here.
    Source(SourceBuild),
    /// Inside this binary.
    BuiltIn,
}

/// An asset of an official release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseSource {
    /// File name with `{tag}` and `{version}`.
    pub asset: String,
    /// Runtime archive of the same version, unpacked beside it.
    #[serde(default)]
    pub companion: Option<String>,
    /// Only toolkits of this major version.
    #[serde(default)]
    pub major: Option<u32>,
    /// The newest toolkit this host's driver can run; set by [`candidates`].
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub newest: Option<Version>,
}

/// A wheel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PipSource {
    /// Its name.
    pub package: String,
    /// The pinned version.
    pub version: String,
    /// How it is started.
    pub start: PipStart,
    /// Every wheel of that version.
    pub wheels: Vec<Wheel>,
}

impl PipSource {
    /// The hashes of all wheels, for `--require-hashes`.
    pub fn sha256s(&self) -> impl Iterator<Item = &str> {
        self.wheels.iter().map(|wheel| wheel.sha256.as_str())
    }
}

/// How the content of a wheel is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PipStart {
    /// It is a Python library; our launcher runs its server.
    Launcher,
    /// It holds a `llama-server` program.
    Program,
}

/// One file of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Operating system.
    pub os: String,
    /// Processor.
    pub arch: String,
    /// Oldest GNU libc.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub glibc: Option<Version>,
    /// Its hash, hex.
    pub sha256: String,
}

/// A source package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceBuild {
    /// Its name on the package index.
    pub package: String,
    /// The pinned version.
    pub version: String,
    /// Hash of the archive, hex.
    pub sha256: String,
    /// Folder inside the package that cmake is pointed at.
    pub folder: String,
    /// The ninja target; also the name of the program, below `bin` of the build folder.
    pub target: String,
    /// Options for cmake.
    pub options: Vec<String>,
}

/// What a host must have.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Needs {
    pub os: Option<String>,
    pub arch: Option<String>,
    pub glibc: Option<Version>,
    pub device: Option<rules::Backend>,
    #[serde(default)]
    pub gfx: Vec<String>,
    pub python: Option<Version>,
    #[serde(default)]
    pub tools: Vec<String>,
    #[serde(default)]
    pub features: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    engine: EngineKind,
    label: String,
    opt_in: Option<String>,
    #[serde(default)]
    needs: Needs,
    source: Source,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalog {
    candidate: Vec<Entry>,
}

/// The catalog is part of this binary and a test reads it, so it cannot fail to parse.
static CATALOG: LazyLock<Catalog> = LazyLock::new(|| toml::from_str(include_str!("catalog.toml")).unwrap_or_default());

/// All candidates of a kind for this host, best first.
pub fn candidates(engine: EngineKind, host: &HostFacts) -> Vec<Candidate> {
    CATALOG.candidate.iter().filter(|entry| entry.engine == engine).map(|entry| judge(entry, host)).collect()
}

fn judge(entry: &Entry, host: &HostFacts) -> Candidate {
    let mut source = entry.source.clone();
    let verdict = match rules::check(&entry.needs, &mut source, host) {
        Err(reason) => Verdict::Rejected(reason),
        Ok(()) => entry.opt_in.clone().map_or(Verdict::Taken, Verdict::OptIn),
    };
    Candidate {
        id: entry.id.clone(),
        engine: entry.engine,
        label: entry.label.clone(),
        source,
        accelerated: entry.needs.device.is_some(),
        foreign: rules::is_foreign(&entry.needs, host),
        verdict,
    }
}

#[cfg(test)]
mod tests;
