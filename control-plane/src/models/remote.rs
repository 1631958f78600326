//! Small questions to web servers: a listing, a length, the first bytes of a file.
//!
//! The hub's token goes to the hub and to nobody else. Every answer has a size limit, every wait a time
//! limit, and only failures that may pass are asked again.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, LINK, RANGE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::config::SourcesConfig;
use crate::download::{DownloadError, Downloads};

/// Largest JSON answer; a page of a listing of a thousand files is some 400 KiB.
const JSON_BYTES: usize = 16 << 20;
/// Tries of a lookup. It stands in somebody's way, so there are few.
const TRIES: usize = 3;

/// Asks servers.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    downloads: Downloads,
    hub: String,
    token: Option<String>,
    stall: Duration,
}

impl Remote {
    pub(super) fn new(downloads: Downloads, config: &SourcesConfig) -> Self {
        let hub = config.hf_endpoint.trim_end_matches('/').to_owned();
        Self { downloads, hub, token: config.hf_token.clone(), stall: config.stall }
    }

    /// Address of the hub, without a trailing slash.
    pub(super) fn hub(&self) -> &str {
        &self.hub
    }

    /// The token for an address: the hub's, if it is the hub's address.
    pub(super) fn token_for(&self, url: &str) -> Option<String> {
        let ours = url.strip_prefix(&self.hub).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.token.clone().filter(|_| ours)
    }

    /// A JSON answer, and the address of the next page where there is one.
    pub(super) async fn json<T: DeserializeOwned>(&self, url: &str) -> Result<(T, Option<String>), DownloadError> {
        let page = || async {
            let response = self.ask(Method::GET, url, |request| request).await?;
            let next = next_page(&response);
            let body = self.body(url, response, JSON_BYTES).await?;
            let parsed =
                serde_json::from_slice(&body).map_err(|_| DownloadError::unexpected(url, "the answer is not the expected JSON"))?;
            Ok((parsed, next))
        };
        self.again(page).await
    }

    /// Length of a file, where the server tells it.
    pub(super) async fn length(&self, url: &str) -> Result<Option<u64>, DownloadError> {
        let length = || async {
            let response = self.ask(Method::HEAD, url, |request| request).await?;
            // Not `content_length()`: that is the length of this answer's body, which a HEAD does not have.
            Ok(response.headers().get(reqwest::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()))
        };
        match self.again(length).await {
            // Some servers and most signed addresses know GET only.
            Err(DownloadError::Status { status: 400 | 403 | 405 | 501, .. }) => Ok(None),
            other => other,
        }
    }

    /// The bytes from `start` to before `end`, fewer where the file is shorter. A server that ignores ranges is
    /// read from its first byte and cut off at the end.
    pub(super) async fn range(&self, url: &str, start: u64, end: u64) -> Result<Bytes, DownloadError> {
        let piece = || async {
            let range = format!("bytes={start}-{}", end.saturating_sub(1));
            let response = match self.ask(Method::GET, url, |request| request.header(RANGE, range)).await {
                // The file ends before the range begins.
                Err(DownloadError::Status { status: 416, .. }) => return Ok(Bytes::new()),
                other => other?,
            };
            let skip = if response.status() == StatusCode::PARTIAL_CONTENT { 0 } else { start };
            let limit = usize::try_from(end - start + skip).unwrap_or(usize::MAX);
            let mut body = self.body(url, response, limit).await?;
            Ok(body.split_off(body.len().min(usize::try_from(skip).unwrap_or(usize::MAX))))
        };
        self.again(piece).await
    }

    async fn again<T, F: Future<Output = Result<T, DownloadError>>>(&self, ask: impl FnMut() -> F) -> Result<T, DownloadError> {
        let backoff = ExponentialBuilder::default().with_min_delay(Duration::from_millis(300)).with_max_times(TRIES - 1).with_jitter();
        ask.retry(backoff).when(DownloadError::is_transient).await
    }

    async fn ask(
        &self,
        method: Method,
        url: &str,
        shape: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, DownloadError> {
        let http = self.downloads.http().clone();
        let client = tokio::task::spawn_blocking(move || http.client()).await.map_err(|_| DownloadError::Lost)??;
        let mut request = client.request(method, url).header(ACCEPT_ENCODING, "identity");
        if let Some(token) = self.token_for(url) {
            request = request.bearer_auth(token);
        }
        let response = timeout(self.stall, shape(request).send())
            .await
            .map_err(|_| DownloadError::stalled(url, self.stall))?
            .map_err(|source| DownloadError::request(url, source))?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            status => Err(DownloadError::status(url, status.as_u16(), response.headers())),
        }
    }

    /// The first `limit` bytes of an answer.
    async fn body(&self, url: &str, mut response: Response, limit: usize) -> Result<Bytes, DownloadError> {
        let mut body = Vec::new();
        while body.len() < limit {
            match timeout(self.stall, response.chunk()).await {
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]),
                Ok(Ok(None)) => break,
                Ok(Err(source)) => return Err(DownloadError::request(url, source)),
                Err(_) => return Err(DownloadError::stalled(url, self.stall)),
            }
        }
        Ok(body.into())
    }
}

/// The `rel="next"` address of a `Link` header, if it stays on the host that sent it.
fn next_page(response: &Response) -> Option<String> {
    let links = response.headers().get(LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let url = Url::parse(next.split_once('<')?.1.split_once('>')?.0).ok()?;
    (url.origin() == response.url().origin()).then(|| url.to_string())
}
