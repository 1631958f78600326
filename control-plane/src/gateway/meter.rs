//! Measures one request and hands the result to the recorder when it ends, however it ends.
//!
//! It travels with the request, at last in the body of its reply, and its drop is the end: every way out is counted, once,
//! and charged to the key in that one place. It shows the status that was sent, not the one that would have been. It never
//! waits, and it never sees a prompt or a reply.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use lifeboat_engines::dialect::{ErrorCode, Usage};
use tokio::time::Instant;

use super::active::{Active, ActiveRequests, Entry, Phase};
use super::charge::Charge;
use super::error::Failure;
use super::permit::Permit;
use crate::host::clock;
use crate::key_limits::Priority;
use crate::keys::{Principal, Running};
use crate::recorder::{CLIENT_LEFT, Recorder, UsageEvent};
use crate::route_trace::{RouteTrace, TraceParent};

/// One request under measurement. Its drop is the end of the request.
#[derive(Debug)]
pub(super) struct Meter {
    recorder: Arc<Recorder>,
    arrived: Instant,
    span: tracing::Span,
    event: Option<UsageEvent>,
    /// Counts the request as one of its key's until its end.
    running: Option<Running>,
    /// What it costs that key.
    charge: Charge,
    /// Shows it among those under way until its end.
    entry: Entry,
}

impl Meter {
    /// Starts with the arrival. Until told otherwise, the client is the one who left.
    pub(super) fn start(recorder: Arc<Recorder>, active: &Arc<ActiveRequests>, endpoint: &'static str, request_id: String) -> Self {
        let span = tracing::debug_span!("request", request.id = %request_id, route = endpoint);
        let (at, arrived) = (clock::unix_millis(), Instant::now());
        let entry = active.enter(request_id.clone(), endpoint, at, arrived);
        let event = UsageEvent {
            at,
            request_id,
            row: None,
            model: None,
            endpoint: endpoint.into(),
            status: CLIENT_LEFT,
            error: None,
            streamed: false,
            retries: 0,
            queue_wait: None,
            first_byte: None,
            total: std::time::Duration::ZERO,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            key_id: None,
            key: None,
            priority: Priority::default(),
            route: None,
            parent: None,
        };
        Self { recorder, arrived, span, event: Some(event), running: None, charge: Charge::default(), entry }
    }

    /// Where it belongs in its client's trace.
    pub(super) fn belongs_to(&mut self, headers: &HeaderMap) {
        let parent = headers.get("traceparent").and_then(|value| TraceParent::read(value.to_str().ok()?));
        self.set(|event, _| event.parent = parent);
    }

    /// When the request arrived.
    pub(super) const fn arrived(&self) -> Instant {
        self.arrived
    }

    /// The id of the request.
    pub(super) fn request_id(&self) -> &str {
        self.event.as_ref().map_or("", |event| &event.request_id)
    }

    /// The span of everything that happens for this request; ends with the reply. At `debug`, because a span that is
    /// written costs as much as the rest of the request together.
    pub(super) const fn span(&self) -> &tracing::Span {
        &self.span
    }

    fn set(&mut self, set: impl FnOnce(&mut UsageEvent, Instant)) {
        if let Some(event) = &mut self.event {
            set(event, self.arrived);
        }
    }

    /// Whose request it is, and in which band.
    pub(super) fn called_by(&mut self, running: Running, priority: Priority) {
        let (key_id, key) = (running.caller().key_id(), running.caller().key_name());
        self.running = Some(running);
        self.entry.update(|progress| {
            progress.key_id = key_id;
            progress.key.clone_from(&key);
            progress.priority = priority;
        });
        self.set(|event, _| {
            event.key_id = key_id;
            event.key = key;
            event.priority = priority;
        });
    }

    /// Who asked, once that is known.
    pub(super) fn caller(&self) -> Option<&Principal> {
        self.running.as_ref().map(Running::caller)
    }

    /// What is asked for. Only names of ours may be given here: they become labels.
    pub(super) fn asked(&mut self, model: &str, streamed: bool) {
        self.entry.update(|progress| {
            progress.phase = Phase::Queued;
            progress.model = Some(model.to_owned());
            progress.streamed = streamed;
        });
        self.set(|event, _| {
            event.model = Some(model.to_owned());
            event.streamed = streamed;
        });
    }

    /// Bytes of its prompt, and whether the reply is text made of it.
    pub(super) const fn asks(&mut self, prompt_bytes: u64, generates: bool) {
        self.charge.asks(prompt_bytes, generates);
    }

    /// A slot was got.
    pub(super) fn admitted(&mut self, permit: &Permit) {
        self.charge.on_engine(permit.endpoint.context);
        self.set(|event, arrived| {
            event.row = Some(permit.row.id);
            if event.model.as_ref() != Some(&permit.row.model_name) {
                event.model = Some(permit.row.model_name.clone());
            }
            event.queue_wait.get_or_insert_with(|| arrived.elapsed());
        });
    }

    /// Why it is on this row. The last decision counts.
    pub(super) fn routed(&mut self, trace: RouteTrace) {
        self.entry.update(|progress| {
            progress.phase = Phase::Prefill;
            progress.row = Some(trace.row);
            progress.slot = trace.slot;
        });
        self.charge.finds(trace.predicted_cached_tokens);
        self.set(|event, _| event.route = Some(trace));
    }

    /// Another row goes on with its reply.
    pub(super) fn resumed(&mut self, permit: &Permit) {
        self.entry.update(|progress| {
            progress.row = Some(permit.row.id);
            progress.slot = permit.placement.slot;
        });
        self.set(|event, _| {
            event.row = Some(permit.row.id);
            if let Some(route) = &mut event.route {
                route.row = permit.row.id;
                route.slot = permit.placement.slot;
                route.resumed += 1;
            }
        });
    }

    /// The value of `x-lifeboat-route`; `ended` = what the engine used is known.
    pub(super) fn route_header(&self, ended: bool) -> Option<HeaderValue> {
        let event = self.event.as_ref()?;
        let cached = (ended && event.prompt_tokens > 0).then_some(event.cached_tokens);
        HeaderValue::try_from(event.route.as_ref()?.header(cached, event.queue_wait, event.retries)).ok()
    }

    /// The request among those under way.
    pub(super) const fn active(&self) -> &Arc<Active> {
        self.entry.active()
    }

    /// A piece of the reply is passed on.
    pub(super) fn piece(&self) {
        self.entry.piece();
    }

    /// An attempt failed and another one follows.
    pub(super) fn retried(&mut self) {
        self.charge.back_in_line();
        self.entry.update(|progress| {
            progress.phase = Phase::Queued;
            progress.retries += 1;
        });
        self.set(|event, _| event.retries += 1);
    }

    /// An attempt failed and none follows, because too many of its pool were tried again already.
    pub(super) fn retry_refused(&mut self) {
        self.set(|event, _| {
            if let Some(route) = &mut event.route {
                route.retry_refused = true;
            }
        });
    }

    /// The first byte of the reply is here.
    pub(super) fn first_byte(&mut self) {
        self.entry.update(|progress| progress.phase = Phase::Decoding);
        self.set(|event, arrived| event.first_byte = Some(arrived.elapsed()));
    }

    /// The engine says what it used.
    pub(super) fn used(&mut self, usage: Usage) {
        self.charge.told(usage);
        self.set(|event, _| {
            event.prompt_tokens = usage.prompt_tokens;
            event.cached_tokens = usage.cached_tokens;
            event.completion_tokens = usage.completion_tokens;
        });
    }

    /// What was passed on of a stream, in events that hold a piece of the reply.
    pub(super) const fn passed_events(&mut self, events: u64, whole: bool) {
        self.charge.passed_events(events, whole);
    }

    /// What was passed on of a reply that is no stream.
    pub(super) const fn passed_bytes(&mut self, bytes: u64, whole: bool) {
        self.charge.passed_bytes(bytes, whole);
    }

    /// The reply was sent in full.
    pub(super) fn done(&mut self, status: u16) {
        self.set(|event, _| event.status = status);
    }

    /// It ended with an error.
    pub(super) fn failed(&mut self, status: u16, failure: &Failure) {
        self.charge.failed();
        let status = self.sent(status);
        self.set(|event, _| {
            event.status = status;
            event.error = Some(failure.code().to_owned());
        });
    }

    /// The status the client has: where comments came first, it is that of the stream they are in.
    fn sent(&self, status: u16) -> u16 {
        if self.entry.active().has_begun() { StatusCode::OK.as_u16() } else { status }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(mut event) = self.event.take() else { return };
        event.total = self.arrived.elapsed();
        if let Some(running) = &mut self.running {
            running.used(self.charge.tokens());
        }
        if event.status == CLIENT_LEFT && self.entry.active().is_cancelled() {
            // Dropped in the middle of its wait, without a word to this measurement.
            event.status = self.sent(ErrorCode::Cancelled.status());
            event.error = Some(ErrorCode::Cancelled.as_str().to_owned());
        }
        tracing::debug!(parent: &self.span, status = event.status, total_ms = event.total.as_millis(), "request ended");
        self.recorder.record(event);
    }
}
