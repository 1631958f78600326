//! What the bytes of a reply mean (RFC 9112): its head, and where its body ends. Nothing here waits or reads.
//!
//! Engines are trusted to mean well, not to be right: whatever two readers could understand in two ways is refused, and
//! nothing an engine sends can make this hold more than [`MAX_HEAD`] bytes and one read.

mod chunked;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Version};

use self::chunked::Chunks;

/// Bytes of a reply's head.
const MAX_HEAD: usize = 64 << 10;
/// Headers of a reply.
const MAX_HEADERS: usize = 100;

/// Why a reply cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::gateway) enum Malformed {
    /// Not HTTP/1.
    #[error("its head is not HTTP/1: {0}")]
    Head(httparse::Error),
    /// The head has no end.
    #[error("its head is larger than {MAX_HEAD} bytes")]
    LongHead,
    /// The body's length is told in two ways, or in a way that is none.
    #[error("its headers do not say how long its body is")]
    Length,
    /// A chunk does not begin or end as it must.
    #[error("its chunks are not well formed")]
    Chunk,
    /// What a chunked body says beside its data has no end.
    #[error("its chunks say too much beside their data")]
    Extras,
    /// The connection ended first.
    #[error("it ended before it was whole")]
    Short,
}

/// The head of a final reply.
#[derive(Debug)]
pub(super) struct Head {
    /// Its status, not 1xx but for 101.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Where its body ends.
    pub body: Decoder,
    /// Another request may follow on the connection.
    pub keeps: bool,
}

impl Head {
    /// Takes a head from the front of `input`, and any interim reply before it; `None` = not all of it is here yet.
    pub(super) fn take(input: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        loop {
            let mut space = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Response::new(&mut space);
            let length = match parsed.parse(input).map_err(Malformed::Head)? {
                httparse::Status::Complete(length) if length <= MAX_HEAD => length,
                httparse::Status::Partial if input.len() < MAX_HEAD => return Ok(None),
                _ => return Err(Malformed::LongHead),
            };
            let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Malformed::Head(httparse::Error::Status))?;
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                input.advance(length);
                continue;
            }
            let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
            let mut headers = HeaderMap::with_capacity(parsed.headers.len());
            for found in parsed.headers.iter() {
                let name = HeaderName::from_bytes(found.name.as_bytes()).map_err(|_| Malformed::Head(httparse::Error::HeaderName))?;
                // Copied: cut out of the buffer, a value would keep all that was read with it.
                let value = HeaderValue::from_bytes(found.value).map_err(|_| Malformed::Head(httparse::Error::HeaderValue))?;
                headers.append(name, value);
            }
            input.advance(length);
            let body = Decoder::of(status, &headers)?;
            let keeps = version == Version::HTTP_11
                && status != StatusCode::SWITCHING_PROTOCOLS
                && !matches!(body, Decoder::Close)
                // Told in two ways: this one is understood, the next one might not be (RFC 9112, 6.1).
                && !(headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH))
                && !tokens(&headers, header::CONNECTION).any(|token| token.eq_ignore_ascii_case("close"));
            return Ok(Some(Self { status, headers, body, keeps }));
        }
    }
}

/// Finds the data in the body of a reply to a POST, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decoder {
    /// So many bytes are to come.
    Length(u64),
    /// In chunks.
    Chunked(Chunks),
    /// All up to the end of the connection.
    Close,
}

impl Decoder {
    fn of(status: StatusCode, headers: &HeaderMap) -> Result<Self, Malformed> {
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED | StatusCode::SWITCHING_PROTOCOLS) {
            return Ok(Self::Length(0));
        }
        if headers.contains_key(header::TRANSFER_ENCODING) {
            let last = tokens(headers, header::TRANSFER_ENCODING).last();
            let is_chunked = last.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
            return Ok(if is_chunked { Self::Chunked(Chunks::default()) } else { Self::Close });
        }
        let mut length = None;
        for value in headers.get_all(header::CONTENT_LENGTH) {
            for told in value.to_str().map_err(|_| Malformed::Length)?.split(',') {
                let told = told.trim_matches([' ', '\t']);
                let told = Some(told).filter(|told| told.bytes().all(|byte| byte.is_ascii_digit())).and_then(|told| told.parse().ok());
                if told.is_none() || length.is_some_and(|length| Some(length) != told) {
                    return Err(Malformed::Length);
                }
                length = told;
            }
        }
        Ok(length.map_or(Self::Close, Self::Length))
    }

    /// All data is here.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_done(),
            Self::Close => false,
        }
    }

    /// Takes the data out of what was read. What is left in `input` when the body is done does not belong to it.
    pub(super) fn push(&mut self, input: &mut &[u8]) -> Result<Bytes, Malformed> {
        match self {
            Self::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                let (data, after) = input.split_at(here);
                *left -= here as u64;
                *input = after;
                Ok(Bytes::copy_from_slice(data))
            }
            Self::Chunked(chunks) => chunks.push(input),
            Self::Close => Ok(Bytes::copy_from_slice(std::mem::take(input))),
        }
    }

    /// The connection has ended.
    pub(super) fn close(&self) -> Result<(), Malformed> {
        if self.is_done() || *self == Self::Close { Ok(()) } else { Err(Malformed::Short) }
    }
}

/// The members of a list in a header, whether in one line or in several.
fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests;
