//! Request bodies: read once, kept as bytes, and bounded both each and all together.
//!
//! A body is held until its reply has begun, since it may have to be sent again. Room is taken with each piece that arrives
//! and never for what is only announced, so that many large bodies at once are turned away instead of exhausting the
//! machine, and one that never comes keeps nobody out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::config::GatewayConfig;
use crate::request_body::{self, BodyError};
use crate::telemetry::metrics::Metrics;

/// Room made for an announced body before any of it is here.
const FIRST_CAPACITY: usize = 1 << 20;
/// Bytes of a body that is copied rather than its connection's buffer kept.
const SMALL: usize = 4 << 10;

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
    /// It is compressed, or otherwise encoded, in this way.
    Encoded(String),
    /// The client stopped sending half way.
    Broken,
    /// The client sent nothing for too long.
    Slow(Duration),
    /// It was not whole in time.
    Late(Duration),
    /// The server stops and waits for no more of it.
    Stopping,
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
        let held = self.intake.held.fetch_add(more, Ordering::AcqRel).saturating_add(more);
        self.bytes += more;
        self.intake.metrics.hold_bytes(more);
        if held > self.intake.limit { Err(IntakeError::NoRoom) } else { Ok(()) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.intake.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.intake.metrics.release_bytes(self.bytes);
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

    /// Reads a body to its end. Room is taken as its bytes arrive: what is only announced keeps nobody out.
    pub(super) async fn collect(self: &Arc<Self>, headers: &HeaderMap, mut body: Body) -> Result<Held, IntakeError> {
        if let Some(coding) = headers.get(header::CONTENT_ENCODING).filter(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(IntakeError::Encoded(String::from_utf8_lossy(coding.as_bytes()).into_owned()));
        }
        let announced = headers.get(header::CONTENT_LENGTH).and_then(length).unwrap_or(0);
        if announced > self.body_limit {
            return Err(IntakeError::TooLarge { limit: self.body_limit });
        }
        let mut room = Room { intake: Arc::clone(self), bytes: 0 };
        let bytes = self.read(&mut room, announced, &mut body).await?;
        Ok(Held { bytes, _room: room })
    }

    async fn read(&self, room: &mut Room, announced: usize, body: &mut Body) -> Result<Bytes, IntakeError> {
        let Some(first) = self.piece(body).await? else { return Ok(Bytes::new()) };
        let mut length = first.len();
        self.check(room, length)?;
        let Some(mut next) = self.piece(body).await? else { return Ok(on_its_own(first)) };
        let mut whole = BytesMut::with_capacity(announced.min(FIRST_CAPACITY).max(first.len() + next.len()));
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
                Ok(Some(Err(error))) => return Err(broken(&error)),
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

/// A body that came in one small piece is cut out of its connection's read buffer, which it would keep for as long as its
/// request lasts.
fn on_its_own(piece: Bytes) -> Bytes {
    if piece.len() <= SMALL { Bytes::copy_from_slice(&piece) } else { piece }
}

fn length(value: &HeaderValue) -> Option<usize> {
    value.to_str().ok()?.parse().ok()
}

fn broken(error: &axum::Error) -> IntakeError {
    match request_body::cause(error) {
        Some(BodyError::Late(limit)) => IntakeError::Late(*limit),
        Some(BodyError::Stopping) => IntakeError::Stopping,
        Some(BodyError::Broken(_)) | None => IntakeError::Broken,
    }
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

    #[tokio::test]
    async fn a_body_that_is_only_announced_keeps_nobody_out() {
        let intake = intake(100, 100);
        let mut announced = HeaderMap::new();
        announced.insert(header::CONTENT_LENGTH, HeaderValue::from_static("100"));
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>());
        let mut waiting = Box::pin(intake.collect(&announced, silent));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let held = intake.collect(&announced, pieces(&[50, 50])).await.unwrap();
        assert!(intake.metrics.encode().unwrap().contains("lifeboat_held_request_bytes 100\n"));
        drop((held, waiting));
        assert!(intake.metrics.encode().unwrap().contains("lifeboat_held_request_bytes 0\n"));
    }

    #[tokio::test]
    async fn the_listeners_reason_for_a_cut_body_is_kept() {
        for (given, expected) in [
            (BodyError::Stopping, IntakeError::Stopping),
            (BodyError::Late(Duration::from_secs(7)), IntakeError::Late(Duration::from_secs(7))),
        ] {
            let cut = Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(given)]));
            assert_eq!(intake(100, 100).collect(&HeaderMap::new(), cut).await.unwrap_err(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_is_given_up() {
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>());
        let error = intake(100, 1000).collect(&HeaderMap::new(), silent).await.unwrap_err();
        assert!(matches!(error, IntakeError::Slow(_)));
    }
}
