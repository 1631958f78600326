//! The rules of peers, with their default settings and an index that forgets nothing: kinder to them than they are.

use std::collections::{HashMap, HashSet};

use lifeboat::sim_engine::model::Sequence;

use super::Question;
use super::immediate::{Loads, Rule};

/// Each row in turn.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl<S> Rule<S> for RoundRobin {
    fn pick(&mut self, _question: &Question<'_, S>, loads: &Loads) -> usize {
        self.next = (self.next + 1) % loads.requests.len();
        self.next
    }
}

/// The fewest requests, ties in turn.
#[derive(Debug, Default)]
pub struct LeastConnections {
    next: usize,
}

impl<S> Rule<S> for LeastConnections {
    fn pick(&mut self, _question: &Question<'_, S>, loads: &Loads) -> usize {
        self.next = (self.next + 1) % loads.requests.len();
        loads.least(self.next)
    }
}

/// Highest random weight of session and row: spreads like a ring with endless points.
#[derive(Debug)]
pub struct ConsistentHash;

impl<S> Rule<S> for ConsistentHash {
    fn pick(&mut self, question: &Question<'_, S>, loads: &Loads) -> usize {
        (0..loads.requests.len()).max_by_key(|row| mix(question.session ^ mix(*row as u64))).unwrap_or_default()
    }
}

/// The session's row; a new one goes to the fewest requests, then the fewest sessions.
#[derive(Debug, Default)]
pub struct StickyTable {
    homes: HashMap<u64, usize>,
    sessions: HashMap<usize, usize>,
}

/// A session leaves if its row has at least so many requests more than the least busy one,
const LEAVE_DIFFERENCE: u32 = 8;
/// at least so many times as many,
const LEAVE_FACTOR: u32 = 2;
/// and its body is smaller than this.
const LEAVE_BELOW_BYTES: usize = 32 << 10;

impl<S: Sequence> Rule<S> for StickyTable {
    fn pick(&mut self, question: &Question<'_, S>, loads: &Loads) -> usize {
        let resident = |row: &usize| self.sessions.get(row).copied().unwrap_or_default();
        let least = (0..loads.requests.len()).min_by_key(|row| (loads.requests[*row], resident(row))).unwrap_or_default();
        let home = self.homes.get(&question.session).copied();
        let row = match home {
            Some(home) => {
                let (here, there) = (loads.requests[home], loads.requests[least]);
                let crowded = here >= there + LEAVE_DIFFERENCE && here >= LEAVE_FACTOR * there;
                if crowded && question.prompt.tokens() * 4 < LEAVE_BELOW_BYTES { least } else { home }
            }
            None => least,
        };
        if home != Some(row) {
            if let Some(count) = home.and_then(|home| self.sessions.get_mut(&home)) {
                *count -= 1;
            }
            *self.sessions.entry(row).or_default() += 1;
            self.homes.insert(question.session, row);
        }
        row
    }
}

/// Tokens of a block in the peers' indexes.
const BLOCK: usize = 64;

/// Which row has been sent which beginning.
#[derive(Debug)]
struct Seen {
    rows: Vec<HashSet<u64>>,
}

impl Seen {
    fn new(rows: usize) -> Self {
        Self { rows: vec![HashSet::new(); rows] }
    }

    /// Blocks that this row has seen: everything before a block it has seen, it has seen too.
    fn depth(&self, row: usize, blocks: &[u64]) -> usize {
        blocks.partition_point(|block| self.rows[row].contains(block))
    }

    fn add(&mut self, row: usize, blocks: Vec<u64>) {
        self.rows[row].extend(blocks);
    }
}

/// The longest match above the threshold, unless the rows are out of balance.
#[derive(Debug)]
pub struct CacheAware {
    seen: Seen,
    next: usize,
}

/// Part of the prompt that must match.
const CACHE_THRESHOLD: f64 = 0.3;
/// Out of balance: the busiest row has more than so many requests more than the least busy one,
const BALANCE_ABSOLUTE: u32 = 64;
/// and more than so many times as many.
const BALANCE_RELATIVE: f64 = 1.5;

impl CacheAware {
    /// Nothing seen.
    pub fn new(rows: usize) -> Self {
        Self { seen: Seen::new(rows), next: 0 }
    }
}

impl<S: Sequence> Rule<S> for CacheAware {
    fn pick(&mut self, question: &Question<'_, S>, loads: &Loads) -> usize {
        let blocks = question.prompt.blocks(BLOCK);
        self.next = (self.next + 1) % loads.requests.len();
        let (most, least) = loads.requests.iter().fold((0, u32::MAX), |(most, least), count| (most.max(*count), least.min(*count)));
        let unbalanced = most - least > BALANCE_ABSOLUTE && f64::from(most) > BALANCE_RELATIVE * f64::from(least);
        let best = (0..loads.requests.len()).max_by_key(|row| self.seen.depth(*row, &blocks)).unwrap_or_default();
        let matched = self.seen.depth(best, &blocks) as f64 / blocks.len().max(1) as f64;
        let row = if unbalanced || matched <= CACHE_THRESHOLD { loads.least(self.next) } else { best };
        self.seen.add(row, blocks);
        row
    }
}

/// Rows that hold most of the prompt, the fewest tokens in flight among them.
#[derive(Debug)]
pub struct PrefixGate {
    seen: Seen,
    next: usize,
}

/// Part of the prompt that makes a row a warm one.
const WARM: f64 = 0.8;
/// Tokens in flight by which a warm row may exceed a cold one: 15,928 a second for 18 seconds.
const GATE_TOKENS: u64 = 286_720;

impl PrefixGate {
    /// Nothing seen.
    pub fn new(rows: usize) -> Self {
        Self { seen: Seen::new(rows), next: 0 }
    }
}

impl<S: Sequence> Rule<S> for PrefixGate {
    fn pick(&mut self, question: &Question<'_, S>, loads: &Loads) -> usize {
        let blocks = question.prompt.blocks(BLOCK);
        let rows = loads.requests.len();
        self.next = (self.next + 1) % rows;
        let from_here = || (0..rows).map(|step| (self.next + step) % rows);
        let cold = from_here().min_by_key(|row| loads.tokens[*row]).unwrap_or_default();
        let is_warm = |row: &usize| !blocks.is_empty() && self.seen.depth(*row, &blocks) as f64 >= WARM * blocks.len() as f64;
        let warm = from_here().filter(is_warm).min_by_key(|row| loads.tokens[*row]);
        let row = warm.filter(|warm| loads.tokens[*warm] <= loads.tokens[cold] + GATE_TOKENS).unwrap_or(cold);
        self.seen.add(row, blocks);
        row
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
    use lifeboat::sim_engine::model::Runs;

    use super::*;

    fn runs(parts: &[(u64, u32)]) -> Runs {
        let mut runs = Runs::default();
        for (id, tokens) in parts {
            runs.push(*id, *tokens);
        }
        runs
    }

    fn pick(rule: &mut impl Rule<Runs>, session: u64, prompt: &Runs, requests: &[u32]) -> usize {
        let loads = Loads { requests: requests.to_vec(), tokens: requests.iter().map(|count| u64::from(*count) * 100_000).collect() };
        rule.pick(&Question { id: 0, prompt, parts: &[], session, output: 0 }, &loads)
    }

    #[test]
    fn least_connections_takes_the_emptiest_and_ties_in_turn() {
        let mut rule = LeastConnections::default();
        assert_eq!(pick(&mut rule, 1, &runs(&[]), &[2, 1, 3]), 1);
        let ties: Vec<usize> = (0..3).map(|_| pick(&mut rule, 1, &runs(&[]), &[0, 0, 0])).collect();
        assert_eq!(ties, [2, 0, 1]);
    }

    #[test]
    fn a_sticky_session_stays_until_its_row_is_far_busier() {
        let mut rule = StickyTable::default();
        let prompt = runs(&[(1, 1000)]);
        assert_eq!(pick(&mut rule, 7, &prompt, &[1, 0]), 1);
        assert_eq!(pick(&mut rule, 7, &prompt, &[0, 7]), 1);
        assert_eq!(pick(&mut rule, 7, &runs(&[(1, 9000)]), &[0, 20]), 1);
        assert_eq!(pick(&mut rule, 7, &prompt, &[0, 8]), 0);
    }

    #[test]
    fn a_hashed_session_stays_and_sessions_spread() {
        let rows: HashSet<usize> = (0..64).map(|session| pick(&mut ConsistentHash, session, &runs(&[]), &[0; 4])).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(pick(&mut ConsistentHash, 5, &runs(&[]), &[0; 4]), pick(&mut ConsistentHash, 5, &runs(&[]), &[9; 4]));
    }

    #[test]
    fn the_gate_follows_a_warm_row_until_it_has_far_more_in_flight() {
        let mut rule = PrefixGate::new(2);
        let first = pick(&mut rule, 1, &runs(&[(1, 640)]), &[0, 0]);
        let again = runs(&[(1, 640), (2, 64)]);
        let loads = |count| if first == 0 { [count, 0] } else { [0, count] };
        assert_eq!(pick(&mut rule, 1, &again, &loads(2)), first);
        assert_ne!(pick(&mut rule, 1, &again, &loads(3)), first);
    }

    #[test]
    fn cache_aware_follows_a_match_above_its_threshold() {
        let mut rule = CacheAware::new(2);
        let first = pick(&mut rule, 1, &runs(&[(1, 640)]), &[0, 0]);
        assert_eq!(pick(&mut rule, 2, &runs(&[(1, 640), (2, 640)]), &[9, 9]), first);
        let small = runs(&[(1, 640), (3, 6400)]);
        let counts = if first == 0 { [9, 0] } else { [0, 9] };
        assert_ne!(pick(&mut rule, 3, &small, &counts), first);
    }
}
