//! llama-server's slots as a cache: which one a prompt gets, and what it finds there.
//!
//! The rules of b11434. A wanted slot is taken as it is (its number wraps); else the idle slot that holds the largest part
//! of the prompt, if that is more than the similarity; else the one released longest ago, of several the last. A slot that
//! keeps less than half of what it holds, or was chosen by age, is saved to host memory first and gets the best entry from
//! there; a wanted slot whose similarity is too low counts as keeping nothing, except if it is empty: nothing of nothing
//! is no number, so nothing is fetched. With idle saving, every launch saves all idle slots, and clears them where
//! all slots share one context.

use super::host_cache::HostCache;
use super::sequence::Sequence;

/// A slot that keeps less than this part of what it holds is saved first.
const SAVED_BELOW: f32 = 0.5;

/// How the slots are launched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotRules {
    /// `-sps`; 0 = never choose by similarity.
    pub similarity: f32,
    /// Tokens of the host cache (`--cache-ram`); 0 = off.
    pub host_tokens: usize,
    /// `--cache-idle-slots`.
    pub cache_idle_slots: bool,
    /// Tokens of the context that all slots share (`--kv-unified`).
    pub unified_tokens: Option<usize>,
}

impl Default for SlotRules {
    /// What llama.cpp rows are launched with.
    fn default() -> Self {
        Self { similarity: 0.8, host_tokens: 65_536, cache_idle_slots: false, unified_tokens: None }
    }
}

#[derive(Debug)]
struct Slot<S> {
    /// What it holds while idle.
    held: Option<S>,
    busy: bool,
    /// Tokens that the request in it may come to.
    reserved: usize,
    /// 0 = never.
    released: u64,
}

/// A request got a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Which.
    pub slot: usize,
    /// Tokens of its prompt that are there already.
    pub cached: usize,
    /// Tokens copied to or from host memory for it.
    pub copied: usize,
}

/// All slots.
#[derive(Debug)]
pub struct SlotCache<S> {
    slots: Vec<Slot<S>>,
    host: HostCache<S>,
    rules: SlotRules,
    releases: u64,
}

/// A slot, and whether host memory is asked.
struct Choice {
    slot: usize,
    exchange: bool,
}

impl<S: Sequence + Clone> SlotCache<S> {
    /// Empty slots.
    pub fn new(slots: usize, rules: SlotRules) -> Self {
        let empty = || Slot { held: None, busy: false, reserved: 0, released: 0 };
        Self { slots: (0..slots.max(1)).map(|_| empty()).collect(), host: HostCache::new(rules.host_tokens), rules, releases: 0 }
    }

    /// What a slot holds while it is idle.
    pub fn held(&self, slot: usize) -> Option<&S> {
        self.slots.get(slot)?.held.as_ref()
    }

    /// The cache in host memory.
    pub const fn host(&self) -> &HostCache<S> {
        &self.host
    }

    /// The slot a prompt would get if it came now, and the tokens it would find there; `None` = it would have to wait.
    pub fn peek(&self, prompt: &S, wanted: Option<usize>) -> Option<(usize, usize)> {
        let Choice { slot, exchange } = self.choose(prompt, wanted)?;
        let held = self.slots[slot].held.as_ref();
        let better = if exchange { self.host.better(held, prompt) } else { None };
        let common = better.or(held).map_or(0, |held| held.common_prefix(prompt));
        Some((slot, common.min(prompt.tokens().saturating_sub(1))))
    }

    /// When a slot was released, by count; 0 = never.
    pub fn released(&self, slot: usize) -> u64 {
        self.slots.get(slot).map_or(0, |slot| slot.released)
    }

    /// Slots.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Never: there is at least one slot.
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Begins a prompt. `None` = it has to wait: all slots are busy, or the wanted one is. `reuse` = what is held may be
    /// used; `completes` = it is to be answered (host memory is kept for such prompts only); `limit` = tokens it may get.
    pub fn launch(&mut self, prompt: &S, wanted: Option<usize>, limit: usize, reuse: bool, completes: bool) -> Option<Placed> {
        let Choice { slot, exchange } = self.choose(prompt, wanted)?;
        let mut copied = 0;
        if exchange && completes && self.host.is_on() {
            let state = &mut self.slots[slot];
            if let Some(held) = &state.held {
                copied += self.host.save(held);
            }
            if let Some(better) = self.host.take_better(state.held.as_ref(), prompt) {
                copied += better.tokens();
                state.held = Some(better);
            }
        }
        let state = &mut self.slots[slot];
        let common = state.held.take().filter(|_| reuse).map_or(0, |held| held.common_prefix(prompt));
        // A prompt known in full still costs one token, as the engine needs its logits.
        let cached = common.min(prompt.tokens().saturating_sub(1));
        state.busy = true;
        state.reserved = prompt.tokens() + limit;
        if self.rules.cache_idle_slots && self.host.is_on() {
            copied += self.save_idle();
        }
        self.make_room();
        Some(Placed { slot, cached, copied })
    }

    /// A request has ended and leaves this in its slot.
    pub fn release(&mut self, slot: usize, held: S) {
        self.releases += 1;
        if let Some(state) = self.slots.get_mut(slot) {
            *state = Slot { held: Some(held).filter(|held| held.tokens() > 0), busy: false, reserved: 0, released: self.releases };
        }
    }

    fn choose(&self, prompt: &S, wanted: Option<usize>) -> Option<Choice> {
        let wanted = wanted.map(|slot| slot % self.slots.len());
        if wanted.is_some_and(|slot| self.slots[slot].busy) {
            return None;
        }
        let length = prompt.tokens().max(1) as f32;
        let mut best: Option<(usize, f32)> = None;
        if self.rules.similarity != 0.0 {
            for (at, slot) in self.slots.iter().enumerate().filter(|(at, _)| wanted.is_none_or(|wanted| wanted == *at)) {
                let Some(held) = &slot.held else { continue };
                let similar = held.common_prefix(prompt) as f32 / length;
                if similar > best.map_or(0.0, |(_, best)| best) && similar > self.rules.similarity {
                    best = Some((at, similar));
                }
            }
        }
        if let Some(slot) = wanted.or(best.map(|(slot, _)| slot)) {
            let keeps = |held: &S| best.map_or(0.0, |(_, similar)| similar * length) / held.tokens() as f32;
            let exchange = self.rules.similarity != 0.0 && self.slots[slot].held.as_ref().is_some_and(|held| keeps(held) < SAVED_BELOW);
            return Some(Choice { slot, exchange });
        }
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| !slot.busy);
        let oldest = idle.min_by_key(|(at, slot)| (slot.released, std::cmp::Reverse(*at)))?;
        Some(Choice { slot: oldest.0, exchange: true })
    }

    fn save_idle(&mut self) -> usize {
        let mut copied = 0;
        for slot in self.slots.iter_mut().filter(|slot| !slot.busy) {
            if let Some(held) = &slot.held {
                copied += self.host.save(held);
            }
            if self.rules.unified_tokens.is_some() {
                slot.held = None;
            }
        }
        copied
    }

    /// Where all share one context, idle slots are purged in their order until the running requests fit.
    fn make_room(&mut self) {
        let Some(all) = self.rules.unified_tokens else { return };
        let tokens = |slot: &Slot<S>| slot.reserved + slot.held.as_ref().map_or(0, Sequence::tokens);
        let mut used: usize = self.slots.iter().map(tokens).sum();
        for slot in &mut self.slots {
            if used <= all {
                break;
            }
            used -= slot.held.take().map_or(0, |held| held.tokens());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_engine::model::Runs;

    /// The conversations of ROUTING 1.8: 283 tokens of system text, 202 of a first message, 8 of an answer, 21 a turn.
    fn turn(conversation: u64, turns: u64) -> Runs {
        let mut runs = Runs::default();
        runs.push(1, 283);
        runs.push(conversation * 1000, 202);
        for turn in 1..turns {
            runs.push(conversation * 1000 + 2 * turn - 1, 8);
            runs.push(conversation * 1000 + 2 * turn, 21);
        }
        runs.answered_by(conversation * 1000 + 2 * turns - 1);
        runs
    }

    /// Runs one request to its end; cached and computed tokens.
    fn serve(cache: &mut SlotCache<Runs>, prompt: &Runs, wanted: Option<usize>) -> (usize, usize) {
        let placed = cache.launch(prompt, wanted, 8, true, true).unwrap();
        let mut held = prompt.clone();
        held.decode(8);
        held.keep_first(prompt.tokens() + 7);
        cache.release(placed.slot, held);
        (placed.cached, prompt.tokens() - placed.cached)
    }

    fn launched(slots: usize, similarity: f32, unified: bool, idle: bool) -> SlotCache<Runs> {
        let unified_tokens = unified.then_some(100_000);
        SlotCache::new(slots, SlotRules { similarity, host_tokens: 65_536, cache_idle_slots: idle, unified_tokens })
    }

    #[test]
    fn the_table_measured_on_the_real_engine_comes_out_token_for_token() {
        const KEPT: [(usize, usize); 3] = [(492, 22), (492, 22), (521, 22)];
        const STOLEN: [(usize, usize); 3] = [(283, 231), (283, 231), (283, 260)];
        const LOST: [(usize, usize); 3] = [(0, 514), (0, 514), (0, 543)];
        // Slots, similarity, unified, idle saving; A2, B2, A3 where the engine chooses, and where the caller does.
        for (slots, similarity, unified, idle, unpinned, pinned) in [
            (3, 0.1, false, true, STOLEN, KEPT),
            (3, 0.1, false, false, STOLEN, KEPT),
            (3, 0.8, false, true, KEPT, KEPT),
            (3, 0.8, false, false, KEPT, KEPT),
            (4, 0.1, true, true, STOLEN, LOST),
            (3, 0.1, true, false, STOLEN, KEPT),
            (3, 0.8, true, false, KEPT, KEPT),
        ] {
            for (pin, expected) in [(false, unpinned), (true, pinned)] {
                let mut cache = launched(slots, similarity, unified, idle);
                let slot = |number| pin.then_some(number);
                serve(&mut cache, &turn(1, 1), slot(0));
                serve(&mut cache, &turn(2, 1), slot(1));
                let found = [(1, 2, 0), (2, 2, 1), (1, 3, 0)]
                    .map(|(conversation, turns, at)| serve(&mut cache, &turn(conversation, turns), slot(at)));
                assert_eq!(found, expected, "-np {slots} -sps {similarity} unified {unified} idle {idle} pinned {pin}");
            }
        }
    }

    #[test]
    fn a_wanted_slot_wraps_and_is_refused_while_busy() {
        let mut cache = launched(2, 0.8, false, false);
        assert_eq!(cache.launch(&turn(1, 1), Some(3), 8, true, true).unwrap().slot, 1);
        assert_eq!(cache.launch(&turn(2, 1), Some(1), 8, true, true), None);
        assert_eq!(cache.launch(&turn(2, 1), None, 8, true, true).unwrap().slot, 0);
        assert_eq!(cache.launch(&turn(3, 1), None, 8, true, true), None);
    }

    #[test]
    fn a_wanted_slot_fetches_from_host_memory_only_if_something_else_is_in_it() {
        let mut cache = launched(1, 0.8, false, false);
        serve(&mut cache, &turn(1, 1), Some(0));
        serve(&mut cache, &turn(2, 1), Some(0));
        assert_eq!(serve(&mut cache, &turn(1, 2), Some(0)), (492, 22));
        // The same with similarity switched off: a wanted slot is taken as it is.
        let mut cache = launched(1, 0.0, false, false);
        serve(&mut cache, &turn(1, 1), Some(0));
        serve(&mut cache, &turn(2, 1), Some(0));
        assert_eq!(serve(&mut cache, &turn(1, 2), Some(0)), (283, 231));
    }

    #[test]
    fn of_several_untouched_slots_the_last_is_taken_and_later_the_one_released_longest_ago() {
        let mut cache = launched(3, 0.8, false, false);
        let mut slot_of = |conversation| {
            let placed = cache.launch(&turn(conversation, 1), None, 8, true, true).unwrap();
            cache.release(placed.slot, turn(conversation, 1));
            placed.slot
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut slot_of), [2, 1, 0, 2, 1]);
    }

    #[test]
    fn a_slot_that_is_not_wanted_fetches_even_where_it_is_empty() {
        let mut cache = launched(2, 0.8, false, false);
        serve(&mut cache, &turn(1, 1), Some(0));
        serve(&mut cache, &turn(2, 1), Some(0));
        assert_eq!(cache.peek(&turn(1, 2), Some(1)), Some((1, 0)));
        assert_eq!(serve(&mut cache, &turn(1, 2), None), (492, 22));
    }

    #[test]
    fn a_peek_tells_what_a_launch_finds() {
        let mut cache = launched(2, 0.8, false, false);
        for conversation in 1..=4 {
            serve(&mut cache, &turn(conversation, 1), None);
        }
        for (conversation, wanted) in [(4, Some(0)), (1, Some(1)), (3, None), (9, Some(1)), (2, None)] {
            let prompt = turn(conversation, 2);
            let (_, peeked) = cache.peek(&prompt, wanted).unwrap();
            assert_eq!(serve(&mut cache, &prompt, wanted).0, peeked, "{conversation} in {wanted:?}");
        }
    }

    #[test]
    fn what_is_not_answered_leaves_host_memory_alone() {
        let mut cache = launched(1, 0.8, false, false);
        serve(&mut cache, &turn(1, 1), None);
        let placed = cache.launch(&turn(2, 1), None, 0, true, false).unwrap();
        assert_eq!((placed.copied, cache.host().len()), (0, 0));
    }

    #[test]
    fn a_shared_context_purges_idle_slots_until_the_running_ones_fit() {
        let mut cache = SlotCache::new(3, SlotRules { unified_tokens: Some(1200), cache_idle_slots: false, ..SlotRules::default() });
        serve(&mut cache, &turn(1, 1), Some(0));
        serve(&mut cache, &turn(2, 1), Some(1));
        cache.launch(&turn(3, 1), Some(2), 8, true, true).unwrap();
        assert!(cache.held(0).is_none() && cache.held(1).is_some());
    }
}
