//! A prompt as bytes; four of them count as one token.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::sequence::Sequence;
use crate::sim_engine::text::{Answer, BYTES_PER_TOKEN};

/// Bytes compared at once.
const STRIDE: usize = 256;

/// A prompt and the answer to it, as far as it was given.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: Vec<u8>,
    answer: Answer,
}

impl Text {
    /// A prompt without an answer yet.
    pub fn new(prompt: String) -> Self {
        Self { answer: Answer::to(&prompt), bytes: prompt.into_bytes() }
    }
}

impl Sequence for Text {
    type Piece = &'static str;

    fn tokens(&self) -> usize {
        self.bytes.len().div_ceil(BYTES_PER_TOKEN)
    }

    fn common_prefix(&self, other: &Self) -> usize {
        let (left, right) = (&self.bytes[..], &other.bytes[..]);
        let same = left.as_chunks::<STRIDE>().0.iter().zip(right.as_chunks::<STRIDE>().0).take_while(|(left, right)| left == right).count()
            * STRIDE;
        let rest = left[same..].iter().zip(&right[same..]).take_while(|(left, right)| left == right).count();
        let bytes = same + rest;
        // The last token of a prompt may be a part of one; it is the same only if both end there.
        if bytes == left.len() && bytes == right.len() { self.tokens() } else { bytes / BYTES_PER_TOKEN }
    }

    fn keep_first(&mut self, tokens: usize) {
        self.bytes.truncate(tokens.saturating_mul(BYTES_PER_TOKEN));
    }

    fn decode(&mut self, tokens: usize) -> &'static str {
        let mut word = self.answer.next_word();
        self.bytes.extend_from_slice(word.as_bytes());
        for _ in 1..tokens {
            word = self.answer.next_word();
            self.bytes.extend_from_slice(word.as_bytes());
        }
        word
    }

    fn blocks(&self, block: usize) -> Vec<u64> {
        let pieces = self.bytes.chunks_exact(block * BYTES_PER_TOKEN);
        pieces
            .scan(0, |last, piece| {
                *last = xxh3_64_with_seed(piece, *last);
                Some(*last)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_is_counted_in_whole_tokens() {
        for (left, right, expected) in [
            ("abcdefgh".to_owned(), "abcdefgh".to_owned(), 2),
            ("abcdef".to_owned(), "abcdef".to_owned(), 2),
            ("abcdef".to_owned(), "abcdefgh".to_owned(), 1),
            ("abcdefgh".to_owned(), "abcdefgx".to_owned(), 1),
            (String::new(), "abcd".to_owned(), 0),
            (format!("{}tail", "x".repeat(1000)), format!("{}else", "x".repeat(1000)), 250),
        ] {
            assert_eq!(Text::new(left.clone()).common_prefix(&Text::new(right)), expected, "{left}");
        }
    }

    #[test]
    fn an_answer_continues_its_prompt_and_the_next_turn_begins_with_both() {
        let mut turn = Text::new("question".to_owned());
        let words: String = (0..3).map(|_| turn.decode(1)).collect();
        let next = Text::new(format!("question{words} and on"));
        assert_eq!((turn.tokens(), turn.common_prefix(&next)), (5, 5));
    }

    #[test]
    fn blocks_are_the_same_up_to_where_prompts_part() {
        let (one, two) = (Text::new(format!("{}a", "x".repeat(200))), Text::new(format!("{}b", "x".repeat(150))));
        let shared = one.blocks(16).iter().zip(two.blocks(16)).take_while(|(left, right)| **left == *right).count();
        assert_eq!((one.blocks(16).len(), shared), (3, 2));
    }
}
