//! What a prompt is to the router: a chain of hashes over its canonical bytes.
//!
//! Two chains have the same hash at a depth exactly if everything up to there is the same, so "how much do two
//! prompts share" is a binary search, and "who has seen the most of this" a few table look-ups. No tokenizer: a block of
//! bytes stands for about a hundred tokens. Ends of messages are hashed too, wherever they fall in a block: the next turn
//! of a conversation contains the last one up to exactly such an end.

use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of one block, about 128 tokens of English.
pub const BLOCK_BYTES: usize = 512;
/// Blocks hashed of one prompt (4 MiB); what lies deeper counts by its length alone.
pub const MAX_BLOCKS: usize = 8192;
/// Ends of messages kept of one prompt, the last ones.
pub const MAX_ENDS: usize = 64;

/// Begins every chain of this process, so that nobody outside can make two prompts collide.
static SEED: LazyLock<u64> = LazyLock::new(rand::random);

/// The end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Hash of everything up to here.
    pub hash: u64,
    /// Bytes up to here.
    pub bytes: u64,
}

/// A prompt as the router sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefix {
    /// Hash after each whole block.
    pub blocks: Vec<u64>,
    /// The last ends of messages, in order.
    pub ends: Vec<End>,
    /// Bytes of the whole prompt.
    pub bytes: u64,
}

/// Builds a [`Prefix`] from the pieces of a prompt.
#[derive(Debug)]
pub struct PrefixBuilder {
    prefix: Prefix,
    last: u64,
    partial: Vec<u8>,
}

impl PrefixBuilder {
    /// Begins a chain. Prompts of different `salt` (model, adapter) never match.
    pub fn new(salt: &[u8]) -> Self {
        Self { prefix: Prefix::default(), last: xxh3_64_with_seed(salt, *SEED), partial: Vec::with_capacity(BLOCK_BYTES) }
    }

    /// Adds bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.prefix.bytes += bytes.len() as u64;
        if self.prefix.blocks.len() >= MAX_BLOCKS {
            return;
        }
        if !self.partial.is_empty() {
            let (taken, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.partial.len()));
            self.partial.extend_from_slice(taken);
            bytes = rest;
            if self.partial.len() < BLOCK_BYTES {
                return;
            }
            self.last = xxh3_64_with_seed(&self.partial, self.last);
            self.prefix.blocks.push(self.last);
            self.partial.clear();
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in blocks.iter().take(MAX_BLOCKS - self.prefix.blocks.len()) {
            self.last = xxh3_64_with_seed(block, self.last);
            self.prefix.blocks.push(self.last);
        }
        self.partial.extend_from_slice(rest);
    }

    /// Notes the end of a message.
    pub fn end_message(&mut self) {
        if self.prefix.blocks.len() >= MAX_BLOCKS {
            return;
        }
        if self.prefix.ends.len() == MAX_ENDS {
            self.prefix.ends.remove(0);
        }
        // The partial block is hashed under another seed than a whole one, so that the two never meet.
        self.prefix.ends.push(End { hash: xxh3_64_with_seed(&self.partial, !self.last), bytes: self.prefix.bytes });
    }

    /// The finished chain.
    pub fn finish(self) -> Prefix {
        self.prefix
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(pieces: &[&[u8]]) -> Prefix {
        let mut builder = PrefixBuilder::new(b"m");
        for piece in pieces {
            builder.push(piece);
        }
        builder.end_message();
        builder.finish()
    }

    #[test]
    fn a_conversation_continued_contains_the_end_of_what_came_before() {
        let mut builder = PrefixBuilder::new(b"m");
        builder.push(&[b'a'; 700]);
        builder.end_message();
        let before = builder.finish();
        let mut builder = PrefixBuilder::new(b"m");
        builder.push(&[b'a'; 700]);
        builder.end_message();
        builder.push(b"and more");
        builder.end_message();
        let after = builder.finish();
        assert_eq!(after.ends[0], before.ends[0]);
        assert_ne!(after.ends[1].hash, before.ends[0].hash);
    }

    #[test]
    fn another_model_shares_nothing() {
        let mut other = PrefixBuilder::new(b"other");
        other.push(&[b'a'; 2 * BLOCK_BYTES]);
        assert!(chain(&[&[b'a'; 2 * BLOCK_BYTES]]).blocks.iter().zip(other.finish().blocks).all(|(one, two)| *one != two));
    }

    proptest! {
        #[test]
        fn the_match_of_two_chains_is_never_above_the_true_one(
            shared in proptest::collection::vec(any::<u8>(), 0..3000),
            one in proptest::collection::vec(any::<u8>(), 0..600),
            two in proptest::collection::vec(any::<u8>(), 0..600),
            cut in any::<proptest::sample::Index>(),
        ) {
            let (first, second) = ([&shared[..], &one[..]].concat(), [&shared[..], &two[..]].concat());
            let at = cut.index(first.len() + 1);
            let (left, right) = (chain(&[&first[..at], &first[at..]]), chain(&[&second]));
            let matched = left.blocks.iter().zip(&right.blocks).take_while(|(left, right)| left == right).count();
            let truth = first.iter().zip(&second).take_while(|(left, right)| left == right).count();
            prop_assert_eq!(matched, truth / BLOCK_BYTES);
            prop_assert_eq!(left.blocks, chain(&[&first]).blocks);
        }
    }
}
