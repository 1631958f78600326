//! Resumable, verified downloads.
//!
//! A file counts as downloaded only when it stands under its own name, and it gets that name only after
//! its length and digest were checked and its bytes were flushed. Until then it is `<target>.part`, with
//! `<target>.part.json` beside it saying which version of the remote file it is a piece of; a process
//! killed at any byte leaves a pair that the next one goes on with. The part file carries an advisory lock
//! which the kernel drops with its holder, so there is no such thing as a stale lock. A token is sent to
//! the host it was given for, never to one it redirects to, and is never logged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::SourcesConfig;
use crate::host::http::Http;
use crate::progress::ProgressSender;

pub use error::DownloadError;
pub use shared::SharedWork;

mod error;
mod part;
mod shared;
mod space;
mod transfer;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// One file to fetch.
#[derive(Clone)]
pub struct Download {
    /// Where from, `http` or `https`.
    pub url: String,
    /// Bearer token for the host of `url`.
    pub token: Option<String>,
    /// Where to. Its folder must exist.
    pub target: PathBuf,
    /// Digest of the whole file in hex, where the source gives one.
    pub sha256: Option<String>,
    /// Length in bytes, where the source gives one.
    pub expected_size: Option<u64>,
    /// Progress step while bytes arrive, for people; empty = `downloading <file name>`.
    pub label: String,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("url", &error::shown(&self.url)).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Download {
    /// A download of which only the two ends are known.
    pub fn new(url: impl Into<String>, target: impl Into<PathBuf>) -> Self {
        Self { url: url.into(), token: None, target: target.into(), sha256: None, expected_size: None, label: String::new() }
    }

    fn name(&self) -> String {
        self.target.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    fn step(&self) -> String {
        if self.label.is_empty() { format!("downloading {}", self.name()) } else { self.label.clone() }
    }
}

/// Bounds of every download; the fields of [`SourcesConfig`] by the same names.
#[derive(Debug, Clone, Copy)]
struct Limits {
    stall: Duration,
    attempts: usize,
    retry_backoff: Duration,
    disk_margin_bytes: u64,
    /// How many bytes may still be written below a folder.
    free_space: fn(&Path) -> io::Result<u64>,
}

/// Fetches files. Clones share the HTTP client and what is under way.
#[derive(Debug, Clone)]
pub struct Downloads {
    http: Http,
    limits: Limits,
    running: Arc<SharedWork<PathBuf, Result<(), DownloadError>>>,
}

impl Downloads {
    /// A downloader over `http` with the bounds of the configuration.
    pub fn new(http: Http, config: &SourcesConfig) -> Self {
        let limits = Limits {
            stall: config.stall,
            attempts: config.attempts,
            retry_backoff: config.retry_backoff,
            disk_margin_bytes: config.disk_margin_bytes,
            free_space: space::free_bytes,
        };
        Self { http, limits, running: Arc::default() }
    }

    /// The client it fetches with.
    pub const fn http(&self) -> &Http {
        &self.http
    }

    /// Fetches one file; returns when it stands complete and verified under its name. Callers that ask for one
    /// target at the same time share one transfer. Dropping the last of them stops it; what has arrived is kept.
    pub async fn fetch(&self, download: &Download, progress: &ProgressSender) -> Result<(), DownloadError> {
        let work = |progress| {
            let (download, http, limits) = (download.clone(), self.http.clone(), self.limits);
            async move { transfer::run(&download, &http, &limits, &progress).await }
        };
        self.running.run(download.target.clone(), progress, work).await
    }

    /// Fails if `bytes` more, and the configured margin, would not fit below `folder`: for a set of files that
    /// is to be refused before its first byte.
    pub async fn check_space(&self, folder: &Path, bytes: u64) -> Result<(), DownloadError> {
        let (limits, folder) = (self.limits, folder.to_owned());
        part::blocking(move || space::check(&limits, &folder, bytes)).await?
    }
}
