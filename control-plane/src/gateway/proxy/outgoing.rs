//! One request to an engine: built anew for each attempt from parts that are shared, never copied.
//!
//! What identifies the client to us, or concerns one connection only, is taken out first: an engine never sees a client's
//! key, cookie or address.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{InvalidUri, PathAndQuery};

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

/// Bytes of the longest header that is passed on. llama-server refuses a line of 8 KiB without a word, and what is so long is
/// meant for whoever stands in front of it.
const LONGEST: usize = 4 << 10;

/// Bytes set aside for lines of headers; more are found when they are longer.
const LINES: usize = 256;

/// A body in pieces: what the client sent, cut where something is put in or replaced.
#[derive(Debug, Clone, Default)]
pub(in crate::gateway) struct Segments(Vec<Bytes>);

impl Segments {
    /// The body as it came.
    pub(in crate::gateway) fn whole(body: Bytes) -> Self {
        Self(vec![body])
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
        Self(pieces)
    }

    /// Its pieces.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Bytes::as_ref)
    }

    /// Bytes.
    pub(in crate::gateway) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// All of it in one.
    pub(in crate::gateway) fn concat(&self) -> Vec<u8> {
        self.0.concat()
    }
}

/// What is sent to whichever engine serves the request.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Outgoing {
    /// The client's query, without `?`.
    query: Option<String>,
    /// Those of the client's headers that an engine may see, as they are written. The client's own are cut out of its
    /// connection's read buffer, and would keep that for as long as the request lasts.
    lines: Vec<u8>,
}

impl Outgoing {
    /// What an engine may see of a client's request.
    pub(in crate::gateway) fn new(query: Option<&str>, headers: &HeaderMap) -> Self {
        let tokens = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let named: Vec<HeaderName> = tokens.filter_map(|name| name.trim().parse().ok()).collect();
        let mut lines = Vec::with_capacity(LINES);
        for (name, value) in headers {
            if value.len() <= LONGEST && !NOT_FORWARDED.contains(name) && !named.contains(name) {
                write(&mut lines, name, value);
            }
        }
        Self { query: query.map(str::to_owned), lines }
    }

    /// Where it goes on this engine.
    fn target(&self, endpoint: &Endpoint, path: &'static str) -> Result<PathAndQuery, InvalidUri> {
        match (&self.query, endpoint.prefix.is_empty()) {
            (None, true) => Ok(PathAndQuery::from_static(path)),
            (None, false) => PathAndQuery::try_from(format!("{}{path}", endpoint.prefix)),
            (Some(query), _) => PathAndQuery::try_from(format!("{}{path}?{query}", endpoint.prefix)),
        }
    }

    /// The head of one attempt, as it is sent before a body of `length` bytes.
    pub(super) fn head(&self, endpoint: &Endpoint, path: &'static str, length: usize) -> Result<Vec<u8>, InvalidUri> {
        let target = self.target(endpoint, path)?;
        let mut head = Vec::with_capacity(LINES + self.lines.len());
        let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
        add(&[b"POST ", target.as_str().as_bytes(), b" HTTP/1.1\r\nhost: ", endpoint.authority.host().as_bytes()]);
        if let Some(port) = endpoint.authority.port() {
            add(&[b":", port.as_str().as_bytes()]);
        }
        add(&[b"\r\ncontent-length: ", length.to_string().as_bytes(), b"\r\n", &self.lines]);
        if let Some(key) = &endpoint.authorization {
            write(&mut head, &header::AUTHORIZATION, key);
        }
        head.extend_from_slice(b"\r\n");
        Ok(head)
    }
}

/// One header's line.
fn write(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        lines.extend_from_slice(part);
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
        headers.insert("x-long", HeaderValue::try_from("x".repeat(LONGEST + 1)).unwrap());
        headers.insert(header::CONNECTION, HeaderValue::from_static("close, X-Mine"));
        assert_eq!(Outgoing::new(None, &headers).lines, b"anthropic-version: 2023-06-01\r\n");
    }

    #[test]
    fn a_splice_shares_the_bytes_around_it_and_knows_its_length() {
        let body = Bytes::from_static(br#"{"model":"a","x":1}"#);
        let edits = vec![(17..18, Bytes::from_static(b"2")), (9..12, Bytes::from_static(br#""longer""#))];
        let edited = Segments::edited(&body, edits);
        assert_eq!(edited.concat(), br#"{"model":"longer","x":2}"#);
        assert_eq!(edited.len(), edited.concat().len());
        assert_eq!(edited.0[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn prefix_query_and_key_reach_the_engine() {
        let mut engine = std::sync::Arc::into_inner(endpoint(8080, 1)).unwrap();
        let mut outgoing = Outgoing::default();
        let head = |outgoing: &Outgoing, engine: &Endpoint| String::from_utf8(outgoing.head(engine, "/v1/messages", 7).unwrap()).unwrap();
        let bare = "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(head(&outgoing, &engine), bare);
        engine.prefix = "/llm".into();
        engine.authority = "user:word@[::1]".parse().unwrap();
        engine.authorization = Some(HeaderValue::from_static("Bearer k"));
        outgoing.query = Some("beta=true".into());
        outgoing.lines = b"anthropic-version: 1\r\n".to_vec();
        let full = "POST /llm/v1/messages?beta=true HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 7\r\nanthropic-version: 1\r\nauthorization: Bearer k\r\n\r\n";
        assert_eq!(head(&outgoing, &engine), full);
        outgoing.query = Some("a b\r\nx: y".into());
        assert!(outgoing.head(&engine, "/v1/messages", 7).is_err());
    }
}
