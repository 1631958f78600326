//! What the slots of a llama.cpp row hold, as far as it can be known from outside.
//!
//! llama-server keeps whole sequences: one for each slot, and in host memory those that were pushed out of a slot. One
//! sequence is never shared by two slots. So the router chooses the slot itself and keeps this shadow by the engine's own
//! rules (ROUTING 1.7, 1.8): a conversation goes back to its own slot; a stranger gets an empty one, else that of a
//! conversation that has ended, else the one idle longest, whose sequence moves to host memory; a sequence in host memory
//! comes back only through a slot that is not empty. A slot that works is never given away.

use std::collections::VecDeque;

use super::returns::Returns;

/// Ends of prompts kept of one sequence: the last turns, to which a client may go back.
const MAX_TAILS: usize = 8;
/// Part of its tokens that pushing a sequence out costs, if it can be fetched back from host memory.
pub(super) const FETCH_BACK: f64 = 0.1;
/// A slot's sequence of which less than this part is kept is saved to host memory first,
const SAVED_BELOW: f64 = 0.5;
/// and so is one that is not more than this part of the new prompt (`-sps`).
const SIMILAR_ABOVE: f64 = 0.8;

/// The end of one prompt of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// The prefix chain's hash there.
    pub hash: u64,
    /// Bytes of prompt up to there.
    pub bytes: u64,
}

/// One conversation as an engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Never used twice.
    pub serial: u32,
    /// Tokens held, prompt and answer.
    pub tokens: f64,
    /// Ends of its prompts, newest last.
    pub tails: Vec<Tail>,
    /// Seconds of its last turn.
    pub last_used: f64,
}

impl Sequence {
    /// A conversation without a turn yet.
    pub const fn new(serial: u32, now: f64) -> Self {
        Self { serial, tokens: 0.0, tails: Vec::new(), last_used: now }
    }

    /// Adds the end of a prompt; the oldest falls out.
    pub fn add_tail(&mut self, tail: Tail) {
        self.tails.retain(|known| known.bytes < tail.bytes);
        self.tails.push(tail);
        if self.tails.len() > MAX_TAILS {
            self.tails.remove(0);
        }
    }

    /// The chance that it goes on.
    pub fn chance(&self, returns: &Returns, now: f64) -> f64 {
        returns.chance((now - self.last_used).max(0.0))
    }

    /// Tokens that its loss is going to cost, by the chance that it goes on.
    pub fn regret(&self, returns: &Returns, now: f64) -> f64 {
        self.tokens * self.chance(returns, now)
    }
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a slot that rests.
    Idle(u32),
    /// In a slot that works.
    Busy(u32),
    /// In host memory.
    Host,
}

/// A slot to put a stranger into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Victim {
    /// Which.
    pub slot: u32,
    /// Tokens that are going to be read again for it, by chance.
    pub displaced: f64,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    busy: bool,
    holds: Option<Sequence>,
}

/// All slots of one row, and its host memory.
#[derive(Debug, Clone)]
pub struct SlotShadow {
    slots: Vec<Slot>,
    host: VecDeque<Sequence>,
    host_tokens: f64,
    host_limit: f64,
}

impl SlotShadow {
    /// Empty slots. `host_limit` = tokens its host cache holds.
    pub fn new(slots: u32, host_limit: u64) -> Self {
        Self { slots: vec![Slot::default(); slots as usize], host: VecDeque::new(), host_tokens: 0.0, host_limit: host_limit as f64 }
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    fn indexed(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..).zip(&self.slots)
    }

    /// Where a sequence is, and itself.
    pub fn find(&self, serial: u32) -> Option<(Place, &Sequence)> {
        let in_slot = self.indexed().find_map(|(index, slot)| {
            let sequence = slot.holds.as_ref().filter(|sequence| sequence.serial == serial)?;
            Some((if slot.busy { Place::Busy(index) } else { Place::Idle(index) }, sequence))
        });
        in_slot.or_else(|| self.host.iter().find(|sequence| sequence.serial == serial).map(|sequence| (Place::Host, sequence)))
    }

    /// Tokens of the conversations that live here: of all sequences, by the chance that they go on.
    pub fn living(&self, returns: &Returns, now: f64) -> f64 {
        let in_slots = self.slots.iter().filter_map(|slot| {
            let sequence = slot.holds.as_ref()?;
            Some(if slot.busy { sequence.tokens * returns.chance(0.0) } else { sequence.regret(returns, now) })
        });
        in_slots.chain(self.host.iter().map(|sequence| sequence.regret(returns, now))).sum()
    }

    /// Tokens held, in slots and in host memory.
    pub fn resident(&self) -> f64 {
        self.slots.iter().filter_map(|slot| slot.holds.as_ref()).map(|sequence| sequence.tokens).sum::<f64>() + self.host_tokens
    }

    /// Tokens that saving so many to host memory is going to cost: of those that have to go for them, by the chance that they
    /// go on.
    fn pushed_out_by(&self, tokens: f64, returns: &Returns, now: f64) -> f64 {
        let mut over = self.host_tokens + tokens - self.host_limit;
        let mut cost = 0.0;
        for sequence in &self.host {
            if over <= 0.0 {
                break;
            }
            over -= sequence.tokens;
            cost += sequence.regret(returns, now);
        }
        cost
    }

    /// Tokens that pushing this sequence out of its slot is going to cost.
    pub fn cost_of_saving(&self, sequence: &Sequence, returns: &Returns, now: f64) -> f64 {
        let regret = sequence.regret(returns, now);
        if sequence.tokens > self.host_limit {
            return regret;
        }
        FETCH_BACK * regret + self.pushed_out_by(sequence.tokens, returns, now)
    }

    /// The slot that a stranger costs least in. `None` = all work.
    pub fn victim(&self, returns: &Returns, now: f64) -> Option<Victim> {
        self.cheapest(returns, now, false)
    }

    /// The slot that a sequence is best fetched back from host memory through; an empty one will not do.
    pub fn door(&self, returns: &Returns, now: f64) -> Option<Victim> {
        self.cheapest(returns, now, true)
    }

    fn cheapest(&self, returns: &Returns, now: f64, occupied: bool) -> Option<Victim> {
        let mut best: Option<(Victim, f64)> = None;
        for (slot, state) in self.indexed().filter(|(_, state)| !state.busy) {
            let (displaced, last_used) = match &state.holds {
                None if occupied => continue,
                None => (0.0, f64::NEG_INFINITY),
                Some(sequence) => (self.cost_of_saving(sequence, returns, now), sequence.last_used),
            };
            // Among those that cost nothing an empty one, then the one idle longest; as the engine itself would choose.
            if best.is_none_or(|(_, oldest)| last_used < oldest) {
                best = Some((Victim { slot, displaced }, last_used));
            }
        }
        best.map(|(victim, _)| victim)
    }

    /// Whether the engine saves what a slot holds before a prompt of which it has this much.
    pub fn is_saved(held: f64, cached: f64, prompt: f64) -> bool {
        cached < held * SAVED_BELOW || cached <= prompt * SIMILAR_ABOVE
    }

    /// A request of this sequence begins in a slot and finds `cached` of its tokens. Whatever else the slot held goes to host
    /// memory, unless the request goes on with most of it; a sequence that was in host memory leaves it.
    pub fn begin(&mut self, slot: u32, sequence: Sequence, cached: f64) {
        let serial = sequence.serial;
        let from_host = self.host.iter().position(|held| held.serial == serial).and_then(|at| self.host.remove(at));
        if let Some(held) = &from_host {
            self.host_tokens -= held.tokens;
        }
        let prompt = sequence.tokens;
        let Some(state) = self.slot_mut(slot) else { return };
        state.busy = true;
        if let Some(other) = state.holds.replace(sequence).filter(|other| other.serial != serial)
            && (from_host.is_some() || Self::is_saved(other.tokens, cached, prompt))
        {
            self.push_out(other);
        }
    }

    fn push_out(&mut self, sequence: Sequence) {
        if sequence.tokens > self.host_limit || sequence.tokens <= 0.0 {
            return;
        }
        self.host_tokens += sequence.tokens;
        self.host.push_back(sequence);
        while self.host_tokens > self.host_limit {
            let Some(oldest) = self.host.pop_front() else { break };
            self.host_tokens -= oldest.tokens;
        }
    }

    /// The sequence a slot holds.
    pub fn holds_mut(&mut self, slot: u32) -> Option<&mut Sequence> {
        self.slot_mut(slot)?.holds.as_mut()
    }

    /// The request in a slot has ended.
    pub fn end(&mut self, slot: u32) {
        if let Some(state) = self.slot_mut(slot) {
            state.busy = false;
        }
    }

    /// What a slot holds is not known any more (the engine said so).
    pub fn forget(&mut self, slot: u32) {
        if let Some(state) = self.slot_mut(slot) {
            state.holds = None;
        }
    }

    /// Slots that work.
    pub fn busy(&self) -> usize {
        self.slots.iter().filter(|slot| slot.busy).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(serial: u32, tokens: f64, last_used: f64) -> Sequence {
        Sequence { tokens, ..Sequence::new(serial, last_used) }
    }

    fn place(shadow: &mut SlotShadow, slot: u32, sequence: Sequence) {
        shadow.begin(slot, sequence, 0.0);
        shadow.end(slot);
    }

    fn victim(shadow: &SlotShadow) -> Option<u32> {
        shadow.victim(&Returns::default(), 10.0).map(|victim| victim.slot)
    }

    #[test]
    fn a_stranger_gets_an_empty_slot_then_the_one_idle_longest_and_never_a_busy_one() {
        let mut shadow = SlotShadow::new(3, 1000);
        place(&mut shadow, 0, sequence(1, 100.0, 5.0));
        assert_eq!(victim(&shadow), Some(1));
        assert_eq!(shadow.door(&Returns::default(), 10.0).unwrap().slot, 0);
        place(&mut shadow, 1, sequence(2, 100.0, 3.0));
        place(&mut shadow, 2, sequence(3, 100.0, 4.0));
        assert_eq!(victim(&shadow), Some(1));
        shadow.begin(1, sequence(2, 100.0, 3.0), 100.0);
        assert_eq!(victim(&shadow), Some(2));
        shadow.begin(2, sequence(3, 1.0, 0.0), 1.0);
        shadow.begin(0, sequence(1, 1.0, 0.0), 1.0);
        assert_eq!(victim(&shadow), None);
        assert_eq!(shadow.busy(), 3);
    }

    #[test]
    fn what_is_pushed_out_waits_in_host_memory_and_the_oldest_is_lost_when_it_is_full() {
        let mut shadow = SlotShadow::new(1, 250);
        for serial in 1..=3 {
            place(&mut shadow, 0, sequence(serial, 100.0, f64::from(serial)));
        }
        assert_eq!(shadow.find(1).unwrap().0, Place::Host);
        place(&mut shadow, 0, sequence(4, 100.0, 4.0));
        assert!(shadow.find(1).is_none());
        // Fetched back, it leaves host memory.
        let held = shadow.find(2).unwrap().1.clone();
        place(&mut shadow, 0, held);
        assert_eq!(shadow.find(2).unwrap().0, Place::Idle(0));
        assert_eq!(shadow.find(3).unwrap().0, Place::Host);
        assert!((shadow.resident() - 300.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_request_goes_on_with_is_not_pushed_out_and_what_is_only_like_it_is() {
        let mut shadow = SlotShadow::new(1, 1000);
        place(&mut shadow, 0, sequence(1, 100.0, 1.0));
        shadow.begin(0, sequence(2, 110.0, 2.0), 95.0);
        assert!(shadow.find(1).is_none());
        shadow.end(0);
        shadow.begin(0, sequence(3, 200.0, 3.0), 100.0);
        assert_eq!(shadow.find(2).unwrap().0, Place::Host);
    }

    #[test]
    fn saving_a_sequence_costs_those_that_have_to_go_for_it() {
        let returns = Returns::default();
        let mut shadow = SlotShadow::new(1, 250);
        place(&mut shadow, 0, sequence(1, 100.0, 1.0));
        place(&mut shadow, 0, sequence(2, 100.0, 2.0));
        let roomy = shadow.victim(&returns, 4.0).unwrap().displaced;
        place(&mut shadow, 0, sequence(3, 100.0, 3.0));
        let full = shadow.victim(&returns, 4.0).unwrap().displaced;
        assert!(roomy < 100.0 * FETCH_BACK && full > 80.0, "{roomy} {full}");
    }

    #[test]
    fn a_conversation_is_missed_less_the_longer_it_rests() {
        let held = sequence(1, 100.0, 0.0);
        let regret = |now: f64| held.regret(&Returns::default(), now);
        assert!(regret(0.0) > regret(600.0) && regret(600.0) > regret(3600.0) && regret(1e9) < 1e-9);
    }

    #[test]
    fn only_the_last_ends_of_prompts_are_kept_and_a_step_back_forgets_what_came_after() {
        let mut held = sequence(1, 1.0, 0.0);
        (1..=10).for_each(|turn| held.add_tail(Tail { hash: turn, bytes: turn * 10 }));
        assert_eq!(held.tails.iter().map(|tail| tail.hash).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9, 10]);
        held.add_tail(Tail { hash: 99, bytes: 45 });
        assert_eq!(held.tails.last().unwrap().hash, 99);
        assert_eq!(held.tails.len(), 3);
    }
}
