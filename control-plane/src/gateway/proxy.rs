//! One call to one engine, up to the first piece of its reply.
//!
//! Everything before that piece can still be tried again elsewhere, so the head is held back until the first event of a
//! stream, or the whole of a reply that is none, is here. What may be tried again is decided in one place,
//! [`Fault::may_retry`]. Dropping a call drops its connection, by which the engine learns that nobody listens.

mod client;
mod connector;
mod http1;
pub(in crate::gateway) mod outgoing;
mod pool;
mod rest;
mod unsent;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lifeboat_engines::dialect::{Aggregate, ApiError, ErrorCode};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::client::{Answer, Client};
use self::http1::Malformed;
use self::outgoing::{Outgoing, Segments};
pub(in crate::gateway) use self::rest::Rest;
use crate::causes::chain;
use crate::config::GatewayConfig;
use crate::registry::Endpoint;

/// Bytes of an error reply that are read; the rest is dropped.
const ERROR_BODY: usize = 64 << 10;

/// Why an engine gave no reply.
#[derive(Debug, Clone, thiserror::Error)]
pub(in crate::gateway) enum Fault {
    /// No connection.
    #[error("the engine cannot be reached: {0}")]
    Connect(String),
    /// The connection broke before the reply began.
    #[error("the engine closed the connection before it answered: {0}")]
    Closed(String),
    /// What came is not HTTP.
    #[error("the engine's answer cannot be understood: {0}")]
    Garbled(Malformed),
    /// The reply broke off; nothing of it was sent on.
    #[error("the engine's reply broke off: {0}")]
    Torn(String),
    /// The engine is being ended.
    #[error("the engine is being stopped")]
    Ended,
    /// No first byte in time.
    #[error("the engine did not begin to answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The operator ended the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The whole request took too long.
    #[error("the request took longer than {} s", .0.as_secs())]
    TooLong(Duration),
    /// An answer that no engine should give here.
    #[error("the engine answered with status {0}")]
    Strange(StatusCode),
    /// What came cannot become an answer; it says why itself.
    #[error("{0}")]
    Said(ApiError),
    /// The engine said no.
    #[error("the engine answered with status {status}")]
    Refused {
        /// Its status, 400 or more.
        status: StatusCode,
        /// Its `Retry-After`.
        retry_after: Option<HeaderValue>,
        /// Its words.
        body: Bytes,
    },
}

impl Fault {
    /// Whether another engine, or the same one restarted, may do better.
    pub(in crate::gateway) fn may_retry(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Closed(_) | Self::Torn(_) | Self::Ended => true,
            Self::Garbled(_) | Self::Silent(_) | Self::TooLong(_) | Self::Cancelled | Self::Strange(_) | Self::Said(_) => false,
            Self::Refused { status, .. } => matches!(status.as_u16(), 429 | 502..=504 | 529),
        }
    }

    /// Whether another engine may do better with what is left of a stream that has begun.
    pub(in crate::gateway) fn may_resume(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::Torn(_) | Self::Ended | Self::Silent(_))
    }

    /// Whether the request was at fault, and not the engine, whatever status the engine chose for it.
    pub(in crate::gateway) fn is_the_clients(&self) -> bool {
        match self {
            Self::Refused { status, .. } if status.is_client_error() => status.as_u16() != 429,
            Self::Refused { status, body, .. } => ApiError::from_engine(status.as_u16(), body).status < 500,
            Self::Said(error) => error.status < 500,
            _ => false,
        }
    }
}

/// A reply whose first piece is here.
#[derive(Debug)]
pub(in crate::gateway) struct Reply {
    /// Its status, below 300.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its first piece, or all of it.
    pub first: Bytes,
    /// What is to come; `None` = nothing.
    pub rest: Option<Rest>,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(in crate::gateway) struct Patience {
    /// For the first piece (a whole reply, where it is no stream).
    pub first_byte: Duration,
    /// End of the request, whatever happens.
    pub until: Instant,
    /// How long that is from its beginning, for the words of it.
    pub total: Duration,
}

/// The way to all engines.
#[derive(Debug)]
pub(in crate::gateway) struct Proxy {
    client: Client,
    between_chunks: Duration,
    buffer: usize,
    whole: usize,
}

impl Proxy {
    /// No connection is made yet. Idle ones are looked after on `tracker`, and closed when `stopping` is cancelled.
    pub(in crate::gateway) fn new(config: &GatewayConfig, tracker: &TaskTracker, stopping: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            client: Client::new(config.connect, tracker.clone(), stopping.clone()),
            between_chunks: config.between_chunks,
            buffer: config.reply_buffer_bytes,
            whole: config.whole_reply_bytes,
        })
    }

    /// Sends one request and waits for the first piece of its reply.
    pub(in crate::gateway) async fn call(
        &self,
        endpoint: &Endpoint,
        outgoing: &Outgoing,
        path: &'static str,
        body: Segments,
        patience: Patience,
    ) -> Result<Reply, Fault> {
        let until = patience.until.min(Instant::now() + patience.first_byte);
        tokio::select! {
            biased;
            reply = self.exchange(endpoint, outgoing, path, body) => reply,
            () = endpoint.ended.cancelled() => Err(Fault::Ended),
            () = sleep_until(until) => {
                Err(if until == patience.until { Fault::TooLong(patience.total) } else { Fault::Silent(patience.first_byte) })
            }
        }
    }

    async fn exchange(&self, endpoint: &Endpoint, outgoing: &Outgoing, path: &'static str, body: Segments) -> Result<Reply, Fault> {
        let Answer { status, headers, mut rest } = self.client.send(endpoint, outgoing, path, body).await?;
        endpoint.load.moved();
        if status.as_u16() >= 400 {
            let retry_after = headers.get(header::RETRY_AFTER).cloned();
            return Err(Fault::Refused { status, retry_after, body: self.words(endpoint, &mut rest).await });
        }
        if !status.is_success() {
            return Err(Fault::Strange(status));
        }
        let (first, ended) = match kind(&headers) {
            Kind::Events => (self.first_event(endpoint, &mut rest).await?, false),
            Kind::Json => self.gather(endpoint, &mut rest, self.buffer).await?,
            Kind::Other => self.first_piece(endpoint, &mut rest).await?.map_or((Bytes::new(), true), |piece| (piece, false)),
        };
        Ok(Reply { status, headers, first, rest: (!ended).then_some(rest) })
    }

    /// The rest of a stream, put together into one document. The client has had nothing of it yet.
    pub(in crate::gateway) async fn put_together(&self, endpoint: &Endpoint, reply: Reply, patience: Patience) -> Result<Bytes, Fault> {
        let mut aggregate = Aggregate::new(self.whole);
        aggregate.push(&reply.first).map_err(Fault::Said)?;
        let Some(mut rest) = reply.rest else { return Self::whole(aggregate) };
        let reading = async {
            while !aggregate.is_done()
                && let Some(piece) = self.first_piece(endpoint, &mut rest).await?
            {
                aggregate.push(&piece).map_err(Fault::Said)?;
            }
            Self::whole(aggregate)
        };
        tokio::select! {
            biased;
            document = reading => document,
            () = endpoint.ended.cancelled() => Err(Fault::Ended),
            () = sleep_until(patience.until) => Err(Fault::TooLong(patience.total)),
        }
    }

    fn whole(aggregate: Aggregate) -> Result<Bytes, Fault> {
        match aggregate.finish() {
            Ok(document) => Ok(document.into()),
            Err(error) if error.code == ErrorCode::UpstreamFailed => Err(Fault::Torn(error.message)),
            Err(error) => Err(Fault::Said(error)),
        }
    }

    async fn first_piece(&self, endpoint: &Endpoint, rest: &mut Rest) -> Result<Option<Bytes>, Fault> {
        let piece = timeout(self.between_chunks, rest.piece()).await.map_err(|_| Fault::Silent(self.between_chunks))?;
        endpoint.load.moved();
        piece.transpose().map_err(|error| Fault::Torn(chain(&error)))
    }

    /// The first piece that says something: comments of the engine are no sign of life worth giving up a retry for.
    async fn first_event(&self, endpoint: &Endpoint, rest: &mut Rest) -> Result<Bytes, Fault> {
        loop {
            let Some(piece) = rest.piece().await else {
                return Err(Fault::Torn("the stream ended before its first event".into()));
            };
            let piece = piece.map_err(|error| Fault::Torn(chain(&error)))?;
            endpoint.load.moved();
            if !piece.split(|byte| *byte == b'\n').all(|line| line.is_empty() || line == b"\r" || line[0] == b':') {
                return Ok(piece);
            }
        }
    }

    /// The words of a refusal, or as many of them as come. The status says the most, and has been heard.
    async fn words(&self, endpoint: &Endpoint, rest: &mut Rest) -> Bytes {
        let mut words = BytesMut::new();
        while words.len() <= ERROR_BODY
            && let Ok(Some(piece)) = self.first_piece(endpoint, rest).await
        {
            words.extend_from_slice(&piece);
        }
        words.freeze()
    }

    /// Reads a reply to its end, or to `limit` and a little more. True = this was the end.
    async fn gather(&self, endpoint: &Endpoint, rest: &mut Rest, limit: usize) -> Result<(Bytes, bool), Fault> {
        let Some(first) = self.first_piece(endpoint, rest).await? else { return Ok((Bytes::new(), true)) };
        let Some(second) = self.first_piece(endpoint, rest).await? else { return Ok((first, true)) };
        let mut gathered = BytesMut::from(first);
        gathered.extend_from_slice(&second);
        while gathered.len() <= limit {
            let Some(piece) = self.first_piece(endpoint, rest).await? else { return Ok((gathered.freeze(), true)) };
            gathered.extend_from_slice(&piece);
        }
        Ok((gathered.freeze(), false))
    }
}

/// How a reply is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::gateway) enum Kind {
    /// Server-sent events.
    Events,
    /// A JSON document.
    Json,
    /// Anything else (audio).
    Other,
}

/// What the content type says.
pub(in crate::gateway) fn kind(headers: &HeaderMap) -> Kind {
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let starts = |with: &str| content_type.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()));
    if starts("text/event-stream") {
        Kind::Events
    } else if starts("application/json") {
        Kind::Json
    } else {
        Kind::Other
    }
}
