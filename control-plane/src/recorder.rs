//! Takes one usage event per finished request from the gateway, off the hot path.
//!
//! The channel is bounded and [`Recorder::record`] never waits: where the recorder is behind, an event is dropped and
//! counted, because accounting must not slow down or fail a reply. One task takes events in batches, feeds the metrics
//! and keeps the last ones in memory for the console. It never sees a prompt or a key, only a key's id.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::RowId;
use crate::keys::Priority;
use crate::route_trace::RouteTrace;
use crate::telemetry::metrics::Metrics;

/// Events that may wait for the recorder.
const CHANNEL: usize = 4096;
/// Events taken at once.
const BATCH: usize = 256;
/// Pause between two batches: waking a task for every request would cost more than the rest of its accounting.
const PAUSE: Duration = Duration::from_millis(50);
/// The status of a request whose client left before the reply was done.
pub const CLIENT_LEFT: u16 = 499;

/// One finished request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageEvent {
    /// Unix time of the arrival, milliseconds.
    pub at: i64,
    /// The id every reply carries in `x-request-id`.
    pub request_id: String,
    /// Row that answered, where one did.
    #[schema(value_type = Option<String>)]
    pub row: Option<RowId>,
    /// Public name of the model; `None` = the request named none of ours.
    pub model: Option<String>,
    /// Route, for example `/v1/chat/completions`.
    pub endpoint: &'static str,
    /// Status sent; 499 = the client left first. A stream that broke half way keeps its 200 and sets `error`.
    pub status: u16,
    /// Code of the error, where there was one.
    pub error: Option<String>,
    /// Whether the client asked for a stream.
    pub streamed: bool,
    /// Attempts repeated because an engine failed before its first byte.
    pub retries: u32,
    /// Time to the slot.
    #[serde(rename = "queue_wait_ms", serialize_with = "millis")]
    #[schema(value_type = Option<f64>)]
    pub queue_wait: Option<Duration>,
    /// Time to the first byte of the reply.
    #[serde(rename = "first_byte_ms", serialize_with = "millis")]
    #[schema(value_type = Option<f64>)]
    pub first_byte: Option<Duration>,
    /// Time to the last byte.
    #[serde(rename = "total_ms", serialize_with = "total_millis")]
    #[schema(value_type = f64)]
    pub total: Duration,
    /// Prompt tokens, cached ones included; 0 = the engine did not say.
    pub prompt_tokens: u64,
    /// Prompt tokens from the engine's cache.
    pub cached_tokens: u64,
    /// Tokens generated; 0 = the engine did not say.
    pub completion_tokens: u64,
    /// Id of the API key, where one was needed.
    #[schema(value_type = Option<String>)]
    pub key_id: Option<Uuid>,
    /// Name of that key when the request arrived.
    #[schema(value_type = Option<String>)]
    pub key: Option<Arc<str>>,
    /// Band it waited in.
    pub priority: Priority,
    /// Why the row was chosen, where one was.
    pub route: Option<RouteTrace>,
}

#[expect(clippy::ref_option, reason = "serde hands the field over by reference")]
fn millis<S: serde::Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    value.map(|duration| duration.as_secs_f64() * 1000.0).serialize(serializer)
}

fn total_millis<S: serde::Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.as_secs_f64() * 1000.0)
}

/// A handle on the recorder's task.
#[derive(Debug)]
pub struct Recorder {
    events: mpsc::Sender<UsageEvent>,
    recent: Mutex<VecDeque<Arc<UsageEvent>>>,
    keep: usize,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// Starts the task on `tracker`; it ends with `token`, after the events that are there by then. `keep` is the number
    /// of finished requests held in memory.
    pub fn start(metrics: Arc<Metrics>, keep: usize, tracker: &TaskTracker, token: CancellationToken) -> Arc<Self> {
        let (events, inbox) = mpsc::channel(CHANNEL);
        let recorder = Arc::new(Self { events, recent: Mutex::default(), keep, metrics });
        tracker.spawn(Arc::clone(&recorder).run(inbox, token));
        recorder
    }

    /// Takes one event. Never waits.
    pub fn record(&self, event: UsageEvent) {
        if self.events.try_send(event).is_err() {
            self.metrics.event_lost();
        }
    }

    /// The last finished requests, newest first.
    pub fn recent(&self, limit: usize) -> Vec<Arc<UsageEvent>> {
        self.recent.lock().iter().rev().take(limit).cloned().collect()
    }

    async fn run(self: Arc<Self>, mut inbox: mpsc::Receiver<UsageEvent>, token: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                count = inbox.recv_many(&mut batch, BATCH) => if count == 0 { return },
                () = token.cancelled() => return,
            }
            let more_are_waiting = batch.len() == BATCH;
            self.take(&mut batch);
            if !more_are_waiting {
                // The stop does not wait for the pause, nor lose what came during it.
                _ = token.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
        }
    }

    fn take(&self, batch: &mut Vec<UsageEvent>) {
        let mut recent = self.recent.lock();
        for event in batch.drain(..) {
            self.metrics.observe(&event);
            while recent.len() >= self.keep.max(1) {
                recent.pop_front();
            }
            recent.push_back(Arc::new(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    fn event(status: u16) -> UsageEvent {
        UsageEvent {
            at: 0,
            request_id: "r".into(),
            row: None,
            model: Some("chat".into()),
            endpoint: "/v1/chat/completions",
            status,
            error: None,
            streamed: true,
            retries: 0,
            queue_wait: Some(Duration::from_millis(3)),
            first_byte: Some(Duration::from_millis(20)),
            total: Duration::from_millis(110),
            prompt_tokens: 7,
            cached_tokens: 5,
            completion_tokens: 10,
            key_id: None,
            key: None,
            priority: Priority::default(),
            route: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_reach_the_metrics_and_only_the_last_ones_are_kept() {
        let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
        let metrics = Arc::new(Metrics::new(Arc::new(Registry::default())));
        let recorder = Recorder::start(Arc::clone(&metrics), 2, &tracker, token.clone());
        for status in [200, 429, 503] {
            recorder.record(event(status));
        }
        token.cancel();
        tracker.close();
        tracker.wait().await;
        assert_eq!(recorder.recent(9).iter().map(|event| event.status).collect::<Vec<_>>(), [503, 429]);
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"lifeboat_requests_total{model="chat",endpoint="/v1/chat/completions",status="429"} 1"#), "{text}");
        assert!(text.contains(r#"lifeboat_completion_tokens_total{model="chat"} 30"#), "{text}");
        assert!(text.contains(r#"lifeboat_inter_token_seconds_bucket{le="0.01",model="chat"} 3"#), "{text}");
    }

    #[tokio::test]
    async fn a_recorder_that_is_behind_loses_events_but_never_waits() {
        let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
        token.cancel();
        let metrics = Arc::new(Metrics::new(Arc::new(Registry::default())));
        let recorder = Recorder::start(Arc::clone(&metrics), 2, &tracker, token);
        tracker.close();
        tracker.wait().await;
        recorder.record(event(200));
        assert!(metrics.encode().unwrap().contains("lifeboat_usage_events_lost_total 1"));
    }
}
