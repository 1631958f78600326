//! Why a download failed, and whether another try may help.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lifeboat_engines::sizing::show::size;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::host::http::HttpError;

/// Why a file could not be fetched. Cloneable, because everybody who waited for it is told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DownloadError {
    /// No HTTP client.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The request or its answer broke off.
    #[error("cannot fetch {url}")]
    Request {
        /// From where.
        url: String,
        /// What the client says.
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// The server answered with something other than the file.
    #[error("{url} answered {status}{}", hint_for(url, *status))]
    Status {
        /// From where.
        url: String,
        /// HTTP status.
        status: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// Nothing arrived for too long.
    #[error("{url} sent nothing for {} s", limit.as_secs())]
    Stalled {
        /// From where.
        url: String,
        /// The limit, `sources.stall`.
        limit: Duration,
    },
    /// The remote file ended early, or became another file while it was fetched.
    #[error("{url}: {problem}")]
    Broken {
        /// From where.
        url: String,
        /// What does not agree.
        problem: String,
    },
    /// The remote file is not as long as its source says.
    #[error("{url} is {found} bytes long, its source says {expected}")]
    Size {
        /// From where.
        url: String,
        /// What the source said.
        expected: u64,
        /// What arrives.
        found: u64,
    },
    /// The whole file arrived and is not what its source says.
    #[error("{url} has sha256 {found}, its source says {expected}; the file was thrown away")]
    Digest {
        /// From where.
        url: String,
        /// What the source said.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// Too little space. What has arrived is kept.
    #[error(
        "not enough disk space in {}: {} more needed, {} free, of which {} stay free (sources.disk_margin_bytes); make room or choose another --data-dir",
        folder.display(), size(*need), size(*free), size(*margin)
    )]
    DiskFull {
        /// The folder.
        folder: PathBuf,
        /// Bytes still to write.
        need: u64,
        /// Bytes free.
        free: u64,
        /// Bytes that stay free.
        margin: u64,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another process holds the download and gets nowhere.
    #[error("another process is downloading {} and gets nowhere; stop it and try again", path.display())]
    Held {
        /// The part file.
        path: PathBuf,
    },
    /// A helper thread was lost.
    #[error("a background task of the download was lost")]
    Lost,
}

impl DownloadError {
    /// A failed file operation.
    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source: Arc::new(source) }
    }

    /// A failed request. The client's own text would repeat the address, signature and all.
    pub(crate) fn request(url: &str, source: reqwest::Error) -> Self {
        Self::Request { url: shown(url), source: Arc::new(source.without_url()) }
    }

    /// An answer other than the thing asked for.
    pub(crate) fn status(url: &str, status: u16, headers: &HeaderMap) -> Self {
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        Self::Status { url: shown(url), status, retry_after }
    }

    /// Silence.
    pub(crate) fn stalled(url: &str, limit: Duration) -> Self {
        Self::Stalled { url: shown(url), limit }
    }

    /// An answer that makes no sense.
    pub(crate) fn unexpected(url: &str, problem: impl Into<String>) -> Self {
        Self::Broken { url: shown(url), problem: problem.into() }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Request { source, .. } => !source.is_builder() && !source.is_redirect(),
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Stalled { .. } | Self::Broken { .. } => true,
            _ => false,
        }
    }

    /// The pause the server asked for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn hint_for(url: &str, status: u16) -> &'static str {
    match (status, is_of_a_hub(url)) {
        (401 | 403, true) => " (is HF_TOKEN set, does the token give access, and was the model's licence accepted on its page?)",
        (401 | 403, false) => " (that server wants a login or does not give this file away; a local copy can be used by its path)",
        (404 | 410, true) => " (no such file or repository; a private one looks the same without a token)",
        (404 | 410, false) => " (no such file)",
        (429, true) => " (too many requests; a token raises the limit)",
        (429, false) => " (too many requests)",
        _ => "",
    }
}

/// Whether the address is one of a model hub, whatever its host: only there a token means anything.
fn is_of_a_hub(url: &str) -> bool {
    ["/resolve/", "/api/models/"].iter().any(|part| url.contains(part))
}

/// An address without the parts that may be secret: user, password, query and fragment.
pub(super) fn shown(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    match bare.split_once("://").map(|(scheme, rest)| (scheme, rest.split_once('/').unwrap_or((rest, "")))) {
        Some((scheme, (authority, path))) => {
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_address_has_no_password_and_no_signature() {
        for (url, expected) in [
            ("https://user:secret@host.example/a/b?X-Signature=1#f", "https://host.example/a/b"),
            ("https://host.example?token=1", "https://host.example/"),
            ("http://127.0.0.1:80/x", "http://127.0.0.1:80/x"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn a_token_is_spoken_of_only_where_one_means_something() {
        for (url, told) in [("https://hub.example/o/r/resolve/main/m.gguf", true), ("https://host.example/m.gguf", false)] {
            let text = DownloadError::Status { url: url.into(), status: 403, retry_after: None }.to_string();
            assert_eq!(text.contains("HF_TOKEN"), told, "{text}");
        }
    }

    #[test]
    fn only_errors_that_may_pass_are_tried_again() {
        let status = |status| DownloadError::Status { url: String::new(), status, retry_after: None };
        for again in [408, 429, 500, 503] {
            assert!(status(again).is_transient(), "{again}");
        }
        for never in [400, 401, 403, 404, 410, 451] {
            assert!(!status(never).is_transient(), "{never}");
        }
    }
}
