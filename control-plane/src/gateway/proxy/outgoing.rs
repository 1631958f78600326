//! One request to an engine: built anew for each attempt from parts that are shared, never copied.
//!
//! What identifies the client to us, or concerns one connection only, is taken out first: an engine never sees a client's
//! key, cookie or address.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Uri};
use http_body::{Body, Frame, SizeHint};

use crate::registry::Endpoint;

/// Headers that concern one connection only, that identify the client to us, or that would change what comes back.
/// `X-Conversation-Id` makes llama-server go on generating after a disconnect; a compressed reply could not be read.
const NOT_FORWARDED: [HeaderName; 23] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::HOST,
    header::CONTENT_LENGTH,
    header::ACCEPT_ENCODING,
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    header::COOKIE,
    HeaderName::from_static("x-conversation-id"),
    header::ORIGIN,
    header::REFERER,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-lifeboat-priority"),
];

/// Takes what an engine may not see out of a client's headers.
pub(in crate::gateway) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in NOT_FORWARDED.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Copies a client's header values. As they come they are cut out of its connection's read buffer, and would keep that for as
/// long as the request lasts.
pub(in crate::gateway) fn detach(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        if let Ok(mut copy) = HeaderValue::from_bytes(value.as_bytes()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
}

/// A body in pieces: what the client sent, cut where something is put in or replaced.
#[derive(Debug, Clone, Default)]
pub(in crate::gateway) struct Segments {
    pieces: Vec<Bytes>,
    next: usize,
}

impl Segments {
    /// The body as it came.
    pub(in crate::gateway) fn whole(body: Bytes) -> Self {
        Self { pieces: vec![body], next: 0 }
    }

    /// The body with these ranges replaced; they lie within it and apart from each other.
    pub(in crate::gateway) fn edited(body: &Bytes, mut edits: Vec<(std::ops::Range<usize>, Bytes)>) -> Self {
        if edits.is_empty() {
            return Self::whole(body.clone());
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut pieces = Vec::with_capacity(2 * edits.len() + 1);
        let mut from = 0;
        for (range, value) in edits {
            pieces.push(body.slice(from..range.start));
            pieces.push(value);
            from = range.end;
        }
        pieces.push(body.slice(from..));
        pieces.retain(|piece| !piece.is_empty());
        Self { pieces, next: 0 }
    }

    fn left(&self) -> &[Bytes] {
        self.pieces.get(self.next..).unwrap_or_default()
    }

    /// Bytes left.
    pub(in crate::gateway) fn len(&self) -> usize {
        self.left().iter().map(Bytes::len).sum()
    }

    /// All of it in one.
    pub(in crate::gateway) fn concat(&self) -> Vec<u8> {
        self.left().concat()
    }
}

impl Body for Segments {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while let Some(piece) = self.left().first().cloned() {
            self.next += 1;
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left().iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

/// What is sent to whichever engine serves the request.
#[derive(Debug)]
pub(in crate::gateway) struct Outgoing {
    /// The client's query, without `?`.
    pub query: Option<String>,
    /// The client's headers, stripped.
    pub headers: HeaderMap,
}

impl Outgoing {
    /// Where it goes on this engine.
    pub(super) fn uri(&self, endpoint: &Endpoint, path: &'static str) -> Result<Uri, http::Error> {
        let path = match (&self.query, endpoint.prefix.is_empty()) {
            (None, true) => PathAndQuery::from_static(path),
            (None, false) => PathAndQuery::try_from(format!("{}{path}", endpoint.prefix))?,
            (Some(query), _) => PathAndQuery::try_from(format!("{}{path}?{query}", endpoint.prefix))?,
        };
        Uri::builder().scheme(endpoint.scheme.clone()).authority(endpoint.authority.clone()).path_and_query(path).build()
    }

    /// One attempt.
    pub(super) fn request(&self, uri: &Uri, endpoint: &Endpoint, body: &Segments) -> Request<Segments> {
        let mut request = Request::new(body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        request.headers_mut().clone_from(&self.headers);
        if let Some(key) = &endpoint.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::testing::endpoint;

    #[test]
    fn secrets_and_connection_headers_of_the_client_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-api-key", "cookie", "x-conversation-id", "keep-alive", "x-mine", "host", "origin"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("v"));
        }
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close, X-Mine"));
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["anthropic-version"]);
    }

    #[test]
    fn what_is_forwarded_does_not_keep_the_buffer_it_came_in() {
        let buffer = Bytes::from(b"a value and all that was read with it".to_vec());
        let mut value = HeaderValue::from_maybe_shared(buffer.slice(..7)).unwrap();
        value.set_sensitive(true);
        let mut headers = HeaderMap::from_iter([(header::USER_AGENT, value)]);
        assert!(!buffer.is_unique());
        detach(&mut headers);
        assert!(buffer.is_unique());
        assert!(headers[header::USER_AGENT] == "a value" && headers[header::USER_AGENT].is_sensitive());
    }

    #[test]
    fn a_splice_shares_the_bytes_around_it_and_knows_its_length() {
        let body = Bytes::from_static(br#"{"model":"a","x":1}"#);
        let edits = vec![(17..18, Bytes::from_static(b"2")), (9..12, Bytes::from_static(br#""longer""#))];
        let edited = Segments::edited(&body, edits);
        assert_eq!(edited.concat(), br#"{"model":"longer","x":2}"#);
        assert_eq!(edited.len(), edited.concat().len());
        assert_eq!(edited.pieces[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn prefix_and_query_reach_the_engine() {
        let mut engine = std::sync::Arc::into_inner(endpoint(8080, 1)).unwrap();
        let mut outgoing = Outgoing { query: None, headers: HeaderMap::new() };
        assert_eq!(outgoing.uri(&engine, "/v1/messages").unwrap(), "http://127.0.0.1:8080/v1/messages");
        engine.prefix = "/llm".into();
        outgoing.query = Some("beta=true".into());
        assert_eq!(outgoing.uri(&engine, "/v1/messages").unwrap(), "http://127.0.0.1:8080/llm/v1/messages?beta=true");
    }
}
