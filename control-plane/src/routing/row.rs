//! What the router knows of one row: its load, its speed, and what it holds of which prompt.

use super::breaker::Breaker;
use super::glance::Glance;
use super::known::Home;
use super::limit::Limit;
use super::returns::{ENDED_BELOW, Returns};
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
    /// Tokens of the conversations that live here, each fading while it rests.
    living: f64,
    living_at: f64,
}

/// Replies in a row that found what was predicted, after which the pool is thought a little larger.
const HITS_TO_GROW: u32 = 32;

impl PoolShadow {
    fn new(tokens: u64) -> Self {
        Self { tokens: tokens as f64, first_tokens: tokens as f64, hits: 0, living: 0.0, living_at: 0.0 }
    }

    /// A conversation came or left: tokens more, or less, at a time when half of what rests for `half_life` seconds is over.
    pub fn live(&mut self, tokens: f64, half_life: f64, now: f64) {
        self.living = (self.living(half_life, now) + tokens).max(0.0);
        self.living_at = now;
    }

    fn living(&self, half_life: f64, now: f64) -> f64 {
        self.living * fade(now - self.living_at, half_life)
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

/// What is left of something after so many seconds.
pub(super) fn fade(seconds: f64, half_life: f64) -> f64 {
    0.5_f64.powf(seconds.max(0.0) / half_life)
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
    /// Requests at once that its engine was seen to take.
    pub learned: Limit,
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
    /// Seconds until its own slot, which works on something else, comes free.
    pub wait: f64,
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

/// What is asked of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    /// Bytes of the prompt.
    pub bytes: u64,
    /// Where it was seen, on any row.
    pub matches: &'a [Match],
    /// A slot is free.
    pub room: bool,
    /// It is told which slot to take.
    pub steered: bool,
    /// Not what can be had now, but what can be waited for.
    pub later: bool,
}

/// A sequence comes back from host memory only if at least this part of it is asked for.
const HOST_LEAST: f64 = 0.25;
/// Part of the usual time that a request is taken to have left at least.
const LEAST_LEFT: f64 = 0.25;
/// Chance that what a session's slot holds is asked for again although the session sends something else now: a history that
/// was rewritten is not, that of a sub-agent under the same key is.
const SESSION_CHANCE: f64 = 0.3;

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
            learned: Limit::new(setup.slots),
            cache,
            work,
        }
    }

    /// Slots it may use now.
    pub fn limit(&self, now: f64) -> u32 {
        self.breaker.share(self.learned.get(), now)
    }

    /// Seconds until one certain slot comes free for whoever joins those that wait for it.
    fn turn(&self) -> f64 {
        f64::from(1 + self.waiters) * self.speed.service
    }

    /// Seconds until one certain slot comes free for whoever joins those that wait, where its request has run for so long. One
    /// that has run for longer than most is likely to run for long.
    fn until_free(&self, elapsed: f64) -> f64 {
        let service = self.speed.service;
        (service - elapsed).abs().max(service * LEAST_LEFT) + f64::from(self.waiters) * service
    }

    /// What every decision looks at.
    pub fn glance(&self, returns: &Returns, now: f64) -> Glance {
        let Speed { prefill, decode, bytes_per_token, .. } = self.speed;
        let learned = f64::from(self.learned.get().max(1));
        let ahead = self.pending / prefill;
        let displaced = match &self.cache {
            Cache::Slots(shadow) => shadow.victim(returns, now).map_or(f64::INFINITY, |victim| victim.displaced),
            Cache::Pool(_) => 0.0,
        };
        Glance {
            at: if self.breaker.is_settled(now) { now } else { f64::NEG_INFINITY },
            incarnation: self.incarnation,
            open: self.open,
            allowed: self.breaker.allows(now),
            pool: matches!(self.cache, Cache::Pool(_)),
            in_flight: self.in_flight,
            slots: self.setup.slots,
            learned: self.learned.get(),
            limit: self.limit(now),
            context: self.setup.context,
            prefill,
            tokens_per_byte: 1.0 / bytes_per_token,
            ahead,
            first_when_free: ahead + decode * f64::from(self.in_flight),
            first_when_full: self.turn() / learned + decode * learned,
            displaced: displaced / prefill,
            living: self.living(returns, now) / prefill,
        }
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

    /// Tokens that somebody is likely to come back for.
    fn living(&self, returns: &Returns, now: f64) -> f64 {
        match &self.cache {
            Cache::Slots(shadow) => shadow.living(returns, now),
            Cache::Pool(pool) => pool.living(returns.half_life(), now) * returns.chance(0.0),
        }
    }

    /// Tokens it holds.
    pub fn resident(&self) -> f64 {
        match &self.cache {
            Cache::Slots(shadow) => shadow.resident(),
            Cache::Pool(pool) => pool.tokens.min(self.work),
        }
    }

    /// The best it can offer; `None` = nothing of that kind.
    pub fn offer(&self, wish: &Wish<'_>, returns: &Returns, now: f64) -> Option<Offer> {
        let Wish { bytes, matches, room, steered, later } = *wish;
        let none = Offer { slot: None, sequence: None, cached: 0.0, displaced: 0.0, wait: 0.0 };
        // Only a conversation's own slot may work while others are free.
        let own_only = later && room;
        if !later && !room {
            return None;
        }
        let mine = matches.iter().filter(|found| found.home.incarnation == self.incarnation);
        match &self.cache {
            Cache::Pool(_) => {
                let cached = mine.map(|found| self.speed.tokens(found.bytes)).fold(0.0, f64::max).min(self.speed.tokens(bytes));
                (!own_only).then_some(Offer { cached, ..none })
            }
            Cache::Slots(_) if !steered => (!own_only).then_some(none),
            Cache::Slots(shadow) => {
                let fresh = match (own_only, room) {
                    (true, _) => None,
                    (false, true) => {
                        let victim = shadow.victim(returns, now);
                        victim.map(|victim| Offer { slot: Some(victim.slot), displaced: victim.displaced, ..none })
                    }
                    (false, false) => Some(none),
                };
                if matches.is_empty() {
                    return fresh;
                }
                let tokens = |offer: &Offer| offer.displaced - offer.cached + offer.wait * self.speed.prefill;
                mine.filter_map(|found| self.offer_of(shadow, found, wish, returns, now))
                    .chain(fresh)
                    .min_by(|one, two| tokens(one).total_cmp(&tokens(two)))
            }
        }
    }

    fn offer_of(&self, shadow: &SlotShadow, found: &Match, wish: &Wish<'_>, returns: &Returns, now: f64) -> Option<Offer> {
        let (place, sequence) = shadow.find(found.home.stamp)?;
        let whole = self.speed.tokens(wish.bytes);
        let newest = sequence.tails.last().is_some_and(|tail| tail.bytes <= found.bytes);
        // Where the last turn ended, the answer to it is part of what the client sends next.
        let same = if found.turn && newest { sequence.tokens.max(self.speed.tokens(found.bytes)) } else { self.speed.tokens(found.bytes) };
        let cached = same.min(sequence.tokens).min(whole);
        let dropped = (sequence.tokens - cached).max(0.0);
        let own = found.turn || found.session;
        let rested = if matches!(place, Place::Busy(_)) { returns.chance(0.0) } else { sequence.chance(returns, now) };
        // A stranger that begins alike gets nothing of a living conversation: all of them would gather where one began.
        if !own && rested > ENDED_BELOW {
            return None;
        }
        let chance = rested * if found.session { SESSION_CHANCE } else { 1.0 };
        match place {
            Place::Idle(slot) if !wish.later => {
                let displaced = if SlotShadow::is_saved(sequence.tokens, cached, whole) {
                    shadow.cost_of_saving(sequence, returns, now)
                } else {
                    dropped * chance
                };
                Some(Offer { slot: Some(slot), sequence: own.then_some(sequence.serial), cached, displaced, wait: 0.0 })
            }
            Place::Host if !wish.later => {
                let victim = shadow.door(returns, now)?;
                Some(Offer {
                    slot: Some(victim.slot),
                    sequence: Some(sequence.serial),
                    cached: if cached >= sequence.tokens * HOST_LEAST { cached } else { 0.0 },
                    // Once fetched it is gone for whoever it belonged to.
                    displaced: victim.displaced + dropped * chance,
                    wait: 0.0,
                })
            }
            // Whatever is free when its turn comes; of the own slot, while others are free, only once it is known how long
            // requests take here.
            _ if wish.later && (!wish.room || (self.speed.is_learned() && matches!(place, Place::Busy(_)))) => {
                let wait = if wish.room { self.until_free(now - sequence.last_used) } else { 0.0 };
                Some(Offer { slot: None, sequence: Some(sequence.serial), cached, displaced: 0.0, wait })
            }
            _ => None,
        }
    }
}
