//! Takes one usage event per finished request from the gateway, off the hot path.
//!
//! The channel is bounded and [`Recorder::record`] never waits: where the recorder is behind, an event is dropped and
//! counted, because accounting must not slow down or fail a reply. One task takes events in batches, feeds the metrics
//! and writes them to the database, at most once a second unless a reader asks: one transaction of a few statements,
//! whatever the number of events. A disk that is full costs lines of the log, which are counted, and nothing else; sums are
//! kept until they can be written. A `kill -9` costs the last second. It never sees a prompt or a key, only a key's id and
//! name.

mod batch;
mod event;
pub mod log;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::batch::Batch;
use crate::host::clock::unix_millis;
use crate::store::requests::Keep;
use crate::store::{Store, StoreError};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::Spans;

pub use event::{CLIENT_LEFT, UsageEvent};

/// Events that may wait for the recorder.
const CHANNEL: usize = 4096;
/// Events taken at once.
const BATCH: usize = 256;
/// Pause between two batches: waking a task for every request would cost more than the rest of its accounting.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest time an event waits for the database.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Lines that are written without waiting that long.
const WRITE_AT: usize = 2000;
/// How often old lines are looked for where none is written.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Longest a reader waits for what has just ended.
const FLUSH: Duration = Duration::from_secs(2);
/// Milliseconds of a day.
const DAY: i64 = 24 * 3600 * 1000;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Lines of the request log; up to 256 more, since they go in segments.
    pub rows: u64,
    /// Days a line is kept.
    pub days: u32,
    /// Days the sums of a day are kept.
    pub usage_days: u32,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every message is the large one")]
enum Message {
    Ended(UsageEvent),
    /// Write now, then answer.
    Flush(oneshot::Sender<()>),
}

/// A handle on the recorder's task.
#[derive(Debug)]
pub struct Recorder {
    inbox: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// Starts the task on `tracker`; it ends with `token`, after the events that are there by then are written.
    pub fn start(
        metrics: Arc<Metrics>,
        store: Arc<Store>,
        retention: Retention,
        spans: Option<Spans>,
        tracker: &TaskTracker,
        token: CancellationToken,
    ) -> Arc<Self> {
        let (sender, inbox) = mpsc::channel(CHANNEL);
        let now = Instant::now();
        let writer = Writer {
            metrics: Arc::clone(&metrics),
            store,
            retention,
            spans,
            batch: Batch::default(),
            waiting: Vec::new(),
            write_at: None,
            prune_at: now,
            failing: false,
        };
        tracker.spawn(writer.run(inbox, token));
        Arc::new(Self { inbox: sender, metrics })
    }

    /// Takes one event. Never waits.
    pub fn record(&self, event: UsageEvent) {
        if self.inbox.try_send(Message::Ended(event)).is_err() {
            self.metrics.events_lost(1);
        }
    }

    /// Waits until what has ended by now is in the database, or for a short while.
    pub async fn flush(&self) {
        let (done, answer) = oneshot::channel();
        let flushed = async {
            // A recorder that is gone has written everything.
            if self.inbox.send(Message::Flush(done)).await.is_ok() {
                _ = answer.await;
            }
        };
        _ = timeout(FLUSH, flushed).await;
    }
}

/// The recorder's task.
struct Writer {
    metrics: Arc<Metrics>,
    store: Arc<Store>,
    retention: Retention,
    spans: Option<Spans>,
    batch: Batch,
    /// Readers that wait for the next write.
    waiting: Vec<oneshot::Sender<()>>,
    /// When the batch is written at the latest; `None` = it is empty.
    write_at: Option<Instant>,
    prune_at: Instant,
    /// The last write failed; said once.
    failing: bool,
}

impl Writer {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, token: CancellationToken) {
        let mut messages = Vec::with_capacity(BATCH);
        loop {
            let due = self.write_at.unwrap_or(self.prune_at);
            tokio::select! {
                biased;
                count = inbox.recv_many(&mut messages, BATCH) => if count == 0 { break },
                () = token.cancelled() => break,
                () = sleep_until(due) => {}
            }
            let more_are_waiting = messages.len() == BATCH;
            for message in messages.drain(..) {
                self.take(message);
            }
            if self.is_due() {
                self.write().await;
            } else if !more_are_waiting {
                // The stop does not wait for the pause, nor lose what came during it.
                _ = token.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
        }
        self.write().await;
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ended(event) => {
                self.metrics.observe(&event);
                if let Some(spans) = &self.spans {
                    spans.take(&event);
                }
                if !self.batch.push(&event) {
                    self.metrics.events_lost(1);
                }
                self.write_at.get_or_insert_with(|| Instant::now() + WRITE_EVERY);
            }
            Message::Flush(done) => self.waiting.push(done),
        }
    }

    fn is_due(&self) -> bool {
        let now = Instant::now();
        !self.waiting.is_empty()
            || self.batch.lines() >= WRITE_AT
            || self.write_at.is_some_and(|at| at <= now)
            || (self.write_at.is_none() && self.prune_at <= now)
    }

    async fn write(&mut self) {
        if !self.batch.is_empty() {
            let (segments, sums) = self.batch.documents();
            match self.store.record_requests(segments, &sums).await {
                Ok(()) => {
                    self.batch.written();
                    self.failing = false;
                }
                Err(error) => {
                    self.metrics.events_lost(self.batch.drop_lines() as u64);
                    self.complain(&error);
                }
            }
        }
        // Sums that could not be written wait for the next events.
        self.write_at = None;
        // Word to readers first: they need nothing of what follows. One that has left needs no word.
        for reader in self.waiting.drain(..) {
            _ = reader.send(());
        }
        self.prune().await;
    }

    async fn prune(&mut self) {
        let now = unix_millis();
        let keep = Keep {
            rows: i64::try_from(self.retention.rows).unwrap_or(i64::MAX),
            since: now - i64::from(self.retention.days) * DAY,
            usage_since: now / DAY - i64::from(self.retention.usage_days),
        };
        let more = match self.store.prune_requests(keep).await {
            Ok(more) => more,
            Err(error) => {
                self.complain(&error);
                false
            }
        };
        // One part at a time: lines that come in between must not wait.
        self.prune_at = Instant::now() + if more { PAUSE } else { PRUNE_EVERY };
    }

    fn complain(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.failing, true) {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(error = %error, cause, "the request log is not written; serving goes on, lost lines are counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::event;
    use super::*;
    use crate::recorder::log::{self, RequestFilter};
    use crate::registry::Registry;
    use crate::store::requests::UsageFilter;

    const RETENTION: Retention = Retention { rows: 3, days: 100_000, usage_days: 100_000 };

    struct World {
        _dir: tempfile::TempDir,
        store: Arc<Store>,
        metrics: Arc<Metrics>,
        recorder: Arc<Recorder>,
        tracker: TaskTracker,
        token: CancellationToken,
    }

    async fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&dir.path().join("lifeboat.db")).await.unwrap());
        let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
        let metrics = Arc::new(Metrics::new(Arc::new(Registry::default())));
        let recorder = Recorder::start(Arc::clone(&metrics), Arc::clone(&store), RETENTION, None, &tracker, token.clone());
        World { _dir: dir, store, metrics, recorder, tracker, token }
    }

    impl World {
        async fn stop(&self) {
            self.token.cancel();
            self.tracker.close();
            self.tracker.wait().await;
        }

        async fn statuses(&self) -> Vec<u16> {
            let lines = log::list(&self.store, &RequestFilter::default(), 100).await.unwrap();
            lines.into_iter().map(|(_, event)| event.status).collect()
        }
    }

    #[tokio::test]
    async fn events_reach_metrics_log_and_sums_and_the_stop_loses_none() {
        let world = world().await;
        for status in [200, 429, 503] {
            world.recorder.record(event(status));
        }
        world.stop().await;
        assert_eq!(world.statuses().await, [503, 429, 200]);
        let all = UsageFilter { from: "0000".into(), to: "9999".into(), ..UsageFilter::default() };
        let sums = world.store.list_usage(&all, 10).await.unwrap();
        assert_eq!((sums.len(), sums[0].requests, sums[0].errors, sums[0].completion_tokens), (1, 3, 2, 30));
        let text = world.metrics.encode().unwrap();
        assert!(text.contains(r#"lifeboat_requests_total{model="chat",endpoint="/v1/chat/completions",status="429"} 1"#), "{text}");
        assert!(text.contains(r#"lifeboat_completion_tokens_total{model="chat"} 30"#), "{text}");
        assert!(text.contains(r#"lifeboat_inter_token_seconds_bucket{le="0.01",model="chat"} 3"#), "{text}");
    }

    #[tokio::test]
    async fn a_reader_that_flushes_sees_what_has_ended_and_the_log_stays_within_its_bound() {
        let world = world().await;
        for status in 200..240 {
            world.recorder.record(event(status));
            world.recorder.flush().await;
            assert_eq!(world.statuses().await[0], status);
        }
        world.stop().await;
        assert_eq!(world.statuses().await, (232..240).rev().collect::<Vec<_>>(), "a segment goes as a whole");
    }

    #[tokio::test]
    async fn what_the_disk_does_not_take_is_counted_and_sums_are_written_later() {
        let world = world().await;
        world.store.set_page_limit(1).await;
        world.recorder.record(UsageEvent { request_id: "x".repeat(1 << 20), ..event(200) });
        world.recorder.flush().await;
        assert!(world.metrics.encode().unwrap().contains("lifeboat_usage_events_lost_total 1"));
        world.store.set_page_limit(1 << 20).await;
        world.recorder.record(event(200));
        world.stop().await;
        assert_eq!(world.statuses().await, [200]);
        let all = UsageFilter { from: "0000".into(), to: "9999".into(), ..UsageFilter::default() };
        assert_eq!(world.store.list_usage(&all, 10).await.unwrap()[0].requests, 2);
    }

    #[tokio::test]
    async fn a_recorder_that_is_gone_loses_events_but_nobody_waits() {
        let world = world().await;
        world.stop().await;
        world.recorder.record(event(200));
        world.recorder.flush().await;
        assert!(world.metrics.encode().unwrap().contains("lifeboat_usage_events_lost_total 1"));
    }
}
