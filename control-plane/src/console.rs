//! The console: `console-ui/dist` embedded in the binary, served for every path that no other route has.
//!
//! It is a single page whose URL holds its view, so a browser that asks for an unknown path without a dot is answered with
//! `index.html`, and nobody else: a client that left `/v1` out must not take a page for an answer. Files whose names carry a hash of their content are kept for ever, everything else is asked
//! for again each time. A binary built without the console says how to build it.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use memchr::memmem;
use rust_embed::{EmbeddedFile, RustEmbed};
use std::borrow::Cow;
use uuid::Uuid;

use crate::api::error::ApiError;

const INDEX: &str = "index.html";
/// Vite puts files with hashed names here.
const HASHED: &str = "assets/";
const NOT_BUILT: &str = "Lifeboat runs, but this binary was built without its console.\n\
    Build it with `make build` (needs Node 20 or newer), or use the command line: lifeboat --help\n";
/// Only our own files, no frames, nothing sent elsewhere: a model's output shown on a page can do no harm.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

#[derive(RustEmbed)]
#[folder = "../console-ui/dist"]
struct Files;

/// Whether this binary has a console.
pub fn is_built() -> bool {
    Files::get(INDEX).is_some()
}

/// Answers with a file of the console, its page, or a 404 in the API's envelope for what is none of it.
pub async fn serve(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    if path.starts_with("api/") || path.starts_with("v1/") || !matches!(method, Method::GET | Method::HEAD) {
        return nothing(&uri);
    }
    if let Some(file) = Files::get(path) {
        return answer(path, file, &headers);
    }
    let wants_page = headers.get_all(header::ACCEPT).iter().any(|accept| memmem::find(accept.as_bytes(), b"text/html").is_some());
    let is_page = path.is_empty() || (wants_page && !path.rsplit('/').next().unwrap_or_default().contains('.'));
    match Files::get(INDEX) {
        Some(index) if is_page => answer(INDEX, index, &headers),
        None if is_page => (StatusCode::NOT_FOUND, NOT_BUILT).into_response(),
        _ => nothing(&uri),
    }
}

/// Paths of OpenAI's and Anthropic's clients, whose base URL lacks its end.
const BELOW_V1: [&str; 8] = ["chat", "completions", "embeddings", "messages", "models", "responses", "rerank", "audio"];
/// Characters of a path that are repeated.
const ECHO: usize = 256;

fn nothing(uri: &Uri) -> Response {
    let path = uri.path();
    let shown: String = path.chars().take(ECHO).collect();
    let error = ApiError::not_found("route", &shown);
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let error = if BELOW_V1.contains(&first) {
        error.hint("OpenAI's and Anthropic's routes are below /v1: give an OpenAI client the base URL http://HOST:PORT/v1")
    } else {
        error
    };
    error.render(&Uuid::now_v7().to_string())
}

fn answer(path: &str, file: EmbeddedFile, headers: &HeaderMap) -> Response {
    let hash = file.metadata.sha256_hash();
    let tag = format!("\"{:032x}\"", u128::from_be_bytes(std::array::from_fn(|index| hash[index])));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|seen| seen.as_bytes() == tag.as_bytes());
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { Response::new(content(file.data)) };
    let cache = if path.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kind.as_ref());
    set(header::CACHE_CONTROL, cache);
    set(header::ETAG, &tag);
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    response
}

fn content(data: Cow<'static, [u8]>) -> Body {
    Body::from(match data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => Bytes::from(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(path: &'static str) -> Response {
        serve(Method::GET, Uri::from_static(path), HeaderMap::new()).await
    }

    #[tokio::test]
    async fn paths_of_the_apis_and_writes_are_never_answered_with_the_page() {
        for path in ["/api/nothing", "/v1/nothing", "/missing.js", "/assets/missing.css"] {
            let response = get(path).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json", "{path}");
        }
        let written = serve(Method::POST, Uri::from_static("/servers"), HeaderMap::new()).await;
        assert_eq!(written.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn only_a_browser_gets_the_page_for_a_path_nobody_knows() {
        let browser = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("text/html,application/xhtml+xml"))]);
        let page = serve(Method::GET, Uri::from_static("/models"), browser).await;
        assert_ne!(page.headers()[header::CONTENT_TYPE], "application/json");
        let response = get("/models").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        assert!(String::from_utf8_lossy(&body).contains("/v1"), "{body:?}");
    }

    #[test]
    fn hashed_files_are_kept_and_the_page_is_asked_for_again() {
        for (path, cache) in [("assets/index-abc.js", "immutable"), ("index.html", "no-cache")] {
            let file =
                EmbeddedFile { data: Cow::Borrowed(b"x"), metadata: Files::get(INDEX).map_or_else(any_metadata, |file| file.metadata) };
            let response = answer(path, file, &HeaderMap::new());
            assert!(response.headers()[header::CACHE_CONTROL].to_str().unwrap().contains(cache), "{path}");
            assert!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        }
    }

    #[test]
    fn a_file_the_browser_has_already_is_not_sent_again() {
        let file = || EmbeddedFile { data: Cow::Borrowed(b"x"), metadata: any_metadata() };
        let tag = answer(INDEX, file(), &HeaderMap::new()).headers()[header::ETAG].clone();
        let again = answer(INDEX, file(), &HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    }

    fn any_metadata() -> rust_embed::Metadata {
        rust_embed::Metadata::__rust_embed_new([7; 32], None, None, "text/plain")
    }
}
