//! A prompt as runs of pretended tokens: a system text, a message, an answer are one run each.
//!
//! A prompt of a hundred thousand tokens takes a few hundred bytes, and two are compared in the logarithm of their runs, so
//! that a simulation may have thousands of them.

use super::sequence::Sequence;

/// One run: everything up to it hashed with its own id, and where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    hash: u64,
    end: u32,
}

/// A prompt.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    parts: Vec<Run>,
    /// Id of the answer to it.
    answer: u64,
    answering: bool,
}

impl Runs {
    /// Adds a run of so many tokens. Runs of the same id are the same text.
    pub fn push(&mut self, id: u64, tokens: u32) {
        let (before, start) = self.parts.last().map_or((0, 0), |last| (last.hash, last.end));
        // Where the run begins is part of the hash: after a shorter run nothing is the same any more.
        let hash = mix(mix(before ^ u64::from(start)) ^ id);
        self.parts.push(Run { hash, end: start.saturating_add(tokens) });
    }

    /// Says which run the answer is going to be.
    pub const fn answered_by(&mut self, id: u64) {
        self.answer = id;
    }

    fn end(&self) -> u32 {
        self.parts.last().map_or(0, |last| last.end)
    }
}

impl Sequence for Runs {
    type Piece = ();

    fn tokens(&self) -> usize {
        self.end() as usize
    }

    fn common_prefix(&self, other: &Self) -> usize {
        let (mut low, mut high) = (0, self.parts.len().min(other.parts.len()));
        while low < high {
            let middle = low.midpoint(high);
            if self.parts[middle].hash == other.parts[middle].hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(last) = low.checked_sub(1) else { return 0 };
        self.parts[last].end.min(other.parts[last].end) as usize
    }

    fn keep_first(&mut self, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        while self.parts.len() > 1 && self.parts[self.parts.len() - 2].end >= tokens {
            self.parts.pop();
        }
        if let Some(last) = self.parts.last_mut() {
            last.end = last.end.min(tokens);
        }
    }

    fn decode(&mut self, tokens: usize) {
        if !self.answering {
            self.answering = true;
            self.push(self.answer, 0);
        }
        if let Some(last) = self.parts.last_mut() {
            last.end = last.end.saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX));
        }
    }

    fn blocks(&self, block: usize) -> Vec<u64> {
        let block = u32::try_from(block.max(1)).unwrap_or(u32::MAX);
        let mut hashes = Vec::with_capacity((self.end() / block) as usize);
        let mut at = block;
        for run in &self.parts {
            while at <= run.end {
                hashes.push(mix(run.hash ^ u64::from(at)));
                at = at.saturating_add(block);
            }
        }
        hashes
    }
}

/// One step of splitmix64.
const fn mix(state: u64) -> u64 {
    let mut value = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[(u64, u32)]) -> Runs {
        let mut runs = Runs::default();
        for (id, tokens) in of {
            runs.push(*id, *tokens);
        }
        runs
    }

    #[test]
    fn what_is_common_ends_where_ids_or_lengths_part() {
        for (left, right, expected) in [
            (&[(1, 100), (2, 50)][..], &[(1, 100), (2, 50), (3, 10)][..], 150),
            (&[(1, 100), (2, 50)], &[(1, 100), (9, 50)], 100),
            (&[(1, 100), (2, 50)], &[(1, 100), (2, 70), (3, 10)], 150),
            (&[(1, 100), (2, 50), (3, 10)], &[(1, 100), (2, 70), (3, 10)], 150),
            (&[(9, 100)], &[(1, 100)], 0),
            (&[], &[(1, 100)], 0),
        ] {
            assert_eq!(runs(left).common_prefix(&runs(right)), expected, "{left:?} {right:?}");
        }
    }

    #[test]
    fn an_answer_becomes_the_run_that_the_next_turn_has() {
        let mut turn = runs(&[(1, 100), (2, 50)]);
        turn.answered_by(3);
        turn.decode(1);
        turn.decode(19);
        assert_eq!(turn.tokens(), 170);
        turn.keep_first(169);
        assert_eq!(turn.common_prefix(&runs(&[(1, 100), (2, 50), (3, 20), (4, 5)])), 169);
        turn.keep_first(100);
        assert_eq!(turn.common_prefix(&runs(&[(1, 100), (7, 50)])), 100);
    }

    #[test]
    fn blocks_are_the_same_up_to_where_prompts_part() {
        let (one, two) = (runs(&[(1, 100), (2, 60)]).blocks(16), runs(&[(1, 100), (3, 60)]).blocks(16));
        assert_eq!((one.len(), one.iter().zip(&two).take_while(|(left, right)| left == right).count()), (10, 6));
    }
}
