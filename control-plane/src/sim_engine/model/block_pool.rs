//! One pool of blocks that all requests share, as in `vLLM`: what was read once is there for everybody until it is needed.
//!
//! A block is known by the hash of everything up to its end. Blocks of running requests stay; the others go by age, the end
//! of a sequence before its beginning. A request is admitted when its prompt and its longest answer fit, so nothing is
//! ever preempted: at the edge of the pool this waits a little earlier than `vLLM` would.

use std::collections::{BTreeMap, HashMap};

use super::sequence::Sequence;

#[derive(Debug)]
struct Block {
    users: u32,
    /// Its place in the order of age, while nobody uses it; the first is 1.
    age: u64,
}

/// A running request's part of the pool.
#[derive(Debug, Default)]
struct Lease {
    blocks: Vec<u64>,
    /// Blocks without a hash yet: the answer, and the end of the prompt.
    private: usize,
}

/// The pool.
#[derive(Debug)]
pub struct BlockPool {
    capacity: usize,
    block: usize,
    blocks: HashMap<u64, Block>,
    free: BTreeMap<u64, u64>,
    leases: Vec<Lease>,
    running: usize,
    limit: usize,
    private: usize,
    age: u64,
    /// Tokens looked up.
    pub queried: u64,
    /// Tokens of them found.
    pub found: u64,
}

impl BlockPool {
    /// An empty pool of so many tokens for at most so many requests at once.
    pub fn new(tokens: usize, block: usize, requests: usize) -> Self {
        let block = block.max(1);
        Self {
            capacity: (tokens / block).max(1),
            block,
            blocks: HashMap::new(),
            free: BTreeMap::new(),
            leases: (0..requests).map(|_| Lease::default()).collect(),
            running: 0,
            limit: requests,
            private: 0,
            age: 0,
            queried: 0,
            found: 0,
        }
    }

    /// Part of the pool that running requests use, 0 to 1.
    pub fn usage(&self) -> f64 {
        (self.blocks.len() - self.free.len() + self.private) as f64 / self.capacity as f64
    }

    /// Blocks in all, and the tokens of one.
    pub const fn size(&self) -> (usize, usize) {
        (self.capacity, self.block)
    }

    /// Tokens a prompt of so many tokens and these blocks would find now.
    pub fn peek(&self, blocks: &[u64], tokens: usize) -> usize {
        // The end of a sequence goes before its beginning, so what is there is one piece.
        let known = blocks.partition_point(|hash| self.blocks.contains_key(hash));
        known.min(tokens.saturating_sub(1) / self.block) * self.block
    }

    /// Begins a prompt in this place, which must be free; the tokens found. `None` = it does not fit now.
    pub fn launch<S: Sequence>(&mut self, place: usize, prompt: &S, limit: usize, reuse: bool) -> Option<usize> {
        if self.running >= self.limit {
            return None;
        }
        let hashes = prompt.blocks(self.block);
        let known = if reuse { hashes.iter().take_while(|hash| self.blocks.contains_key(hash)).count() } else { 0 };
        // The last token is always computed, and with it its block.
        let known = known.min(prompt.tokens().saturating_sub(1) / self.block);
        let all = (prompt.tokens() + limit).div_ceil(self.block);
        let shared = hashes.iter().filter(|hash| self.blocks.get(hash).is_some_and(|block| block.users > 0)).count();
        let used = self.blocks.len() - self.free.len() + self.private;
        // An answer to a request alone may always run, else it would wait for ever.
        if used + all.saturating_sub(shared) > self.capacity && self.running > 0 {
            return None;
        }
        for hash in &hashes {
            self.hold(*hash);
        }
        let private = all.saturating_sub(hashes.len());
        self.private += private;
        self.leases[place] = Lease { blocks: hashes, private };
        self.running += 1;
        self.evict();
        let cached = known * self.block;
        self.queried += prompt.tokens() as u64;
        self.found += cached as u64;
        Some(cached)
    }

    /// A request has ended; this is what it read and wrote.
    pub fn release<S: Sequence>(&mut self, place: usize, sequence: &S) {
        let lease = std::mem::take(&mut self.leases[place]);
        self.running = self.running.saturating_sub(1);
        self.private -= lease.private;
        let held = sequence.blocks(self.block);
        // What was leased beyond what was read (a request that was broken off) is no block.
        for hash in lease.blocks.iter().skip(held.len()) {
            self.let_go(*hash, false);
        }
        for hash in held.iter().skip(lease.blocks.len()) {
            self.hold(*hash);
        }
        // The end is let go first, so that it is the first to be evicted.
        for hash in held.iter().rev() {
            self.let_go(*hash, true);
        }
        self.evict();
    }

    fn hold(&mut self, hash: u64) {
        let block = self.blocks.entry(hash).or_insert(Block { users: 0, age: 0 });
        if block.users == 0 {
            self.free.remove(&block.age);
        }
        block.users += 1;
    }

    fn let_go(&mut self, hash: u64, keep: bool) {
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        block.users = block.users.saturating_sub(1);
        if block.users > 0 {
            return;
        }
        if keep {
            self.age += 1;
            block.age = self.age;
            self.free.insert(self.age, hash);
        } else {
            self.blocks.remove(&hash);
        }
    }

    fn evict(&mut self) {
        while self.blocks.len() + self.private > self.capacity {
            let Some((_, hash)) = self.free.pop_first() else { break };
            self.blocks.remove(&hash);
        }
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

    fn serve(pool: &mut BlockPool, prompt: &Runs) -> usize {
        let cached = pool.launch(0, prompt, 16, true).unwrap();
        pool.release(0, prompt);
        cached
    }

    #[test]
    fn a_beginning_read_once_is_there_for_everybody() {
        let mut pool = BlockPool::new(1600, 16, 4);
        assert_eq!(serve(&mut pool, &runs(&[(1, 160), (2, 64)])), 0);
        let next = runs(&[(1, 160), (3, 64)]);
        assert_eq!(pool.peek(&next.blocks(16), next.tokens()), 160);
        assert_eq!(serve(&mut pool, &next), 160);
        // Even while the first to read it is at work.
        assert_eq!(pool.launch(0, &runs(&[(4, 160), (2, 64)]), 16, true), Some(0));
        assert_eq!(pool.launch(1, &runs(&[(4, 160), (3, 64)]), 16, true), Some(160));
        // A prompt held in full costs its last block.
        assert_eq!(serve(&mut pool, &runs(&[(1, 160)])), 144);
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_the_end_before_the_beginning() {
        let mut pool = BlockPool::new(320, 16, 4);
        serve(&mut pool, &runs(&[(1, 128)]));
        serve(&mut pool, &runs(&[(2, 128)]));
        serve(&mut pool, &runs(&[(1, 128)]));
        serve(&mut pool, &runs(&[(3, 128)]));
        assert_eq!(pool.launch(0, &runs(&[(1, 128), (9, 1)]), 0, true), Some(128));
        pool.release(0, &runs(&[(1, 128)]));
        let left = pool.launch(0, &runs(&[(2, 128), (9, 1)]), 0, true).unwrap();
        assert!(left > 0 && left < 128, "{left}");
    }

    #[test]
    fn what_does_not_fit_beside_those_that_run_waits_and_nothing_leaks() {
        let mut pool = BlockPool::new(320, 16, 4);
        assert!(pool.launch(0, &runs(&[(1, 200)]), 40, true).is_some());
        assert!(pool.launch(1, &runs(&[(2, 200)]), 40, true).is_none());
        assert!((pool.usage() - 15.0 / 20.0).abs() < 1e-9);
        pool.release(0, &runs(&[(1, 100)]));
        assert!(pool.usage().abs() < 1e-9);
        assert!(pool.launch(1, &runs(&[(2, 200)]), 40, true).is_some());
        pool.release(1, &runs(&[(2, 200), (3, 40)]));
        assert_eq!((pool.running, pool.private, pool.free.len()), (0, 0, pool.blocks.len()));
    }
}
