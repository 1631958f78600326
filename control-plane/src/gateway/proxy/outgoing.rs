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

/// Bytes set aside for the head of a request; more are found when it is longer.
const HEAD: usize = 512;

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
#[derive(Debug)]
pub(in crate::gateway) struct Outgoing {
    /// The client's query, without `?`.
    pub query: Option<String>,
    /// The client's headers, stripped.
    pub headers: HeaderMap,
}

impl Outgoing {
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
        let mut head = Vec::with_capacity(HEAD);
        let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
        add(&[b"POST ", target.as_str().as_bytes(), b" HTTP/1.1\r\nhost: ", endpoint.authority.host().as_bytes()]);
        if let Some(port) = endpoint.authority.port() {
            add(&[b":", port.as_str().as_bytes()]);
        }
        let key = endpoint.authorization.iter().map(|key| (&header::AUTHORIZATION, key));
        for (name, value) in self.headers.iter().chain(key) {
            add(&[b"\r\n", name.as_str().as_bytes(), b": ", value.as_bytes()]);
        }
        add(&[b"\r\ncontent-length: ", length.to_string().as_bytes(), b"\r\n\r\n"]);
        Ok(head)
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
        assert_eq!(edited.0[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn prefix_query_and_key_reach_the_engine() {
        let mut engine = std::sync::Arc::into_inner(endpoint(8080, 1)).unwrap();
        let mut outgoing = Outgoing { query: None, headers: HeaderMap::new() };
        let head = |outgoing: &Outgoing, engine: &Endpoint| String::from_utf8(outgoing.head(engine, "/v1/messages", 7).unwrap()).unwrap();
        let bare = "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(head(&outgoing, &engine), bare);
        engine.prefix = "/llm".into();
        engine.authority = "user:word@[::1]".parse().unwrap();
        engine.authorization = Some(HeaderValue::from_static("Bearer k"));
        outgoing.query = Some("beta=true".into());
        outgoing.headers.insert("anthropic-version", HeaderValue::from_static("1"));
        let full = "POST /llm/v1/messages?beta=true HTTP/1.1\r\nhost: [::1]\r\nanthropic-version: 1\r\nauthorization: Bearer k\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(head(&outgoing, &engine), full);
        outgoing.query = Some("a b\r\nx: y".into());
        assert!(outgoing.head(&engine, "/v1/messages", 7).is_err());
    }
}
