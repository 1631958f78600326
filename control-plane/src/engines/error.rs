//! Why there is no build, or why a wish about builds cannot be granted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lifeboat_engines::spec::EngineKind;

/// What the engine store may answer instead. Cloneable, because everybody who waited for an installation is told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnginesError {
    /// No source gave a build that runs here; each with its reason.
    #[error(
        "no {engine} build runs on this host: {}; `lifeboat engine candidates` shows all, `lifeboat engine install --path FILE` takes your own",
        tried.join("; ")
    )]
    NoneUsable {
        /// Which engine.
        engine: EngineKind,
        /// `source: reason`, in the order tried.
        tried: Vec<String>,
    },
    /// A build that is not here.
    #[error("no engine build `{id}` is installed; `lifeboat engine list` shows those that are")]
    NotInstalled {
        /// As asked for.
        id: String,
    },
    /// A build that did not generate a token on this host.
    #[error("the engine build `{id}` does not work on this host: {cause}")]
    NotUsable {
        /// Its id.
        id: String,
        /// Why.
        cause: String,
    },
    /// Builds of this kind are nothing one installs.
    #[error("engines of the kind {engine} are not installed by Lifeboat; only llama_cpp builds are")]
    NotManaged {
        /// Which engine.
        engine: EngineKind,
    },
    /// A name that is no candidate.
    #[error("there is no candidate `{name}`; choose one of {}", known.join(", "))]
    NoSuchCandidate {
        /// As asked for.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The candidate that was asked for gave no working build.
    #[error("{candidate} gave no working build: {reason}")]
    CandidateFailed {
        /// Which.
        candidate: String,
        /// In words.
        reason: String,
    },
    /// There is nothing to go back to.
    #[error("there is no earlier {engine} build to go back to")]
    NoPrevious {
        /// Which engine.
        engine: EngineKind,
    },
    /// A build that is needed.
    #[error("the engine build `{id}` is {by}, so it stays")]
    InUse {
        /// Its id.
        id: String,
        /// `the active one; …`, `pinned by …`.
        by: String,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// A helper thread was lost.
    #[error("a background task of the engine store was lost")]
    Lost,
}

impl EnginesError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source: Arc::new(source) }
    }
}

/// Runs file work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, EnginesError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| EnginesError::Lost)
}
