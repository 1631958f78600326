//! What a request asks for, and its body as an engine wants to see it.
//!
//! Only the few fields are read that decide something here. Changes are splices at the places they stand in: the rest is the
//! client's own bytes, which are never parsed into a tree and written anew.

mod multipart;

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use lifeboat_engines::dialect::{self, Peek};

use super::body::encode;
use super::error::Failure;
use super::proxy::outgoing::Segments;
use super::route::Shape;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Asked {
    /// The fields that are read; of a form, its model alone.
    pub peek: Peek,
    /// The fields stand in JSON.
    json: bool,
}

impl Asked {
    /// Reads a body of this shape.
    pub(super) fn read(shape: Shape, headers: &HeaderMap, body: &[u8]) -> Result<Self, Failure> {
        if shape == Shape::Multipart {
            return multipart::read(headers, body);
        }
        let peek = dialect::peek(body).map_err(|error| if is_form(headers) { Failure::form() } else { error.into() })?;
        Ok(Self { peek, json: true })
    }

    /// Whether there are tools to call.
    pub(super) fn offers_tools(&self, body: &[u8]) -> bool {
        let tools = self.peek.prompt.tools.clone().and_then(|place| body.get(place));
        tools.is_some_and(|tools| tools != b"null" && tools.iter().filter(|byte| !byte.is_ascii_whitespace()).ne(b"[]"))
    }

    /// The model's name, as the client means it.
    pub(super) fn model(&self) -> Option<&str> {
        self.peek.model.as_ref().map(|(name, _)| name.as_str())
    }

    /// The body for an engine that wants to see `name`, to be told its slot, and to stream where the client does not;
    /// the client's bytes where nothing of this is wanted.
    pub(super) fn body(&self, body: &Bytes, name: Option<&str>, slot: Option<u32>, stream: bool) -> Segments {
        let mut edits: Vec<(Range<usize>, Bytes)> = Vec::new();
        if stream && self.json {
            for (place, name, value) in
                [(&self.peek.stream_at, "stream", "true"), (&self.peek.stream_options_at, "stream_options", "{\"include_usage\":true}")]
            {
                edits.push(self.set(place.as_ref(), name, value));
            }
        }
        if let (Some((asked, range)), Some(name)) = (&self.peek.model, name)
            && asked != name
        {
            let value = if self.json { encode(name) } else { name.to_owned() };
            edits.push((range.clone(), value.into()));
        }
        if let Some(slot) = slot.filter(|_| self.json) {
            edits.push(self.set(self.peek.id_slot.as_ref(), "id_slot", &slot.to_string()));
        }
        Segments::edited(body, edits)
    }

    /// Puts a value in the place of the one that is there, or a new field before all others.
    fn set(&self, place: Option<&Range<usize>>, name: &str, value: &str) -> (Range<usize>, Bytes) {
        let start = self.peek.insert_at;
        match place {
            Some(place) => (place.clone(), value.to_owned().into()),
            None => (start..start, format!("\"{name}\":{value}{}", if self.peek.is_empty { "" } else { "," }).into()),
        }
    }
}

/// What a client took for what the endpoint takes.
fn is_form(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_is_spliced_and_only_where_it_differs() {
        let body = Bytes::from_static(br#"{"model":"a","n":1}"#);
        let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).unwrap();
        assert_eq!(asked.body(&body, Some("b\"c"), None, false).concat(), br#"{"model":"b\"c","n":1}"#);
        assert_eq!(asked.body(&body, Some("a"), None, false).concat(), body);
        assert_eq!(asked.body(&body, None, None, false).concat(), body);
    }

    #[test]
    fn the_slot_is_put_in_or_takes_the_place_of_the_clients_own() {
        for (body, expected) in [
            (r#" {"model":"a"}"#, r#" {"id_slot":3,"model":"b"}"#),
            (r#"{"id_slot": 7 ,"model":"a"}"#, r#"{"id_slot": 3 ,"model":"b"}"#),
            (r#"{"model":"a","id_slot":-1}"#, r#"{"model":"b","id_slot":3}"#),
        ] {
            let body = Bytes::from_static(body.as_bytes());
            let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).unwrap();
            assert_eq!(asked.body(&body, Some("b"), Some(3), false).concat(), expected.as_bytes());
        }
    }

    #[test]
    fn a_stream_is_asked_for_whatever_the_client_said() {
        for (body, expected) in [
            (r#"{"a":1}"#, r#"{"stream":true,"stream_options":{"include_usage":true},"a":1}"#),
            (r#"{"stream":false,"stream_options":null,"a":1}"#, r#"{"stream":true,"stream_options":{"include_usage":true},"a":1}"#),
            (r#"{"id_slot":1,"stream":null}"#, r#"{"stream_options":{"include_usage":true},"id_slot":5,"stream":true}"#),
        ] {
            let body = Bytes::from_static(body.as_bytes());
            let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).unwrap();
            let slot = body.starts_with(b"{\"id_slot").then_some(5);
            assert_eq!(String::from_utf8(asked.body(&body, None, slot, true).concat()).unwrap(), expected);
        }
    }
}
