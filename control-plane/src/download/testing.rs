//! A small hub on loopback for tests: serves files with the faults that real ones have.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// One file of the hub and how it misbehaves.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) bytes: Bytes,
    pub(crate) etag: Option<&'static str>,
    /// Answers `Range`; else every answer is the whole file.
    pub(crate) ranges: bool,
    /// Honours `If-Range`; else a range of a changed file is served as if nothing had happened.
    pub(crate) if_range: bool,
    /// Token it wants to see.
    pub(crate) token: Option<&'static str>,
    /// Sends the caller elsewhere.
    pub(crate) redirect: Option<String>,
    /// Breaks the connection after so many bytes of each answer.
    pub(crate) cut: Option<usize>,
    /// After so many bytes of each answer waits for a permit.
    pub(crate) gate: Option<(usize, Arc<Semaphore>)>,
    /// Statuses of the next answers, before it serves.
    pub(crate) failures: Vec<u16>,
}

impl Remote {
    pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            etag: Some("\"one\""),
            ranges: true,
            if_range: true,
            token: None,
            redirect: None,
            cut: None,
            gate: None,
            failures: Vec::new(),
        }
    }

    pub(crate) fn sha256(&self) -> String {
        crate::host::hex::hex(&Sha256::digest(&self.bytes))
    }
}

/// A request as the hub saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) if_range: Option<String>,
    pub(crate) authorization: Option<String>,
}

#[derive(Default)]
struct Shelf {
    files: HashMap<String, Remote>,
    seen: Vec<Seen>,
}

/// The hub. Ends with the test's runtime.
pub(crate) struct Hub {
    base: String,
    shelf: Arc<Mutex<Shelf>>,
}

impl Hub {
    #[expect(clippy::disallowed_methods, reason = "the test's runtime ends it")]
    pub(crate) async fn start() -> Self {
        let shelf = Arc::<Mutex<Shelf>>::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&shelf));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { base, shelf }
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Adds or replaces a file. The path may have a query.
    pub(crate) fn put(&self, path: &str, file: Remote) {
        self.shelf.lock().files.insert(path.into(), file);
    }

    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Remote)) {
        change(self.shelf.lock().files.get_mut(path).unwrap());
    }

    /// Requests for one path so far.
    pub(crate) fn seen(&self, path: &str) -> Vec<Seen> {
        self.shelf.lock().seen.iter().filter(|seen| seen.path == path).cloned().collect()
    }

    pub(crate) fn seen_in_all(&self) -> usize {
        self.shelf.lock().seen.len()
    }
}

/// Bytes that look random and are the same on every run.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

async fn answer(State(shelf): State<Arc<Mutex<Shelf>>>, request: Request) -> Response {
    let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
    let field = |name| request.headers().get(name).map(|value: &http::HeaderValue| value.to_str().unwrap().to_owned());
    let seen = Seen {
        method: request.method().to_string(),
        path: path.clone(),
        range: field(header::RANGE),
        if_range: field(header::IF_RANGE),
        authorization: field(header::AUTHORIZATION),
    };
    let file = {
        let mut shelf = shelf.lock();
        shelf.seen.push(seen.clone());
        let Some(file) = shelf.files.get_mut(&path) else { return plain(StatusCode::NOT_FOUND) };
        if let Some(status) = file.failures.pop() {
            return plain(StatusCode::from_u16(status).unwrap());
        }
        file.clone()
    };
    if file.token.is_some_and(|token| seen.authorization != Some(format!("Bearer {token}"))) {
        return plain(StatusCode::UNAUTHORIZED);
    }
    if let Some(elsewhere) = &file.redirect {
        return Response::builder().status(302).header(header::LOCATION, elsewhere).body(Body::empty()).unwrap();
    }
    serve(&file, &seen)
}

fn plain(status: StatusCode) -> Response {
    Response::builder().status(status).body(Body::from("no")).unwrap()
}

fn serve(file: &Remote, seen: &Seen) -> Response {
    let total = file.bytes.len();
    let mut headers = HeaderMap::new();
    if let Some(etag) = file.etag {
        headers.insert(header::ETAG, etag.parse().unwrap());
    }
    let current = !file.if_range || seen.if_range.is_none() || seen.if_range.as_deref() == file.etag;
    let range = seen.range.as_ref().filter(|_| file.ranges && current).map(|range| {
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (start.parse::<usize>().unwrap(), end.parse::<usize>().map_or(total, |end| (end + 1).min(total)))
    });
    let (status, body) = match range {
        Some((start, _)) if start >= total => {
            headers.insert(header::CONTENT_RANGE, format!("bytes */{total}").parse().unwrap());
            (StatusCode::RANGE_NOT_SATISFIABLE, Bytes::new())
        }
        Some((start, end)) => {
            headers.insert(header::CONTENT_RANGE, format!("bytes {start}-{}/{total}", end - 1).parse().unwrap());
            (StatusCode::PARTIAL_CONTENT, file.bytes.slice(start..end))
        }
        None => (StatusCode::OK, file.bytes.clone()),
    };
    headers.insert(header::CONTENT_LENGTH, body.len().into());
    let body = if seen.method == "HEAD" { Body::empty() } else { misbehave(&body, file) };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn misbehave(bytes: &Bytes, file: &Remote) -> Body {
    if let Some(cut) = file.cut {
        let first = bytes.slice(..cut.min(bytes.len()));
        let broken = stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
        return Body::from_stream(stream::iter([Ok(first)]).chain(broken));
    }
    if let Some((after, gate)) = &file.gate {
        let (first, rest) = (bytes.slice(..(*after).min(bytes.len())), bytes.slice((*after).min(bytes.len())..));
        let gate = Arc::clone(gate);
        let held = stream::once(async move {
            drop(gate.acquire().await.unwrap());
            Ok::<_, Infallible>(rest)
        });
        return Body::from_stream(stream::iter([Ok(first)]).chain(held));
    }
    Body::from(bytes.clone())
}
