//! The engine store: finds, fetches, proves and keeps builds of engines.

use std::sync::Arc;

use lifeboat_engines::spec::{Build, EngineKind};

use crate::progress::ProgressSender;

/// The engine store of one data directory.
#[derive(Debug)]
pub struct Engines {}

/// Why there is no build.
#[derive(Debug, thiserror::Error)]
pub enum EnginesError {
    /// No source gave a build that runs here; each with its reason.
    #[error("no {engine} build runs on this host")]
    NoneUsable {
        /// Which engine.
        engine: EngineKind,
        /// `source: reason`, in the order tried.
        tried: Vec<String>,
    },
}

impl Engines {
    /// The build to launch: the pinned one, else the active one, else the best candidate is installed,
    /// proved and activated first. Concurrent callers share one installation.
    pub async fn ensure(&self, _engine: EngineKind, _pinned: Option<&str>, _progress: &ProgressSender) -> Result<Arc<Build>, EnginesError> {
        todo!()
    }
}
