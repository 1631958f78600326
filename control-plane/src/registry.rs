//! What the data plane reads on every request: one immutable snapshot of all rows.
//!
//! The supervisor writes rows, the gateway writes demand and load. Readers take an `Arc` and never a
//! lock. Nothing here touches the database.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use http::uri::{Authority, Scheme};
use lifeboat_engines::dialect::Flavor;
use lifeboat_engines::queue::EngineQueue;
use lifeboat_engines::spec::{DesiredState, EngineKind, Resolved};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::ids::{Generation, RowId};
use crate::progress::Progress;

/// Where a row stands, as observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowState {
    /// Down, and meant to be.
    #[default]
    Stopped,
    /// An `on_demand` row without its engine; the first request loads it.
    Sleeping,
    /// Engine or model is being fetched.
    Downloading,
    /// The process is up, the model is loading.
    Starting,
    /// Serves.
    Ready,
    /// Takes no new requests, finishes the running ones.
    Draining,
    /// Cannot serve; `state_reason` says why and when it is tried again.
    Failed,
}

impl RowState {
    /// The name used in the API and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Sleeping => "sleeping",
            Self::Downloading => "downloading",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Failed => "failed",
        }
    }
}

/// Everything observed about a row that the API shows and the status columns keep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct RowStatus {
    /// Where it stands.
    pub state: RowState,
    /// Why, in words, with the cure where there is one.
    pub state_reason: Option<String>,
    /// Process id of the engine itself.
    pub pid: Option<u32>,
    /// Base URL of the engine.
    pub endpoint: Option<String>,
    /// Times the engine was started again after a death, since the control plane or the row was started.
    pub restarts: u32,
    /// What "auto" became.
    pub resolved: Option<Resolved>,
    /// The build it runs.
    pub build: Option<String>,
    /// Progress of a download or a load.
    pub progress: Option<Progress>,
}

/// How an engine keeps the prompts it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptCache {
    /// Each slot a conversation of its own, some more in host memory; the request may name its slot.
    Slots {
        /// Tokens that host memory holds.
        host_tokens: u64,
    },
    /// One pool that all requests share, or nothing is known of it.
    Pool {
        /// Tokens it holds.
        tokens: u64,
    },
}

impl PromptCache {
    /// What an engine launched by us has, from what its row was resolved to. `slots` = it lets the request name its slot.
    pub fn of(resolved: &Resolved, slots: bool) -> Self {
        let tokens = u64::from(resolved.context).saturating_mul(u64::from(resolved.slots));
        if !slots {
            return Self::Pool { tokens };
        }
        let bytes_per_token = resolved.memory.kv_bytes.checked_div(tokens).unwrap_or(0).max(1);
        Self::Slots { host_tokens: (u64::from(resolved.host_cache_mib) << 20) / bytes_per_token }
    }
}

/// Whether an engine answers an endpoint itself. Asked once where it is not known: an engine that lacks it says so.
#[derive(Debug, Default)]
pub struct Native(AtomicBool);

impl Native {
    /// It does not, as is known.
    pub fn lacking() -> Self {
        Self(AtomicBool::new(true))
    }

    /// It lacks the endpoint: what goes there is put through chat completions instead.
    pub fn is_lacking(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It has said that it lacks it.
    pub fn found_lacking(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How an engine is spoken to.
#[derive(Debug)]
pub struct Dialects {
    /// Its own ways of saying what chat completions cannot.
    pub flavor: Flavor,
    /// It notices a client that left only on streams: it is always asked for one, and a reply that is not to be streamed
    /// is put together here.
    pub always_streams: bool,
    /// It goes on with a conversation whose last message is the assistant's.
    pub continues: bool,
    /// Its model's chat template takes tools, as far as is known.
    pub takes_tools: bool,
    /// `/v1/messages`.
    pub messages: Native,
    /// `/v1/messages/count_tokens`.
    pub count_tokens: Native,
    /// `/v1/responses`.
    pub responses: Native,
}

impl Dialects {
    /// Of a kind of engine. llama-server has Messages and Responses, but forgets in the one which slot it was told to take, and
    /// ignores in the other much of what it is asked for (formats, tools that are forced, state).
    pub fn of(kind: EngineKind) -> Self {
        let is_llama = kind == EngineKind::LlamaCpp;
        let native = || if is_llama { Native::lacking() } else { Native::default() };
        Self {
            flavor: if is_llama { Flavor::LlamaCpp } else { Flavor::Other },
            always_streams: is_llama,
            continues: kind != EngineKind::External,
            takes_tools: true,
            messages: native(),
            count_tokens: Native::default(),
            responses: native(),
        }
    }
}

/// What an engine said last of its own queue, and when.
#[derive(Debug, Default)]
pub struct LastQueue(Mutex<Option<(Instant, EngineQueue)>>);

impl LastQueue {
    /// It says so now.
    pub fn says(&self, queue: EngineQueue) {
        *self.0.lock() = Some((Instant::now(), queue));
    }

    /// The last word; `None` = it never said anything.
    pub fn last(&self) -> Option<(Instant, EngineQueue)> {
        *self.0.lock()
    }
}

/// How to reach one running engine, and how busy it is.
#[derive(Debug)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Path before `/v1`, without a trailing slash; mostly empty.
    pub prefix: String,
    /// `Bearer …` for that engine.
    pub authorization: Option<HeaderValue>,
    /// The model name the engine wants to see; `None` = any name will do.
    pub upstream_model: Option<String>,
    /// Requests it may serve at once.
    pub slots: u32,
    /// Tokens of context of one slot; 0 = not known.
    pub context: u32,
    /// How it keeps the prompts it has read.
    pub cache: PromptCache,
    /// How it is spoken to.
    pub dialects: Dialects,
    /// Live count of requests on it.
    pub load: RowLoad,
    /// What it said last of its own queue.
    pub queue: LastQueue,
    /// Since when it serves: an idle unload counts from here until the first byte.
    pub ready_since: Instant,
    /// What its load took, where it was loaded by this control plane.
    pub load_time: Option<Duration>,
    /// Cancelled when the engine is about to be ended and the time for running requests is over: whoever
    /// still holds a connection to it must drop that connection, or the engine will not exit.
    pub ended: CancellationToken,
}

impl Endpoint {
    /// How long it has been without a request, counted from the last byte sent; `None` while it has one.
    pub fn idle_for(&self, now: Instant) -> Option<Duration> {
        let free = self.load.in_flight() == 0 && self.load.light() == 0;
        let since = self.load.last_byte().map_or(self.ready_since, |last| last.max(self.ready_since));
        free.then(|| now.saturating_duration_since(since))
    }
}

/// One row as the gateway and the API see it.
#[derive(Debug, Clone)]
pub struct RowView {
    /// Its id.
    pub id: RowId,
    /// The generation this view was made from.
    pub generation: Generation,
    /// Public name.
    pub model_name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Kind of engine.
    pub engine: EngineKind,
    /// What the operator wants.
    pub desired_state: DesiredState,
    /// What is observed.
    pub status: RowStatus,
    /// Present while an engine can be called (`ready`, and `draining` for the requests it has).
    pub endpoint: Option<Arc<Endpoint>>,
    /// Demand for this row; outlives any one engine process.
    pub demand: Arc<Demand>,
    /// Rows that should sleep so that this one, which waits for memory, can start; `None` = it does not wait for any.
    pub room: Option<Vec<RowId>>,
}

impl RowView {
    /// May take a new request now (if a slot is free).
    pub fn is_ready(&self) -> bool {
        self.status.state == RowState::Ready && self.endpoint.is_some()
    }
}

/// All rows at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Every row, by id.
    pub rows: HashMap<RowId, Arc<RowView>>,
    /// Rows by public name and by alias.
    pub by_name: HashMap<String, Vec<Arc<RowView>>>,
}

/// The number of requests on an engine, with a gate that closes it for good.
///
/// Count and gate share one word, so "close only if nobody is inside" and "enter only if open" are
/// each one atomic step: an idle unload can never race a request onto a dying engine. Light calls
/// (tokenise, count tokens) need no slot and are counted apart, in the same word, so that they hold
/// off an idle unload too.
#[derive(Debug, Default)]
pub struct RowLoad {
    word: AtomicU64,
    last_byte: Mutex<Option<Instant>>,
    moved: AtomicU64,
    left: Notify,
}

/// Set in [`RowLoad::word`] once the gate is shut.
const CLOSED: u64 = 1 << 63;
/// One light call in [`RowLoad::word`]; slots are counted below it.
const LIGHT: u64 = 1 << 32;
/// The slots taken in [`RowLoad::word`].
const SLOTS: u64 = LIGHT - 1;

impl RowLoad {
    /// Takes so many slots if the gate is open and no more than `limit` are taken then. The caller owes a
    /// [`RowLoad::leave`] of as many.
    pub fn try_enter(&self, slots: u32, limit: u32) -> bool {
        let slots = u64::from(slots);
        self.enter(|word| (word & SLOTS) + slots <= u64::from(limit), slots)
    }

    /// Enters without a slot if the gate is open and fewer than `limit` light calls are on the engine. The caller owes a
    /// [`RowLoad::leave_light`].
    pub fn try_enter_light(&self, limit: u32) -> bool {
        self.enter(|word| word / LIGHT < u64::from(limit), LIGHT)
    }

    /// Adds to the word if the gate is open and there is room.
    fn enter(&self, has_room: impl Fn(u64) -> bool, more: u64) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while word & CLOSED == 0 && has_room(word) {
            match self.word.compare_exchange_weak(word, word + more, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Ends one light call and notes the time of the last byte.
    pub fn leave_light(&self) {
        *self.last_byte.lock() = Some(Instant::now());
        self.moved();
        self.word.fetch_sub(LIGHT, Ordering::AcqRel);
    }

    /// Gives so many slots back and notes the time of the last byte.
    pub fn leave(&self, slots: u32) {
        *self.last_byte.lock() = Some(Instant::now());
        self.moved();
        let slots = u64::from(slots);
        if self.word.fetch_sub(slots, Ordering::AcqRel) & (CLOSED | SLOTS) == CLOSED | slots {
            self.left.notify_waiters();
        }
    }

    /// Notes that the engine sent something. Call it for every piece of a reply (its head included): one relaxed
    /// addition, by which the supervisor tells a slow engine from a dead one.
    pub fn moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// Pieces the engine has sent so far; only its change means anything.
    pub fn pieces(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Waits until no slot is taken. Shut the gate first, or the answer is stale at once.
    pub async fn drained(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Slots taken now.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.word.load(Ordering::Acquire) & SLOTS).unwrap_or(u32::MAX)
    }

    /// Light calls on the engine now.
    pub fn light(&self) -> u32 {
        u32::try_from((self.word.load(Ordering::Acquire) & !CLOSED) / LIGHT).unwrap_or(u32::MAX)
    }

    /// The gate is shut: nobody enters any more.
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// When the last request ended; `None` = none yet.
    pub fn last_byte(&self) -> Option<Instant> {
        *self.last_byte.lock()
    }

    /// Shuts the gate whoever is inside: a drain.
    pub fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Shuts the gate only if nobody is inside: an idle unload. True if it is shut now.
    pub fn close_if_idle(&self) -> bool {
        self.word.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Requests that want a row which is not up, and when the last one came.
#[derive(Debug, Default)]
pub struct Demand {
    waiting: AtomicU32,
}

impl Demand {
    /// Counts one waiting request until the guard is dropped. Wake the reconciler afterwards.
    pub fn wait(self: &Arc<Self>) -> DemandGuard {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        DemandGuard(Arc::clone(self))
    }

    /// Requests waiting now.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }
}

/// One waiting request; ends its demand when dropped.
#[derive(Debug)]
pub struct DemandGuard(Arc<Demand>);

impl Drop for DemandGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The one place that holds the current snapshot.
#[derive(Debug)]
pub struct Registry {
    current: ArcSwap<Snapshot>,
    writer: Mutex<()>,
    changed: watch::Sender<u64>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { current: ArcSwap::from_pointee(Snapshot::default()), writer: Mutex::new(()), changed: watch::Sender::new(0) }
    }
}

impl Registry {
    /// All rows as of now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Ticks on every change of the snapshot.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits until a row is shown at that generation or a later one, at most so long: whoever was told of an edit may
    /// then use what it changed.
    pub async fn shows(&self, id: RowId, generation: Generation, within: Duration) -> bool {
        let mut changes = self.subscribe();
        let shown = changes.wait_for(|_| self.snapshot().rows.get(&id).is_some_and(|row| row.generation >= generation));
        tokio::time::timeout(within, shown).await.is_ok_and(|seen| seen.is_ok())
    }

    /// The row's demand counter, or a new one for a row not seen before.
    pub fn demand(&self, id: RowId) -> Arc<Demand> {
        self.snapshot().rows.get(&id).map(|row| Arc::clone(&row.demand)).unwrap_or_default()
    }

    /// Sets one row. Only the row's supervisor task calls this.
    pub fn publish(&self, view: RowView) {
        self.change(|rows| {
            rows.insert(view.id, Arc::new(view));
        });
    }

    /// Forgets one row.
    pub fn remove(&self, id: RowId) {
        self.change(|rows| {
            rows.remove(&id);
        });
    }

    fn change(&self, edit: impl FnOnce(&mut HashMap<RowId, Arc<RowView>>)) {
        let writing = self.writer.lock();
        let mut rows = self.current.load().rows.clone();
        edit(&mut rows);
        let mut by_name: HashMap<String, Vec<Arc<RowView>>> = HashMap::new();
        for row in rows.values() {
            for name in std::iter::once(&row.model_name).chain(&row.aliases) {
                let pool = by_name.entry(name.clone()).or_default();
                if !pool.iter().any(|other| other.id == row.id) {
                    pool.push(Arc::clone(row));
                }
            }
        }
        for pool in by_name.values_mut() {
            pool.sort_by_key(|row| row.id);
        }
        self.current.store(Arc::new(Snapshot { rows, by_name }));
        drop(writing);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_may_enter() {
        let load = RowLoad::default();
        assert!(load.try_enter(1, 2) && load.try_enter(1, 2));
        assert!(!load.try_enter(1, 2));
        load.leave(1);
        assert!(load.try_enter(1, 2));
    }

    #[test]
    fn an_idle_close_fails_while_somebody_is_inside_and_shuts_out_later_ones() {
        let load = RowLoad::default();
        assert!(load.try_enter(1, 1));
        assert!(!load.close_if_idle());
        load.leave(1);
        assert!(load.close_if_idle());
        assert!(!load.try_enter(1, 1));
        assert_eq!(load.in_flight(), 0);
    }

    #[test]
    fn light_calls_take_no_slot_but_hold_off_an_idle_close() {
        let load = RowLoad::default();
        assert!(load.try_enter_light(1));
        assert!(!load.try_enter_light(1));
        assert!(load.try_enter(1, 1));
        assert_eq!((load.in_flight(), load.light()), (1, 1));
        load.leave(1);
        assert!(!load.close_if_idle());
        load.leave_light();
        assert!(load.close_if_idle());
        assert!(!load.try_enter_light(1) && load.is_closed());
    }

    #[test]
    fn a_drain_keeps_counting_those_inside() {
        let load = RowLoad::default();
        assert!(load.try_enter(1, 4));
        load.close();
        assert!(!load.try_enter(1, 4));
        assert_eq!(load.in_flight(), 1);
        load.leave(1);
        assert_eq!(load.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_drain_ends_when_the_last_one_leaves() {
        let load = std::sync::Arc::new(RowLoad::default());
        assert!(load.try_enter(1, 4) && load.try_enter(1, 4));
        load.close();
        let inside = std::sync::Arc::clone(&load);
        let (drained, ()) = tokio::join!(tokio::time::timeout(std::time::Duration::from_secs(5), load.drained()), async move {
            inside.leave(1);
            tokio::task::yield_now().await;
            inside.leave(1);
        });
        assert!(drained.is_ok());
    }
}
