//! Who may use an engine now, and who waits.
//!
//! A row never has more requests than slots, so no engine holds a queue we cannot see. The router decides which row, which
//! slot and whose turn it is; here its decisions meet tasks, gates and deadlines. Slots change hands directly: the task that
//! gives one back moves the permit to the next waiter, so there is no herd and no lost wake-up. A shut gate (an unload, a
//! drain) only ever means waiting on. Names of the same rows share one line, and of lines that share a row the one whose
//! first has waited longest is looked through first, so nobody overtakes by an alias. The lock is held for a decision and
//! never across an await; permits are never dropped under it, because their drop takes it.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::interleave;
use super::outlook::{self, Class, Outlook};
use super::permit::Permit;
use super::retries::{Retries, RetriesView};
use crate::activator::Activator;
use crate::config::GatewayConfig;
use crate::ids::RowId;
use crate::registry::{DemandGuard, Endpoint, Registry, RowView, Snapshot};
use crate::routing::{Arrival, Ask, LineView, Mode, RowLoadView, Settings, Ticket};
use crate::telemetry::metrics::Metrics;

/// Why a request gets no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No row has this name (any more).
    UnknownModel,
    /// It wants more slots at once than any row has.
    TooHeavy {
        /// Slots it wants.
        wanted: u32,
        /// Slots of the largest row.
        slots: u32,
    },
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
pub(super) struct Claim<'a> {
    /// Model name as asked.
    pub name: &'a str,
    /// What it takes.
    pub class: Class,
    /// What the router is told of it.
    pub ask: &'a Ask,
    /// Engines that failed it already.
    pub avoid: &'a [Arc<Endpoint>],
    /// When the request arrived; every wait counts from here.
    pub arrived: Instant,
}

/// How often is looked what engines say of their own queues.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Word to a waiter, on its way once the lock is free.
type Word = (oneshot::Sender<Result<Permit, Refusal>>, Result<Permit, Refusal>);

fn send(words: Vec<Word>) {
    for (waiter, word) in words {
        interleave::point();
        // A waiter that has just left hands the word back; a permit dropped here goes to the next one.
        drop(waiter.send(word));
    }
}

/// A pool, for people.
#[derive(Debug)]
pub struct PoolView {
    /// How it chooses, how hot it is, who waits.
    pub line: LineView,
    /// The load of its rows that are up.
    pub rows: Vec<(RowId, RowLoadView)>,
    /// What it may spend on failed requests.
    pub retries: RetriesView,
}

/// All lines of one gateway.
#[derive(Debug)]
pub(super) struct Admission {
    registry: Arc<Registry>,
    activator: Activator,
    metrics: Arc<Metrics>,
    config: GatewayConfig,
    started: Instant,
    state: Mutex<State>,
    /// When somebody who leaves a free slot to others does so no longer, on the router's clock; infinity = nobody does.
    impatient_at: watch::Sender<f64>,
}

#[derive(Debug)]
struct State {
    generation: Fleet,
    light: Fleet,
    modes: HashMap<String, Mode>,
    retries: Retries,
    /// Names whose queue the metrics show.
    lengths_shown: HashSet<String>,
    waiters: HashMap<u64, Waiter>,
    /// The waiter of each ticket.
    tickets: HashMap<(Class, Ticket), u64>,
    last: u64,
}

/// One waiting request.
#[derive(Debug)]
struct Waiter {
    class: Class,
    name: Arc<str>,
    ticket: Ticket,
    grant: oneshot::Sender<Result<Permit, Refusal>>,
    /// The row it asks to be brought up.
    demand: Option<(RowId, DemandGuard)>,
}

impl State {
    const fn fleet(&mut self, class: Class) -> &mut Fleet {
        match class {
            Class::Generation => &mut self.generation,
            Class::Light => &mut self.light,
        }
    }

    fn sync(&mut self, snapshot: &Arc<Snapshot>, now: f64) {
        self.generation.sync(snapshot, &self.modes, now);
        self.light.sync(snapshot, &self.modes, now);
    }

    fn take_waiter(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.tickets.remove(&(waiter.class, waiter.ticket));
        Some(waiter)
    }
}

/// A place in a line; leaving early gives it up.
#[derive(Debug)]
struct Place {
    admission: Arc<Admission>,
    id: u64,
    line: Arc<str>,
    word: oneshot::Receiver<Result<Permit, Refusal>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        if let Some(waiter) = state.take_waiter(self.id) {
            state.fleet(waiter.class).router.left(&waiter.name, waiter.ticket);
            self.admission.show_length(&mut state, waiter.class, &waiter.name);
        }
    }
}

enum Entry {
    Now(Permit),
    Later(Place, Outlook),
}

impl Admission {
    pub(super) fn new(registry: Arc<Registry>, activator: Activator, metrics: Arc<Metrics>, config: GatewayConfig) -> Arc<Self> {
        let settings = Settings {
            index_bytes: config.prefix_index_bytes,
            conversations: config.conversations,
            patience: config.home_wait.as_secs_f64(),
        };
        // A call that needs no slot has no prompt worth finding again.
        let none = Settings { index_bytes: 0, conversations: 0, ..settings };
        let state = State {
            generation: Fleet::new(Class::Generation, config.light_per_row, settings),
            light: Fleet::new(Class::Light, config.light_per_row, none),
            modes: HashMap::new(),
            retries: Retries::new(config.retry_share, config.retry_floor),
            lengths_shown: HashSet::new(),
            waiters: HashMap::new(),
            tickets: HashMap::new(),
            last: 0,
        };
        Arc::new(Self {
            registry,
            activator,
            metrics,
            config,
            started: Instant::now(),
            state: Mutex::new(state),
            impatient_at: watch::Sender::new(f64::INFINITY),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        interleave::lock(&self.state)
    }

    /// Seconds on the router's clock.
    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Acts on every change of the registry until `token` is cancelled: new slots are handed out, waiters that hope in
    /// vain are told, demand follows the rows.
    pub(super) async fn follow(self: Arc<Self>, token: CancellationToken) {
        let mut changed = self.registry.subscribe();
        let mut impatient = self.impatient_at.subscribe();
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = Duration::try_from_secs_f64(*impatient.borrow_and_update()).ok().map(|after| self.started + after);
            tokio::select! {
                change = changed.changed() => if change.is_err() { return },
                _ = look.tick() => {
                    self.engines_told();
                    continue;
                }
                // Never an error: this holds the sender.
                _ = impatient.changed() => continue,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.patience_ended();
                    continue;
                }
                () = token.cancelled() => return,
            }
            self.rows_changed();
        }
    }

    /// Waits for a slot. Cancel-safe: a dropped call leaves no trace, and a permit already granted goes to the next.
    pub(super) async fn admit(self: &Arc<Self>, claim: Claim<'_>) -> Result<Permit, Refusal> {
        let asked = Instant::now();
        let (mut place, mut outlook) = match self.enter_or_queue(&claim)? {
            Entry::Now(permit) => return Ok(permit),
            Entry::Later(place, outlook) => (place, outlook),
        };
        let mut changed = self.registry.subscribe();
        // What has changed since the look above is looked at below.
        changed.mark_changed();
        // A wait for a slot counts from here; who waits for a model to come up begins it when that serves.
        let mut from = claim.arrived;
        let mut until = self.wait_until(&claim, asked, from, &outlook);
        loop {
            let is_cold = outlook == Outlook::Coming;
            tokio::select! {
                biased;
                word = &mut place.word => return word.unwrap_or(Err(Refusal::NoOther)),
                _ = changed.changed(), if is_cold => {}
                () = sleep_until(until) => {}
            }
            // What the rows do now decides whether the wait may go on.
            let snapshot = self.registry.snapshot();
            let Some(pool) = snapshot.by_name.get(claim.name) else { return Err(Refusal::UnknownModel) };
            outlook = outlook::outlook(pool, claim.avoid);
            if is_cold && matches!(outlook, Outlook::Serving(_)) {
                from = Instant::now();
            }
            until = self.wait_until(&claim, asked, from, &outlook);
            if until <= Instant::now() {
                return Err(self.out_of_time(&claim, &place.line, outlook));
            }
        }
    }

    fn out_of_time(&self, claim: &Claim<'_>, line: &str, outlook: Outlook) -> Refusal {
        let waited = claim.arrived.elapsed();
        match outlook {
            Outlook::Serving(_) => Refusal::TooLong { waited, retry_after: self.predicted(claim.class, line).unwrap_or_default() },
            Outlook::Coming => Refusal::NotUp { waited },
            Outlook::Suspect => Refusal::NoOther,
            Outlook::Hopeless(reasons) => Refusal::Hopeless(reasons),
        }
    }

    /// How long a request that joins the line now will wait; `None` = not known yet.
    fn predicted(&self, class: Class, line: &str) -> Option<Duration> {
        let mut state = self.state();
        let router = &state.fleet(class).router;
        let seconds = router.predicted_wait(line, router.waiting(line) + 1)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn wait_until(&self, claim: &Claim<'_>, asked: Instant, from: Instant, outlook: &Outlook) -> Instant {
        let until = match outlook {
            Outlook::Serving(_) => from + self.config.queue_wait,
            Outlook::Coming => claim.arrived + self.config.cold_start_wait,
            Outlook::Suspect => asked + self.config.retry_notice,
            Outlook::Hopeless(_) => asked,
        };
        until.min(claim.arrived + self.config.total)
    }

    fn enter_or_queue(self: &Arc<Self>, claim: &Claim<'_>) -> Result<Entry, Refusal> {
        let mut guard = self.state();
        let state = &mut *guard;
        // Read under the lock: a change published later finds this waiter in its line.
        let snapshot = self.registry.snapshot();
        let now = self.now();
        state.sync(&snapshot, now);
        let pool = snapshot.by_name.get(claim.name).ok_or(Refusal::UnknownModel)?;
        let outlook = outlook::outlook(pool, claim.avoid);
        match &outlook {
            Outlook::Hopeless(reasons) => return Err(Refusal::Hopeless(reasons.clone())),
            Outlook::Serving(slots) if claim.class == Class::Generation && claim.ask.weight > *slots => {
                return Err(Refusal::TooHeavy { wanted: claim.ask.weight, slots: *slots });
            }
            _ => {}
        }
        let room = self.capacity(pool, claim.class);
        let name: Arc<str> = Arc::from(line(&snapshot, claim.name, pool));
        if claim.avoid.is_empty() {
            state.retries.paid_in(&name, largest(pool), now);
        }
        let fleet = state.fleet(claim.class);
        let waited = claim.arrived.elapsed().as_secs_f64();
        let ask = Ask {
            deadline: now + self.config.queue_wait.as_secs_f64() - waited,
            avoid: fleet.incarnations(claim.avoid),
            ..claim.ask.clone()
        };
        let ticket = match fleet.arrive(&name, &ask, room, now) {
            Ok(entered) => {
                drop(guard);
                return Ok(Entry::Now(Permit::new(Arc::clone(self), claim.class, entered)));
            }
            Err(Arrival::Waiting(ticket)) => ticket,
            Err(_) => {
                let waiting = fleet.router.waiting(&name);
                let retry_after =
                    fleet.router.predicted_wait(&name, waiting + 1).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                return Err(Refusal::Full { waiting, retry_after: retry_after.unwrap_or_default() });
            }
        };
        if matches!(outlook, Outlook::Serving(_))
            && let Some(wait) =
                fleet.router.predicted_wait(&name, fleet.router.waiting(&name)).filter(|wait| *wait > self.config.queue_wait.as_secs_f64())
        {
            fleet.router.left(&name, ticket);
            let retry_after = Duration::try_from_secs_f64(wait).unwrap_or_default();
            return Err(Refusal::Full { waiting: fleet.router.waiting(&name), retry_after });
        }
        let (grant, word) = oneshot::channel();
        let mut waiter = Waiter { class: claim.class, name, ticket, grant, demand: None };
        let asked_for_a_row = demand(&mut waiter, pool);
        state.last += 1;
        let id = state.last;
        state.tickets.insert((claim.class, ticket), id);
        let name = Arc::clone(&waiter.name);
        state.waiters.insert(id, waiter);
        self.show_length(state, claim.class, &name);
        self.note_patience(state);
        drop(guard);
        if asked_for_a_row {
            self.activator.wake();
        }
        Ok(Entry::Later(Place { admission: Arc::clone(self), id, line: name, word }, outlook))
    }

    /// Whether a request of this name that failed may be tried again; if so, its pool has paid for it.
    pub(super) fn may_retry(&self, name: &str) -> bool {
        let mut state = self.state();
        let snapshot = self.registry.snapshot();
        let Some(pool) = snapshot.by_name.get(name) else { return false };
        let now = self.now();
        state.retries.spend(&Arc::from(line(&snapshot, name, pool)), largest(pool), now)
    }

    /// The first byte of a reply is here: its prompt is read.
    pub(super) fn first_byte(&self, permit: &Permit) {
        let now = self.now();
        self.state().fleet(permit.class).router.first_byte(permit.placement.flight, now);
    }

    /// A slot came free: whoever's turn it is gets it.
    pub(super) fn given_back(self: &Arc<Self>, permit: &Permit) {
        let mut guard = self.state();
        let state = &mut *guard;
        let now = self.now();
        let fleet = state.fleet(permit.class);
        let opened = fleet.router.ended(permit.placement.flight, permit.outcome, &permit.seen, rand::random(), now);
        if state.waiters.is_empty() {
            drop(guard);
        } else {
            let names = state.fleet(permit.class).member(permit.row.id).map(|member| member.names.clone()).unwrap_or_default();
            let words = self.grants_of(state, permit.class, names, now);
            drop(guard);
            send(words);
        }
        if opened {
            tracing::warn!(server.id = %permit.row.id, "the row failed too often and is left alone for a while");
        }
    }

    /// Looks through one line again.
    fn hand_out(self: &Arc<Self>, class: Class, name: &str) {
        let mut guard = self.state();
        let now = self.now();
        let words = self.grants(&mut guard, class, &Arc::from(name), now);
        drop(guard);
        send(words);
    }

    /// Everybody of these lines who can be served now, those first that have waited longest.
    fn grants_of(self: &Arc<Self>, state: &mut State, class: Class, names: impl IntoIterator<Item = Arc<str>>, now: f64) -> Vec<Word> {
        let router = &state.fleet(class).router;
        let mut lines: Vec<_> = names.into_iter().filter_map(|name| Some((router.first_waiting(&name)?, name))).collect();
        lines.sort_unstable();
        lines.iter().flat_map(|(_, name)| self.grants(state, class, name, now)).collect()
    }

    /// Everybody of a line who can be served now, with the permit.
    fn grants(self: &Arc<Self>, state: &mut State, class: Class, name: &Arc<str>, now: f64) -> Vec<Word> {
        let mut words = Vec::new();
        for grant in state.fleet(class).hand_out(name, now) {
            let waiter = state.tickets.remove(&(class, grant.ticket)).and_then(|id| Some((id, state.waiters.remove(&id)?)));
            let fleet = state.fleet(class);
            let Some((id, mut waiter)) = waiter else {
                // Everybody in a line is in this table too: both change under the same lock.
                fleet.router.undo(grant.placement.flight, now);
                continue;
            };
            let entered = match fleet.enter(grant.placement, grant.ask.weight, now) {
                Some(entered) => Ok(entered),
                // The gate was shut a moment ago: it stands in line again.
                None => fleet.arrive(name, &grant.ask, usize::MAX, now),
            };
            match entered {
                Ok(entered) => words.push((waiter.grant, Ok(Permit::new(Arc::clone(self), class, entered)))),
                Err(Arrival::Waiting(ticket)) => {
                    state.tickets.insert((class, ticket), id);
                    waiter.ticket = ticket;
                    state.waiters.insert(id, waiter);
                }
                Err(_) => words.push((waiter.grant, Err(Refusal::NoOther))),
            }
        }
        if !words.is_empty() {
            self.show_length(state, class, name);
        }
        self.note_patience(state);
        words
    }

    /// Has the lines looked at again when the next patience ends.
    fn note_patience(&self, state: &State) {
        let at = state.generation.router.look_at().min(state.light.router.look_at());
        self.impatient_at.send_if_modified(|noted| std::mem::replace(noted, at).total_cmp(&at).is_ne());
    }

    /// Somebody has left free slots to others for long enough.
    fn patience_ended(self: &Arc<Self>) {
        let mut guard = self.state();
        let (state, now) = (&mut *guard, self.now());
        let mut words = Vec::new();
        for class in Class::ALL {
            let names = state.fleet(class).router.due(now);
            words.extend(self.grants_of(state, class, names, now));
        }
        self.note_patience(state);
        drop(guard);
        send(words);
    }

    /// Takes over what engines said of their own queues; where a limit has grown, somebody may be served.
    fn engines_told(self: &Arc<Self>) {
        if !self.config.learn_limits {
            return;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        let (snapshot, now) = (self.registry.snapshot(), self.now());
        state.generation.tell_queues(now);
        let names = snapshot.by_name.keys().filter(|name| state.generation.router.waiting(name) > 0).map(|name| Arc::from(name.as_str()));
        let names: Vec<_> = names.collect();
        let words = self.grants_of(state, Class::Generation, names, now);
        drop(guard);
        send(words);
    }

    fn rows_changed(self: &Arc<Self>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let snapshot = self.registry.snapshot();
        let now = self.now();
        state.sync(&snapshot, now);
        state.retries.retain(|name| snapshot.by_name.contains_key(name));
        state.lengths_shown.retain(|name| {
            let known = snapshot.by_name.contains_key(name);
            if !known {
                self.metrics.drop_queue_length(name);
            }
            known
        });
        let (mut words, wake) = self.inform(state, &snapshot);
        if !state.waiters.is_empty() {
            for class in Class::ALL {
                let names = snapshot.by_name.keys().map(|name| Arc::from(name.as_str()));
                words.extend(self.grants_of(state, class, names, now));
            }
        }
        drop(guard);
        send(words);
        if wake {
            self.activator.wake();
        }
    }

    /// Turns away those who wait in vain and renews the demand of the others. True if a new row is asked for.
    fn inform(&self, state: &mut State, snapshot: &Snapshot) -> (Vec<Word>, bool) {
        let mut wake = false;
        let mut ended = Vec::new();
        for (id, waiter) in &mut state.waiters {
            match snapshot.by_name.get(&*waiter.name) {
                None => ended.push((*id, Refusal::UnknownModel)),
                Some(pool) => match outlook::outlook(pool, &[]) {
                    Outlook::Hopeless(reasons) => ended.push((*id, Refusal::Hopeless(reasons))),
                    _ => wake |= demand(waiter, pool),
                },
            }
        }
        let mut words = Vec::new();
        for (id, refusal) in ended {
            let Some(waiter) = state.take_waiter(id) else { continue };
            state.fleet(waiter.class).router.left(&waiter.name, waiter.ticket);
            self.show_length(state, waiter.class, &waiter.name);
            words.push((waiter.grant, Err(refusal)));
        }
        (words, wake)
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

    fn show_length(&self, state: &mut State, class: Class, name: &str) {
        if class == Class::Generation {
            self.metrics.set_queue_length(name, state.generation.router.waiting(name));
            if !state.lengths_shown.contains(name) {
                state.lengths_shown.insert(name.to_owned());
            }
        }
    }

    /// Sets how the pool of that public name chooses, from now on.
    pub(super) fn set_mode(self: &Arc<Self>, name: &str, mode: Mode) {
        let mut guard = self.state();
        let state = &mut *guard;
        let (snapshot, now) = (self.registry.snapshot(), self.now());
        state.modes.insert(name.to_owned(), mode);
        state.generation.set_mode(&snapshot, name, mode, now);
        drop(guard);
        self.hand_out(Class::Generation, name);
    }

    /// A pool, the load of its rows as the router sees them, and what it may spend on retries.
    pub(super) fn view(&self, name: &str) -> Option<PoolView> {
        let mut guard = self.state();
        let state = &mut *guard;
        let (snapshot, now) = (self.registry.snapshot(), self.now());
        state.sync(&snapshot, now);
        let fleet = &state.generation;
        let pool = snapshot.by_name.get(name)?;
        let rows = pool.iter();
        let rows = rows.filter_map(|row| Some((row.id, fleet.router.row_view(fleet.member(row.id)?.index, now)?))).collect();
        let line = fleet.router.line_view(name).unwrap_or_else(|| LineView::idle(state.modes.get(name).copied().unwrap_or_default()));
        let retries = state.retries.view(&Arc::from(name), largest(pool), now);
        Some(PoolView { line, rows, retries })
    }

    /// Whether nobody waits and nobody is served.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let state = self.state();
        state.waiters.is_empty() && state.tickets.is_empty() && state.generation.router.is_at_rest() && state.light.router.is_at_rest()
    }
}

/// The line of a name: names of the same rows share that of their public name.
fn line<'a>(snapshot: &'a Snapshot, name: &'a str, pool: &[Arc<RowView>]) -> &'a str {
    let public = pool.first().and_then(|row| snapshot.by_name.get_key_value(&row.model_name));
    let same = |other: &[Arc<RowView>]| other.len() == pool.len() && other.iter().zip(pool).all(|(one, other)| one.id == other.id);
    public.filter(|(_, other)| same(other)).map_or(name, |(public, _)| public)
}

/// Slots of the largest row.
fn largest(pool: &[Arc<RowView>]) -> u32 {
    let slots = |row: &Arc<RowView>| match (&row.endpoint, &row.status.resolved) {
        (Some(endpoint), _) => endpoint.slots,
        (None, Some(resolved)) => resolved.slots,
        (None, None) => 1,
    };
    pool.iter().map(slots).max().unwrap_or(1)
}

/// Makes the waiter ask for the row it needs, if any. True if that is a row it did not ask for before.
fn demand(waiter: &mut Waiter, pool: &[Arc<RowView>]) -> bool {
    let Some(row) = outlook::wanted(pool) else {
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
