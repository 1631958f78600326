//! Who has seen which block: one table of fixed size.
//!
//! Eight entries share a set; a new block replaces the one of the set that was inserted longest ago. An entry names up
//! to four holders: a prefix that more rows than that hold is popular, and popularity is looked at elsewhere. Nothing is ever
//! swept: whether a holder still holds a block is the caller's to judge from the stamp. A set takes memory once something is
//! in it, so that a table that is hardly used costs next to nothing; all of them together never pass the bound.

use super::RowIndex;

/// Entries that share a set.
const WAYS: usize = 8;
/// Holders of one block.
pub const HOLDERS: usize = 4;

/// A row that has seen a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub row: RowIndex,
    /// What the row needs to judge whether it still holds the block: a sequence, or its count of tokens at that time.
    pub stamp: u32,
}

const NOBODY: Holder = Holder { row: RowIndex(u16::MAX), stamp: 0 };

/// Fields apart, so that rows and stamps pack: 8 + 4 × 2 + 4 × 4 bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    block: u64,
    rows: [u16; HOLDERS],
    stamps: [u32; HOLDERS],
}

const EMPTY: Entry = Entry { block: 0, rows: [u16::MAX; HOLDERS], stamps: [0; HOLDERS] };

impl Entry {
    fn holder(&self, place: usize) -> Holder {
        match (self.rows.get(place), self.stamps.get(place)) {
            (Some(row), Some(stamp)) => Holder { row: RowIndex(*row), stamp: *stamp },
            _ => NOBODY,
        }
    }

    /// The newest holder comes first, the oldest falls out.
    fn add(&mut self, holder: Holder) {
        let at = self.rows.iter().position(|row| *row == holder.row.0).unwrap_or(HOLDERS - 1);
        self.rows[..=at].rotate_right(1);
        self.stamps[..=at].rotate_right(1);
        self.rows[0] = holder.row.0;
        self.stamps[0] = holder.stamp;
    }
}

#[derive(Debug)]
struct Set {
    entries: [Entry; WAYS],
    /// Where the next new block goes: the place filled longest ago.
    next: u8,
}

/// Bytes of a set, with the pointer to it and what an allocator keeps beside it.
const SET_BYTES: usize = size_of::<Set>() + 3 * size_of::<usize>();

/// The table.
#[derive(Debug)]
pub struct PrefixIndex {
    sets: Vec<Option<Box<Set>>>,
}

impl PrefixIndex {
    /// A table of at most that many bytes (at least one set).
    pub fn new(bytes: usize) -> Self {
        let sets = (bytes / SET_BYTES).max(1);
        // The largest power of two within: a set is then found by a mask.
        let sets = 1 << sets.ilog2();
        Self { sets: std::iter::repeat_with(|| None).take(sets).collect() }
    }

    /// Bytes it takes at most.
    pub fn bytes(&self) -> usize {
        self.sets.len() * SET_BYTES
    }

    fn set(&self, block: u64) -> usize {
        usize::try_from(block >> 20).unwrap_or(0) & (self.sets.len() - 1)
    }

    fn find(&self, block: u64) -> Option<&Entry> {
        self.sets.get(self.set(block))?.as_ref()?.entries.iter().find(|entry| entry.block == block && entry.rows[0] != u16::MAX)
    }

    /// The holders of a block, newest first; those whose row is `u16::MAX` are none.
    pub fn holders(&self, block: u64) -> impl Iterator<Item = Holder> {
        let entry = self.find(block).copied().unwrap_or(EMPTY);
        (0..HOLDERS).map(move |place| entry.holder(place)).take_while(|holder| *holder != NOBODY)
    }

    /// How many blocks of a chain are known, from the first on. A chain is known up to a depth and unknown beyond it, but for
    /// entries that were pushed out, so this takes a few probes: doubling steps, then halving ones.
    pub fn depth(&self, chain: &[u64]) -> usize {
        let known = |depth: usize| chain.get(depth - 1).is_some_and(|block| self.find(*block).is_some());
        let mut low = 0;
        let mut step = 1;
        while low + step <= chain.len() && known(low + step) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step).min(chain.len() + 1);
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            if known(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Notes that a row has this block now.
    pub fn insert(&mut self, block: u64, holder: Holder) {
        let at = self.set(block);
        let Some(set) = self.sets.get_mut(at) else { return };
        let set = set.get_or_insert_with(|| Box::new(Set { entries: [EMPTY; WAYS], next: 0 }));
        if let Some(entry) = set.entries.iter_mut().find(|entry| entry.block == block) {
            entry.add(holder);
            return;
        }
        let place = usize::from(set.next) % WAYS;
        set.next = set.next.wrapping_add(1);
        if let Some(entry) = set.entries.get_mut(place) {
            *entry = Entry { block, ..EMPTY };
            entry.add(holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn holder(row: u16, stamp: u32) -> Holder {
        Holder { row: RowIndex(row), stamp }
    }

    fn chain(from: u64, count: u64) -> Vec<u64> {
        (0..count).map(|step| (from + step).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
    }

    #[test]
    fn an_entry_is_as_small_as_the_memory_was_planned_for() {
        assert_eq!(size_of::<Entry>(), 32);
        assert!(PrefixIndex::new(8 << 20).bytes() <= 8 << 20);
    }

    #[test]
    fn the_known_part_of_a_chain_is_found_at_every_depth() {
        for known in 0..70 {
            let mut index = PrefixIndex::new(1 << 20);
            let blocks = chain(1, 70);
            for block in blocks.iter().take(known) {
                index.insert(*block, holder(3, 1));
            }
            assert_eq!(index.depth(&blocks), known);
        }
    }

    #[test]
    fn the_newest_holder_is_first_and_the_fifth_pushes_the_oldest_out() {
        let mut index = PrefixIndex::new(1 << 16);
        (0..5).for_each(|row| index.insert(7, holder(row, u32::from(row))));
        index.insert(7, holder(2, 9));
        let rows: Vec<_> = index.holders(7).collect();
        assert_eq!(rows, [holder(2, 9), holder(4, 4), holder(3, 3), holder(1, 1)]);
        assert_eq!(index.holders(8).count(), 0);
    }

    #[test]
    fn unique_prompts_do_not_make_it_grow() {
        let mut index = PrefixIndex::new(1 << 16);
        let before = index.bytes();
        for block in chain(1, 200_000) {
            index.insert(block, holder(1, 1));
        }
        assert_eq!(index.bytes(), before);
        assert_eq!(index.depth(&chain(199_990, 5)), 5);
    }
}
