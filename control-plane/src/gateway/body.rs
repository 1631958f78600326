//! The body of a reply: it owns the slot, the measurement and the upstream call, and gives all up with its end or drop.
//!
//! Pieces pass as they came. A copy is read along for the usage and the proper end, so that a stream that breaks off is
//! ended by an error in the client's dialect and never looks whole. For a piece that only passes nothing here may allocate:
//! that is for streams told in another dialect or under another model name, and for text kept to go on with it elsewhere.

mod opening;
mod rename;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use lifeboat_engines::dialect::resume::Stitch;
use lifeboat_engines::dialect::{BodyReader, Dialect, FromChat, StreamReader, Usage};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use self::rename::Rename;
pub(super) use self::rename::{encode, rename_document};
use super::error::Failure;
use super::heartbeat::COMMENT;
use super::meter::Meter;
use super::permit::Permit;
use super::proxy::{Fault, Rest};
use super::resume::{Attempt, Resume, Resumed, Step};

/// How long the rest of a reply may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Between two pieces.
    pub between: Duration,
    /// End of the request, whatever happens.
    pub until: Instant,
    /// The same as a length, for the message.
    pub total: Duration,
}

/// What is done with a stream of events on its way.
#[derive(Debug)]
struct Events {
    reader: StreamReader,
    rename: Rename,
    /// Its streams say that they are complete.
    says_end: bool,
    /// What was passed on ends with a whole frame.
    at_edge: bool,
    /// The client speaks another dialect than the engine.
    translation: Option<FromChat>,
    /// What comes is the rest of a reply that another engine began.
    stitch: Option<Stitch>,
}

impl Events {
    /// The reply is whole.
    fn is_finished(&self) -> bool {
        self.translation.as_ref().map_or_else(|| self.reader.is_finished(), FromChat::is_finished)
    }
}

/// A reply on its way to the client.
#[derive(Debug)]
pub(super) struct ReplyBody {
    // The upstream call goes first when this is dropped, the slot last.
    upstream: Option<Rest>,
    first: Option<Bytes>,
    last_words: Option<Bytes>,
    events: Option<Events>,
    /// Looks for the usage in a document that was not held back.
    along: Option<BodyReader>,
    /// Bytes passed on of what is no stream of events.
    passed: u64,
    dialect: Dialect,
    status: u16,
    limits: Limits,
    last_piece: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    meter: Meter,
    /// How to go on if the engine fails.
    resume: Option<Box<Resume>>,
    /// The way to an engine that goes on.
    attempt: Option<(Attempt, Failure)>,
    /// None while one is looked for.
    permit: Option<Permit>,
}

/// What a reply's body is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub first: Bytes,
    pub rest: Option<Rest>,
    pub dialect: Dialect,
    pub status: u16,
    pub limits: Limits,
    pub meter: Meter,
    pub permit: Permit,
    pub resume: Option<Resume>,
}

impl ReplyBody {
    /// A reply that is no stream of events. `used` = what it says its engine used, `along` = looks for it on the way.
    pub(super) fn plain(mut parts: Parts, used: Option<Usage>, along: Option<BodyReader>) -> Self {
        if let Some(used) = used {
            parts.meter.used(used);
            parts.permit.used(&used);
        }
        let mut body = Self::new(parts, None);
        body.along = along;
        if body.is_end_stream() {
            body.done();
        }
        body
    }

    /// A stream of events, in which the engine's model name becomes `asked`.
    pub(super) fn events(mut parts: Parts, asked: String, says_end: bool) -> Self {
        if let Some(opening) = opening::missing(parts.dialect, &parts.first, parts.meter.request_id(), &asked) {
            parts.first = join(opening, &parts.first);
        }
        let reader = reader(&parts);
        let events = Events { reader, rename: Rename::new(asked), says_end, at_edge: true, translation: None, stitch: None };
        Self::new(parts, Some(events))
    }

    /// A stream of a chat's events that reaches the client in its own dialect.
    pub(super) fn translated(parts: Parts, translation: FromChat) -> Self {
        let (reader, rename) = (reader(&parts), Rename::new(String::new()));
        let events = Events { reader, rename, says_end: true, at_edge: true, translation: Some(translation), stitch: None };
        Self::new(parts, Some(events))
    }

    fn new(parts: Parts, events: Option<Events>) -> Self {
        Self {
            upstream: parts.rest,
            first: Some(parts.first).filter(|first| !first.is_empty()),
            last_words: None,
            events,
            along: None,
            passed: 0,
            dialect: parts.dialect,
            status: parts.status,
            limits: parts.limits,
            last_piece: Instant::now(),
            timer: None,
            ended: None,
            meter: parts.meter,
            resume: parts.resume.map(Box::new),
            attempt: None,
            permit: Some(parts.permit),
        }
    }

    /// Why it comes from this row, as a header.
    pub(super) fn route(&self) -> Option<HeaderValue> {
        self.meter.route_header(self.events.is_none())
    }

    /// Reads a piece along and gives it the right name. Empty = held back.
    fn pass(&mut self, piece: Bytes) -> Bytes {
        self.meter.piece();
        let Some(events) = &mut self.events else {
            self.passed += piece.len() as u64;
            if let Some(along) = &mut self.along {
                along.push(&piece);
            }
            return piece;
        };
        let piece = match &mut events.stitch {
            None => piece,
            Some(stitch) => {
                let mut out = Vec::new();
                stitch.push(&piece, &mut out);
                out.into()
            }
        };
        events.reader.push(&piece);
        if let Some(translation) = &mut events.translation {
            let mut out = Vec::new();
            translation.push(&piece, &mut out);
            return out.into();
        }
        let piece = events.rename.pass(piece);
        if !piece.is_empty() {
            events.at_edge = piece.ends_with(b"\n\n");
        }
        piece
    }

    /// The reply is whole.
    fn done(&mut self) {
        self.meter.done(self.status);
        if let Some(permit) = &mut self.permit {
            permit.done();
        }
    }

    /// The engine closed its reply in order.
    fn close(&mut self) {
        self.upstream = None;
        let Some(events) = &mut self.events else { return self.done() };
        if let Some(translation) = &mut events.translation {
            let mut out = Vec::new();
            translation.close(&mut out);
            if let Some(error) = translation.error() {
                self.meter.failed(self.status, &Failure::from(error.clone()));
            } else if translation.is_finished() {
                self.done();
            } else {
                return self.torn();
            }
            self.last_words = Some(out.into());
            return;
        }
        let held = events.rename.close();
        if let Some(error) = events.reader.error() {
            let failure = Failure::from(error.clone());
            self.meter.failed(self.status, &failure);
            // llama-server's own event has OpenAI's shape whatever the route.
            self.last_words = Some(if self.dialect == Dialect::Anthropic { join(held, &failure.event(self.dialect)) } else { held });
        } else if events.reader.is_finished() || !events.says_end {
            self.last_words = Some(held);
            self.done();
        } else {
            // A frame without its end is worth nothing: the error takes its place.
            self.torn();
        }
    }

    fn torn(&mut self) {
        // In a stream of events this is an event.
        let _told = self.cut(&Fault::Torn(String::new()));
    }

    /// The reply cannot go on.
    fn cut(&mut self, fault: &Fault) -> Result<(), io::Error> {
        self.upstream = None;
        if self.events.as_ref().is_some_and(Events::is_finished) {
            self.done();
            return Ok(());
        }
        let Some(mut permit) = self.permit.take() else { return Ok(()) };
        let failure = Failure::fault(fault, &permit.endpoint);
        permit.failed(fault);
        if let Some(events) = &mut self.events {
            let resume = self.resume.take().filter(|_| events.at_edge);
            match resume.and_then(|resume| resume.attempt(fault, &permit.endpoint, events.reader.transcript())) {
                Some(attempt) => self.attempt = Some((attempt, failure)),
                None => self.say(&failure),
            }
            return Ok(());
        }
        self.meter.failed(self.status, &failure);
        // The connection is broken off, so that what was sent cannot pass for a whole reply.
        Err(io::Error::other("the engine's reply broke off"))
    }

    /// Another engine goes on.
    fn go_on(&mut self, resumed: Resumed) {
        let Resumed { permit, reply, stitch, resume } = resumed;
        tracing::info!(request.id = self.meter.request_id(), server.id = %permit.row.id, "a broken stream goes on from another row");
        self.meter.resumed(&permit);
        if let Some(events) = &mut self.events {
            events.reader.cut();
            events.rename = Rename::new(resume.name().to_owned());
            if let Some(translation) = &mut events.translation {
                translation.cut();
            }
            events.stitch = Some(stitch);
        }
        self.first = Some(reply.first).filter(|first| !first.is_empty());
        self.upstream = reply.rest;
        self.permit = Some(permit);
        self.resume = Some(Box::new(resume));
        (self.ended, self.timer, self.last_piece) = (None, None, Instant::now());
    }

    fn say(&mut self, failure: &Failure) {
        self.meter.failed(self.status, failure);
        if let Some(translation) = self.events.as_mut().and_then(|events| events.translation.as_mut()) {
            let mut out = Vec::new();
            translation.fail(failure.error(), &mut out);
            self.last_words = Some(out.into());
            return;
        }
        let event = failure.event(self.dialect);
        let at_edge = self.events.as_ref().is_none_or(|events| events.at_edge);
        self.last_words = Some(if at_edge { event } else { join(Bytes::from_static(b"\n\n"), &event) });
    }

    /// Why the reply ends though more of it is here. A client that reads slowly always finds more, so this cannot be left to
    /// the moments in which there is nothing.
    fn overdue(&self) -> Option<Fault> {
        if self.meter.active().is_cancelled() {
            return Some(Fault::Cancelled);
        }
        if self.permit.as_ref().is_some_and(|permit| permit.endpoint.ended.is_cancelled()) {
            return Some(Fault::Ended);
        }
        (self.last_piece >= self.limits.until).then(|| Fault::TooLong(self.limits.total))
    }

    /// Ready once the reply has taken too long or its engine is being ended.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        if let Some(permit) = &self.permit {
            // A child of its own: all replies of an engine would meet at one lock otherwise.
            let ended = self.ended.get_or_insert_with(|| Box::pin(permit.endpoint.ended.child_token().cancelled_owned()));
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Fault::Ended);
            }
        }
        if self.meter.active().poll_cancelled(cx).is_ready() {
            return Poll::Ready(Fault::Cancelled);
        }
        loop {
            // The timer is moved only when it fires, not with every piece.
            let due = (self.last_piece + self.limits.between).min(self.limits.until);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if now >= self.limits.until {
                return Poll::Ready(Fault::TooLong(self.limits.total));
            }
            if now >= due {
                return Poll::Ready(Fault::Silent(self.limits.between));
            }
            timer.as_mut().reset(due);
        }
    }
}

/// Reads a stream along, and keeps its text where another engine could go on with it.
fn reader(parts: &Parts) -> StreamReader {
    let mut reader = StreamReader::default();
    if let Some(resume) = &parts.resume {
        let (generation, limit) = resume.kept();
        reader.keep_text(generation, limit);
    }
    reader
}

fn join(first: Bytes, second: &[u8]) -> Bytes {
    let mut joined = BytesMut::from(first);
    joined.extend_from_slice(second);
    joined.freeze()
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        loop {
            let piece = if let Some(first) = this.first.take() {
                if this.upstream.is_none() {
                    this.done();
                }
                this.pass(first)
            } else if let Some(upstream) = &mut this.upstream {
                match upstream.poll_piece(cx) {
                    Poll::Ready(Some(Ok(piece))) => {
                        this.last_piece = Instant::now();
                        if let Some(fault) = this.overdue() {
                            if let Err(error) = this.cut(&fault) {
                                return Poll::Ready(Some(Err(error)));
                            }
                            continue;
                        }
                        if let Some(permit) = &this.permit {
                            permit.endpoint.load.moved();
                        }
                        this.pass(piece)
                    }
                    Poll::Ready(None) => {
                        this.close();
                        continue;
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::warn!(request.id = this.meter.request_id(), server.id = ?this.permit.as_ref().map(|permit| permit.row.id), error = %crate::causes::chain(&error), "an engine's reply broke off");
                        if let Err(error) = this.cut(&Fault::Torn(String::new())) {
                            return Poll::Ready(Some(Err(error)));
                        }
                        continue;
                    }
                    Poll::Pending => {
                        let fault = ready!(this.poll_patience(cx));
                        if let Err(error) = this.cut(&fault) {
                            return Poll::Ready(Some(Err(error)));
                        }
                        continue;
                    }
                }
            } else if let Some((mut attempt, failure)) = this.attempt.take() {
                let Poll::Ready(step) = attempt.poll(cx) else {
                    this.attempt = Some((attempt, failure));
                    ready!(this.meter.active().poll_cancelled(cx));
                    this.attempt = None;
                    this.say(&Failure::cancelled());
                    continue;
                };
                match step {
                    Step::Resumed(resumed) => this.go_on(*resumed),
                    Step::Over => this.say(&failure),
                    Step::Waits => {
                        this.attempt = Some((attempt, failure));
                        // Ollama's lines have no room for company.
                        if this.dialect != Dialect::Ollama {
                            return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
                        }
                    }
                }
                continue;
            } else {
                let Some(words) = this.last_words.take() else { return Poll::Ready(None) };
                words
            };
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.upstream.is_none() && self.attempt.is_none() && self.last_words.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.upstream {
            None if self.events.is_none() => SizeHint::with_exact(self.first.as_ref().map_or(0, Bytes::len) as u64),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        let used = match &self.events {
            Some(events) => events.reader.usage(),
            None => self.along.as_ref().and_then(BodyReader::usage),
        };
        if let Some(used) = used {
            self.meter.used(used);
            if let Some(permit) = &mut self.permit {
                permit.used(&used);
            }
        }
        match &self.events {
            None => self.meter.passed_bytes(self.passed, self.upstream.is_none()),
            Some(events) => {
                self.meter.passed_events(events.reader.outputs(), events.reader.is_finished());
                // Clients often leave at `[DONE]`, before the connection's own end.
                if self.upstream.is_some() && events.is_finished() {
                    self.done();
                }
            }
        }
    }
}
