//! The HTTP/1.1 client of the hot path: a request goes out in one write, its head comes back in one read.
//!
//! Where a connection from the pool turns out to be dead at once, the request goes out once more on a new one.
//! Why it is our own: `docs/decisions/0007-own-upstream-client.md`.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use lifeboat_engines::dialect::{ApiError, ErrorCode};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::connector::{Connector, Wire};
use super::http1::Head;
use super::outgoing::{Outgoing, Segments};
use super::pool::{Engine, Pool};
use super::rest::{READ, Rest};
use super::unsent::Unsent;
use crate::causes::chain;
use crate::registry::Endpoint;

/// A connection that had died while it was idle shows that at once. What fails later may have been worked on, and whether to
/// ask again is not for this client to say.
const AT_ONCE: Duration = Duration::from_secs(1);

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
    pub(super) async fn send(&self, endpoint: &Endpoint, outgoing: &Outgoing, path: &'static str, body: Segments) -> Result<Answer, Fault> {
        let head = outgoing.head(endpoint, path, body.len()).map_err(|error| {
            let what = format!("the query cannot be sent on to the engine ({error}); make it shorter");
            Fault::Said(ApiError::new(ErrorCode::InvalidRequest, what))
        })?;
        let mut unsent = Unsent::new(head, body);
        let engine = (endpoint.scheme.clone(), endpoint.authority.clone());
        if let Some(wire) = self.pool.take(&engine) {
            let (taken, mut sending) = (Instant::now(), Sending::new(wire, unsent));
            match poll_fn(|cx| sending.poll_head(cx)).await {
                Ok(head) => return Ok(self.answer(engine, sending, head)),
                Err(_) if !sending.is_answered && taken.elapsed() < AT_ONCE => unsent = sending.unsent.again(),
                Err(fault) => return Err(fault),
            }
        }
        let wire = self.connector.connect(&engine.0, &engine.1).await.map_err(|error| Fault::Connect(chain(&error)))?;
        let mut sending = Sending::new(wire, unsent);
        let head = poll_fn(|cx| sending.poll_head(cx)).await?;
        Ok(self.answer(engine, sending, head))
    }

    fn answer(&self, engine: Engine, sending: Sending, head: Head) -> Answer {
        let Sending { wire, unsent, unsendable, input, .. } = sending;
        let is_sent = unsent.is_done();
        // A request that was not taken whole leaves its remains behind.
        let home = (head.keeps && is_sent).then(|| (Arc::clone(&self.pool), engine));
        // Who refuses does not want the rest; who begins to answer may well wait for it.
        let unsent = (!is_sent && unsendable.is_none() && head.status.as_u16() < 400).then(|| Box::new(unsent));
        let rest = Rest::new(wire, head.body, Bytes::copy_from_slice(&input), home, unsent);
        Answer { status: head.status, headers: head.headers, rest }
    }
}

/// One request on its way.
struct Sending {
    wire: Wire,
    unsent: Unsent,
    /// Why no more can be written. There may be an answer all the same, which says more.
    unsendable: Option<io::Error>,
    /// Something was read.
    is_answered: bool,
    /// What was read and is not understood yet.
    input: BytesMut,
}

impl Sending {
    fn new(wire: Wire, unsent: Unsent) -> Self {
        Self { wire, unsent, unsendable: None, is_answered: false, input: BytesMut::new() }
    }

    /// Writes what can be written, and reads meanwhile: an engine may refuse a body before it has read all of it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Fault>> {
        if !self.unsent.is_done()
            && self.unsendable.is_none()
            && let Poll::Ready(Err(error)) = self.unsent.poll_write(&mut self.wire, cx)
        {
            self.unsendable = Some(error);
        }
        loop {
            let ended = match ready!(self.poll_read(cx)) {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {
                    self.is_answered = true;
                    match Head::take(&mut self.input).transpose() {
                        Some(head) => return Poll::Ready(head.map_err(Fault::Garbled)),
                        None => continue,
                    }
                }
                Err(error) => error,
            };
            return Poll::Ready(Err(Fault::Closed(chain(&self.unsendable.take().unwrap_or(ended)))));
        }
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
