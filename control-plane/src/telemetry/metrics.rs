//! The numbers of `/metrics`.
//!
//! Counters and histograms are fed by the recorder, off the hot path; what can be read from the registry (states,
//! slots, restarts) is read at the scrape, so it can never disagree with what the gateway uses. Labels hold public
//! model names of rows, route paths and status codes only: nothing a caller can invent.

mod rows;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Families;

use crate::recorder::UsageEvent;
use crate::registry::Registry;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The model label of requests that name no model of ours.
const NO_MODEL: &str = "";

/// Upper edges in seconds of the buckets for waits and first tokens: 5 ms to 11 minutes.
const WAIT_BUCKETS: [f64; 14] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 660.0];

/// Upper edges in seconds of the buckets for the time between two tokens: 1 ms to 5 s.
const TOKEN_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: String,
    endpoint: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

type ModelHistogram = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// Every metric of one process.
pub struct Metrics {
    families: Families,
    requests: Family<RequestLabels, Counter>,
    prompt_tokens: Family<ModelLabels, Counter>,
    cached_tokens: Family<ModelLabels, Counter>,
    completion_tokens: Family<ModelLabels, Counter>,
    first_token: ModelHistogram,
    queue_wait: ModelHistogram,
    between_tokens: ModelHistogram,
    retries: Family<ModelLabels, Counter>,
    queue_length: Family<ModelLabels, Gauge>,
    held_bytes: Gauge,
    events_lost: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn wait_histogram() -> Histogram {
    Histogram::new(WAIT_BUCKETS)
}

fn token_histogram() -> Histogram {
    Histogram::new(TOKEN_BUCKETS)
}

impl Metrics {
    /// Registers every family; rows are read from `registry` at each scrape.
    pub fn new(registry: Arc<Registry>) -> Self {
        let mut families = Families::with_prefix("lifeboat");
        let metrics = Self {
            requests: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            completion_tokens: Family::default(),
            first_token: Family::new_with_constructor(wait_histogram),
            queue_wait: Family::new_with_constructor(wait_histogram),
            between_tokens: Family::new_with_constructor(token_histogram),
            retries: Family::default(),
            queue_length: Family::default(),
            held_bytes: Gauge::default(),
            events_lost: Counter::default(),
            families: Families::default(),
        };
        families.register("requests", "Requests by model, route and status sent (499 = the client left first)", metrics.requests.clone());
        families.register("prompt_tokens", "Prompt tokens, cached ones included", metrics.prompt_tokens.clone());
        families.register("cached_prompt_tokens", "Prompt tokens that came from the engine's cache", metrics.cached_tokens.clone());
        families.register("completion_tokens", "Tokens generated", metrics.completion_tokens.clone());
        families.register(
            "time_to_first_token_seconds",
            "From the request's arrival to the first byte of its reply",
            metrics.first_token.clone(),
        );
        families.register("queue_wait_seconds", "From the request's arrival to its slot", metrics.queue_wait.clone());
        families.register("inter_token_seconds", "Mean time between two tokens of one streamed reply", metrics.between_tokens.clone());
        families.register("retries", "Attempts repeated because an engine failed before its first byte", metrics.retries.clone());
        families.register("queue_length", "Requests waiting for a slot", metrics.queue_length.clone());
        families.register("held_request_bytes", "Bytes of request bodies held", metrics.held_bytes.clone());
        families.register("usage_events_lost", "Usage events dropped because the recorder was behind", metrics.events_lost.clone());
        families.register_collector(Box::new(rows::Rows::new(registry)));
        Self { families, ..metrics }
    }

    /// All metrics as `OpenMetrics` text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.families)?;
        Ok(text)
    }

    /// Counts one finished request.
    pub fn observe(&self, event: &UsageEvent) {
        let model = event.model.as_deref().unwrap_or(NO_MODEL).to_owned();
        self.requests.get_or_create(&RequestLabels { model: model.clone(), endpoint: event.endpoint, status: event.status }).inc();
        let Some(model) = event.model.as_ref().map(|_| ModelLabels { model }) else { return };
        self.prompt_tokens.get_or_create(&model).inc_by(event.prompt_tokens);
        self.cached_tokens.get_or_create(&model).inc_by(event.cached_tokens);
        self.completion_tokens.get_or_create(&model).inc_by(event.completion_tokens);
        if event.retries > 0 {
            self.retries.get_or_create(&model).inc_by(u64::from(event.retries));
        }
        if let Some(wait) = event.queue_wait {
            self.queue_wait.get_or_create(&model).observe(wait.as_secs_f64());
        }
        if let Some(first) = event.first_byte {
            self.first_token.get_or_create(&model).observe(first.as_secs_f64());
            if event.streamed && event.completion_tokens > 1 {
                let decoding = event.total.saturating_sub(first).as_secs_f64();
                self.between_tokens.get_or_create(&model).observe(decoding / (event.completion_tokens - 1) as f64);
            }
        }
    }

    /// Sets how many requests wait for a model.
    pub fn set_queue_length(&self, model: &str, waiting: usize) {
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        self.queue_length.get_or_create(&ModelLabels { model: model.to_owned() }).set(waiting);
    }

    /// Sets how many bytes of request bodies are held.
    pub fn set_held_bytes(&self, bytes: usize) {
        self.held_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts one usage event that was dropped.
    pub fn event_lost(&self) {
        self.events_lost.inc();
    }
}
