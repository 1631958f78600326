//! The body of a reply as it is read from its engine.
//!
//! There is no buffer: what one read brings is handed on at once, and between two reads a waiting stream holds its
//! connection and a few words. With the last byte the connection goes back to the pool; dropped before that, it is closed, by
//! which the engine learns that nobody listens.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::connector::Wire;
use super::http1::{Decoder, Malformed};
use super::pool::{Engine, Pool};
use super::unsent::Unsent;

/// Bytes of one read: some tokens of many streams at once; a larger reply takes more reads.
pub(super) const READ: usize = 8 << 10;

/// What is to come of a reply.
#[derive(Debug)]
pub(in crate::gateway) struct Rest {
    /// `None` = given back, or broken.
    pub(super) wire: Option<Wire>,
    decoder: Decoder,
    /// What was read along with the head.
    early: Bytes,
    /// Where the connection goes when all was read; `None` = nowhere.
    home: Option<(Arc<Pool>, Engine)>,
    /// What the engine has not read of the request, though it has begun to answer.
    unsent: Option<Box<Unsent>>,
}

impl Rest {
    /// `early` = what has been read of the body.
    pub(super) fn new(wire: Wire, decoder: Decoder, early: Bytes, home: Option<(Arc<Pool>, Engine)>, unsent: Option<Box<Unsent>>) -> Self {
        // What follows a reply without a body belongs to nobody.
        let home = home.filter(|_| early.is_empty() || !decoder.is_done());
        Self { wire: Some(wire), decoder, early, home, unsent }
    }

    /// The next bytes of the body; `None` = it is whole.
    pub(in crate::gateway) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let piece = loop {
            if self.decoder.is_done() {
                self.end();
                return Poll::Ready(None);
            }
            let read = if self.early.is_empty() { ready!(self.poll_read(cx)) } else { self.decode_early() };
            match read {
                Ok(Some(piece)) if piece.is_empty() => {}
                Ok(Some(piece)) => break piece,
                Ok(None) => return Poll::Ready(None),
                Err(error) => {
                    self.wire = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        };
        if self.decoder.is_done() {
            self.end();
        }
        Poll::Ready(Some(Ok(piece)))
    }

    /// The next bytes of the body; `None` = it is whole.
    pub(super) async fn piece(&mut self) -> Option<io::Result<Bytes>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    fn decode_early(&mut self) -> io::Result<Option<Bytes>> {
        let early = std::mem::take(&mut self.early);
        self.decode(&early).map(Some)
    }

    /// One read; `None` = the connection ended where the body did.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let Some(wire) = &mut self.wire else { return Poll::Ready(Err(short())) };
        // If the rest cannot be written, what is read tells why.
        if self.unsent.as_mut().is_some_and(|unsent| unsent.poll_write(wire, cx).is_ready()) {
            self.unsent = None;
        }
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(wire).poll_read(cx, &mut read))?;
        if read.filled().is_empty() {
            self.wire = None;
            return Poll::Ready(self.decoder.close().map(|()| None).map_err(|_| short()));
        }
        Poll::Ready(self.decode(read.filled()).map(Some))
    }

    fn decode(&mut self, mut read: &[u8]) -> io::Result<Bytes> {
        let data = self.decoder.push(&mut read).map_err(io::Error::other)?;
        if !read.is_empty() {
            // More than the reply was sent: nothing that follows can be trusted.
            self.home = None;
        }
        Ok(data)
    }

    fn end(&mut self) {
        if let Some(wire) = self.wire.take()
            && let Some((pool, engine)) = self.home.take()
        {
            pool.put(engine, wire);
        }
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, Malformed::Short)
}

impl Drop for Rest {
    fn drop(&mut self) {
        // Who saw the last event does not wait for the end behind it, which has mostly come as well.
        if self.wire.is_some() {
            let _read = self.poll_piece(&mut Context::from_waker(Waker::noop()));
        }
    }
}
