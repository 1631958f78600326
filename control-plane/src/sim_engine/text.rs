//! Text without a model: token counts, answers and vectors that depend on the prompt alone.

/// Bytes of text that count as one token.
pub const BYTES_PER_TOKEN: usize = 4;
/// Elements of an embedding.
pub const DIMENSIONS: usize = 64;
/// Size of the pretended vocabulary.
pub const VOCABULARY: u32 = 32_000;

/// Tokens of so many bytes, rounded up.
pub fn tokens_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

/// The token ids of a text: one for every four bytes, the same for the same bytes.
pub fn tokenize(text: &str) -> Vec<u32> {
    text.as_bytes().chunks(BYTES_PER_TOKEN).map(|piece| low_bits(hash(piece)) % VOCABULARY).collect()
}

/// The words answers are made of: four bytes each with the space, so that one word is one token.
const WORDS: [&str; 32] = [
    " oar", " sea", " rib", " bow", " fin", " ice", " sun", " fog", " tar", " map", " net", " log", " row", " jib", " ebb", " bay", " bar",
    " tug", " fly", " fix", " cod", " eel", " ray", " kit", " sky", " key", " tip", " tow", " dry", " wet", " ton", " run",
];

/// An endless answer to a prompt, one word a token.
#[derive(Debug, Clone)]
pub struct Answer(u64);

impl Answer {
    /// The answer to this prompt.
    pub fn to(prompt: &str) -> Self {
        Self(hash(prompt.as_bytes()))
    }

    /// The next word, with a space before it.
    pub fn next_word(&mut self) -> &'static str {
        self.0 = mix(self.0);
        WORDS[(low_bits(self.0) as usize) % WORDS.len()]
    }
}

/// A vector of unit length that depends on the text alone.
pub fn embed(text: &str) -> Vec<f32> {
    let mut state = hash(text.as_bytes());
    let raw: Vec<f32> = (0..DIMENSIONS)
        .map(|_| {
            state = mix(state);
            f32::from(i16::from_ne_bytes([state.to_le_bytes()[0], state.to_le_bytes()[1]])) + 0.5
        })
        .collect();
    let length = raw.iter().map(|value| value * value).sum::<f32>().sqrt();
    raw.into_iter().map(|value| value / length).collect()
}

/// The part of the query's words that the document has, 0..=1.
pub fn relevance(query: &str, document: &str) -> f64 {
    let words: Vec<&str> = query.split_whitespace().collect();
    if words.is_empty() {
        return 0.0;
    }
    let found = words.iter().filter(|word| document.contains(*word)).count();
    found as f64 / words.len() as f64
}

/// FNV-1a, 64 bits: plain, and the same on every machine.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// One step of splitmix64.
fn mix(state: u64) -> u64 {
    let mut value = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn low_bits(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(prompt: &str, words: usize) -> String {
        let mut answer = Answer::to(prompt);
        (0..words).map(|_| answer.next_word()).collect()
    }

    #[test]
    fn an_answer_depends_on_the_prompt_alone() {
        assert_eq!(answer("hello", 8), answer("hello", 8));
        assert_ne!(answer("hello", 8), answer("hallo", 8));
    }

    #[test]
    fn vectors_have_unit_length_and_tell_texts_apart() {
        let (one, other) = (embed("one"), embed("other"));
        assert_eq!(one.len(), DIMENSIONS);
        assert!((one.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_ne!(one, other);
    }

    #[test]
    fn four_bytes_are_a_token() {
        for (bytes, tokens) in [(0, 0), (1, 1), (4, 1), (5, 2), (4096, 1024)] {
            assert_eq!(tokens_of(bytes), tokens);
        }
        assert_eq!(tokenize("abcdefgh").len(), 2);
    }

    #[test]
    fn relevance_is_the_share_of_words_found() {
        assert!((relevance("red boat", "a red boat") - 1.0).abs() < 1e-9);
        assert!((relevance("red boat", "a red car") - 0.5).abs() < 1e-9);
        assert!(relevance("", "anything").abs() < 1e-9);
    }
}
