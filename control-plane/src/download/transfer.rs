//! One download, from the lock to the final name: asks, resumes, tries again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE};
use reqwest::{Client, Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};

use super::error::shown;
use super::part::{self, Opened, Part, Version, blocking};
use super::{Download, DownloadError, Limits, space};
use crate::host::http::Http;
use crate::progress::ProgressSender;

/// Longest pause between two tries, whatever the server asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// New bytes that make a failed try count as progress, so that the next ones are not its repetition.
const PROGRESS_BYTES: u64 = 1 << 20;
/// Time between two looks at a download another process holds.
const HELD_POLL: Duration = Duration::from_millis(500);

/// Fetches one file.
pub(super) async fn run(download: &Download, http: &Http, limits: &Limits, progress: &ProgressSender) -> Result<(), DownloadError> {
    let Some(mut part) = open(download, limits, progress).await? else { return Ok(()) };
    // Reading the certificate store blocks for some milliseconds.
    let http = http.clone();
    let client = blocking(move || http.client()).await??;
    let mut furthest = part.length();
    let backoff = ExponentialBuilder::default().with_min_delay(limits.retry_backoff).with_max_delay(LONGEST_PAUSE).with_jitter();
    let backoff = backoff.with_max_times(limits.attempts.saturating_sub(1));
    let mut pauses = backoff.build();
    loop {
        let error = match attempt(&mut part, download, &client, limits, progress).await {
            Ok(()) => break,
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        if part.length() >= furthest.saturating_add(PROGRESS_BYTES) {
            furthest = part.length();
            pauses = backoff.build();
        }
        let Some(pause) = pauses.next() else { return Err(error) };
        let pause = pause.max(error.retry_after().unwrap_or_default()).min(LONGEST_PAUSE);
        tracing::warn!(error = %error, download.target = %download.target.display(), pause_ms = pause.as_millis(), "a download broke off and is tried again");
        sleep(pause).await;
    }
    blocking(move || part.commit()).await?
}

/// The locked part, or `None` if the file is there. Waits while another process is fetching it.
async fn open(download: &Download, limits: &Limits, progress: &ProgressSender) -> Result<Option<Box<Part>>, DownloadError> {
    let mut seen = None;
    let mut since = Instant::now();
    progress.step(format!("checking {}", download.name()), None, false);
    loop {
        let asked = download.clone();
        match blocking(move || Part::open(&asked)).await?? {
            Opened::Part(part) => return Ok(Some(part)),
            Opened::Done => return Ok(None),
            Opened::Held(length) if seen != Some(length) => {
                progress.step(format!("another process is {}", download.step()), download.expected_size, true);
                progress.set(length);
                (seen, since) = (Some(length), Instant::now());
            }
            // The holder stops at its own limits well before this one.
            Opened::Held(_) if since.elapsed() > (limits.stall + LONGEST_PAUSE) * 2 => {
                return Err(DownloadError::Held { path: part::part_path(&download.target) });
            }
            Opened::Held(_) => {}
        }
        sleep(HELD_POLL).await;
    }
}

/// One request, and everything that follows from its answer. An error leaves the part ready for another try.
async fn attempt(
    part: &mut Part,
    download: &Download,
    client: &Client,
    limits: &Limits,
    progress: &ProgressSender,
) -> Result<(), DownloadError> {
    if part.length() > 0 && !part.version.as_ref().is_some_and(Version::can_be_recognised) {
        part.restart().await?;
    }
    let resumed = part.length() > 0;
    let known = part.version.as_ref().and_then(|version| version.size).or(download.expected_size);
    if known != Some(part.length()) {
        let mut response = ask(part, download, client, limits).await?;
        let total = place(part, download, &response).await?;
        if let Some(total) = total.filter(|total| *total != part.length()) {
            let folder = download.target.parent().map(ToOwned::to_owned).unwrap_or_default();
            let (limits, need) = (*limits, total.saturating_sub(part.length()));
            blocking(move || space::check(&limits, &folder, need)).await??;
        }
        progress.step(download.step(), total, true);
        progress.set(part.length());
        if response.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            receive(part, download, &mut response, total, limits, progress).await?;
        }
    }
    verify(part, download, resumed).await
}

async fn ask(part: &Part, download: &Download, client: &Client, limits: &Limits) -> Result<Response, DownloadError> {
    let url = &download.url;
    let mut request = client.get(url).header(ACCEPT_ENCODING, "identity");
    if let Some(token) = &download.token {
        request = request.bearer_auth(token);
    }
    if part.length() > 0 {
        request = request.header(RANGE, format!("bytes={}-", part.length()));
        let version = part.version.as_ref();
        if let Some(validator) = version.and_then(|version| version.etag.as_ref().or(version.last_modified.as_ref())) {
            request = request.header(IF_RANGE, validator);
        }
    }
    let response = timeout(limits.stall, request.send())
        .await
        .map_err(|_| DownloadError::stalled(url, limits.stall))?
        .map_err(|source| DownloadError::request(url, source))?;
    match response.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
        StatusCode::RANGE_NOT_SATISFIABLE if part.length() > 0 => Ok(response),
        status => Err(DownloadError::status(url, status.as_u16(), response.headers())),
    }
}

/// Makes the part agree with the answer, and tells the length of the whole file where the answer does.
async fn place(part: &mut Part, download: &Download, response: &Response) -> Result<Option<u64>, DownloadError> {
    let mut version = version_of(response.headers());
    version.sha256.clone_from(&download.sha256);
    let range = content_range(response.headers());
    let fits = match response.status() {
        StatusCode::OK => {
            version.size = response.content_length();
            check_size(download, version.size)?;
            part.begin(version).await?;
            return Ok(response.content_length().or(download.expected_size));
        }
        StatusCode::PARTIAL_CONTENT => range.is_some_and(|(start, _)| start == Some(part.length())),
        // Nothing lies beyond what we have: good if that is the whole file.
        _ => range.is_some_and(|(_, total)| total == Some(part.length())),
    };
    version.size = range.and_then(|(_, total)| total);
    let recorded = part.version.clone().unwrap_or_default();
    if !fits || !recorded.agrees(&version) {
        part.restart().await?;
        return Err(DownloadError::unexpected(&download.url, "the file changed since its download began"));
    }
    check_size(download, version.size)?;
    Ok(version.size.or(recorded.size))
}

async fn receive(
    part: &mut Part,
    download: &Download,
    response: &mut Response,
    total: Option<u64>,
    limits: &Limits,
    progress: &ProgressSender,
) -> Result<(), DownloadError> {
    let mut arrived = part.length();
    let writer = part.writer()?;
    let result = loop {
        let chunk = match timeout(limits.stall, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => break Ok(()),
            Ok(Err(source)) => break Err(DownloadError::request(&download.url, source)),
            Err(_) => break Err(DownloadError::stalled(&download.url, limits.stall)),
        };
        arrived += chunk.len() as u64;
        if let Some(expected) = total.or(download.expected_size).filter(|expected| arrived > *expected) {
            break Err(DownloadError::Size { url: shown(&download.url), expected, found: arrived });
        }
        if !writer.put(chunk).await {
            break Ok(());
        }
        progress.set(arrived);
    };
    match part.finish(writer).await {
        Err(DownloadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
            let folder = download.target.parent().map(ToOwned::to_owned).unwrap_or_default();
            let free = (limits.free_space)(&folder).unwrap_or(0);
            let need = total.unwrap_or(0).saturating_sub(part.length());
            return Err(DownloadError::DiskFull { folder, need, free, margin: limits.disk_margin_bytes });
        }
        written => written?,
    }
    result?;
    match total.filter(|total| *total != part.length()) {
        Some(total) => {
            let problem = format!("the answer ended after {} of {total} bytes", part.length());
            Err(DownloadError::unexpected(&download.url, problem))
        }
        None => Ok(()),
    }
}

async fn verify(part: &mut Part, download: &Download, resumed: bool) -> Result<(), DownloadError> {
    check_size(download, Some(part.length()))?;
    let (Some(expected), Some(found)) = (&download.sha256, part.digest()) else { return Ok(()) };
    if expected.eq_ignore_ascii_case(&found) {
        return Ok(());
    }
    part.restart().await?;
    if resumed {
        // The first piece may be at fault; a whole fresh copy decides.
        return Err(DownloadError::unexpected(&download.url, "the resumed file has the wrong digest"));
    }
    Err(DownloadError::Digest { url: shown(&download.url), expected: expected.clone(), found })
}

fn check_size(download: &Download, found: Option<u64>) -> Result<(), DownloadError> {
    match (download.expected_size, found) {
        (Some(expected), Some(found)) if expected != found => Err(DownloadError::Size { url: shown(&download.url), expected, found }),
        _ => Ok(()),
    }
}

impl Version {
    /// Whether a later answer can be told to belong to this version, or the digest tells at the end.
    fn can_be_recognised(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some() || self.sha256.is_some()
    }

    /// Whether an answer belongs to the version that was recorded. What one side does not tell is no contradiction.
    fn agrees(&self, answer: &Self) -> bool {
        fn same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_none_or(|(one, other)| one == other)
        }
        same(self.etag.as_ref(), answer.etag.as_ref())
            && same(self.last_modified.as_ref(), answer.last_modified.as_ref())
            && same(self.size.as_ref(), answer.size.as_ref())
    }
}

fn text(headers: &HeaderMap, name: reqwest::header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn version_of(headers: &HeaderMap) -> Version {
    // A weak tag promises the same meaning, not the same bytes.
    let etag = text(headers, ETAG).filter(|tag| !tag.starts_with("W/")).map(ToOwned::to_owned);
    Version { etag, last_modified: text(headers, LAST_MODIFIED).map(ToOwned::to_owned), size: None, sha256: None }
}

/// `bytes 10-99/100` as (first byte, length of the whole file); `bytes */100` has no first byte.
fn content_range(headers: &HeaderMap) -> Option<(Option<u64>, Option<u64>)> {
    let (range, total) = text(headers, CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-').and_then(|(start, _)| start.trim().parse().ok());
    Some((start, total.trim().parse().ok()))
}
