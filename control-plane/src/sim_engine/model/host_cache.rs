//! llama-server's prompt cache in host memory: whole sequences, each moved in and out as one.
//!
//! The rules of b11434: nothing is stored that an entry contains already; an entry that the new one contains goes; the
//! oldest go until the new one fits; the entry that is fetched is gone afterwards. The engine's bound is in bytes; all
//! sequences take the same bytes a token, so it is kept in tokens here.

use std::collections::VecDeque;

use super::sequence::Sequence;

/// An entry comes back only if at least this part of it is asked for.
const LEAST_KEPT: f32 = 0.25;

/// Sequences in host memory, oldest first.
#[derive(Debug)]
pub struct HostCache<S> {
    entries: VecDeque<S>,
    limit: usize,
}

impl<S: Sequence + Clone> HostCache<S> {
    /// Of at most so many tokens.
    pub fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), limit }
    }

    /// Whether it may hold anything.
    pub const fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Tokens held.
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(Sequence::tokens).sum()
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Tokens of the entries that saving this one would push out.
    pub fn pushed_out_by(&self, sequence: &S) -> usize {
        let tokens = sequence.tokens();
        if tokens > self.limit || self.entries.iter().any(|entry| entry.common_prefix(sequence) == tokens) {
            return 0;
        }
        let staying = || self.entries.iter().filter(|entry| entry.common_prefix(sequence) < entry.tokens()).map(Sequence::tokens);
        let needed = (staying().sum::<usize>() + tokens).saturating_sub(self.limit);
        let mut gone = 0;
        for entry in staying() {
            if gone >= needed {
                break;
            }
            gone += entry;
        }
        gone
    }

    /// Saves a copy; the tokens copied, 0 where nothing was to be saved.
    pub fn save(&mut self, sequence: &S) -> usize {
        let tokens = sequence.tokens();
        let known = |entry: &S| entry.common_prefix(sequence) == tokens;
        if tokens == 0 || tokens > self.limit || self.entries.iter().any(known) {
            return 0;
        }
        self.entries.retain(|entry| entry.common_prefix(sequence) < entry.tokens());
        let mut held = self.tokens();
        while held + tokens > self.limit {
            let Some(oldest) = self.entries.pop_front() else { break };
            held -= oldest.tokens();
        }
        self.entries.push_back(sequence.clone());
        tokens
    }

    /// The entry that serves the prompt better than what the slot holds, in both measures: the part of it that is kept, and
    /// the part of the prompt that it is. An empty slot holds less than anything.
    fn find_better(&self, held: Option<&S>, prompt: &S) -> Option<usize> {
        let measures = |sequence: &S| {
            let common = sequence.common_prefix(prompt) as f32;
            (common / sequence.tokens() as f32, common / prompt.tokens().max(1) as f32)
        };
        let mut best = held.filter(|held| held.tokens() > 0).map_or((-1.0, 0.0), measures);
        let mut chosen = None;
        for (at, entry) in self.entries.iter().enumerate() {
            let (kept, similar) = measures(entry);
            if kept >= LEAST_KEPT && best.0 < kept && best.1 < similar {
                best = (kept, similar);
                chosen = Some(at);
            }
        }
        chosen
    }

    /// The entry that would be fetched.
    pub fn better(&self, held: Option<&S>, prompt: &S) -> Option<&S> {
        self.entries.get(self.find_better(held, prompt)?)
    }

    /// Takes out the entry that serves the prompt better than what the slot holds.
    pub fn take_better(&mut self, held: Option<&S>, prompt: &S) -> Option<S> {
        let at = self.find_better(held, prompt)?;
        self.entries.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_engine::model::Runs;

    fn runs(of: &[(u64, u32)]) -> Runs {
        let mut runs = Runs::default();
        for (id, tokens) in of {
            runs.push(*id, *tokens);
        }
        runs
    }

    #[test]
    fn what_an_entry_contains_is_not_saved_and_what_the_new_one_contains_goes() {
        let mut host = HostCache::new(1000);
        assert_eq!(host.save(&runs(&[(1, 100), (2, 50)])), 150);
        assert_eq!(host.save(&runs(&[(1, 100)])), 0);
        assert_eq!(host.save(&runs(&[(1, 100), (2, 50), (3, 50)])), 200);
        assert_eq!((host.len(), host.tokens()), (1, 200));
    }

    #[test]
    fn the_oldest_go_first_and_what_never_fits_disturbs_nobody() {
        let mut host = HostCache::new(250);
        for id in 1..=3 {
            host.save(&runs(&[(id, 100)]));
        }
        assert_eq!(host.save(&runs(&[(9, 251)])), 0);
        assert!(host.take_better(None, &runs(&[(1, 100), (7, 1)])).is_none());
        assert!(host.take_better(None, &runs(&[(2, 100), (7, 1)])).is_some());
        assert_eq!(host.len(), 1);
    }

    #[test]
    fn an_entry_is_fetched_only_if_a_quarter_of_it_is_kept_and_it_beats_the_slot_in_both_measures() {
        let entry = runs(&[(1, 100), (2, 100)]);
        for (held, prompt, fetched) in [
            (None, runs(&[(1, 100), (3, 10)]), true),
            // Of its 200 tokens less than a quarter would be kept.
            (None, runs(&[(1, 30), (3, 10)]), false),
            // The slot keeps all it has: better in one measure.
            (Some(runs(&[(1, 100)])), runs(&[(1, 100), (2, 100), (3, 10)]), false),
            (Some(runs(&[(9, 100)])), runs(&[(1, 100), (2, 100), (3, 10)]), true),
            (Some(Runs::default()), runs(&[(1, 100), (2, 100), (3, 10)]), true),
        ] {
            let mut host = HostCache::new(1000);
            host.save(&entry);
            assert_eq!(host.take_better(held.as_ref(), &prompt).is_some(), fetched, "{held:?} {prompt:?}");
            assert_eq!(host.is_empty(), fetched);
        }
    }
}
