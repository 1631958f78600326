//! What of a request is still to be written to its engine.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::connector::Wire;
use super::outgoing::Segments;

/// Pieces of a request written at once; edited bodies have a handful.
const PIECES: usize = 16;

/// A request, and how much of it is written.
#[derive(Debug)]
pub(super) struct Unsent {
    head: Vec<u8>,
    body: Segments,
    /// Bytes of both that are written.
    sent: usize,
    is_flushed: bool,
}

impl Unsent {
    /// Nothing is written yet.
    pub(super) fn new(head: Vec<u8>, body: Segments) -> Self {
        Self { head, body, sent: 0, is_flushed: false }
    }

    /// The same request from its start, for another connection.
    pub(super) fn again(self) -> Self {
        Self::new(self.head, self.body)
    }

    /// All of it is on its way.
    pub(super) fn is_done(&self) -> bool {
        self.is_flushed
    }

    /// Writes what can be written; ready = all of it is, or no more can be.
    pub(super) fn poll_write(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.head.len() + self.body.len() {
            let mut skip = self.sent;
            let mut slices = [IoSlice::new(&[]); PIECES];
            let pieces = std::iter::once(self.head.as_slice()).chain(self.body.pieces()).filter_map(|piece| {
                let left = piece.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(piece.len());
                (!left.is_empty()).then_some(left)
            });
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(pieces) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            match ready!(Pin::new(&mut *wire).poll_write_vectored(cx, &slices[..count]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        ready!(Pin::new(wire).poll_flush(cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}
