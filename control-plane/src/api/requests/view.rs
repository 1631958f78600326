//! How a request is shown, whether it is under way or in the log.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::gateway::active::{Active, Phase};
use crate::host::clock::rfc3339;
use crate::ids::RowId;
use crate::key_limits::Priority;
use crate::recorder::UsageEvent;
use crate::route_trace::RouteTrace;

/// One request of the data plane. Never what it said.
#[derive(Debug, Serialize, ToSchema)]
pub struct Request {
    /// The id every reply carries in `x-request-id`. A client may use one twice.
    pub request_id: String,
    /// How far it is.
    pub phase: Phase,
    /// Time in this phase, milliseconds, where it is under way.
    pub phase_ms: Option<f64>,
    /// Its arrival, RFC 3339.
    #[schema(format = DateTime)]
    pub at: String,
    /// Route, for example `/v1/chat/completions`.
    pub endpoint: String,
    /// Public name of the model; `null` = it named none of ours, or its body is not here yet.
    pub model: Option<String>,
    /// Id of the API key, where one was needed.
    #[schema(value_type = Option<String>)]
    pub key_id: Option<Uuid>,
    /// Name of that key when the request arrived.
    #[schema(value_type = Option<String>)]
    pub key: Option<Arc<str>>,
    /// Band it waited in.
    pub priority: Priority,
    /// Whether the client asked for a stream.
    pub streamed: bool,
    /// Status sent, where it has ended; 499 = the client left first. A stream that broke half way keeps its 200.
    pub status: Option<u16>,
    /// Code of the error, where there was one.
    pub error: Option<String>,
    /// Row that answers, where one does.
    #[schema(value_type = Option<String>)]
    pub row: Option<RowId>,
    /// Slot it is on, where the router steers slots.
    pub slot: Option<u32>,
    /// Attempts repeated because an engine failed before its first byte.
    pub retries: u32,
    /// Time to the slot, milliseconds.
    pub queue_wait_ms: Option<f64>,
    /// Time to the first byte of the reply, milliseconds.
    pub first_byte_ms: Option<f64>,
    /// Time to the last byte, or until now, milliseconds.
    pub total_ms: f64,
    /// Pieces of the reply so far, where it is under way; of a stream about one a token.
    pub pieces: Option<u64>,
    /// Prompt tokens, cached ones included; `null` = under way, 0 = the engine did not say.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub completion_tokens: Option<u64>,
    /// Why the row was chosen, where it has ended and one was.
    pub route: Option<RouteTrace>,
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

impl From<UsageEvent> for Request {
    fn from(event: UsageEvent) -> Self {
        Self {
            request_id: event.request_id,
            phase: Phase::Done,
            phase_ms: None,
            at: rfc3339(event.at),
            endpoint: event.endpoint.into_owned(),
            model: event.model,
            key_id: event.key_id,
            key: event.key,
            priority: event.priority,
            streamed: event.streamed,
            status: Some(event.status),
            error: event.error,
            row: event.row,
            slot: event.route.as_ref().and_then(|route| route.slot),
            retries: event.retries,
            queue_wait_ms: event.queue_wait.map(millis),
            first_byte_ms: event.first_byte.map(millis),
            total_ms: millis(event.total),
            pieces: None,
            prompt_tokens: Some(event.prompt_tokens),
            cached_tokens: Some(event.cached_tokens),
            completion_tokens: Some(event.completion_tokens),
            route: event.route,
        }
    }
}

impl From<&Active> for Request {
    fn from(active: &Active) -> Self {
        let (progress, since) = active.progress();
        Self {
            request_id: active.request_id.clone(),
            phase: progress.phase,
            phase_ms: Some(millis(since)),
            at: rfc3339(active.at),
            endpoint: active.endpoint.to_owned(),
            model: progress.model,
            key_id: progress.key_id,
            key: progress.key,
            priority: progress.priority,
            streamed: progress.streamed,
            status: None,
            error: None,
            row: progress.row,
            slot: progress.slot,
            retries: progress.retries,
            queue_wait_ms: None,
            first_byte_ms: None,
            total_ms: millis(active.age()),
            pieces: Some(active.pieces()),
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            route: None,
        }
    }
}
