//! The numbers of `/metrics`.
//!
//! Counters and histograms are fed by the recorder, off the hot path; what can be read from the registry (states,
//! slots, restarts) is read at the scrape, so it can never disagree with what the gateway uses. Labels hold public
//! model names and ids of rows, names of keys, route paths and codes only: nothing a caller can invent.

mod requests;
mod rows;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Families;

use crate::recorder::UsageEvent;
use crate::registry::Registry;

use self::requests::Requests;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

/// Every metric of one process.
pub struct Metrics {
    families: Families,
    requests: Requests,
    queue_length: Family<ModelLabels, Gauge>,
    held_bytes: Gauge,
    events_lost: Counter,
    traces_lost: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers every family; rows are read from `registry` at each scrape.
    pub fn new(registry: Arc<Registry>) -> Self {
        let mut families = Families::with_prefix("lifeboat");
        let requests = Requests::register(&mut families);
        let (queue_length, held_bytes) = (Family::default(), Gauge::default());
        let (events_lost, traces_lost) = (Counter::default(), Counter::default());
        families.register("queue_length", "Requests waiting for a slot", queue_length.clone());
        families.register("held_request_bytes", "Bytes of request bodies held", held_bytes.clone());
        families.register("usage_events_lost", "Usage events that were not counted or not written to the log", events_lost.clone());
        families.register("traces_lost", "Requests whose trace the collector did not take", traces_lost.clone());
        families.register_collector(Box::new(rows::Rows::new(registry)));
        Self { families, requests, queue_length, held_bytes, events_lost, traces_lost }
    }

    /// All metrics as `OpenMetrics` text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.families)?;
        Ok(text)
    }

    /// Counts one finished request.
    pub fn observe(&self, event: &UsageEvent) {
        self.requests.observe(event);
    }

    /// Sets how many requests wait for a model.
    pub fn set_queue_length(&self, model: &str, waiting: usize) {
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        self.queue_length.get_or_create(&ModelLabels { model: model.to_owned() }).set(waiting);
    }

    /// Shows the queue of a model no more: nothing has that name.
    pub fn drop_queue_length(&self, model: &str) {
        self.queue_length.remove(&ModelLabels { model: model.to_owned() });
    }

    /// So many more bytes of request bodies are held.
    pub fn hold_bytes(&self, bytes: usize) {
        self.held_bytes.inc_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// So many fewer are.
    pub fn release_bytes(&self, bytes: usize) {
        self.held_bytes.dec_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts requests whose trace was dropped.
    pub fn traces_lost(&self, count: u64) {
        self.traces_lost.inc_by(count);
    }

    /// Counts usage events that were dropped.
    pub fn events_lost(&self, count: u64) {
        self.events_lost.inc_by(count);
    }
}
