//! What a request asks for, and its body with the name an engine wants to see.

mod multipart;

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
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
        Ok(Self { peek: dialect::peek(body)?, json: true })
    }

    /// The model's name, as the client means it.
    pub(super) fn model(&self) -> Option<&str> {
        self.peek.model.as_ref().map(|(name, _)| name.as_str())
    }

    /// The body for an engine that wants to see `name` and to be told its slot; the client's bytes where it does not care.
    pub(super) fn body(&self, body: &Bytes, name: Option<&str>, slot: Option<u32>) -> Segments {
        let mut edits: Vec<(Range<usize>, Bytes)> = Vec::new();
        if let (Some((asked, range)), Some(name)) = (&self.peek.model, name)
            && asked != name
        {
            let value = if self.json { encode(name) } else { name.to_owned() };
            edits.push((range.clone(), value.into()));
        }
        match (&self.peek.id_slot, slot) {
            (Some(range), Some(slot)) => edits.push((range.clone(), slot.to_string().into())),
            (None, Some(slot)) if self.json => {
                let comma = if self.peek.is_empty { "" } else { "," };
                edits.push((self.peek.insert_at..self.peek.insert_at, format!("\"id_slot\":{slot}{comma}").into()));
            }
            _ => {}
        }
        Segments::edited(body, edits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_is_spliced_and_only_where_it_differs() {
        let body = Bytes::from_static(br#"{"model":"a","n":1}"#);
        let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).unwrap();
        assert_eq!(asked.body(&body, Some("b\"c"), None).concat(), br#"{"model":"b\"c","n":1}"#);
        assert_eq!(asked.body(&body, Some("a"), None).concat(), body);
        assert_eq!(asked.body(&body, None, None).concat(), body);
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
            assert_eq!(asked.body(&body, Some("b"), Some(3)).concat(), expected.as_bytes());
        }
    }
}
