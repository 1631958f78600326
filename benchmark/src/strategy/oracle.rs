//! A router that knows exactly what every engine holds, because it applies the engine's own cache rules to everything it
//! sends, and chooses the slot itself. What it reaches is what a router can hope for; it knows nothing of the future.
//!
//! It sends a request to where its first token comes soonest: what a row reads before it, what is left of the prompt to
//! read, and a charge for what is pushed out. If that is a row without a free slot, the request waits here.

use std::collections::{HashMap, VecDeque};

use lifeboat::sim_engine::model::{BlockPool, CacheSetup, EngineSetup, Sequence, SlotCache, Speed};

use super::{Dispatch, Outcome, Question, Strategy};

/// Weight of what others lose, against what this request gains.
const LOSS: f64 = 0.5;
/// Seconds in which the chance that a conversation goes on halves.
const RETURN_HALF_LIFE: f64 = 600.0;
/// What a sequence costs that can be fetched back from host memory, as a part of reading it.
const FETCH_BACK: f64 = 0.1;
/// Weight of the newest in the mean time a request keeps its slot.
const WEIGHT: f64 = 0.1;

#[derive(Debug)]
enum Cache<S> {
    Slots(SlotCache<S>, usize),
    Pool(BlockPool),
}

#[derive(Debug)]
struct Row<S> {
    cache: Cache<S>,
    busy: Vec<bool>,
    /// When each slot was used last.
    used: Vec<f64>,
    /// Tokens sent and not read yet.
    pending: f64,
    waiters: u32,
}

#[derive(Debug)]
struct Flight<S> {
    row: usize,
    slot: usize,
    prompt: S,
    unread: f64,
    since: f64,
}

#[derive(Debug)]
struct Waiting<S> {
    id: u64,
    prompt: S,
    output: u32,
}

/// Where the first token of a prompt comes soonest.
struct Best {
    row: usize,
    /// `None` = no slot is free there now.
    slot: Option<usize>,
    cost: f64,
}

/// The oracle.
#[derive(Debug)]
pub struct Oracle<S> {
    rows: Vec<Row<S>>,
    flights: HashMap<u64, Flight<S>>,
    waiting: VecDeque<Waiting<S>>,
    speed: Speed,
    service: f64,
    turn: usize,
}

impl<S: Sequence + Clone> Oracle<S> {
    /// For rows of engines like this one.
    pub fn new(rows: usize, engine: &EngineSetup) -> Self {
        let cache = || match engine.cache {
            CacheSetup::Slots(rules) => Cache::Slots(SlotCache::new(engine.slots, rules), rules.host_tokens),
            CacheSetup::Pool { tokens, block } => Cache::Pool(BlockPool::new(tokens, block, engine.slots)),
        };
        let row = || Row { cache: cache(), busy: vec![false; engine.slots], used: vec![0.0; engine.slots], pending: 0.0, waiters: 0 };
        Self {
            rows: (0..rows).map(|_| row()).collect(),
            flights: HashMap::new(),
            waiting: VecDeque::new(),
            speed: engine.speed,
            service: 2.0,
            turn: 0,
        }
    }

    fn reading(&self, tokens: f64) -> f64 {
        tokens * self.speed.prefill_micros / 1e6
    }

    /// The best slot of a row: tokens found in it, and what is lost to others, in tokens.
    fn best_slot(row: &Row<S>, prompt: &S, now: f64) -> Option<(usize, f64, f64)> {
        let idle = || (0..row.busy.len()).filter(|slot| !row.busy[*slot]);
        match &row.cache {
            Cache::Pool(pool) => idle().next().map(|slot| (slot, pool.peek(prompt) as f64, 0.0)),
            Cache::Slots(slots, host) => {
                let offer = |slot| {
                    let found = slots.peek(prompt, slot)? as f64;
                    let held = slots.held(slot).map_or(0, Sequence::tokens);
                    let common = slots.held(slot).map_or(0, |held| held.common_prefix(prompt));
                    let lost = (held - common) as f64;
                    let chance = 0.5_f64.powf((now - row.used[slot]) / RETURN_HALF_LIFE);
                    let kept = if held <= *host { FETCH_BACK } else { 1.0 };
                    Some((slot, found, lost * chance * kept))
                };
                // Of equal ones the slot not used for longest.
                idle().filter_map(offer).min_by(|one, two| {
                    let worth = |offer: &(usize, f64, f64)| LOSS.mul_add(offer.2, -offer.1);
                    worth(one).total_cmp(&worth(two)).then(slots.released(one.0).cmp(&slots.released(two.0)))
                })
            }
        }
    }

    /// Tokens a row without a free slot will have of a prompt.
    fn later(row: &Row<S>, prompt: &S) -> f64 {
        match &row.cache {
            Cache::Pool(pool) => pool.peek(prompt) as f64,
            Cache::Slots(slots, _) => slots.host().better(None, prompt).map_or(0, |held| held.common_prefix(prompt)) as f64,
        }
    }

    fn choose(&self, prompt: &S, now: f64) -> Option<Best> {
        let length = prompt.tokens() as f64;
        let mut best: Option<Best> = None;
        for step in 0..self.rows.len() {
            let at = (self.turn + step) % self.rows.len();
            let row = &self.rows[at];
            let busy = row.busy.iter().filter(|busy| **busy).count() as f64;
            let step_seconds = self.speed.decode_micros / 1e6;
            let (slot, cost) = if let Some((slot, found, lost)) = Self::best_slot(row, prompt, now) {
                let read = self.reading(row.pending + length - found + LOSS * lost);
                (Some(slot), (step_seconds * self.speed.batch_slowdown).mul_add(busy, read))
            } else {
                let wait = f64::from(1 + row.waiters) * self.service / row.busy.len() as f64;
                (None, wait + self.reading(length - Self::later(row, prompt)))
            };
            if best.as_ref().is_none_or(|best| cost < best.cost - 1e-9) {
                best = Some(Best { row: at, slot, cost });
            }
        }
        best
    }

    fn send(&mut self, request: Waiting<S>, row: usize, slot: usize, now: f64) -> Option<Dispatch> {
        let Waiting { id, prompt, output } = request;
        let limit = output as usize;
        let state = &mut self.rows[row];
        let (found, steered) = match &mut state.cache {
            Cache::Slots(slots, _) => (slots.launch(&prompt, Some(slot), limit, true, true)?.cached, Some(slot)),
            // A pool that is full queues for itself; what it finds then is close to what is there now.
            Cache::Pool(pool) => (pool.launch(slot, &prompt, limit, true).unwrap_or_else(|| pool.peek(&prompt)), None),
        };
        let unread = (prompt.tokens() - found) as f64;
        state.busy[slot] = true;
        state.pending += unread;
        self.turn = (row + 1) % self.rows.len();
        self.flights.insert(id, Flight { row, slot, prompt, unread, since: now });
        Some(Dispatch { id, row, slot: steered })
    }

    /// Sends whoever is best served by a row that has room, oldest first.
    fn hand_out(&mut self, now: f64, sent: &mut Vec<Dispatch>) {
        for row in &mut self.rows {
            row.waiters = 0;
        }
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            match self.choose(&request.prompt, now) {
                Some(Best { row, slot: Some(slot), .. }) => sent.extend(self.send(request, row, slot, now)),
                Some(Best { row, slot: None, .. }) => {
                    self.rows[row].waiters += 1;
                    self.waiting.push_back(request);
                }
                None => self.waiting.push_back(request),
            }
        }
    }
}

impl<S: Sequence + Clone + Send> Strategy<S> for Oracle<S> {
    fn arrive(&mut self, question: &Question<'_, S>, now: f64, sent: &mut Vec<Dispatch>) {
        self.waiting.push_back(Waiting { id: question.id, prompt: question.prompt.clone(), output: question.output });
        self.hand_out(now, sent);
    }

    fn first_token(&mut self, id: u64, _now: f64) {
        if let Some(flight) = self.flights.get_mut(&id) {
            self.rows[flight.row].pending -= std::mem::take(&mut flight.unread);
        }
    }

    fn done(&mut self, id: u64, outcome: &Outcome, now: f64, sent: &mut Vec<Dispatch>) {
        let Some(flight) = self.flights.remove(&id) else { return };
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
        match &mut row.cache {
            Cache::Slots(slots, _) => slots.release(flight.slot, held),
            Cache::Pool(pool) => pool.release(flight.slot, &held),
        }
        self.service += WEIGHT * (now - flight.since - self.service);
        self.hand_out(now, sent);
    }
}
