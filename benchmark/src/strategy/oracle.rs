//! A router that knows exactly what every engine holds, because it applies the engine's own cache rules to everything it
//! sends, and chooses the slot itself. What it reaches is what a router can hope for; it knows nothing of the future.
//!
//! It sends a request to where its first token comes soonest: what a row reads before it, what is left of the prompt to
//! read, a charge for what is pushed out and, the busier the rows are, one for reading at all. If that is a row without a
//! free slot, the request waits here.

use std::collections::{HashMap, VecDeque};

use lifeboat::sim_engine::model::{EngineSetup, Sequence, SlotCache, SlotRules, Speed};

use super::{Dispatch, Outcome, Question, Strategy};

/// Weight of what others lose, against what this request gains.
const LOSS: f64 = 1.0;
/// Seconds over which the share of busy slots is smoothed.
const HEAT_SECONDS: f64 = 5.0;
/// The price of reading, at most, as a multiple of the time it takes.
const MOST_PRICE: f64 = 4.0;
/// Seconds in which the chance that a conversation goes on halves.
const RETURN_HALF_LIFE: f64 = 5.0;
/// What a sequence costs that can be fetched back from host memory, as a part of reading it.
const FETCH_BACK: f64 = 0.1;
/// A prompt that keeps at least this part of a sequence goes on with it.
const GOES_ON: f64 = 0.9;
/// Weight of the conversations that live on a row.
const PLACEMENT: f64 = 0.05;
/// Seconds without a turn after which a conversation is taken for ended.
const LIVES_SECONDS: f64 = 60.0;
/// Waiting requests looked at for one event, oldest first.
const EXAMINED: usize = 64;
/// Weight of the newest in the mean time a request keeps its slot.
const WEIGHT: f64 = 0.1;

#[derive(Debug)]
struct Row<S> {
    slots: SlotCache<S>,
    busy: Vec<bool>,
    /// When each slot was used last.
    used: Vec<f64>,
    /// Tokens sent and not read yet.
    pending: f64,
    waiters: u32,
}

#[derive(Debug)]
struct Flight<S> {
    session: u64,
    row: usize,
    slot: usize,
    prompt: S,
    unread: f64,
    since: f64,
}

/// Where a conversation lives.
#[derive(Debug)]
struct Home {
    row: usize,
    tokens: f64,
    busy: bool,
    seen: f64,
}

#[derive(Debug)]
struct Waiting<S> {
    session: u64,
    since: f64,
    id: u64,
    prompt: S,
    output: u32,
}

/// A slot for a prompt.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// The slot to ask for; `None` = the engine chooses.
    wanted: Option<usize>,
    /// The slot it is going to be.
    slot: usize,
    /// Tokens found there.
    found: f64,
    /// Tokens that others have to read again for it.
    lost: f64,
}

/// Where the first token of a prompt comes soonest.
struct Best {
    row: usize,
    /// `None` = no slot is free there now.
    offer: Option<Offer>,
    cost: f64,
}

/// The oracle.
#[derive(Debug)]
pub struct Oracle<S> {
    rows: Vec<Row<S>>,
    flights: HashMap<u64, Flight<S>>,
    waiting: VecDeque<Waiting<S>>,
    homes: HashMap<u64, Home>,
    host_tokens: usize,
    speed: Speed,
    service: f64,
    turn: usize,
    /// Share of busy slots, smoothed.
    heat: f64,
    seen: f64,
}

/// Tokens that the owner of a sequence has to read again if this prompt takes its place.
fn lost_to_owner<S: Sequence>(held: &S, prompt: &S) -> f64 {
    let (tokens, common) = (held.tokens() as f64, held.common_prefix(prompt) as f64);
    if common >= tokens * GOES_ON { tokens - common } else { tokens }
}

impl<S: Sequence + Clone> Oracle<S> {
    /// For rows of engines like this one, with slots by these rules.
    pub fn new(rows: usize, engine: &EngineSetup, rules: SlotRules) -> Self {
        let row = || Row {
            slots: SlotCache::new(engine.slots, rules),
            busy: vec![false; engine.slots],
            used: vec![0.0; engine.slots],
            pending: 0.0,
            waiters: 0,
        };
        Self {
            rows: (0..rows).map(|_| row()).collect(),
            flights: HashMap::new(),
            waiting: VecDeque::new(),
            homes: HashMap::new(),
            host_tokens: rules.host_tokens,
            speed: engine.speed,
            service: 2.0,
            turn: 0,
            heat: 0.0,
            seen: 0.0,
        }
    }

    /// What reading costs beyond its own time: it holds up everybody else in the row, and where slots are scarce everybody
    /// behind them.
    fn price(&self) -> f64 {
        (self.heat * self.heat / (1.0 - self.heat).max(1e-3)).min(MOST_PRICE)
    }

    /// Notes how many slots are busy.
    fn observe(&mut self, now: f64) {
        let slots: usize = self.rows.iter().map(|row| row.busy.len()).sum();
        let share = self.flights.len() as f64 / slots.max(1) as f64;
        let weight = 1.0 - (-(now - self.seen).max(0.0) / HEAT_SECONDS).exp();
        self.heat += weight * (share - self.heat);
        self.seen = now;
    }

    fn reading(&self, tokens: f64) -> f64 {
        tokens * self.speed.prefill_micros / 1e6
    }

    /// The best slot of a row.
    fn best_slot(&self, row: &Row<S>, prompt: &S, now: f64) -> Option<Offer> {
        let host = row.slots.host();
        let offer = |wanted: Option<usize>| {
            let (slot, found) = row.slots.peek(prompt, wanted)?;
            let chance = 0.5_f64.powf((now - row.used[slot]) / RETURN_HALF_LIFE);
            let held = row.slots.held(slot);
            let common = held.map_or(0, |held| held.common_prefix(prompt));
            // What is fetched from host memory for a prompt that does not go on with it is lost to its owner.
            let fetched = if found > common { host.better(held, prompt) } else { None };
            let stolen = fetched.map_or(0.0, |entry| lost_to_owner(entry, prompt));
            let loss = match held {
                None => 0.0,
                // It is not saved: a stranger takes all of it, for what both begin with cannot be in two slots.
                Some(held) if fetched.is_none() && common >= held.tokens().div_ceil(2) => lost_to_owner(held, prompt) * chance,
                Some(held) if held.tokens() <= self.host_tokens => {
                    (held.tokens() as f64).mul_add(FETCH_BACK, host.pushed_out_by(held) as f64) * chance
                }
                Some(held) => held.tokens() as f64 * chance,
            };
            Some(Offer { wanted, slot, found: found as f64, lost: loss + stolen })
        };
        // Of equal ones the slot not used for longest; and the engine's own choice, which alone fetches into an empty slot.
        let idle = (0..row.busy.len()).filter(|slot| !row.busy[*slot]);
        idle.map(Some).chain([None]).filter_map(offer).min_by(|one, two| {
            let worth = |offer: &Offer| LOSS.mul_add(offer.lost, -offer.found);
            worth(one).total_cmp(&worth(two)).then(row.slots.released(one.slot).cmp(&row.slots.released(two.slot)))
        })
    }

    /// Tokens of the conversations that live on each row.
    fn living(&mut self, now: f64) -> Vec<f64> {
        self.homes.retain(|_, home| home.busy || now - home.seen < LIVES_SECONDS);
        let mut tokens = vec![0.0; self.rows.len()];
        for home in self.homes.values() {
            tokens[home.row] += home.tokens;
        }
        tokens
    }

    /// Tokens a row without a free slot will have of a prompt.
    fn later(row: &Row<S>, prompt: &S) -> f64 {
        row.slots.host().better(None, prompt).map_or(0, |held| held.common_prefix(prompt)) as f64
    }

    fn choose(&mut self, request: &Waiting<S>, now: f64) -> Option<Best> {
        let living = self.living(now);
        let home = self.homes.get(&request.session).map(|home| home.row);
        let prompt = &request.prompt;
        let length = prompt.tokens() as f64;
        let price = self.price();
        // To read all of it elsewhere would have taken as long by now.
        let impatient = now - request.since > (1.0 + price) * self.reading(length);
        let mut best: Option<Best> = None;
        for step in 0..self.rows.len() {
            let at = (self.turn + step) % self.rows.len();
            let row = &self.rows[at];
            let busy = row.busy.iter().filter(|busy| **busy).count() as f64;
            let step_seconds = self.speed.decode_micros / 1e6;
            let (offer, cost) = if let Some(offer) = self.best_slot(row, prompt, now) {
                // A conversation that is new here comes to stay: rows are to be filled evenly.
                let crowd = if home == Some(at) { 0.0 } else { living[at] * PLACEMENT };
                let read = self.reading(row.pending + (1.0 + price) * (length - offer.found) + LOSS * offer.lost + crowd);
                (Some(offer), (step_seconds * self.speed.batch_slowdown).mul_add(busy, read))
            } else {
                let wait = f64::from(1 + row.waiters) * self.service / row.busy.len() as f64;
                (None, if impatient { f64::INFINITY } else { 0.0 } + wait + (1.0 + price) * self.reading(length - Self::later(row, prompt)))
            };
            if best.as_ref().is_none_or(|best| cost < best.cost - 1e-9) {
                best = Some(Best { row: at, offer, cost });
            }
        }
        best
    }

    fn send(&mut self, request: Waiting<S>, row: usize, offer: Offer, now: f64) -> Option<Dispatch> {
        let Waiting { session, id, prompt, output, .. } = request;
        let state = &mut self.rows[row];
        let placed = state.slots.launch(&prompt, offer.wanted, output as usize, true, true)?;
        let (slot, found) = (placed.slot, placed.cached);
        let unread = (prompt.tokens() - found) as f64;
        state.busy[slot] = true;
        state.pending += unread;
        self.turn = (row + 1) % self.rows.len();
        self.homes.insert(session, Home { row, tokens: prompt.tokens() as f64, busy: true, seen: now });
        self.flights.insert(id, Flight { session, row, slot, prompt, unread, since: now });
        Some(Dispatch { id, row, slot: offer.wanted })
    }

    /// Sends whoever is best served by a row that has room, oldest first.
    fn hand_out(&mut self, now: f64, sent: &mut Vec<Dispatch>) {
        for row in &mut self.rows {
            row.waiters = 0;
        }
        let mut left = Vec::new();
        let count = self.waiting.len();
        for _ in 0..count.min(EXAMINED) {
            let Some(request) = self.waiting.pop_front() else { break };
            match self.choose(&request, now) {
                Some(Best { row, offer: Some(offer), .. }) => sent.extend(self.send(request, row, offer, now)),
                Some(Best { row, offer: None, .. }) => {
                    self.rows[row].waiters += 1;
                    left.push(request);
                }
                None => left.push(request),
            }
        }
        for request in left.into_iter().rev() {
            self.waiting.push_front(request);
        }
    }
}

impl<S: Sequence + Clone + Send> Strategy<S> for Oracle<S> {
    fn arrive(&mut self, question: &Question<'_, S>, now: f64, sent: &mut Vec<Dispatch>) {
        self.observe(now);
        self.waiting.push_back(Waiting {
            session: question.session,
            since: now,
            id: question.id,
            prompt: question.prompt.clone(),
            output: question.output,
        });
        self.hand_out(now, sent);
    }

    fn first_token(&mut self, id: u64, _now: f64) {
        if let Some(flight) = self.flights.get_mut(&id) {
            self.rows[flight.row].pending -= std::mem::take(&mut flight.unread);
        }
    }

    fn done(&mut self, id: u64, outcome: &Outcome, now: f64, sent: &mut Vec<Dispatch>) {
        self.observe(now);
        let Some(flight) = self.flights.remove(&id) else { return };
        if let Some(home) = self.homes.get_mut(&flight.session) {
            (home.busy, home.seen) = (false, now);
        }
        let row = &mut self.rows[flight.row];
        row.pending = (row.pending - flight.unread).max(0.0);
        row.busy[flight.slot] = false;
        row.used[flight.slot] = now;
        let mut held = flight.prompt;
        let prompt = held.tokens();
        if outcome.output > 0 {
            held.decode(outcome.output as usize);
        }
        held.keep_first(prompt + outcome.output.saturating_sub(1) as usize);
        row.slots.release(flight.slot, held);
        self.service += WEIGHT * (now - flight.since - self.service);
        self.hand_out(now, sent);
    }
}
