//! The state of all pools, and the events that change it.
//!
//! Whoever calls owes one end to every placement ([`Router::ended`]), and one of "placed" or [`Router::left`] to every
//! ticket. Everything is bounded: the index and the two maps of conversations by their sizes, queues by the caller's `room`.

use std::collections::HashMap;
use std::sync::Arc;

use super::choose::Choice;
use super::fair::{Claim, FairQueue, Ticket};
use super::glance::{Glance, Sums};
use super::heat::{Heat, Mode};
use super::index::{Holder, PrefixIndex};
use super::known::{Home, Recent};
use super::returns::Returns;
use super::row::{Cache, Row, RowSetup, fade};
use super::shadow::{Sequence, Tail};
use super::speed::{Observation, Speed};
use super::{Ask, FlightId, Outcome, Placement, Reason, RowIndex};

/// Sizes and bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Bytes of the prefix index.
    pub index_bytes: usize,
    /// Conversations remembered by key, and by the end of their prompt.
    pub conversations: usize,
    /// Seconds a request waits at most for the row that holds its conversation while another one is free.
    pub patience: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { index_bytes: 8 << 20, conversations: 65_536, patience: 30.0 }
    }
}

/// Waiting requests looked at for one slot.
const EXAMINED: usize = 64;
/// Work of a generated token in the queue, in prompt tokens.
const OUTPUT_WORK: f64 = 2.0;
/// Seconds after which a request for several slots keeps others from the slots it collects.
const COLLECT_AFTER: f64 = 2.0;
/// Beginnings whose popularity is kept.
const POPULAR: usize = 1024;
/// Seconds in which popularity halves.
const POPULAR_HALF_LIFE: f64 = 60.0;
/// Blocks of a prompt whose stamps are renewed on a shared pool, evenly spread.
const RENEWED: usize = 32;

/// How often new conversations begin alike.
#[derive(Debug, Default)]
pub(super) struct Popularity {
    counts: HashMap<u64, f64>,
    all: f64,
    seen: f64,
}

impl Popularity {
    pub fn share(&self, block: u64) -> f64 {
        self.counts.get(&block).map_or(0.0, |count| count / self.all.max(1.0))
    }

    fn note(&mut self, block: u64, now: f64) {
        let passed = now - self.seen;
        if passed > 1.0 {
            let fade = 0.5_f64.powf(passed / POPULAR_HALF_LIFE);
            self.counts.values_mut().for_each(|count| *count *= fade);
            self.all *= fade;
            self.seen = now;
            self.counts.retain(|_, count| *count > 0.05);
        }
        if self.counts.len() >= POPULAR {
            self.counts.retain(|_, count| *count > 1.0);
        }
        self.all += 1.0;
        if self.counts.len() < POPULAR {
            *self.counts.entry(block).or_default() += 1.0;
        }
    }
}

/// All requests for one name.
#[derive(Debug)]
pub(super) struct Line {
    pub rows: Vec<RowIndex>,
    pub queue: FairQueue<Waiter>,
    pub mode: Mode,
    pub heat: Heat,
    pub turn: usize,
    pub popularity: Popularity,
    pub returns: Returns,
    pub sums: Sums,
    /// When the first of those that leave a free slot to others must be looked at again; infinity = nobody does.
    look_at: f64,
}

impl Line {
    fn new(now: f64) -> Self {
        Self {
            rows: Vec::new(),
            queue: FairQueue::default(),
            mode: Mode::default(),
            heat: Heat::new(now),
            turn: 0,
            popularity: Popularity::default(),
            returns: Returns::default(),
            sums: Sums::default(),
            look_at: f64::INFINITY,
        }
    }

    /// Tells its heat how much of it is taken.
    fn observe(&mut self, now: f64) {
        self.heat.observe((f64::from(self.sums.taken) + self.queue.len() as f64) / f64::from(self.sums.slots.max(1)), now);
    }

    /// What the mode comes to now.
    pub const fn effective_mode(&self) -> Mode {
        match self.mode {
            Mode::Hybrid if self.heat.is_hot() => Mode::Throughput,
            Mode::Hybrid => Mode::Ttft,
            mode => mode,
        }
    }
}

/// One waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    ask: Ask,
    since: f64,
    /// The row it waits for, while another one may be free.
    marked: Option<RowIndex>,
    /// Until when it leaves free slots to others for that row's sake; `None` = there are none.
    patient: Option<f64>,
    /// Work booked on its tenant.
    booked: f64,
}

/// One request on a row.
#[derive(Debug)]
struct Flight {
    row: RowIndex,
    incarnation: u64,
    slot: Option<u32>,
    serial: Option<u32>,
    weight: u32,
    /// Further slots a heavy request takes.
    others: Vec<u32>,
    bytes: u64,
    pending: f64,
    cached: f64,
    started: f64,
    first: Option<f64>,
    tenant: u64,
    charged: f64,
    name: Arc<str>,
}

/// What became of a request that arrived.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// It has a slot.
    Placed(Placement),
    /// It waits.
    Waiting(Ticket),
    /// The queue is full.
    Full,
}

/// A request that waited and has a slot now.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Which.
    pub ticket: Ticket,
    /// What it asked for.
    pub ask: Ask,
    /// Where it goes.
    pub placement: Placement,
}

/// All pools.
#[derive(Debug)]
pub struct Router {
    settings: Settings,
    rows: Vec<Option<Row>>,
    /// Of the same rows.
    glances: Vec<Glance>,
    works: Vec<f64>,
    pub(super) lines: HashMap<Arc<str>, Line>,
    flights: HashMap<FlightId, Flight>,
    pub(super) index: PrefixIndex,
    pub(super) sessions: Recent,
    pub(super) tails: Recent,
    next: u64,
    next_serial: u32,
    /// Conversations that had to be read anew on another row.
    pub cold_moves: u64,
}

impl Router {
    /// Without rows.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rows: Vec::new(),
            glances: Vec::new(),
            works: Vec::new(),
            lines: HashMap::new(),
            flights: HashMap::new(),
            index: PrefixIndex::new(settings.index_bytes),
            sessions: Recent::new(settings.conversations),
            tails: Recent::new(settings.conversations),
            next: 1,
            next_serial: 1,
            cold_moves: 0,
        }
    }

    pub(super) fn row(&self, index: RowIndex) -> Option<&Row> {
        self.rows.get(usize::from(index.0))?.as_ref()
    }

    pub(super) fn row_mut(&mut self, index: RowIndex) -> Option<&mut Row> {
        self.outdate(index);
        self.rows.get_mut(usize::from(index.0))?.as_mut()
    }

    fn outdate(&mut self, index: RowIndex) {
        if let Some(glance) = self.glances.get_mut(usize::from(index.0)) {
            glance.outdate();
        }
    }

    pub(super) fn glance(&self, index: RowIndex) -> Option<&Glance> {
        self.glances.get(usize::from(index.0))
    }

    /// Looks at all rows of a pool, and what they come to together. To be called before anything is decided for it.
    fn look(&mut self, name: &Arc<str>, now: f64) {
        let Some(line) = self.lines.get_mut(name) else { return };
        let (mut sums, count) = (Sums::default(), line.rows.len());
        for at in line.rows.iter().map(|index| usize::from(index.0)) {
            let Some(glance) = self.glances.get_mut(at) else { continue };
            if glance.is_outdated(count, now) {
                *glance = self.rows.get(at).and_then(Option::as_ref).map_or(Glance::unseen(), |row| row.glance(&line.returns, now));
            }
            sums.add(glance);
        }
        line.sums = sums;
        line.observe(now);
    }

    const fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A row came up under these names. `None` = there are more than 65,535.
    pub fn row_up(&mut self, names: &[Arc<str>], setup: RowSetup, now: f64) -> Option<RowIndex> {
        let at = self.rows.iter().position(Option::is_none).unwrap_or(self.rows.len());
        if at == self.rows.len() {
            self.rows.push(None);
            self.glances.push(Glance::unseen());
            self.works.push(0.0);
        }
        let index = RowIndex(u16::try_from(at).ok().filter(|index| *index < u16::MAX)?);
        let incarnation = self.fresh();
        let slowest = names.first().and_then(|name| self.lines.get(name)).and_then(|line| {
            let speeds = line.rows.iter().filter_map(|peer| self.row(*peer)).map(|peer| peer.speed).filter(Speed::is_learned);
            speeds.min_by(|one, two| one.prefill.total_cmp(&two.prefill))
        });
        let work = self.works.get(at).copied().unwrap_or(0.0);
        if let Some(place) = self.rows.get_mut(at) {
            *place = Some(Row::new(setup, incarnation, Speed::new(slowest.as_ref()), work));
        }
        self.outdate(index);
        for name in names {
            self.lines.entry(Arc::clone(name)).or_insert_with(|| Line::new(now)).rows.push(index);
        }
        Some(index)
    }

    /// The names of a row changed while it serves.
    pub fn row_named(&mut self, index: RowIndex, names: &[Arc<str>], now: f64) {
        for line in self.lines.values_mut() {
            line.rows.retain(|row| *row != index);
        }
        for name in names {
            self.lines.entry(Arc::clone(name)).or_insert_with(|| Line::new(now)).rows.push(index);
        }
    }

    /// A row takes no new requests any more; those it has go on.
    pub fn row_closing(&mut self, index: RowIndex) {
        if let Some(row) = self.row_mut(index) {
            row.open = false;
        }
    }

    /// A row is gone. Ends of requests it had may still come in.
    pub fn row_gone(&mut self, index: RowIndex) {
        let at = usize::from(index.0);
        let Some(row) = self.rows.get_mut(at).and_then(Option::take) else { return };
        self.outdate(index);
        // What was stamped before is out of reach of whoever gets this place next.
        if let Some(work) = self.works.get_mut(at) {
            let held = match &row.cache {
                Cache::Pool(pool) => pool.tokens,
                Cache::Slots(_) => 0.0,
            };
            *work = row.work + held * 2.0;
        }
        for line in self.lines.values_mut() {
            line.rows.retain(|other| *other != index);
            // The next row in this place is another one.
            for waiter in line.queue.iter_mut().filter(|waiter| waiter.marked == Some(index)) {
                waiter.marked = None;
            }
        }
    }

    /// The incarnation of a row, to be avoided by a request it failed.
    pub fn incarnation(&self, index: RowIndex) -> Option<u64> {
        self.row(index).map(|row| row.incarnation)
    }

    /// Sets how a pool chooses.
    pub fn set_mode(&mut self, name: &Arc<str>, mode: Mode, now: f64) {
        self.lines.entry(Arc::clone(name)).or_insert_with(|| Line::new(now)).mode = mode;
    }

    /// Forgets pools that have neither rows nor waiting requests and are not in `names`.
    pub fn retain_lines(&mut self, names: impl Fn(&str) -> bool) {
        self.lines.retain(|name, line| !line.rows.is_empty() || !line.queue.is_empty() || names(name));
    }

    /// A request arrives. It is placed at once, or waits if fewer than `room` do.
    pub fn arrive(&mut self, name: &Arc<str>, ask: &Ask, room: usize, now: f64) -> Arrival {
        self.look(name, now);
        let Some(line) = self.lines.get(name) else { return self.enqueue(name, ask, None, room, now) };
        let choice = self.choose(line, ask, false, now);
        if line.queue.is_empty() || self.has_row_with_room(line) {
            // Whoever came earlier and could use the same slot would have it already.
            if let Some(choice) = choice.filter(|choice| choice.free && (line.queue.is_empty() || Self::nobody_marked(line, choice.row))) {
                let claim = self.claim(ask, &choice);
                if let Some(line) = self.lines.get_mut(name) {
                    line.queue.pass(&claim);
                }
                return Arrival::Placed(self.place(name, ask, &choice, claim.cost, now));
            }
        }
        self.enqueue(name, ask, choice, room, now)
    }

    fn enqueue(&mut self, name: &Arc<str>, ask: &Ask, choice: Option<Choice>, room: usize, now: f64) -> Arrival {
        let marked = choice.map(|choice| choice.row);
        let patient = choice.and_then(|choice| choice.passed_up).map(|cost| now + self.patience(cost, ask.deadline, now));
        let ticket = Ticket(self.fresh());
        let line = self.lines.entry(Arc::clone(name)).or_insert_with(|| Line::new(now));
        if line.queue.len() >= room {
            return Arrival::Full;
        }
        let claim = Claim { tenant: ask.tenant, band: ask.band, cost: work(ask.prefix.bytes as f64 / 4.0, ask.output_tokens, 128.0) };
        line.queue.push(ticket, &claim, Waiter { ask: ask.clone(), since: now, marked, patient, booked: claim.cost }, now);
        line.look_at = line.look_at.min(patient.unwrap_or(f64::INFINITY));
        self.count_waiter(marked, true);
        Arrival::Waiting(ticket)
    }

    fn count_waiter(&mut self, row: Option<RowIndex>, more: bool) {
        if let Some(row) = row.and_then(|row| self.row_mut(row)) {
            row.waiters = if more { row.waiters + 1 } else { row.waiters.saturating_sub(1) };
        }
    }

    fn has_row_with_room(&self, line: &Line) -> bool {
        line.rows.iter().filter_map(|index| self.glance(*index)).any(|row| row.open && row.has_room(1))
    }

    fn nobody_marked(line: &Line, row: RowIndex) -> bool {
        !line.queue.iter().take(EXAMINED).any(|(_, waiter)| waiter.marked.is_none_or(|marked| marked == row))
    }

    fn claim(&self, ask: &Ask, choice: &Choice) -> Claim {
        let output = self.row(choice.row).map_or(128.0, |row| row.speed.output);
        Claim { tenant: ask.tenant, band: ask.band, cost: work(choice.uncached, ask.output_tokens, output) }
    }

    /// Whoever waits for this name and can be served now is. To be called after every event that may free a slot.
    pub fn hand_out(&mut self, name: &Arc<str>, now: f64) -> Vec<Grant> {
        let mut grants = Vec::new();
        let Some(line) = self.lines.get_mut(name) else { return grants };
        line.look_at = f64::INFINITY;
        if line.queue.is_empty() {
            return grants;
        }
        line.queue.lift(now);
        let order: Vec<Ticket> = line.queue.iter().take(EXAMINED).map(|(ticket, _)| ticket).collect();
        for ticket in order {
            self.look(name, now);
            if !self.lines.get(name).is_some_and(|line| self.has_row_with_room(line)) {
                break;
            }
            match self.review(name, ticket, now) {
                Review::Placed(placement, ask) => grants.push(Grant { ticket, ask, placement }),
                Review::Waits => {}
                Review::Collects => break,
            }
        }
        grants
    }

    fn review(&mut self, name: &Arc<str>, ticket: Ticket, now: f64) -> Review {
        let Some((line, waiter)) = self.lines.get(name).and_then(|line| {
            let waiter = line.queue.iter().take(EXAMINED).find(|(other, _)| *other == ticket)?.1;
            Some((line, waiter))
        }) else {
            return Review::Waits;
        };
        let (marked, since, weight, deadline) = (waiter.marked, waiter.since, waiter.ask.weight, waiter.ask.deadline);
        let overdue = waiter.patient.is_some_and(|until| until <= now);
        let patient = waiter.patient.filter(|_| !overdue);
        let mut choice = self.choose(line, &waiter.ask, false, now);
        if overdue && choice.is_some_and(|choice| choice.passed_up.is_some()) {
            let other = self.choose(line, &waiter.ask, true, now);
            choice = other.map(|other| Choice { reason: Reason::Overdue, ..other }).or(choice);
        }
        match choice {
            Some(choice) if choice.free => {
                let Some(waiter) = self.lines.get_mut(name).and_then(|line| line.queue.serve(ticket)) else { return Review::Waits };
                self.count_waiter(marked, false);
                Review::Placed(self.place(name, &waiter.ask, &choice, waiter.booked, now), waiter.ask)
            }
            choice => {
                let row = choice.map(|choice| choice.row);
                if row != marked {
                    self.count_waiter(marked, false);
                    self.count_waiter(row, true);
                }
                let passed_up = choice.and_then(|choice| choice.passed_up);
                let until = passed_up.map(|cost| patient.unwrap_or_else(|| now + self.patience(cost, deadline, now)));
                if let Some(line) = self.lines.get_mut(name) {
                    line.look_at = line.look_at.min(until.unwrap_or(f64::INFINITY));
                    if let Some(waiter) = line.queue.get_mut(ticket) {
                        (waiter.marked, waiter.patient) = (row, until);
                    }
                }
                if weight > 1 && now - since > COLLECT_AFTER { Review::Collects } else { Review::Waits }
            }
        }
    }

    /// How long a request leaves a free slot that would cost it so much to others, for the sake of the row that holds its
    /// conversation. What a wait will come to is a guess; with as much waited as the other way would have cost, it has come to
    /// twice that at most.
    fn patience(&self, cost: f64, deadline: f64, now: f64) -> f64 {
        cost.min(self.settings.patience).min((deadline - now) / 2.0).max(0.0)
    }

    /// When somebody's patience ends; infinity = nobody leaves a free slot to others.
    pub fn look_at(&self) -> f64 {
        self.lines.values().map(|line| line.look_at).fold(f64::INFINITY, f64::min)
    }

    /// The names for which [`Router::hand_out`] is due by then.
    pub fn due(&self, now: f64) -> Vec<Arc<str>> {
        self.lines.iter().filter(|(_, line)| line.look_at <= now).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// A waiting request gave up.
    pub fn left(&mut self, name: &Arc<str>, ticket: Ticket) -> bool {
        let Some(line) = self.lines.get_mut(name) else { return false };
        let Some(waiter) = line.queue.remove(ticket) else { return false };
        line.queue.correct(waiter.ask.tenant, -waiter.booked);
        self.count_waiter(waiter.marked, false);
        true
    }

    fn place(&mut self, name: &Arc<str>, ask: &Ask, choice: &Choice, charged: f64, now: f64) -> Placement {
        let flight = FlightId(self.fresh());
        let known_blocks = self.index.depth(&ask.prefix.blocks);
        if choice.reason == Reason::Moved {
            self.cold_moves += 1;
        }
        let (mut serial, mut others, mut incarnation) = (None, Vec::new(), 0);
        self.note_pause(name, ask, choice.row, now);
        let fresh_serial = self.next_serial;
        let mut weight = ask.weight.max(1);
        self.outdate(choice.row);
        let row = self.rows.get_mut(usize::from(choice.row.0)).and_then(Option::as_mut);
        if let (Some(row), Some(line)) = (row, self.lines.get(name)) {
            incarnation = row.incarnation;
            weight = weight.min(row.setup.slots);
            row.in_flight += weight;
            row.requests += 1;
            row.pending += choice.uncached;
            row.breaker.sent(now);
            row.work += choice.uncached;
            if let Cache::Slots(shadow) = &mut row.cache {
                if let Some(slot) = choice.offer.slot {
                    let held = choice.offer.sequence.and_then(|serial| shadow.find(serial)).map(|(_, held)| held.clone());
                    let mut sequence = held.unwrap_or_else(|| Sequence::new(fresh_serial, now));
                    serial = Some(sequence.serial);
                    sequence.last_used = now;
                    sequence.tokens = row.speed.tokens(ask.prefix.bytes);
                    if let Some(end) = ask.prefix.ends.last() {
                        sequence.add_tail(Tail { hash: end.hash, bytes: end.bytes });
                    }
                    shadow.begin(slot, sequence, choice.offer.cached);
                } else {
                    // A request for several slots is placed by the engine; what it puts where is not known.
                    for _ in 0..weight {
                        let Some(victim) = shadow.victim(&line.returns, now) else { break };
                        shadow.begin(victim.slot, Sequence::new(0, now), 0.0);
                        others.push(victim.slot);
                    }
                }
            }
        }
        if serial == Some(fresh_serial) {
            self.next_serial = self.next_serial.wrapping_add(1).max(1);
        }
        self.remember(ask, choice, incarnation, serial, known_blocks, now);
        self.after_choice(name, ask, choice, weight, known_blocks, now);
        self.flights.insert(
            flight,
            Flight {
                row: choice.row,
                incarnation,
                slot: choice.offer.slot,
                serial,
                weight,
                others,
                bytes: ask.prefix.bytes,
                pending: choice.uncached,
                cached: choice.offer.cached,
                started: now,
                first: None,
                tenant: ask.tenant,
                charged,
                name: Arc::clone(name),
            },
        );
        Placement {
            flight,
            row: choice.row,
            slot: choice.offer.slot,
            reason: choice.reason,
            cached_tokens: choice.offer.cached,
            first_token: choice.first_token,
            mode: choice.mode,
        }
    }

    /// Notes where this prompt is now, so that its siblings and its next turn find it.
    fn remember(&mut self, ask: &Ask, choice: &Choice, incarnation: u64, serial: Option<u32>, known_blocks: usize, now: f64) {
        let Some(row) = self.row(choice.row) else { return };
        let slots = matches!(row.cache, Cache::Slots(_));
        if slots && serial.is_none() {
            return;
        }
        let stamp = serial.unwrap_or_else(|| row.stamp());
        let home = Home { row: choice.row, incarnation, stamp, bytes: 0, at: now };
        if let Some(session) = ask.session {
            self.sessions.set(session, home);
        }
        if let Some(end) = ask.prefix.ends.last() {
            self.tails.set(end.hash, Home { bytes: end.bytes, ..home });
        }
        let holder = Holder { row: choice.row, stamp };
        // A sequence that goes on has its older blocks in the index; a new one, and a pool, need (some of) them again.
        let goes_on = slots && choice.offer.sequence.is_some();
        let blocks = &ask.prefix.blocks;
        let stride = (known_blocks / RENEWED).max(1);
        for (at, block) in blocks.iter().enumerate() {
            let renew = at >= known_blocks || (slots && !goes_on) || (!slots && (at % stride == 0 || at + 1 == known_blocks));
            if renew {
                self.index.insert(*block, holder);
            }
        }
    }

    fn after_choice(&mut self, name: &Arc<str>, ask: &Ask, choice: &Choice, weight: u32, known_blocks: usize, now: f64) {
        let Some(line) = self.lines.get_mut(name) else { return };
        line.turn = line.turn.wrapping_add(1);
        line.sums.taken += weight;
        line.heat.dispatched(choice.uncached, line.sums.prefill);
        if !matches!(choice.reason, Reason::Conversation | Reason::Session)
            && let Some(block) = known_blocks.checked_sub(1).and_then(|at| ask.prefix.blocks.get(at))
        {
            line.popularity.note(*block, now);
        }
    }

    /// Counts the pause after which a conversation goes on, or that one begins.
    fn note_pause(&mut self, name: &Arc<str>, ask: &Ask, to: RowIndex, now: f64) {
        let by_end = ask.prefix.ends.iter().rev().find_map(|end| self.tails.get(end.hash));
        let home = by_end.or_else(|| ask.session.and_then(|session| self.sessions.get(session)));
        let rested = home.map(|home| {
            let row = self.row(home.row).filter(|row| row.incarnation == home.incarnation);
            let held = row.and_then(|row| match &row.cache {
                Cache::Slots(shadow) => shadow.find(home.stamp),
                Cache::Pool(_) => None,
            });
            now - held.map_or(home.at, |(_, sequence)| sequence.last_used)
        });
        let Some(line) = self.lines.get_mut(name) else { return };
        match rested {
            Some(pause) => line.returns.returned(pause),
            None => line.returns.began(),
        }
        // A shared pool keeps no list of its conversations: this one leaves the row it lived on, and comes to its new one.
        let half_life = line.returns.half_life();
        for (row, incarnation, bytes, at, came) in home
            .map(|home| (home.row, home.incarnation, home.bytes, home.at, false))
            .into_iter()
            .chain(self.incarnation(to).map(|incarnation| (to, incarnation, ask.prefix.bytes, now, true)))
        {
            if let Some(row) = self.row_mut(row).filter(|row| row.incarnation == incarnation)
                && let tokens = row.speed.tokens(bytes)
                && let Cache::Pool(pool) = &mut row.cache
            {
                pool.live(if came { tokens } else { -tokens * fade(now - at, half_life) }, half_life, now);
            }
        }
    }

    /// A request's engine took it but the gate had just been shut: it never ran there.
    pub fn undo(&mut self, flight: FlightId, now: f64) {
        if let Some(state) = self.flights.get(&flight)
            && let Some(line) = self.lines.get_mut(&state.name)
        {
            line.queue.correct(state.tenant, -state.charged);
        }
        self.ended(flight, Outcome::Neutral, &Observation::default(), 0.0, now);
    }

    /// The first byte of a reply is here: its prompt is read.
    pub fn first_byte(&mut self, flight: FlightId, now: f64) {
        let Some(state) = self.flights.get_mut(&flight) else { return };
        state.first.get_or_insert(now - state.started);
        let (row, incarnation, pending) = (state.row, state.incarnation, std::mem::take(&mut state.pending));
        if let Some(row) = self.row_mut(row).filter(|row| row.incarnation == incarnation) {
            row.pending = (row.pending - pending).max(0.0);
        }
    }

    /// A request is over and its slot is free. `jitter` = 0 to 1. True if this made its row be left alone.
    pub fn ended(&mut self, flight: FlightId, outcome: Outcome, seen: &Observation, jitter: f64, now: f64) -> bool {
        let Some(state) = self.flights.remove(&flight) else { return false };
        let tenant_work = seen.prompt_tokens.map(|prompt| {
            prompt.saturating_sub(seen.cached_tokens.unwrap_or(0)) as f64 + OUTPUT_WORK * seen.output_tokens.unwrap_or(0) as f64
        });
        let mut opened = false;
        if let Some(row) = self.row_mut(state.row).filter(|row| row.incarnation == state.incarnation) {
            row.in_flight = row.in_flight.saturating_sub(state.weight);
            row.requests = row.requests.saturating_sub(1);
            row.pending = if row.requests == 0 { 0.0 } else { (row.pending - state.pending).max(0.0) };
            opened = row.breaker.ended(outcome, now, jitter);
            if outcome == Outcome::Good {
                row.speed.learn(state.bytes, state.first, now - state.started, seen);
            }
            row.work += seen.output_tokens.unwrap_or(0) as f64;
            match &mut row.cache {
                Cache::Slots(shadow) => {
                    if let Some(slot) = state.slot {
                        shadow.end(slot);
                        if let Some(held) = shadow.holds_mut(slot).filter(|held| Some(held.serial) == state.serial) {
                            held.last_used = now;
                            if let Some(prompt) = seen.prompt_tokens {
                                held.tokens = (prompt + seen.output_tokens.unwrap_or(0)) as f64;
                            }
                        }
                        if matches!(outcome, Outcome::Failed | Outcome::NoConnection) {
                            shadow.forget(slot);
                        }
                    }
                    for slot in &state.others {
                        shadow.end(*slot);
                        shadow.forget(*slot);
                    }
                }
                Cache::Pool(pool) => {
                    if let Some(actual) = seen.cached_tokens {
                        pool.learn(state.cached, actual as f64);
                    }
                }
            }
        }
        if let Some(line) = self.lines.get_mut(&state.name) {
            if let Some(work) = tenant_work {
                line.queue.correct(state.tenant, work - state.charged);
            }
            // No look at all rows for the sake of one: the next arrival has it.
            line.sums.taken = line.sums.taken.saturating_sub(state.weight);
            line.observe(now);
        }
        opened
    }

    /// Requests waiting for a name.
    pub fn waiting(&self, name: &str) -> usize {
        self.lines.get(name).map_or(0, |line| line.queue.len())
    }

    pub(super) fn rows_up(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }

    /// Requests on rows.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Seconds until the request at that place in the line (1 = the first) gets a slot, from the means of its rows; `None` =
    /// nothing is known.
    pub fn predicted_wait(&self, name: &str, place: usize) -> Option<f64> {
        let line = self.lines.get(name)?;
        let rows = || line.rows.iter().filter_map(|index| self.row(*index)).filter(|row| row.open);
        let drain: f64 = rows().filter(|row| row.speed.is_learned()).map(|row| f64::from(row.learned.get()) / row.speed.service).sum();
        (drain > 0.0).then(|| place as f64 / drain)
    }
}

enum Review {
    Placed(Placement, Ask),
    Waits,
    /// It collects several slots and lets nobody overtake.
    Collects,
}

fn work(uncached: f64, output: Option<u32>, usual: f64) -> f64 {
    // What a request may generate at most says little: most end long before.
    let output = output.map_or(usual, |most| f64::from(most).min(usual.max(1.0) * 4.0));
    uncached + OUTPUT_WORK * output
}
