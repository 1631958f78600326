//! Ends the connection of a client that stops reading.
//!
//! A reply gives its slot back with its end, and while a client takes nothing no more of the reply is asked for: its own
//! deadlines are never looked at. Only here is it seen that nothing moves. What counts is that the system takes bytes:
//! it buffers some for each connection, and frees them in large steps, so a slow reader moves seldom.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// This much is progress; less of it in the given time is a client that keeps us waiting on purpose.
const ENOUGH: usize = 16 << 10;

/// A connection whose writes fail once they make no progress for too long.
#[derive(Debug)]
pub(super) struct Stalling<S> {
    inner: S,
    limit: Duration,
    /// Runs from the first write that had to wait.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Bytes taken since then.
    taken: usize,
}

impl<S> Stalling<S> {
    pub(super) const fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, timer: None, waiting: false, taken: 0 }
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                self.taken = self.taken.saturating_add(*bytes);
                self.waiting &= self.taken < ENOUGH;
                written
            }
            Poll::Ready(Err(_)) => written,
            Poll::Pending => {
                let due = Instant::now() + self.limit;
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                if !self.waiting {
                    self.waiting = true;
                    self.taken = 0;
                    timer.as_mut().reset(due);
                }
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.wrote(written, cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.wrote(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for once all that there was is written: nobody is waiting for this client.
        self.waiting = false;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::task::TaskTracker;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_once_nothing_is_taken_or_too_little() {
        // Bytes the client takes every 20 s.
        for taken in [0, 100] {
            let (ours, mut theirs) = tokio::io::duplex(1 << 10);
            let mut ours = Stalling::new(ours, LIMIT);
            let reading = TaskTracker::new().spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    theirs.read_exact(&mut vec![0; taken]).await.unwrap();
                }
            });
            let began = Instant::now();
            let error = ours.write_all(&vec![0; 1 << 20]).await.unwrap_err();
            assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
            reading.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_and_a_pause_with_nothing_to_send_are_no_stall() {
        let (ours, mut theirs) = tokio::io::duplex(32 << 10);
        let mut ours = Stalling::new(ours, LIMIT);
        let reading = TaskTracker::new().spawn(async move {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                theirs.read_exact(&mut vec![0; 32 << 10]).await.unwrap();
            }
            theirs
        });
        for _ in 0..2 {
            ours.write_all(&vec![0; 128 << 10]).await.unwrap();
            ours.flush().await.unwrap();
            tokio::time::sleep(LIMIT * 3).await;
        }
        reading.await.unwrap();
    }
}
