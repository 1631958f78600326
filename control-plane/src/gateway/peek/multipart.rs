//! Finds the small fields of a `multipart/form-data` body. Files in it are skipped, never copied.

use http::{HeaderMap, header};
use memchr::memmem;

use super::Asked;
use crate::gateway::error::Failure;

/// Parts looked at; audio forms have about ten.
const PARTS: usize = 64;

pub(super) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Asked, Failure> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary =
        boundary(content_type).ok_or_else(|| Failure::invalid_form("the content type is not multipart/form-data with a boundary"))?;
    let delimiter = format!("\r\n--{boundary}");
    let mut asked = Asked::default();
    // The first delimiter has no line break before it.
    let mut at = memmem::find(body, &delimiter.as_bytes()[2..])
        .ok_or_else(|| Failure::invalid_form("the boundary does not occur in the body"))?
        + delimiter.len()
        - 2;
    for _ in 0..PARTS {
        if body[at..].starts_with(b"--") {
            return Ok(asked);
        }
        let Some(head_len) = memmem::find(&body[at..], b"\r\n\r\n") else { break };
        let start = at + head_len + 4;
        let Some(length) = memmem::find(&body[start..], delimiter.as_bytes()) else { break };
        let value = std::str::from_utf8(&body[start..start + length]);
        match name(&body[at..at + head_len]) {
            Some("model") => {
                let model = value.map_err(|_| Failure::invalid_form("the field `model` is no text"))?;
                asked.peek.model = Some((model.to_owned(), start..start + length));
            }
            Some("stream") => asked.peek.stream = value.is_ok_and(|value| value.eq_ignore_ascii_case("true") || value == "1"),
            _ => {}
        }
        at = start + length + delimiter.len();
    }
    Err(Failure::invalid_form("the form is cut short or has too many parts"))
}

/// The boundary of a content type.
fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    })?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// The field name in a part's headers.
fn name(head: &[u8]) -> Option<&str> {
    let lines = std::str::from_utf8(head).ok()?.lines();
    let disposition =
        lines.filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim().eq_ignore_ascii_case("content-disposition"))?.1;
    disposition.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("name").then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::HeaderValue;

    fn headers(content_type: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))])
    }

    const FORM: &[u8] = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\0\r\n--X\xff\r\n--XX\r\ncontent-disposition: form-data; name=model\r\n\r\nmy/asr\r\n--XX\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--XX--\r\n";

    #[test]
    fn the_model_part_is_found_behind_a_file_and_can_be_spliced() {
        let asked = read(&headers("multipart/form-data; charset=x; boundary=\"XX\""), FORM).unwrap();
        assert_eq!(asked.peek.model.as_ref().unwrap().0, "my/asr");
        assert!(asked.peek.stream);
        let body = Bytes::from_static(FORM);
        assert_eq!(asked.body(&body, Some("longer-name"), None, false).len(), FORM.len() + 5);
    }

    #[test]
    fn forms_that_are_cut_or_are_none_are_refused() {
        let good = headers("multipart/form-data; boundary=XX");
        for (headers, body) in [(&headers("application/json"), FORM), (&good, &FORM[..FORM.len() - 12]), (&good, b"--YY"), (&good, b"--XX")]
        {
            assert!(read(headers, body).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_it_panic(body: Vec<u8>, cut in 0..FORM.len()) {
            _ = read(&headers("multipart/form-data; boundary=XX"), &body);
            _ = read(&headers("multipart/form-data; boundary=XX"), &[&FORM[..cut], &body].concat());
        }
    }
}
