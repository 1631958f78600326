//! What is written down about a build: how to start it, where it came from, and how its proof went.
//!
//! Paths inside the build's own folder are written with a placeholder, so that a data directory may be moved.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use lifeboat_engines::spec::Build;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Stands for the build's own folder in a record on disk.
pub(super) const HERE: &str = "{build}";

/// Where a build came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildSource {
    /// A program the operator named.
    Path,
    /// The project's official releases.
    Release,
    /// A package of a Python index.
    Pip,
    /// Compiled on this host.
    Source,
    /// Part of Lifeboat itself.
    Builtin,
}

impl BuildSource {
    /// The name used in ids and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Release => "release",
            Self::Pip => "pip",
            Self::Source => "source",
            Self::Builtin => "builtin",
        }
    }
}

/// Whether a build has generated a token on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum Proof {
    /// It has.
    Passed {
        /// When.
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
        /// With which model.
        model: String,
        /// From the start of the process to the token.
        milliseconds: u64,
    },
    /// It has not; its files were deleted.
    Failed {
        /// When.
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
        /// Why, in words.
        cause: String,
        /// Another try is of no use as long as the host stays what it is.
        lasting: bool,
    },
    /// It is part of Lifeboat.
    NotNeeded,
}

/// One build as its `build.json` describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// How to start it; meaningless after a failed proof.
    pub build: Build,
    /// Where it came from.
    pub source: BuildSource,
    /// The same in words: `llama-b11434-bin-ubuntu-x64.tar.gz`, `xllamacpp 2026.10.11549`.
    pub origin: String,
    /// Digest of what was fetched, where one file was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// When it was put here.
    pub installed_at: Timestamp,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// How its proof went.
    pub proof: Proof,
}

/// The build with every placeholder replaced by its folder.
pub(super) fn placed(build: &Build, folder: &Path) -> Build {
    let here = folder.to_string_lossy();
    let fill = |text: &str| text.replace(HERE, &here);
    Build {
        program: PathBuf::from(fill(&build.program.to_string_lossy())),
        prefix_args: build.prefix_args.iter().map(|argument| fill(argument)).collect(),
        env: build.env.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
        ..build.clone()
    }
}

/// Which build of a kind is launched, and which was before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Active {
    /// The one that is launched.
    pub active: Option<String>,
    /// The one to go back to.
    pub previous: Option<String>,
}

impl Active {
    /// After `id` has become the active one.
    pub fn switched_to(&self, id: &str) -> Self {
        match &self.active {
            Some(active) if active == id => self.clone(),
            active => Self { active: Some(id.to_owned()), previous: active.clone() },
        }
    }
}
