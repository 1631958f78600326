//! Conversations and the rows they live on: by the client's key, and by the ends of their prompts.
//!
//! Two maps of fixed size. When one is full, the entries not used for longest go, an eighth at a time, so that the cost is
//! spread thin and no list has to be kept.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::RowIndex;

/// Where a conversation lives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Home {
    /// The row.
    pub row: RowIndex,
    /// Which of its incarnations.
    pub incarnation: u64,
    /// The sequence on a row with slots; the row's count of tokens at that time on others.
    pub stamp: u32,
    /// Bytes of prompt up to this end; 0 for a session.
    pub bytes: u64,
    /// Seconds at which its last turn began.
    pub at: f64,
}

/// Keys are hashes already.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A map of hashes that forgets what was not used for longest.
#[derive(Debug)]
pub struct Recent {
    homes: HashMap<u64, (Home, u64), BuildHasherDefault<Ready>>,
    most: usize,
    tick: u64,
}

impl Recent {
    /// Of at most `most` entries.
    pub fn new(most: usize) -> Self {
        Self { homes: HashMap::default(), most: most.max(8), tick: 0 }
    }

    /// Looks one up; that is no use of it.
    pub fn get(&self, key: u64) -> Option<Home> {
        self.homes.get(&key).map(|(home, _)| *home)
    }

    /// Puts one in, or renews it.
    pub fn set(&mut self, key: u64, home: Home) {
        self.tick += 1;
        if self.homes.len() >= self.most && !self.homes.contains_key(&key) {
            self.forget_oldest();
        }
        self.homes.insert(key, (home, self.tick));
    }

    fn forget_oldest(&mut self) {
        let mut ticks: Vec<u64> = self.homes.values().map(|(_, tick)| *tick).collect();
        let eighth = (self.most / 8).min(ticks.len().saturating_sub(1));
        let (_, edge, _) = ticks.select_nth_unstable(eighth);
        let edge = *edge;
        self.homes.retain(|_, (_, tick)| *tick > edge);
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.homes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn home(stamp: u32) -> Home {
        Home { row: RowIndex(1), incarnation: 7, stamp, bytes: 0, at: 0.0 }
    }

    #[test]
    fn it_never_holds_more_than_it_may_and_forgets_the_oldest() {
        let mut recent = Recent::new(64);
        for key in 0..1000 {
            recent.set(key, home(1));
            recent.set(1_000_000, home(2));
            assert!(recent.len() <= 64);
        }
        assert_eq!(recent.get(1_000_000).unwrap().stamp, 2);
        assert!(recent.get(0).is_none() && recent.get(999).is_some());
    }
}
