//! The HTTP/1.1 client of the hot path: a request goes out in one write, its head comes back in one read.
//!
//! Where a connection from the pool turns out dead before a byte of the answer, the request goes out once more on a new one.
//! Why it is our own: `docs/decisions/0007-own-upstream-client.md`.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::connector::{Connector, Wire};
use super::http1::Head;
use super::outgoing::{Outgoing, Segments};
use super::pool::{Engine, Pool};
use super::rest::{READ, Rest};
use crate::causes::chain;
use crate::registry::Endpoint;

/// Pieces of a request written at once; edited bodies have a handful.
const PIECES: usize = 16;

/// A reply that has begun.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub rest: Rest,
}

/// The way to all engines.
#[derive(Debug)]
pub(super) struct Client {
    connector: Connector,
    pool: Arc<Pool>,
}

impl Client {
    /// No connection is made yet, and none is kept once `stopping` is cancelled.
    pub(super) fn new(connect: Duration, tracker: TaskTracker, stopping: CancellationToken) -> Self {
        Self { connector: Connector::new(connect), pool: Pool::new(tracker, stopping) }
    }

    /// Sends a request, and waits for the head of its reply.
    pub(super) async fn send(
        &self,
        endpoint: &Endpoint,
        outgoing: &Outgoing,
        path: &'static str,
        body: &Segments,
    ) -> Result<Answer, Fault> {
        let lines = outgoing.head(endpoint, path, body.len()).map_err(|error| Fault::Connect(chain(&error)))?;
        let engine = (endpoint.scheme.clone(), endpoint.authority.clone());
        if let Some(wire) = self.pool.take(&engine) {
            let mut sending = Sending::new(wire, &lines, body);
            match poll_fn(|cx| sending.poll_head(cx)).await {
                Ok(head) => return Ok(self.answer(engine, sending, head)),
                // It was closed while it was idle: no engine has seen the request.
                Err(_) if !sending.is_answered => {}
                Err(error) => return Err(Fault::Closed(chain(&error))),
            }
        }
        let wire = self.connector.connect(&engine.0, &engine.1).await.map_err(|error| Fault::Connect(chain(&error)))?;
        let mut sending = Sending::new(wire, &lines, body);
        let head = poll_fn(|cx| sending.poll_head(cx)).await.map_err(|error| Fault::Closed(chain(&error)))?;
        Ok(self.answer(engine, sending, head))
    }

    fn answer(&self, engine: Engine, sending: Sending<'_>, head: Head) -> Answer {
        // A request that was not taken whole leaves its remains behind.
        let home = (head.keeps && sending.is_sent()).then(|| (Arc::clone(&self.pool), engine));
        let early = Bytes::copy_from_slice(&sending.input);
        Answer { status: head.status, headers: head.headers, rest: Rest::new(sending.wire, head.body, early, home) }
    }
}

/// One request on its way.
struct Sending<'a> {
    wire: Wire,
    head: &'a [u8],
    body: &'a Segments,
    /// Bytes of both that are written.
    sent: usize,
    is_flushed: bool,
    /// Why no more can be written. There may be an answer all the same, which says more.
    unsendable: Option<io::Error>,
    /// Something was read.
    is_answered: bool,
    /// What was read and is not understood yet.
    input: BytesMut,
}

impl<'a> Sending<'a> {
    fn new(wire: Wire, head: &'a [u8], body: &'a Segments) -> Self {
        Self { wire, head, body, sent: 0, is_flushed: false, unsendable: None, is_answered: false, input: BytesMut::new() }
    }

    fn is_sent(&self) -> bool {
        self.is_flushed && self.unsendable.is_none()
    }

    /// Writes what can be written, and reads meanwhile: an engine may refuse a body before it has read all of it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Head>> {
        if !self.is_flushed
            && self.unsendable.is_none()
            && let Poll::Ready(Err(error)) = self.poll_write(cx)
        {
            self.unsendable = Some(error);
        }
        loop {
            match ready!(self.poll_read(cx)) {
                Ok(0) => return Poll::Ready(Err(self.unsendable.take().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))),
                Ok(_) => {
                    self.is_answered = true;
                    if let Some(head) = Head::take(&mut self.input).map_err(io::Error::other)? {
                        return Poll::Ready(Ok(head));
                    }
                }
                Err(error) => return Poll::Ready(Err(self.unsendable.take().unwrap_or(error))),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.head.len() + self.body.len() {
            let mut skip = self.sent;
            let mut slices = [IoSlice::new(&[]); PIECES];
            let pieces = std::iter::once(self.head).chain(self.body.pieces()).filter_map(|piece| {
                let left = piece.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(piece.len());
                (!left.is_empty()).then_some(left)
            });
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(pieces) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            match ready!(Pin::new(&mut self.wire).poll_write_vectored(cx, &slices[..count]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        ready!(Pin::new(&mut self.wire).poll_flush(cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.wire).poll_read(cx, &mut read))?;
        self.input.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }
}

#[cfg(test)]
mod tests;
