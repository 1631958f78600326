//! What the router knows of one row: its load, its speed, and what it holds of which prompt.

use super::breaker::Breaker;
use super::known::Home;
use super::shadow::{Place, SlotShadow};
use super::speed::Speed;

/// How a row keeps what it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheModel {
    /// A whole sequence in each slot and some in host memory; the router chooses the slot (llama.cpp).
    Slots {
        /// Tokens its host cache holds.
        host_tokens: u64,
    },
    /// One pool of blocks that all requests share (`vLLM`, `SGLang`, and servers nothing is known of).
    Pool {
        /// Tokens it holds.
        tokens: u64,
    },
}

/// A row that came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSetup {
    /// Requests at once.
    pub slots: u32,
    /// Tokens of context of one request; 0 = not known.
    pub context: u32,
    /// How it keeps what it has read.
    pub cache: CacheModel,
}

/// What a row holds.
#[derive(Debug)]
pub(super) enum Cache {
    Slots(SlotShadow),
    Pool(PoolShadow),
}

/// A shared pool, by the amount of work that has gone through it since.
#[derive(Debug)]
pub(super) struct PoolShadow {
    /// Tokens it is thought to hold: corrected by what replies show.
    pub tokens: f64,
    first_tokens: f64,
    hits: u32,
}

/// Replies in a row that found what was predicted, after which the pool is thought a little larger.
const HITS_TO_GROW: u32 = 32;

impl PoolShadow {
    fn new(tokens: u64) -> Self {
        Self { tokens: tokens as f64, first_tokens: tokens as f64, hits: 0 }
    }

    /// A reply showed how much of the prediction was true.
    pub fn learn(&mut self, predicted: f64, actual: f64) {
        if predicted < 1.0 {
            return;
        }
        if actual < predicted * 0.5 {
            self.tokens = (self.tokens * 0.8).max(self.first_tokens * 0.25);
            self.hits = 0;
        } else {
            self.hits += 1;
            if self.hits >= HITS_TO_GROW {
                self.hits = 0;
                self.tokens = (self.tokens * 1.02).min(self.first_tokens * 1.5);
            }
        }
    }
}

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    pub setup: RowSetup,
    /// Never used twice.
    pub incarnation: u64,
    /// Takes new requests.
    pub open: bool,
    /// Slots taken.
    pub in_flight: u32,
    /// Requests on it.
    pub requests: u32,
    /// Prompt tokens sent to it that it has not read yet.
    pub pending: f64,
    /// Requests in the queue that wait for it.
    pub waiters: u32,
    pub speed: Speed,
    pub breaker: Breaker,
    pub cache: Cache,
    /// Tokens that went through it: the clock by which a pool forgets.
    pub work: f64,
}

/// What a row offers a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    /// Its slot, on a row with slots that has one free.
    pub slot: Option<u32>,
    /// The sequence that goes on there; `None` = a new one.
    pub sequence: Option<u32>,
    /// Tokens it need not read.
    pub cached: f64,
    /// Tokens that others will have to read again for it.
    pub displaced: f64,
    /// The conversation's own slot works: it must be waited for.
    pub must_wait: bool,
}

/// Where some of a prompt was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Match {
    pub home: Home,
    /// Bytes of the prompt that are the same.
    pub bytes: u64,
    /// The prompt goes on where a turn of it ended.
    pub turn: bool,
    /// Found by the client's own key.
    pub session: bool,
}

/// A sequence comes back from host memory only if at least this part of it is asked for.
const HOST_LEAST: f64 = 0.25;
/// And then it is gone for whoever it belonged to: its worth for a stranger.
const HOST_STRANGER: f64 = 0.5;
/// A slot's sequence of which less than this is kept is saved to host memory first.
const SAVED_BELOW: f64 = 0.5;
/// Chance that what a session's slot holds is asked for again although the session sends something else now: a history that
/// was rewritten is not, that of a sub-agent under the same key is.
const SESSION_CHANCE: f64 = 0.3;
/// What a saved sequence costs to fetch back, as a part of reading it.
const FETCH_BACK: f64 = 0.1;

impl Row {
    pub fn new(setup: RowSetup, incarnation: u64, speed: Speed, work: f64) -> Self {
        let cache = match setup.cache {
            CacheModel::Slots { host_tokens } => Cache::Slots(SlotShadow::new(setup.slots, host_tokens)),
            CacheModel::Pool { tokens } => Cache::Pool(PoolShadow::new(tokens)),
        };
        Self {
            setup,
            incarnation,
            open: true,
            in_flight: 0,
            requests: 0,
            pending: 0.0,
            waiters: 0,
            speed,
            breaker: Breaker::new(),
            cache,
            work,
        }
    }

    /// Slots it may use now.
    pub fn limit(&self, now: f64) -> u32 {
        self.breaker.share(self.setup.slots, now)
    }

    /// Whether so many slots are free.
    pub fn has_room(&self, weight: u32, now: f64) -> bool {
        self.in_flight.saturating_add(weight.min(self.setup.slots)) <= self.limit(now)
    }

    /// The count a pool's blocks are stamped with.
    pub fn stamp(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a wrapping count, only differences matter")]
        let stamp = self.work as u64 as u32;
        stamp
    }

    /// Whether what was stamped so is still there.
    pub fn still_holds(&self, stamp: u32) -> bool {
        match &self.cache {
            Cache::Slots(shadow) => shadow.find(stamp).is_some(),
            Cache::Pool(pool) => f64::from(self.stamp().wrapping_sub(stamp)) < pool.tokens,
        }
    }

    /// Tokens that somebody may come back for.
    pub fn resident(&self) -> f64 {
        match &self.cache {
            Cache::Slots(shadow) => shadow.resident(),
            Cache::Pool(pool) => pool.tokens.min(self.work),
        }
    }

    /// The best it can offer a prompt of so many bytes, given where it was seen. `room` = a slot is free.
    pub fn offer(&self, bytes: u64, matches: &[Match], room: bool, steered: bool, now: f64) -> Option<Offer> {
        let mine = matches.iter().filter(|found| found.home.incarnation == self.incarnation);
        match &self.cache {
            Cache::Pool(_) => {
                let cached = mine.map(|found| self.speed.tokens(found.bytes)).fold(0.0, f64::max);
                Some(Offer { slot: None, sequence: None, cached: cached.min(self.speed.tokens(bytes)), displaced: 0.0, must_wait: false })
            }
            Cache::Slots(_) if !steered => Some(Offer { slot: None, sequence: None, cached: 0.0, displaced: 0.0, must_wait: false }),
            Cache::Slots(shadow) => {
                let fresh = if room {
                    shadow.victim(now, false).map(|victim| Offer {
                        slot: Some(victim.slot),
                        sequence: None,
                        cached: 0.0,
                        displaced: victim.displaced,
                        must_wait: false,
                    })
                } else {
                    Some(Offer { slot: None, sequence: None, cached: 0.0, displaced: 0.0, must_wait: false })
                };
                mine.filter_map(|found| self.offer_of(shadow, bytes, found, room, now))
                    .chain(fresh)
                    .min_by(|one, two| (one.displaced - one.cached).total_cmp(&(two.displaced - two.cached)))
            }
        }
    }

    fn offer_of(&self, shadow: &SlotShadow, bytes: u64, found: &Match, room: bool, now: f64) -> Option<Offer> {
        let (place, sequence) = shadow.find(found.home.stamp)?;
        let whole = self.speed.tokens(bytes);
        let newest = sequence.tails.last().is_some_and(|tail| tail.bytes <= found.bytes);
        // Where the last turn ended, the answer to it is part of what the client sends next.
        let same = if found.turn && newest { sequence.tokens.max(self.speed.tokens(found.bytes)) } else { self.speed.tokens(found.bytes) };
        let cached = same.min(sequence.tokens).min(whole);
        let dropped = (sequence.tokens - cached).max(0.0);
        let chance = sequence.regret(now) / sequence.tokens.max(1.0) * if found.session { SESSION_CHANCE } else { 1.0 };
        let own = found.turn || found.session;
        match place {
            // A stranger that begins alike gets nothing of a living conversation: all of them would gather where one began.
            Place::Idle(_) | Place::Busy(_) if !own && chance > 0.0 => None,
            Place::Idle(slot) if room => {
                let saved = cached < sequence.tokens * SAVED_BELOW;
                let displaced = dropped * chance * if saved { FETCH_BACK } else { 1.0 };
                Some(Offer { slot: Some(slot), sequence: own.then_some(sequence.serial), cached, displaced, must_wait: false })
            }
            Place::Host if room => {
                let victim = shadow.victim(now, true)?;
                let worth = if own {
                    cached
                } else if cached >= sequence.tokens * HOST_LEAST {
                    cached * HOST_STRANGER
                } else {
                    0.0
                };
                Some(Offer {
                    slot: Some(victim.slot),
                    sequence: Some(sequence.serial),
                    cached: worth,
                    // Once fetched it is gone for whoever it belonged to.
                    displaced: victim.displaced + if own { 0.0 } else { sequence.tokens * chance },
                    must_wait: false,
                })
            }
            // Worth a thought only once it is known how long requests take here.
            Place::Busy(_) if own && (self.speed.is_learned() || !room) => {
                Some(Offer { slot: None, sequence: Some(sequence.serial), cached, displaced: 0.0, must_wait: true })
            }
            // Without room, whatever is free when its turn comes.
            Place::Idle(_) | Place::Host => {
                Some(Offer { slot: None, sequence: Some(sequence.serial), cached, displaced: 0.0, must_wait: true })
            }
            Place::Busy(_) => None,
        }
    }
}
