//! What a prompt must be able to do to be cached.

/// Tokens in order.
pub trait Sequence {
    /// What decoding yields.
    type Piece;

    /// How many tokens.
    fn tokens(&self) -> usize;

    /// Tokens that both begin with.
    fn common_prefix(&self, other: &Self) -> usize;

    /// Drops what comes after so many tokens.
    fn keep_first(&mut self, tokens: usize);

    /// Decodes so many tokens more, at least one; the last of them is returned.
    fn decode(&mut self, tokens: usize) -> Self::Piece;

    /// A hash for each whole block of so many tokens, each of everything up to its end.
    fn blocks(&self, block: usize) -> Vec<u64>;
}
