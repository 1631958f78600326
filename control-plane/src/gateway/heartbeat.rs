//! Keeps a streaming client company while it waits for its slot, its model or a long prompt.
//!
//! After the set time the reply begins with status 200 and comment lines, which clients skip and proxies take for life.
//! From then on no status can be sent any more: whatever fails becomes an event in the stream, and the request's entry says
//! so, because its measurement must show the status that was sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use lifeboat_engines::dialect::Dialect;
use tokio::time::{Instant, Interval, interval_at, timeout};

use super::active::Active;
use super::error::Failure;

/// A comment line of server-sent events.
pub(super) const COMMENT: Bytes = Bytes::from_static(b": waiting\n\n");

/// What a request comes to.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send>>;

/// Waits for the answer; from `every` on, with comment lines under `headers`. An answer that finds `active` begun must be a
/// stream of events.
pub(super) async fn accompany(
    mut answer: Answer,
    active: &Arc<Active>,
    every: Duration,
    dialect: Dialect,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if let Ok(answered) = timeout(every, &mut answer).await {
        return answered;
    }
    active.begin();
    let ticks = interval_at(Instant::now() + every, every);
    let waiting = Waiting { first: Some(COMMENT), stage: Stage::Waiting(answer, ticks), dialect };
    let mut response = Response::new(Body::new(waiting));
    *response.headers_mut() = headers;
    Ok(response)
}

struct Waiting {
    /// Sent with the head, so that the client has something in hand.
    first: Option<Bytes>,
    stage: Stage,
    dialect: Dialect,
}

enum Stage {
    Waiting(Answer, Interval),
    Answered(Body),
    Over,
}

impl http_body::Body for Waiting {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            match &mut self.stage {
                Stage::Waiting(answer, tick) => {
                    let Poll::Ready(answered) = answer.as_mut().poll(cx) else {
                        ready!(tick.poll_tick(cx));
                        return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
                    };
                    match answered {
                        Ok(response) => self.stage = Stage::Answered(response.into_body()),
                        Err(failure) => {
                            self.stage = Stage::Over;
                            return Poll::Ready(Some(Ok(Frame::data(failure.event(self.dialect)))));
                        }
                    }
                }
                Stage::Answered(body) => return Pin::new(body).poll_frame(cx).map_err(io::Error::other),
                Stage::Over => return Poll::Ready(None),
            }
        }
    }
}
