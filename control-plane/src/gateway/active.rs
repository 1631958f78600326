//! The requests that are under way now: for whoever looks, and for whoever must end one.
//!
//! An entry is made when a request arrives and leaves with its measurement, which every way to end drops. The entries lie
//! in several maps with a lock each, held for one insertion or removal, so that requests do not wait for each other. A
//! request is ended by a flag and a waker instead of a token: it is looked at with every piece of a reply, by the one task
//! that drives the request. Nothing here holds a prompt, a body or a key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::RowId;
use crate::key_limits::Priority;

/// Maps the entries are spread over.
const SHARDS: u8 = 16;

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its body is being read.
    #[default]
    Arriving,
    /// It waits for a slot.
    Queued,
    /// It is on an engine, which has not begun to answer.
    Prefill,
    /// Its reply is on its way.
    Decoding,
    /// It has ended.
    Done,
}

/// What is known of a request under way.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// How far it is.
    pub phase: Phase,
    /// Public name of the model, once it is known.
    pub model: Option<String>,
    /// Whether the client asked for a stream.
    pub streamed: bool,
    /// Id of the key, where one was needed.
    pub key_id: Option<Uuid>,
    /// Its name.
    pub key: Option<Arc<str>>,
    /// Its band.
    pub priority: Priority,
    /// Row it is on, or was on last.
    pub row: Option<RowId>,
    /// Slot it is on, where the router steers slots.
    pub slot: Option<u32>,
    /// Attempts that failed before.
    pub retries: u32,
}

/// One request under way.
#[derive(Debug)]
pub struct Active {
    number: u64,
    /// The id every reply carries in `x-request-id`. A client may use one twice.
    pub request_id: String,
    /// Route.
    pub endpoint: &'static str,
    /// Unix time of the arrival, milliseconds.
    pub at: i64,
    arrived: Instant,
    state: Mutex<(Progress, Instant)>,
    /// Pieces of the reply so far; of a stream about one a token.
    pieces: AtomicU64,
    /// The client has status 200 and comments, though nothing of the reply.
    begun: AtomicBool,
    cancelled: AtomicBool,
    waker: AtomicWaker,
}

impl Active {
    /// How far it is, and for how long it has been in this phase.
    pub fn progress(&self) -> (Progress, Duration) {
        let state = self.state.lock();
        (state.0.clone(), state.1.elapsed())
    }

    /// Time since its arrival.
    pub fn age(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Pieces of its reply so far.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Its client is told, by status 200 and comments, that it waits.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Whether status 200 was sent before anything of the reply was there.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Whether it is to end.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Ready once it is to end. Only the last task that asked is woken.
    pub(super) fn poll_cancelled(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // It may have been ended between the look and the registration.
        if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until it is to end.
    pub(super) async fn cancelled(&self) {
        std::future::poll_fn(|context| self.poll_cancelled(context)).await;
    }
}

/// All requests under way.
#[derive(Debug, Default)]
pub struct ActiveRequests {
    shards: [Mutex<HashMap<u64, Arc<Active>>>; SHARDS as usize],
    next: AtomicU64,
}

impl ActiveRequests {
    /// Enters one, until what this gives back is dropped.
    pub(super) fn enter(self: &Arc<Self>, request_id: String, endpoint: &'static str, at: i64, arrived: Instant) -> Entry {
        let active = Arc::new(Active {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            request_id,
            endpoint,
            at,
            arrived,
            state: Mutex::new((Progress::default(), arrived)),
            pieces: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        self.shard(active.number).lock().insert(active.number, Arc::clone(&active));
        Entry { all: Arc::clone(self), active }
    }

    /// All, newest first.
    pub fn list(&self) -> Vec<Arc<Active>> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect();
        all.sort_unstable_by_key(|active| std::cmp::Reverse(active.number));
        all
    }

    /// The newest with this id.
    pub fn find(&self, request_id: &str) -> Option<Arc<Active>> {
        self.list().into_iter().find(|active| active.request_id == request_id)
    }

    /// Ends those with this id; false if there is none.
    pub fn cancel(&self, request_id: &str) -> bool {
        let named: Vec<_> = self.list().into_iter().filter(|active| active.request_id == request_id).collect();
        for active in &named {
            active.cancel();
        }
        !named.is_empty()
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<Active>>> {
        &self.shards[usize::try_from(number % u64::from(SHARDS)).unwrap_or_default()]
    }
}

/// A request's place among those under way; its drop takes it out.
#[derive(Debug)]
pub(super) struct Entry {
    all: Arc<ActiveRequests>,
    active: Arc<Active>,
}

impl Entry {
    /// What others see.
    pub(super) const fn active(&self) -> &Arc<Active> {
        &self.active
    }

    /// Tells what became known.
    pub(super) fn update(&self, update: impl FnOnce(&mut Progress)) {
        let mut state = self.active.state.lock();
        let before = state.0.phase;
        update(&mut state.0);
        if state.0.phase != before {
            state.1 = Instant::now();
        }
    }

    /// Counts a piece of the reply.
    pub(super) fn piece(&self) {
        self.active.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.all.shard(self.active.number).lock().remove(&self.active.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(all: &Arc<ActiveRequests>, id: &str) -> Entry {
        all.enter(id.to_owned(), "/v1/chat/completions", 0, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_listed_from_its_arrival_to_its_drop_with_the_time_of_its_phase() {
        let all = Arc::new(ActiveRequests::default());
        let entries: Vec<_> = (0..40).map(|number| enter(&all, &number.to_string())).collect();
        assert_eq!(all.list().iter().map(|active| active.request_id.as_str()).take(3).collect::<Vec<_>>(), ["39", "38", "37"]);
        tokio::time::advance(Duration::from_secs(2)).await;
        entries[5].update(|progress| progress.phase = Phase::Queued);
        tokio::time::advance(Duration::from_secs(3)).await;
        entries[5].update(|progress| progress.model = Some("chat".into()));
        entries[5].piece();
        let found = all.find("5").unwrap();
        let (progress, since) = found.progress();
        assert_eq!((progress.phase, progress.model.as_deref(), since), (Phase::Queued, Some("chat"), Duration::from_secs(3)));
        assert_eq!((found.age(), found.pieces()), (Duration::from_secs(5), 1));
        drop(entries);
        assert!(all.list().is_empty() && all.find("5").is_none());
    }

    #[tokio::test]
    async fn ending_one_wakes_the_task_that_waits_and_is_seen_by_one_that_comes_later() {
        let all = Arc::new(ActiveRequests::default());
        let (one, twin, other) = (enter(&all, "one"), enter(&all, "one"), enter(&all, "other"));
        let cancel = async {
            tokio::task::yield_now().await;
            assert!(all.cancel("one") && !all.cancel("nobody"));
        };
        let both = async { tokio::join!(one.active().cancelled(), cancel) };
        tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        twin.active().cancelled().await;
        assert!(!other.active().is_cancelled());
    }
}
