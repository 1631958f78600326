//! Looks up llama.cpp's official releases.
//!
//! Binaries hang on nightly tags (`b11434`); the latest stable release carries only a file that names one
//! (ENGINES 1.1). Releases have no checksum file, so the digest comes from the release API, and an asset without
//! one is not taken. Both hosts can be replaced: a mirror for the files, another base for the API.

use std::time::Duration;

use lifeboat_engines::catalog::{REPOSITORY, nightly_number};
use serde::Deserialize;

use crate::config::SourcesConfig;
use crate::host::http::{Http, HttpError};

/// Longest answer that is read: a page of a hundred releases is about 8 MB.
const ANSWER_BYTES: usize = 32 << 20;
/// Longest tag file.
const TAG_BYTES: usize = 1024;

/// One release with its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    /// `b11434`.
    pub tag: String,
    pub assets: Vec<Asset>,
}

/// One file of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asset {
    pub name: String,
    pub size: u64,
    /// Hex; `None` = the API told none.
    pub sha256: Option<String>,
    /// Where the file is fetched from.
    pub url: String,
}

/// Why a release could not be looked up.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum LookupError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{host} cannot be reached")]
    Unreachable {
        host: String,
        #[source]
        source: std::sync::Arc<reqwest::Error>,
    },
    #[error("{host} did not answer within {} s", limit.as_secs())]
    Silent { host: String, limit: Duration },
    #[error("{host} answered {status}{}", if matches!(status, 403 | 429) { " (the hourly limit of anonymous lookups is used up?)" } else { "" })]
    Status { host: String, status: u16 },
    #[error("{host} gave an answer that cannot be read: {problem}")]
    Answer { host: String, problem: String },
    #[error("`{tag}` is no release with binaries; those are called like b11434")]
    Tag { tag: String },
    #[error("no release with binaries among the latest hundred")]
    NoBinaries,
}

/// The two places of a release.
#[derive(Debug, Clone)]
pub(super) struct ReleaseSite {
    http: Http,
    api: String,
    mirror: String,
    limit: Duration,
}

#[derive(Deserialize)]
struct ReleaseAnswer {
    tag_name: String,
    #[serde(default)]
    assets: Vec<AssetAnswer>,
}

#[derive(Deserialize)]
struct AssetAnswer {
    name: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    digest: Option<String>,
}

impl ReleaseSite {
    pub fn new(http: Http, sources: &SourcesConfig) -> Self {
        let base = |text: &str| text.trim_end_matches('/').to_owned();
        Self { http, api: base(&sources.github_api), mirror: base(&sources.github_mirror), limit: sources.stall }
    }

    /// The release `tag`, or the newest one that is meant for use.
    pub async fn find(&self, tag: Option<&str>) -> Result<Release, LookupError> {
        match tag {
            Some(tag) if nightly_number(tag).is_some() => return self.tagged(tag).await,
            Some(tag) => return Err(LookupError::Tag { tag: tag.to_owned() }),
            None => {}
        }
        match self.promoted_tag().await {
            Ok(tag) => self.tagged(&tag).await,
            Err(error @ (LookupError::Http(_) | LookupError::Silent { .. })) => Err(error),
            // The file is a convention of a few months' standing; the tags are the older one.
            Err(_) => self.newest().await,
        }
    }

    /// What the latest stable release says to use.
    async fn promoted_tag(&self) -> Result<String, LookupError> {
        let url = format!("{}/{REPOSITORY}/releases/latest/download/nightly-tag.txt", self.mirror);
        let answer = self.get(&url, TAG_BYTES).await?;
        let tag = String::from_utf8_lossy(&answer).trim().to_owned();
        if nightly_number(&tag).is_some() { Ok(tag) } else { Err(unreadable(&url, "it names no tag like b11434".to_owned())) }
    }

    async fn tagged(&self, tag: &str) -> Result<Release, LookupError> {
        let url = format!("{}/repos/{REPOSITORY}/releases/tags/{tag}", self.api);
        let answer = self.get(&url, ANSWER_BYTES).await?;
        serde_json::from_slice(&answer).map(|release| self.release(release)).map_err(|error| unreadable(&url, error.to_string()))
    }

    async fn newest(&self) -> Result<Release, LookupError> {
        let url = format!("{}/repos/{REPOSITORY}/releases?per_page=100", self.api);
        let answer = self.get(&url, ANSWER_BYTES).await?;
        let releases: Vec<ReleaseAnswer> = serde_json::from_slice(&answer).map_err(|error| unreadable(&url, error.to_string()))?;
        let with_binaries =
            releases.into_iter().filter(|release| nightly_number(&release.tag_name).is_some() && !release.assets.is_empty());
        with_binaries
            .max_by_key(|release| nightly_number(&release.tag_name))
            .map(|release| self.release(release))
            .ok_or(LookupError::NoBinaries)
    }

    fn release(&self, answer: ReleaseAnswer) -> Release {
        let tag = answer.tag_name;
        let digest = |text: String| text.strip_prefix("sha256:").filter(|hex| hex.len() == 64).map(str::to_ascii_lowercase);
        let assets = answer.assets.into_iter().map(|asset| Asset {
            url: format!("{}/{REPOSITORY}/releases/download/{tag}/{}", self.mirror, asset.name),
            sha256: asset.digest.and_then(digest),
            name: asset.name,
            size: asset.size,
        });
        Release { assets: assets.collect(), tag }
    }

    async fn get(&self, url: &str, most: usize) -> Result<Vec<u8>, LookupError> {
        let client = self.http.client()?;
        let unreachable =
            |error: reqwest::Error| LookupError::Unreachable { host: host(url), source: std::sync::Arc::new(error.without_url()) };
        let exchange = async {
            let mut response = client.get(url).send().await.map_err(unreachable)?;
            if !response.status().is_success() {
                return Err(LookupError::Status { host: host(url), status: response.status().as_u16() });
            }
            let mut body = Vec::new();
            while let Some(piece) = response.chunk().await.map_err(unreachable)? {
                if body.len() + piece.len() > most {
                    return Err(unreadable(url, format!("it is longer than {most} bytes")));
                }
                body.extend_from_slice(&piece);
            }
            Ok(body)
        };
        tokio::time::timeout(self.limit, exchange).await.unwrap_or_else(|_| Err(LookupError::Silent { host: host(url), limit: self.limit }))
    }
}

fn unreadable(url: &str, problem: String) -> LookupError {
    LookupError::Answer { host: host(url), problem }
}

fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest).to_owned()
}
