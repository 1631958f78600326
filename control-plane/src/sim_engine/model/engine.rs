//! Requests in their slots and in line, and what a step does and costs.
//!
//! A step is one batch, as in llama-server: it reads up to [`BATCH_TOKENS`] of the prompts that are not read yet and gives
//! one token to every slot whose prompt is. Reading costs by the token that is not held already, decoding once for all
//! slots and a little more for each. Steps that only decode may be taken several at a time.
//!
//! Who waits is chosen as llama-server does: a released slot calls the first that wants this slot, else the first of all;
//! whoever cannot be served then goes to the end of the line.

use std::collections::VecDeque;

use super::CacheSetup;
use super::block_pool::BlockPool;
use super::sequence::Sequence;
use super::slot_cache::SlotCache;

/// Tokens of prompt read in one step: llama-server's batch.
const BATCH_TOKENS: usize = 2048;

/// What a token costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Microseconds to read one token of prompt.
    pub prefill_micros: f64,
    /// Microseconds of one decode step, which gives one token to every busy slot.
    pub decode_micros: f64,
    /// What each further busy slot adds to a decode step, as a part of it.
    pub batch_slowdown: f64,
    /// Microseconds to copy the state of one token to or from host memory, in which nothing else is done.
    pub copy_micros: f64,
}

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSetup {
    /// Requests at once.
    pub slots: usize,
    /// How it keeps what it has read.
    pub cache: CacheSetup,
    /// How fast it is.
    pub speed: Speed,
}

/// One request. `job` is whatever the caller knows it by.
#[derive(Debug)]
pub struct Request<S, J> {
    /// Its prompt.
    pub prompt: S,
    /// Tokens to give.
    pub limit: u32,
    /// The slot it wants; a pool has none to choose.
    pub wanted: Option<usize>,
    /// Whether what is held may be used.
    pub reuse: bool,
    /// Whether it is answered, and not only read.
    pub completes: bool,
    /// The caller's part.
    pub job: J,
}

/// What a request has cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Tokens of the whole prompt.
    pub prompt: u32,
    /// Tokens of it that were held already.
    pub cached: u32,
    /// Tokens of it that are read or were held.
    pub read: u32,
    /// Tokens given.
    pub given: u32,
    /// Microseconds of steps that read it.
    pub prompt_micros: u64,
    /// Microseconds of steps that decoded for it.
    pub decode_micros: u64,
}

#[derive(Debug)]
struct Active<S, J> {
    request: Request<S, J>,
    cost: Cost,
}

impl<S, J> Active<S, J> {
    const fn is_read(&self) -> bool {
        self.cost.read == self.cost.prompt
    }
}

/// What happens in a step, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening<P> {
    /// A part of the prompt in this slot is read.
    Progress(usize),
    /// All of it.
    Read(usize),
    /// The next token of this slot.
    Token(usize, P),
    /// The answer in this slot is complete. [`Engine::end`] is owed.
    Complete(usize),
}

/// What one step will do.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    /// Tokens to read, by slot.
    reads: Vec<(usize, u32)>,
    /// Slots that get tokens.
    decodes: Vec<usize>,
    /// Tokens each of them gets.
    tokens: u32,
    /// How long it takes.
    pub micros: f64,
}

impl Step {
    /// Nothing can be done now.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.decodes.is_empty()
    }
}

#[derive(Debug)]
enum Cache<S> {
    Slots(SlotCache<S>),
    Pool(BlockPool),
}

/// The engine.
#[derive(Debug)]
pub struct Engine<S, J> {
    cache: Cache<S>,
    speed: Speed,
    active: Vec<Option<Active<S, J>>>,
    busy: usize,
    arriving: VecDeque<Request<S, J>>,
    deferred: VecDeque<Request<S, J>>,
    /// Copying that the next step has to wait for.
    debt_micros: f64,
}

impl<S: Sequence + Clone, J> Engine<S, J> {
    /// As after a load.
    pub fn new(setup: &EngineSetup) -> Self {
        let slots = setup.slots.max(1);
        Self {
            cache: match setup.cache {
                CacheSetup::Slots(rules) => Cache::Slots(SlotCache::new(slots, rules)),
                CacheSetup::Pool { tokens, block } => Cache::Pool(BlockPool::new(tokens, block, slots)),
            },
            speed: setup.speed,
            active: (0..slots).map(|_| None).collect(),
            busy: 0,
            arriving: VecDeque::new(),
            deferred: VecDeque::new(),
            debt_micros: 0.0,
        }
    }

    /// Requests that have no slot.
    pub fn waiting(&self) -> usize {
        self.arriving.len() + self.deferred.len()
    }

    /// Requests in a slot.
    pub const fn busy(&self) -> usize {
        self.busy
    }

    /// No request anywhere.
    pub fn is_idle(&self) -> bool {
        self.busy == 0 && self.waiting() == 0
    }

    /// Slots.
    pub const fn slots(&self) -> usize {
        self.active.len()
    }

    /// The pool, where there is one.
    pub const fn pool(&self) -> Option<&BlockPool> {
        match &self.cache {
            Cache::Pool(pool) => Some(pool),
            Cache::Slots(_) => None,
        }
    }

    /// The request in a slot: the caller's part, what it has cost, and its limit.
    pub fn active(&self, slot: usize) -> Option<(&J, Cost, u32)> {
        let active = self.active.get(slot)?.as_ref()?;
        Some((&active.request.job, active.cost, active.request.limit))
    }

    /// The same, to change the caller's part.
    pub fn job_mut(&mut self, slot: usize) -> Option<&mut J> {
        Some(&mut self.active.get_mut(slot)?.as_mut()?.request.job)
    }

    /// All requests, with and without a slot.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        let active = self.active.iter().flatten().map(|active| &active.request.job);
        active.chain(self.arriving.iter().chain(&self.deferred).map(|request| &request.job))
    }

    /// Takes a request: it waits until [`Engine::assign`] finds it a slot.
    pub fn submit(&mut self, request: Request<S, J>) {
        self.arriving.push_back(request);
    }

    /// Drops every request that is not to be kept: those without a slot are gone, those in one leave what was read.
    pub fn retain(&mut self, keep: impl Fn(&J) -> bool) {
        self.arriving.retain(|request| keep(&request.job));
        self.deferred.retain(|request| keep(&request.job));
        for slot in 0..self.active.len() {
            if self.active[slot].as_ref().is_some_and(|active| !keep(&active.request.job)) {
                self.end(slot);
            }
        }
    }

    /// Ends the request in a slot; what it read stays there.
    pub fn end(&mut self, slot: usize) -> Option<J> {
        let Active { request, cost } = self.active.get_mut(slot)?.take()?;
        self.busy -= 1;
        let mut held = request.prompt;
        // The last token was sampled, but never put through the model.
        held.keep_first((cost.read + cost.given.saturating_sub(1)) as usize);
        match &mut self.cache {
            Cache::Slots(slots) => slots.release(slot, held),
            Cache::Pool(pool) => pool.release(slot, &held),
        }
        let called = match self.cache {
            Cache::Slots(_) => {
                let wanted = |request: &Request<S, J>| request.wanted.is_some_and(|wanted| wanted % self.active.len() == slot);
                self.deferred.iter().position(wanted).unwrap_or(0)
            }
            Cache::Pool(_) => 0,
        };
        if let Some(request) = self.deferred.remove(called) {
            self.arriving.push_front(request);
        }
        Some(request.job)
    }

    /// Gives slots to those that can have one. What was placed is told: slot and tokens found.
    pub fn assign(&mut self) -> Vec<(usize, u32)> {
        let mut placed = Vec::new();
        while let Some(request) = self.arriving.pop_front() {
            if let Some((slot, cached, copied)) = self.place(&request) {
                let prompt = u32::try_from(request.prompt.tokens()).unwrap_or(u32::MAX);
                let cached = u32::try_from(cached).unwrap_or(u32::MAX);
                self.debt_micros += self.speed.copy_micros * copied as f64;
                self.active[slot] = Some(Active { request, cost: Cost { prompt, cached, read: cached, ..Cost::default() } });
                self.busy += 1;
                placed.push((slot, cached));
            } else if self.pool().is_some() {
                // A pool is strictly first come, first served.
                self.arriving.push_front(request);
                break;
            } else {
                self.deferred.push_back(request);
            }
        }
        placed
    }

    fn place(&mut self, request: &Request<S, J>) -> Option<(usize, usize, usize)> {
        let Request { prompt, wanted, reuse, completes, limit, .. } = request;
        let limit = *limit as usize;
        match &mut self.cache {
            Cache::Slots(slots) => {
                let placed = slots.launch(prompt, *wanted, limit, *reuse, *completes)?;
                Some((placed.slot, placed.cached, placed.copied))
            }
            Cache::Pool(pool) => {
                let place = self.active.iter().position(Option::is_none)?;
                pool.launch(place, prompt, limit, *reuse).map(|cached| (place, cached, 0))
            }
        }
    }

    /// What the next step does and how long it takes. `most` = decode steps that may be taken at once if nothing is to be
    /// read; `listens` = whether the slot's client can take a token more.
    pub fn plan(&self, most: u32, listens: impl Fn(&J) -> bool) -> Step {
        let mut step = Step { tokens: 1, ..Step::default() };
        let mut room = BATCH_TOKENS;
        let mut shortest = most.max(1);
        for (slot, active) in self.active.iter().enumerate() {
            let Some(active) = active else { continue };
            if !active.is_read() {
                let tokens = room.min((active.cost.prompt - active.cost.read) as usize);
                if tokens > 0 {
                    room -= tokens;
                    step.reads.push((slot, u32::try_from(tokens).unwrap_or(u32::MAX)));
                }
            } else if listens(&active.request.job) {
                shortest = shortest.min(active.request.limit.saturating_sub(active.cost.given)).max(1);
                step.decodes.push(slot);
            }
        }
        let read = (BATCH_TOKENS - room) as f64;
        step.micros = self.debt_micros + self.speed.prefill_micros * read;
        if let Some(others) = step.decodes.len().checked_sub(1) {
            if step.reads.is_empty() {
                step.tokens = shortest;
            }
            let factor = self.speed.batch_slowdown.max(0.0).mul_add(others as f64, 1.0);
            step.micros += self.speed.decode_micros * factor * f64::from(step.tokens);
        }
        step
    }

    /// The part of a decoding step that is over after so many microseconds: whole tokens, rounded up, at least one.
    pub fn shorten(step: &mut Step, micros: f64) {
        if step.reads.is_empty() && step.tokens > 1 && step.micros > micros {
            let each = step.micros / f64::from(step.tokens);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between one and the tokens planned")]
            let tokens = ((micros / each).ceil().max(1.0) as u32).min(step.tokens);
            step.tokens = tokens;
            step.micros = each * f64::from(tokens);
        }
    }

    /// Makes the step happen and says what did.
    pub fn perform(&mut self, step: &Step, happened: &mut Vec<Happening<S::Piece>>) {
        self.debt_micros = 0.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a step takes from 0 to some minutes")]
        let micros = step.micros as u64;
        for (slot, tokens) in &step.reads {
            let Some(active) = &mut self.active[*slot] else { continue };
            active.cost.read += tokens;
            active.cost.prompt_micros += micros;
            if active.is_read() {
                happened.push(Happening::Read(*slot));
                give(*slot, active, 1, happened);
            } else {
                happened.push(Happening::Progress(*slot));
            }
        }
        for slot in &step.decodes {
            if let Some(active) = &mut self.active[*slot] {
                active.cost.decode_micros += micros;
                give(*slot, active, step.tokens, happened);
            }
        }
    }
}

/// Gives tokens to a slot whose prompt is read.
fn give<S: Sequence, J>(slot: usize, active: &mut Active<S, J>, tokens: u32, happened: &mut Vec<Happening<S::Piece>>) {
    let tokens = tokens.min(active.request.limit - active.cost.given);
    if tokens > 0 {
        let piece = active.request.prompt.decode(tokens as usize);
        active.cost.given += tokens;
        happened.push(Happening::Token(slot, piece));
    }
    if active.cost.given >= active.request.limit {
        happened.push(Happening::Complete(slot));
    }
}
