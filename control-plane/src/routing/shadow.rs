//! What the slots of a llama.cpp row hold, as far as it can be known from outside.
//!
//! llama-server keeps whole sequences: one for each slot, and in host memory those that were pushed out of a slot. One
//! sequence is never shared by two slots. So the router chooses the slot itself and keeps this shadow by the engine's own
//! rules (ROUTING 1.7, 1.8): a conversation goes back to its own slot; a stranger gets an empty one, else that of a
//! conversation that has ended, else the one idle longest, whose sequence moves to host memory; a sequence in host memory
//! comes back only through a slot that is not empty. A slot that works is never given away.

use std::collections::VecDeque;

/// Ends of prompts kept of one sequence: the last turns, to which a client may go back.
const MAX_TAILS: usize = 8;
/// Seconds without a turn after which a conversation is taken for ended.
const ENDED_AFTER: f64 = 1800.0;
/// Seconds in which the chance that a conversation goes on halves.
const RETURN_HALF_LIFE: f64 = 600.0;
/// Part of its tokens that pushing a sequence out costs, if it can be fetched back from host memory.
const FETCH_BACK: f64 = 0.1;

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

    /// Adds the end of a prompt. The one that falls out is returned.
    pub fn add_tail(&mut self, tail: Tail) -> Option<Tail> {
        self.tails.retain(|known| known.bytes < tail.bytes);
        self.tails.push(tail);
        (self.tails.len() > MAX_TAILS).then(|| self.tails.remove(0))
    }

    fn has_ended(&self, now: f64) -> bool {
        now - self.last_used > ENDED_AFTER
    }

    /// Tokens that its loss is going to cost, by the chance that it goes on.
    pub fn regret(&self, now: f64) -> f64 {
        if self.has_ended(now) { 0.0 } else { self.tokens * 0.5_f64.powf((now - self.last_used).max(0.0) / RETURN_HALF_LIFE) }
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

    /// Tokens that may be asked for again: what all sequences hold.
    pub fn resident(&self) -> f64 {
        self.slots.iter().filter_map(|slot| slot.holds.as_ref()).map(|sequence| sequence.tokens).sum::<f64>() + self.host_tokens
    }

    /// The slot that a stranger costs least in. `occupied` = an empty one will not do. `None` = all work.
    pub fn victim(&self, now: f64, occupied: bool) -> Option<Victim> {
        let mut best: Option<(Victim, f64)> = None;
        for (slot, state) in self.indexed().filter(|(_, state)| !state.busy) {
            let (displaced, last_used) = match &state.holds {
                None if occupied => continue,
                None => (0.0, f64::NEG_INFINITY),
                Some(sequence) => {
                    let kept = if sequence.tokens <= self.host_limit { FETCH_BACK } else { 1.0 };
                    (sequence.regret(now) * kept, sequence.last_used)
                }
            };
            // Among those that cost nothing an empty one, then the one idle longest; as the engine itself would choose.
            if best.is_none_or(|(_, oldest)| last_used < oldest) {
                best = Some((Victim { slot, displaced }, last_used));
            }
        }
        best.map(|(victim, _)| victim)
    }

    /// A request of this sequence begins in a slot. Whatever else the slot held goes to host memory, a sequence that was in
    /// host memory leaves it. What is lost for good is returned.
    pub fn begin(&mut self, slot: u32, sequence: Sequence) -> Vec<Sequence> {
        let serial = sequence.serial;
        let from_host = self.host.iter().position(|held| held.serial == serial).and_then(|at| self.host.remove(at));
        if let Some(held) = &from_host {
            self.host_tokens -= held.tokens;
        }
        let Some(state) = self.slot_mut(slot) else { return Vec::new() };
        state.busy = true;
        match state.holds.replace(sequence) {
            Some(other) if other.serial != serial => self.push_out(other),
            _ => Vec::new(),
        }
    }

    fn push_out(&mut self, sequence: Sequence) -> Vec<Sequence> {
        let mut lost = Vec::new();
        if sequence.tokens > self.host_limit || sequence.tokens <= 0.0 {
            lost.push(sequence);
            return lost;
        }
        self.host_tokens += sequence.tokens;
        self.host.push_back(sequence);
        while self.host_tokens > self.host_limit {
            let Some(oldest) = self.host.pop_front() else { break };
            self.host_tokens -= oldest.tokens;
            lost.push(oldest);
        }
        lost
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

    /// What a slot holds is not known any more (the engine said so). What was there is returned.
    pub fn forget(&mut self, slot: u32) -> Option<Sequence> {
        self.slot_mut(slot)?.holds.take()
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

    fn place(shadow: &mut SlotShadow, slot: u32, sequence: Sequence) -> Vec<u32> {
        let lost = shadow.begin(slot, sequence);
        shadow.end(slot);
        lost.into_iter().map(|sequence| sequence.serial).collect()
    }

    #[test]
    fn a_stranger_gets_an_empty_slot_then_the_one_idle_longest_and_never_a_busy_one() {
        let mut shadow = SlotShadow::new(3, 1000);
        place(&mut shadow, 0, sequence(1, 100.0, 5.0));
        assert_eq!(shadow.victim(10.0, false).unwrap().slot, 1);
        place(&mut shadow, 1, sequence(2, 100.0, 3.0));
        place(&mut shadow, 2, sequence(3, 100.0, 4.0));
        assert_eq!(shadow.victim(10.0, false).unwrap().slot, 1);
        assert!(shadow.begin(1, sequence(2, 100.0, 3.0)).is_empty());
        assert_eq!(shadow.victim(10.0, false).unwrap().slot, 2);
        shadow.begin(2, sequence(3, 1.0, 0.0));
        shadow.begin(0, sequence(1, 1.0, 0.0));
        assert_eq!(shadow.victim(10.0, false), None);
        assert_eq!(shadow.busy(), 3);
    }

    #[test]
    fn what_is_pushed_out_waits_in_host_memory_and_the_oldest_is_lost_when_it_is_full() {
        let mut shadow = SlotShadow::new(1, 250);
        assert!(place(&mut shadow, 0, sequence(1, 100.0, 1.0)).is_empty());
        assert!(place(&mut shadow, 0, sequence(2, 100.0, 2.0)).is_empty());
        assert!(place(&mut shadow, 0, sequence(3, 100.0, 3.0)).is_empty());
        assert_eq!(shadow.find(1).unwrap().0, Place::Host);
        assert_eq!(place(&mut shadow, 0, sequence(4, 100.0, 4.0)), [1]);
        // Fetched back, it leaves host memory.
        let held = shadow.find(2).unwrap().1.clone();
        assert!(place(&mut shadow, 0, held).is_empty());
        assert_eq!(shadow.find(2).unwrap().0, Place::Idle(0));
        assert_eq!(shadow.find(3).unwrap().0, Place::Host);
        assert!((shadow.resident() - 300.0).abs() < 1e-9);
    }

    #[test]
    fn a_conversation_that_ended_long_ago_is_not_missed() {
        let held = sequence(1, 100.0, 0.0);
        assert!(held.regret(0.0) > held.regret(600.0) && held.regret(600.0) > 0.0);
        assert!(held.regret(ENDED_AFTER + 1.0) <= 0.0);
    }

    #[test]
    fn only_the_last_ends_of_prompts_are_kept_and_a_step_back_forgets_what_came_after() {
        let mut held = sequence(1, 1.0, 0.0);
        let dropped: Vec<_> = (1..=10).filter_map(|turn| held.add_tail(Tail { hash: turn, bytes: turn * 10 })).collect();
        assert_eq!(dropped.iter().map(|tail| tail.hash).collect::<Vec<_>>(), [1, 2]);
        held.add_tail(Tail { hash: 99, bytes: 45 });
        assert_eq!(held.tails.last().unwrap().hash, 99);
        assert_eq!(held.tails.len(), 3);
    }
}
