//! What the store tells about builds and candidates, and what it is asked for.

use std::path::PathBuf;

use jiff::Timestamp;
use lifeboat_engines::catalog::{Candidate, Source, Verdict};
use lifeboat_engines::spec::{Build, EngineKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Inner;
use super::record::{BuildSource, Proof, Record};

/// A build as the store shows it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct InstalledBuild {
    /// What is launched.
    #[serde(flatten)]
    pub build: Build,
    /// Where it came from.
    pub source: BuildSource,
    /// The same in words: the file, the package, the path.
    pub origin: String,
    /// Digest of the file it was made of, where it was one.
    pub sha256: Option<String>,
    /// When it was put here. `null` for what is part of Lifeboat.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub installed_at: Option<Timestamp>,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// It is launched where a row pins no other.
    pub active: bool,
    /// It is what a rollback goes to.
    pub previous: bool,
    /// Whether it has generated a token here.
    pub proof: Proof,
}

/// A way to get a build, judged for this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CandidateView {
    /// Its name, for `engine install`.
    pub id: String,
    /// Which kind of engine.
    pub engine: EngineKind,
    /// For people.
    pub label: String,
    /// Where it comes from.
    pub source: BuildSource,
    /// Whether it fits and is taken without being asked for.
    pub usable: bool,
    /// Why not, where not.
    pub reason: Option<String>,
}

/// What to install.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InstallRequest {
    /// Which kind of engine. Default `llama_cpp`.
    pub engine: Option<EngineKind>,
    /// A candidate by its id, whatever its verdict; else the best one that works.
    pub candidate: Option<String>,
    /// A release tag (`b11434`) instead of the newest one.
    pub version: Option<String>,
    /// The operator's own program.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Compile it here.
    pub from_source: bool,
}

impl InstallRequest {
    /// What is asked for, in words: two requests with the same ones are the same request.
    pub fn describe(&self) -> String {
        let kind = self.engine.unwrap_or(EngineKind::LlamaCpp).as_str();
        let parts = [
            self.candidate.as_ref().map(|candidate| format!("candidate {candidate}")),
            self.version.as_ref().map(|version| format!("version {version}")),
            self.path.as_ref().map(|path| format!("at {}", path.display())),
            self.from_source.then(|| "from source".to_owned()),
        ];
        std::iter::once(kind.to_owned()).chain(parts.into_iter().flatten()).collect::<Vec<_>>().join(", ")
    }
}

impl Inner {
    /// Blocking.
    pub(super) fn show(&self, record: Record) -> InstalledBuild {
        let active = self.shelf.active(record.build.engine);
        let is = |id: &Option<String>| id.as_ref() == Some(&record.build.id);
        InstalledBuild {
            active: is(&active.active),
            previous: is(&active.previous),
            build: record.build,
            source: record.source,
            origin: record.origin,
            sha256: record.sha256,
            installed_at: Some(record.installed_at),
            size_bytes: record.size_bytes,
            proof: record.proof,
        }
    }

    /// A candidate, with what the settings say about it.
    pub(super) fn view(&self, candidate: Candidate) -> CandidateView {
        let source = match candidate.source {
            Source::Path => BuildSource::Path,
            Source::Release(_) => BuildSource::Release,
            Source::Pip(_) => BuildSource::Pip,
            Source::Source(_) => BuildSource::Source,
            Source::BuiltIn => BuildSource::Builtin,
        };
        let named = source == BuildSource::Path && self.config.sources.llama_server.is_some();
        let reason = match candidate.verdict {
            Verdict::Taken => None,
            Verdict::OptIn(_) if named => None,
            Verdict::OptIn(reason) | Verdict::Rejected(reason) => Some(reason),
        };
        CandidateView { id: candidate.id, engine: candidate.engine, label: candidate.label, source, usable: reason.is_none(), reason }
    }
}
