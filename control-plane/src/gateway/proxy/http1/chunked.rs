//! Chunked bodies (RFC 9112, 7.1), read strictly: a line ends with CR LF. Extensions and trailers are dropped.

use bytes::Bytes;

use super::Malformed;

/// Bytes of all extensions and trailers of one body.
const MAX_EXTRAS: u16 = 16 << 10;

/// Where in a chunked body the reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first digit of a chunk's size.
    Start,
    /// Within the digits.
    Size,
    /// After them: spaces, and an extension.
    Extension,
    /// After the CR of that line.
    SizeEnd,
    /// Within the data.
    Data,
    /// After it.
    DataEnd,
    /// After the CR behind it.
    DataLf,
    /// At the start of a line of trailers.
    Line,
    /// Within one.
    Trailer,
    /// After the CR of one.
    TrailerEnd,
    /// After the CR of the empty line.
    LastLf,
    /// Behind it all.
    Done,
}

/// A chunked body as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Chunks {
    at: At,
    /// Bytes of data left in this chunk.
    left: u64,
    /// What else was said.
    extras: u16,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { at: At::Start, left: 0, extras: 0 }
    }
}

impl Chunks {
    pub(super) fn is_done(&self) -> bool {
        self.at == At::Done
    }

    /// The data of all chunks, and parts of chunks, in `input`.
    pub(super) fn push(&mut self, input: &mut &[u8]) -> Result<Bytes, Malformed> {
        let mut data = Vec::new();
        loop {
            match self.next(input)? {
                [] => return Ok(data.into()),
                // The usual case, and all there is: an allocation of just its size.
                first if data.is_empty() => data = first.to_vec(),
                more => data.extend_from_slice(more),
            }
        }
    }

    /// Up to the next data, which is returned; empty = there is none in what is here.
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
        while let Some((&byte, after)) = input.split_first()
            && self.at != At::Done
        {
            if self.at == At::Data {
                let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
                let (data, after) = input.split_at(here);
                *input = after;
                self.left -= here as u64;
                if self.left == 0 {
                    self.at = At::DataEnd;
                }
                return Ok(data);
            }
            *input = after;
            self.at = self.step(byte)?;
        }
        Ok(&[])
    }

    /// One byte of what is not data.
    fn step(&mut self, byte: u8) -> Result<At, Malformed> {
        Ok(match (self.at, byte) {
            (At::Start | At::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).ok_or(Malformed::Chunk)?;
                self.left = self.left.checked_mul(16).ok_or(Malformed::Chunk)? + u64::from(digit);
                At::Size
            }
            (At::Size | At::Extension, b'\r') => At::SizeEnd,
            (At::Size, b';' | b' ' | b'\t') => self.extra(At::Extension)?,
            (At::Extension, other) if other != b'\n' => self.extra(At::Extension)?,
            (At::SizeEnd, b'\n') => {
                if self.left == 0 {
                    At::Line
                } else {
                    At::Data
                }
            }
            (At::DataEnd, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Start,
            (At::Line, b'\r') => At::LastLf,
            (At::Line | At::Trailer, other) if other != b'\n' && other != b'\r' => self.extra(At::Trailer)?,
            (At::Trailer, b'\r') => At::TrailerEnd,
            (At::TrailerEnd, b'\n') => At::Line,
            (At::LastLf, b'\n') => At::Done,
            _ => return Err(Malformed::Chunk),
        })
    }

    fn extra(&mut self, next: At) -> Result<At, Malformed> {
        self.extras += 1;
        if self.extras > MAX_EXTRAS { Err(Malformed::Extras) } else { Ok(next) }
    }
}
