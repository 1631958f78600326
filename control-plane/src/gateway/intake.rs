//! Request bodies: read once, kept as bytes, and bounded both each and all together.
//!
//! A body is held until its reply has begun, since it may have to be sent again. Room is reserved before memory is
//! used, so that many large bodies at once are turned away instead of exhausting the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::config::GatewayConfig;
use crate::telemetry::metrics::Metrics;

/// After a body that is too large, this much more is read and thrown away, so that the client gets to read the answer.
const DISCARDED: usize = 64 << 20;
/// And for no longer than this.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Why a body was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IntakeError {
    /// Larger than one body may be.
    TooLarge {
        /// The bound, bytes.
        limit: usize,
    },
    /// Too much is held already.
    NoRoom,
    /// The client stopped sending half way.
    Broken(String),
    /// The client sent nothing for too long.
    Slow(Duration),
}

/// The room all bodies share.
#[derive(Debug)]
pub(super) struct Intake {
    held: AtomicUsize,
    limit: usize,
    body_limit: usize,
    between_chunks: Duration,
    metrics: Arc<Metrics>,
}

/// Room taken by one body; given back when dropped.
#[derive(Debug)]
struct Room {
    intake: Arc<Intake>,
    bytes: usize,
}

impl Room {
    fn grow_to(&mut self, bytes: usize) -> Result<(), IntakeError> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let before = self.intake.held.fetch_add(more, Ordering::AcqRel);
        self.bytes += more;
        self.intake.metrics.set_held_bytes(before.saturating_add(more));
        if before.saturating_add(more) > self.intake.limit { Err(IntakeError::NoRoom) } else { Ok(()) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let before = self.intake.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.intake.metrics.set_held_bytes(before.saturating_sub(self.bytes));
    }
}

/// A whole body and the room it takes.
#[derive(Debug)]
pub(super) struct Held {
    /// As the client sent it.
    pub bytes: Bytes,
    _room: Room,
}

impl Intake {
    pub(super) fn new(config: &GatewayConfig, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            limit: config.max_held_bytes,
            body_limit: config.max_body_bytes,
            between_chunks: config.between_chunks,
            metrics,
        })
    }

    /// Reads a body to its end.
    pub(super) async fn collect(self: &Arc<Self>, headers: &HeaderMap, mut body: Body) -> Result<Held, IntakeError> {
        let announced = headers.get(header::CONTENT_LENGTH).and_then(length).unwrap_or(0);
        let mut room = Room { intake: Arc::clone(self), bytes: 0 };
        let taken = if announced > self.body_limit {
            Err(IntakeError::TooLarge { limit: self.body_limit })
        } else {
            match room.grow_to(announced) {
                Ok(()) => self.read(&mut room, announced, &mut body).await,
                Err(error) => Err(error),
            }
        };
        match taken {
            Ok(bytes) => Ok(Held { bytes, _room: room }),
            Err(error) => {
                drop(room);
                if matches!(error, IntakeError::TooLarge { .. } | IntakeError::NoRoom) {
                    discard(&mut body).await;
                }
                Err(error)
            }
        }
    }

    async fn read(&self, room: &mut Room, announced: usize, body: &mut Body) -> Result<Bytes, IntakeError> {
        let Some(first) = self.piece(body).await? else { return Ok(Bytes::new()) };
        let mut length = first.len();
        self.check(room, length)?;
        let Some(mut next) = self.piece(body).await? else { return Ok(first) };
        let mut whole = BytesMut::with_capacity(announced.max(first.len() + next.len()));
        whole.extend_from_slice(&first);
        drop(first);
        loop {
            length += next.len();
            self.check(room, length)?;
            whole.extend_from_slice(&next);
            match self.piece(body).await? {
                Some(piece) => next = piece,
                None => return Ok(whole.freeze()),
            }
        }
    }

    fn check(&self, room: &mut Room, length: usize) -> Result<(), IntakeError> {
        if length > self.body_limit {
            return Err(IntakeError::TooLarge { limit: self.body_limit });
        }
        room.grow_to(length)
    }

    async fn piece(&self, body: &mut Body) -> Result<Option<Bytes>, IntakeError> {
        loop {
            match timeout(self.between_chunks, body.frame()).await {
                Err(_) => return Err(IntakeError::Slow(self.between_chunks)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(IntakeError::Broken(error.to_string())),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

fn length(value: &HeaderValue) -> Option<usize> {
    value.to_str().ok()?.parse().ok()
}

async fn discard(body: &mut Body) {
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
    use crate::registry::Registry;

    fn intake(max_body_bytes: usize, max_held_bytes: usize) -> Arc<Intake> {
        let config = GatewayConfig { max_body_bytes, max_held_bytes, ..GatewayConfig::default() };
        Intake::new(&config, Arc::new(Metrics::new(Arc::new(Registry::default()))))
    }

    fn pieces(sizes: &[usize]) -> Body {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; *size]))).collect();
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test]
    async fn room_is_bounded_over_all_bodies_and_given_back() {
        let intake = intake(100, 150);
        let none = HeaderMap::new();
        let first = intake.collect(&none, pieces(&[60, 40])).await.unwrap();
        assert_eq!(first.bytes.len(), 100);
        assert_eq!(intake.collect(&none, pieces(&[30, 30])).await.unwrap_err(), IntakeError::NoRoom);
        assert!(intake.collect(&none, pieces(&[50])).await.is_ok());
        drop(first);
        assert!(intake.collect(&none, pieces(&[100])).await.is_ok());
        assert_eq!(intake.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_announced_or_not() {
        let intake = intake(100, 1000);
        let mut announced = HeaderMap::new();
        announced.insert(header::CONTENT_LENGTH, HeaderValue::from_static("101"));
        for (headers, sizes) in [(&announced, &[1][..]), (&HeaderMap::new(), &[60, 60])] {
            assert_eq!(intake.collect(headers, pieces(sizes)).await.unwrap_err(), IntakeError::TooLarge { limit: 100 });
        }
        assert_eq!(intake.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_is_given_up() {
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>());
        let error = intake(100, 1000).collect(&HeaderMap::new(), silent).await.unwrap_err();
        assert!(matches!(error, IntakeError::Slow(_)));
    }
}
