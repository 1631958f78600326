//! Who may use an engine now, and who waits.
//!
//! A row never has more requests than slots, so no engine holds a queue we cannot see. Whoever finds no slot waits in one
//! bounded line per model name, first come first served, with a deadline. Slots change hands directly: the task that
//! gives one back moves the permit to the next waiter, so there is no herd, no lost wake-up and no overtaking. A shut gate
//! (an unload, a drain) only ever means waiting on. The lock is held for a few comparisons and never across an await;
//! permits are never dropped under it, because their drop takes it.

mod line;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::activator::Activator;
use crate::config::GatewayConfig;
use crate::ids::RowId;
use crate::registry::{DemandGuard, Endpoint, Registry, RowView, Snapshot};
use crate::telemetry::metrics::Metrics;

use self::line::{Lines, Waiter};
use super::router::{self, Class, Outlook, Question};

/// The weight of one finished request in the running mean of service times.
const SERVICE_WEIGHT: f64 = 0.2;

/// Why a request gets no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No row has this name (any more).
    UnknownModel,
    /// The line is full, or so long that the wait cannot fit.
    Full {
        /// Requests waiting.
        waiting: usize,
        /// When it is worth trying again.
        retry_after: Duration,
    },
    /// The wait was too long although rows serve.
    TooLong {
        /// The wait.
        waited: Duration,
        /// When it is worth trying again.
        retry_after: Duration,
    },
    /// No row came up in time.
    NotUp {
        /// The wait.
        waited: Duration,
    },
    /// Nothing can serve; each row with its reason.
    Hopeless(String),
    /// Only engines that failed this request already are left.
    NoOther,
}

/// One request that wants a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    /// Model name as asked.
    pub name: &'a str,
    /// What it takes.
    pub class: Class,
    /// Engines that failed it already.
    pub avoid: &'a [Arc<Endpoint>],
    /// When the request arrived; every wait counts from here.
    pub arrived: Instant,
}

/// The right to use one engine; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    /// The row.
    pub row: Arc<RowView>,
    /// Its engine.
    pub endpoint: Arc<Endpoint>,
    class: Class,
    entered: Instant,
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.class {
            Class::Generation => self.endpoint.load.leave(),
            Class::Light => self.endpoint.load.leave_light(),
        }
        self.admission.given_back(self);
    }
}

/// Word to a waiter, on its way once the lock is free.
type Word = (oneshot::Sender<Result<Permit, Refusal>>, Result<Permit, Refusal>);

fn send(words: Vec<Word>) {
    for (waiter, word) in words {
        // A waiter that has just left hands the word back; a permit dropped here goes to the next one.
        drop(waiter.send(word));
    }
}

/// All lines of one gateway.
#[derive(Debug)]
pub(super) struct Admission {
    registry: Arc<Registry>,
    activator: Activator,
    metrics: Arc<Metrics>,
    config: GatewayConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: Lines,
    /// Counts the choices, so that equal rows take turns.
    turn: usize,
    /// Running mean of how long a request keeps its slot, seconds, by public name.
    service: HashMap<String, f64>,
}

/// A place in a line; leaving early gives it up.
#[derive(Debug)]
struct Place {
    admission: Arc<Admission>,
    name: String,
    class: Class,
    ticket: u64,
    word: oneshot::Receiver<Result<Permit, Refusal>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        if state.lines.remove(self.class, &self.name, self.ticket).is_some() {
            self.admission.show_length(&state, self.class, &self.name);
        }
    }
}

enum Entry {
    Now(Permit),
    Later(Place, Outlook),
}

impl Admission {
    pub(super) fn new(registry: Arc<Registry>, activator: Activator, metrics: Arc<Metrics>, config: GatewayConfig) -> Arc<Self> {
        Arc::new(Self { registry, activator, metrics, config, state: Mutex::default() })
    }

    /// Acts on every change of the registry until `token` is cancelled: new slots are handed out, waiters that hope in
    /// vain are told, demand follows the rows.
    pub(super) async fn follow(self: Arc<Self>, token: CancellationToken) {
        let mut changed = self.registry.subscribe();
        loop {
            tokio::select! {
                change = changed.changed() => if change.is_err() { return },
                () = token.cancelled() => return,
            }
            self.rows_changed();
        }
    }

    /// Waits for a slot. Cancel-safe: a dropped call leaves no trace, and a permit already granted goes to the next.
    pub(super) async fn admit(self: &Arc<Self>, ask: Ask<'_>) -> Result<Permit, Refusal> {
        let asked = Instant::now();
        let (mut place, outlook) = match self.enter_or_queue(&ask)? {
            Entry::Now(permit) => return Ok(permit),
            Entry::Later(place, outlook) => (place, outlook),
        };
        let mut until = self.wait_until(&ask, asked, &outlook);
        loop {
            tokio::select! {
                biased;
                word = &mut place.word => return word.unwrap_or(Err(Refusal::NoOther)),
                () = sleep_until(until) => {}
            }
            // What the rows do now decides whether the wait may go on.
            let snapshot = self.registry.snapshot();
            let Some(pool) = snapshot.by_name.get(ask.name) else { return Err(Refusal::UnknownModel) };
            let outlook = router::outlook(pool, &self.question(&ask, 0));
            until = self.wait_until(&ask, asked, &outlook);
            if until <= Instant::now() {
                return Err(self.out_of_time(&ask, pool, outlook));
            }
        }
    }

    fn out_of_time(&self, ask: &Ask<'_>, pool: &[Arc<RowView>], outlook: Outlook) -> Refusal {
        let waited = ask.arrived.elapsed();
        match outlook {
            Outlook::Serving(slots) => {
                let retry_after = predicted(&self.state.lock(), ask, pool, slots).unwrap_or_default();
                Refusal::TooLong { waited, retry_after }
            }
            Outlook::Coming => Refusal::NotUp { waited },
            Outlook::Suspect => Refusal::NoOther,
            Outlook::Hopeless(reasons) => Refusal::Hopeless(reasons),
        }
    }

    const fn question<'a>(&self, ask: &Ask<'a>, turn: usize) -> Question<'a> {
        Question { class: ask.class, light_limit: self.config.light_per_row, avoid: ask.avoid, turn }
    }

    fn wait_until(&self, ask: &Ask<'_>, asked: Instant, outlook: &Outlook) -> Instant {
        let until = match outlook {
            Outlook::Serving(_) => ask.arrived + self.config.queue_wait,
            Outlook::Coming => ask.arrived + self.config.cold_start_wait,
            Outlook::Suspect => asked + self.config.retry_notice,
            Outlook::Hopeless(_) => asked,
        };
        until.min(ask.arrived + self.config.total)
    }

    fn enter_or_queue(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Entry, Refusal> {
        let mut state = self.state.lock();
        // Read under the lock: a change published later finds this waiter in its line.
        let snapshot = self.registry.snapshot();
        let pool = snapshot.by_name.get(ask.name).ok_or(Refusal::UnknownModel)?;
        let waiting = state.lines.len(ask.class, ask.name);
        if waiting == 0
            && let Some(permit) = self.enter(&mut state, pool, ask)
        {
            return Ok(Entry::Now(permit));
        }
        let outlook = router::outlook(pool, &self.question(ask, 0));
        if let Outlook::Hopeless(reasons) = outlook {
            return Err(Refusal::Hopeless(reasons));
        }
        let predicted = if let Outlook::Serving(slots) = outlook { predicted(&state, ask, pool, slots) } else { None };
        if waiting >= self.capacity(pool, ask.class) || predicted.is_some_and(|wait| wait > self.config.queue_wait) {
            return Err(Refusal::Full { waiting, retry_after: predicted.unwrap_or_default() });
        }
        let (grant, word) = oneshot::channel();
        let mut waiter = Waiter { grant, avoid: ask.avoid.to_vec(), demand: None };
        let asked_for_a_row = demand(&mut waiter, pool);
        let ticket = state.lines.push(ask.class, ask.name, waiter);
        self.show_length(&state, ask.class, ask.name);
        // Rows that came up a moment ago may not have been handed out yet.
        let words = self.hand_out_pool(&mut state, ask.class, ask.name, pool);
        drop(state);
        send(words);
        if asked_for_a_row {
            self.activator.wake();
        }
        let place = Place { admission: Arc::clone(self), name: ask.name.to_owned(), class: ask.class, ticket, word };
        Ok(Entry::Later(place, outlook))
    }

    /// Takes a slot of the best row that has one.
    fn enter(self: &Arc<Self>, state: &mut State, pool: &[Arc<RowView>], ask: &Ask<'_>) -> Option<Permit> {
        state.turn = state.turn.wrapping_add(1);
        let question = self.question(ask, state.turn);
        // A gate may shut between the choice and the entry; it never opens again, so this ends.
        while let Some((row, endpoint)) = router::pick(pool, &question) {
            if let Some(permit) = self.take(row, endpoint, ask.class) {
                return Some(permit);
            }
        }
        None
    }

    fn take(self: &Arc<Self>, row: &Arc<RowView>, endpoint: &Arc<Endpoint>, class: Class) -> Option<Permit> {
        let entered = match class {
            Class::Generation => endpoint.load.try_enter(endpoint.slots),
            Class::Light => endpoint.load.try_enter_light(self.config.light_per_row),
        };
        let permit =
            || Permit { admission: Arc::clone(self), row: Arc::clone(row), endpoint: Arc::clone(endpoint), class, entered: Instant::now() };
        entered.then(permit)
    }

    /// A slot came free: the longest waiting request that may use it gets it.
    fn given_back(self: &Arc<Self>, permit: &Permit) {
        let mut state = self.state.lock();
        if permit.class == Class::Generation {
            let seconds = permit.entered.elapsed().as_secs_f64();
            match state.service.get_mut(&permit.row.model_name) {
                Some(mean) => *mean += SERVICE_WEIGHT * (seconds - *mean),
                None => _ = state.service.insert(permit.row.model_name.clone(), seconds),
            }
        }
        if state.lines.of(permit.class).is_empty() {
            return;
        }
        let snapshot = self.registry.snapshot();
        let words = match snapshot.rows.get(&permit.row.id) {
            Some(row) => self.hand_out_row(&mut state, permit.class, row),
            None => Vec::new(),
        };
        drop(state);
        send(words);
    }

    fn rows_changed(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let snapshot = self.registry.snapshot();
        state.service.retain(|name, _| snapshot.by_name.contains_key(name));
        let mut words = Vec::new();
        let mut wake = false;
        for class in [Class::Generation, Class::Light] {
            wake |= self.inform(&mut state, class, &snapshot, &mut words);
            if !state.lines.of(class).is_empty() {
                for row in snapshot.rows.values() {
                    words.extend(self.hand_out_row(&mut state, class, row));
                }
            }
        }
        drop(state);
        send(words);
        if wake {
            self.activator.wake();
        }
    }

    /// Turns away those who wait in vain and renews the demand of the others. True if a new row is asked for.
    fn inform(&self, state: &mut State, class: Class, snapshot: &Snapshot, words: &mut Vec<Word>) -> bool {
        let mut wake = false;
        let question = Question { class, light_limit: self.config.light_per_row, avoid: &[], turn: 0 };
        let mut ended = Vec::new();
        for (name, line) in state.lines.of(class) {
            let Some(pool) = snapshot.by_name.get(name) else {
                ended.push((name.clone(), Refusal::UnknownModel));
                continue;
            };
            if let Outlook::Hopeless(reasons) = router::outlook(pool, &question) {
                ended.push((name.clone(), Refusal::Hopeless(reasons)));
                continue;
            }
            for waiter in line.values_mut() {
                wake |= demand(waiter, pool);
            }
        }
        for (name, refusal) in ended {
            let line = state.lines.of(class).remove(&name).unwrap_or_default();
            words.extend(line.into_values().map(|waiter| (waiter.grant, Err(refusal.clone()))));
            self.show_length(state, class, &name);
        }
        wake
    }

    /// Hands the free slots of the pool's rows to those who wait for this name or for another of their names.
    fn hand_out_pool(self: &Arc<Self>, state: &mut State, class: Class, name: &str, pool: &[Arc<RowView>]) -> Vec<Word> {
        let mut words = Vec::new();
        for row in pool {
            if state.lines.len(class, name) == 0 {
                break;
            }
            words.extend(self.hand_out_row(state, class, row));
        }
        words
    }

    fn hand_out_row(self: &Arc<Self>, state: &mut State, class: Class, row: &Arc<RowView>) -> Vec<Word> {
        let mut words = Vec::new();
        let Some(endpoint) = row.endpoint.as_ref().filter(|_| row.is_ready()) else { return words };
        while let Some((name, ticket)) = state.lines.oldest(class, std::iter::once(&row.model_name).chain(&row.aliases), endpoint) {
            let Some(permit) = self.take(row, endpoint, class) else { break };
            if let Some(waiter) = state.lines.remove(class, name, ticket) {
                words.push((waiter.grant, Ok(permit)));
            }
            self.show_length(state, class, name);
        }
        words
    }

    /// Waiters a line may hold: so many for each slot the pool has or is going to have.
    fn capacity(&self, pool: &[Arc<RowView>], class: Class) -> usize {
        let slots: u32 = pool
            .iter()
            .map(|row| match (class, &row.endpoint, &row.status.resolved) {
                (Class::Light, ..) => self.config.light_per_row,
                (_, Some(endpoint), _) => endpoint.slots,
                (_, None, Some(resolved)) => resolved.slots,
                (_, None, None) => 1,
            })
            .sum();
        self.config.queue_per_slot.saturating_mul(usize::try_from(slots).unwrap_or(usize::MAX))
    }

    fn show_length(&self, state: &State, class: Class, name: &str) {
        if class == Class::Generation {
            self.metrics.set_queue_length(name, state.lines.len(class, name));
        }
    }
}

/// How long a request that joins the line now will wait, from the mean service time; `None` = not known yet.
fn predicted(state: &State, ask: &Ask<'_>, pool: &[Arc<RowView>], slots: u32) -> Option<Duration> {
    // Kept by public name; the request may have come by an alias.
    let known = || pool.iter().find_map(|row| state.service.get(&row.model_name));
    let mean = (ask.class == Class::Generation).then(known).flatten()?;
    let ahead = state.lines.len(ask.class, ask.name) + 1;
    Duration::try_from_secs_f64(mean * ahead as f64 / f64::from(slots.max(1))).ok()
}

/// Makes the waiter ask for the row it needs, if any. True if that is a row it did not ask for before.
fn demand(waiter: &mut Waiter, pool: &[Arc<RowView>]) -> bool {
    let Some(row) = router::wanted(pool) else {
        waiter.demand = None;
        return false;
    };
    let asked = |demand: &(RowId, DemandGuard)| demand.0 == row.id;
    if waiter.demand.as_ref().is_some_and(asked) {
        return false;
    }
    waiter.demand = Some((row.id, row.demand.wait()));
    true
}
