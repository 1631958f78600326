//! The body of a request on its way in: how long it may take, and what becomes of what nobody reads.
//!
//! One wrapper, put around every body by the listener, so that no route can forget it. A body must be whole within its time,
//! and soon where the server is stopping: otherwise reading it fails, and the route answers. A route that answers without
//! reading (a refusal) is answered at once; the rest of the body is read and thrown away behind its back for a moment,
//! because a client that is still sending would lose the answer with the connection.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

/// What a body that is under way when a stop begins still gets.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Of a body that nobody reads, this much is thrown away.
const DISCARDED: usize = 64 << 20;
/// And for no longer than this.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Why a body did not come whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It took longer than it may.
    #[error("the request body was not complete within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The server stops.
    #[error("the server is stopping and no longer waits for the rest of the request body")]
    Stopping,
    /// The client broke off.
    #[error("the request body broke off")]
    Broken(#[source] Box<dyn Error + Send + Sync>),
}

/// The error of ours in a chain of others.
pub fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a BodyError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What all bodies of one listener have in common.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// How long a body may take.
    pub limit: Duration,
    /// The soft stop.
    pub stopping: CancellationToken,
    /// Runs what reads the leftovers.
    pub tracker: TaskTracker,
}

impl Arrivals {
    /// Wraps the body of a request whose head has just arrived.
    pub fn wrap<B>(&self, headers: &HeaderMap, body: B) -> Arriving<B>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        // A client that waits for the word to go on sends nothing that could be thrown away.
        let discards = !headers.contains_key(EXPECT);
        Arriving { body: Some(body), arrivals: self.clone(), until: Instant::now() + self.limit, discards, stop: None, timer: None }
    }
}

/// A body under way.
#[derive(Debug)]
pub struct Arriving<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
{
    /// `None` = it has ended, one way or the other.
    body: Option<B>,
    arrivals: Arrivals,
    until: Instant,
    discards: bool,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> Arriving<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
{
    /// Ready once there is no more time.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        // A child of its own: all connections would meet at the one token's lock otherwise.
        let stopping = &self.arrivals.stopping;
        let stop = self.stop.get_or_insert_with(|| Box::pin(stopping.child_token().cancelled_owned()));
        let until = self.until;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        let stops = stopping.is_cancelled() || stop.as_mut().poll(cx).is_ready();
        if stops {
            let soon = Instant::now() + STOP_GRACE;
            if timer.deadline() > soon {
                timer.as_mut().reset(soon);
            }
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(if stops { BodyError::Stopping } else { BodyError::Late(self.arrivals.limit) })
    }
}

impl<B> Body for Arriving<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let ended = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => Some(Err(BodyError::Broken(error.into()))),
            Poll::Ready(None) => None,
            Poll::Pending => Some(Err(ready!(this.poll_patience(cx)))),
        };
        this.body = None;
        Poll::Ready(ended)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> Drop for Arriving<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
{
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| self.discards && !body.is_end_stream()) else { return };
        let stopping = self.arrivals.stopping.clone();
        self.arrivals.tracker.spawn(async move { stopping.run_until_cancelled(discard(body)).await });
    }
}

async fn discard<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > DISCARDED {
                return;
            }
        }
    };
    // Whether it ended or ran out of time makes no difference.
    _ = timeout(DISCARD_TIME, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;
    use http_body_util::StreamBody;
    use std::convert::Infallible;

    fn arrivals(limit: u64) -> Arrivals {
        Arrivals { limit: Duration::from_secs(limit), stopping: CancellationToken::new(), tracker: TaskTracker::new() }
    }

    /// A byte every second, for ever.
    fn dripping() -> impl Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static {
        StreamBody::new(Box::pin(futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(Frame::data(Bytes::from_static(b"x"))), ()))
        })))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_at_its_deadline() {
        let began = Instant::now();
        let error = arrivals(10).wrap(&HeaderMap::new(), dripping()).collect().await.unwrap_err();
        assert!(matches!(error, BodyError::Late(_)), "{error}");
        assert!((10..12).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_only_a_moment_for_the_rest_of_a_body() {
        let arrivals = arrivals(600);
        let (stopping, began) = (arrivals.stopping.clone(), Instant::now());
        let reading = arrivals.wrap(&HeaderMap::new(), dripping());
        let (error, ()) = tokio::join!(reading.collect(), async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            stopping.cancel();
        });
        assert!(matches!(error.unwrap_err(), BodyError::Stopping));
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_is_read_for_a_moment_and_no_longer() {
        let arrivals = arrivals(600);
        let (seen_tx, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let counted = dripping().map_frame(move |frame| {
            seen_tx.send(()).unwrap();
            frame
        });
        let began = Instant::now();
        drop(arrivals.wrap(&HeaderMap::new(), counted));
        arrivals.tracker.close();
        arrivals.tracker.wait().await;
        assert_eq!(began.elapsed(), DISCARD_TIME);
        assert!(seen.recv().await.is_some());
    }

    #[tokio::test]
    async fn a_whole_body_passes_as_it_is() {
        let pieces = futures_util::stream::iter(["a", "b"]).map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from(piece))));
        let arrivals = arrivals(10);
        let body = arrivals.wrap(&HeaderMap::new(), StreamBody::new(pieces)).collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ab");
        assert!(arrivals.tracker.is_empty());
    }
}
