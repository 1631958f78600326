//! What a model is and what it needs here, told without fetching its weights.

use lifeboat_engines::host::HostFacts;
use lifeboat_engines::model::ModelFacts;
use lifeboat_engines::sizing::SizingError;
use lifeboat_engines::sizing::need::kv_bytes_per_token;
use lifeboat_engines::spec::Resolved;
use serde::Serialize;
use utoipa::ToSchema;

use super::fit;

/// What a model is and what it needs on this host.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Inspection {
    /// Canonical source.
    pub source: String,
    /// It is on disk, whole and verified.
    pub local: bool,
    /// File names, projector last.
    pub files: Vec<String>,
    /// Bytes of all files; `None` where a server does not tell.
    pub bytes: Option<u64>,
    /// From its header.
    pub facts: ModelFacts,
    /// Bytes a token of context takes in the cache at 16 bits, all layers.
    pub kv_bytes_per_token: u64,
    /// What it would get here now with everything on auto.
    pub here: Fit,
}

/// Whether and how a model fits this host now.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Fit {
    /// It fits.
    Fits {
        /// What a row with everything on auto would become, with the arithmetic.
        resolved: Box<Resolved>,
        /// Memory in all, bytes.
        needed_bytes: u64,
    },
    /// It does not fit into what is free now.
    DoesNotFit {
        /// The sum.
        arithmetic: String,
        /// The cure.
        hint: String,
    },
    /// No engine here can serve it.
    NotServable {
        /// Why.
        reason: String,
    },
}

impl Inspection {
    /// An inspection from facts. `host` is the machine now.
    pub(super) fn new(source: String, local: bool, files: Vec<String>, bytes: Option<u64>, facts: ModelFacts, host: &HostFacts) -> Self {
        let here = match fit::now(&facts, host) {
            Ok(resolved) => Fit::Fits { needed_bytes: resolved.memory.total_bytes(), resolved: Box::new(resolved) },
            Err(SizingError::DoesNotFit { arithmetic, hint, .. }) => Fit::DoesNotFit { arithmetic, hint },
            Err(SizingError::NotServable(reason)) => Fit::NotServable { reason },
        };
        Self { source, local, files, bytes, kv_bytes_per_token: kv_bytes_per_token(&facts), facts, here }
    }
}
