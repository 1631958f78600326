//! What a request asks for, and its body with the name an engine wants to see.

mod multipart;

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use lifeboat_engines::dialect;

use super::body::encode;
use super::error::Failure;
use super::proxy::outgoing::Segments;
use super::route::Shape;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Asked {
    /// The model's name, as the client means it, and where it stands in the body (with its quotes in JSON).
    pub model: Option<(String, Range<usize>)>,
    /// The name stands in JSON.
    json: bool,
    /// Whether the reply is to be streamed.
    pub stream: bool,
}

impl Asked {
    /// Reads a body of this shape.
    pub(super) fn read(shape: Shape, headers: &HeaderMap, body: &[u8]) -> Result<Self, Failure> {
        if shape == Shape::Multipart {
            return multipart::read(headers, body);
        }
        let peek = dialect::peek(body)?;
        Ok(Self { model: peek.model, json: true, stream: peek.stream })
    }

    /// The body for an engine that wants to see `name`; the client's bytes as they are where it does not care.
    pub(super) fn body(&self, body: &Bytes, name: Option<&str>) -> Segments {
        match (&self.model, name) {
            (Some((asked, range)), Some(name)) if asked != name => {
                let value = if self.json { encode(name) } else { name.to_owned() };
                Segments::spliced(body, range.clone(), value.into())
            }
            _ => Segments::whole(body.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_is_spliced_and_only_where_it_differs() {
        let body = Bytes::from_static(br#"{"model":"a","n":1}"#);
        let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).unwrap();
        assert_eq!(asked.body(&body, Some("b\"c")).len(), body.len() + 3);
        assert_eq!(asked.body(&body, Some("a")).len(), body.len());
        assert_eq!(asked.body(&body, None).len(), body.len());
    }
}
