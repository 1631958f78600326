//! How fast a row is, learned from its own replies.
//!
//! Means that move with the work done, not with the clock: an idle row keeps what it knows. Before the first reply a row
//! is taken for a slow one, so that a new row is tried but not flooded.

/// Tokens per second a row is thought to read prompts at before it has shown its speed.
const PREFILL_AT_FIRST: f64 = 1000.0;
/// Bytes of a prompt for one token, before the first reply.
const BYTES_PER_TOKEN_AT_FIRST: f64 = 4.0;
/// Seconds to a token while decoding, before the first reply.
const DECODE_AT_FIRST: f64 = 0.02;
/// Seconds a request keeps its slot, before the first one has ended.
const SERVICE_AT_FIRST: f64 = 2.0;
/// Weight of one reply in the means.
const WEIGHT: f64 = 0.15;
/// Prompts shorter than this tell nothing about the speed of reading.
const TELLING_TOKENS: f64 = 16.0;

/// What one finished request showed. Everything the engine did not tell is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observation {
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: Option<u64>,
    /// Of them from the cache.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Seconds the engine read the prompt.
    pub prefill_seconds: Option<f64>,
    /// Seconds the engine decoded.
    pub decode_seconds: Option<f64>,
}

/// Running means of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Prompt tokens read per second.
    pub prefill: f64,
    /// Seconds between two tokens of one stream.
    pub decode: f64,
    /// Seconds a request keeps its slot.
    pub service: f64,
    /// Bytes of a prompt per token.
    pub bytes_per_token: f64,
    /// Tokens of a reply.
    pub output: f64,
    learned: bool,
}

impl Speed {
    /// A row that has shown nothing yet; like `peer`, where there is one that has.
    pub fn new(peer: Option<&Self>) -> Self {
        let first = Self {
            prefill: PREFILL_AT_FIRST,
            decode: DECODE_AT_FIRST,
            service: SERVICE_AT_FIRST,
            bytes_per_token: BYTES_PER_TOKEN_AT_FIRST,
            output: 128.0,
            learned: false,
        };
        peer.filter(|peer| peer.learned).map_or(first, |peer| Self { learned: false, ..*peer })
    }

    /// Whether a reply has been seen.
    pub const fn is_learned(&self) -> bool {
        self.learned
    }

    /// Learns from a finished request that held its slot for `held` seconds and had its first byte after `first` of
    /// them. `bytes` = of its prompt.
    pub fn learn(&mut self, bytes: u64, first: Option<f64>, held: f64, seen: &Observation) {
        let weight = if self.learned { WEIGHT } else { 1.0 };
        let mix = |mean: &mut f64, value: f64| {
            if value.is_finite() && value > 0.0 {
                *mean += weight * (value - *mean);
            }
        };
        if let Some(prompt) = seen.prompt_tokens.filter(|tokens| *tokens > 0) {
            let computed = prompt.saturating_sub(seen.cached_tokens.unwrap_or(0)) as f64;
            if computed >= TELLING_TOKENS
                && let Some(seconds) = seen.prefill_seconds.or(first)
            {
                mix(&mut self.prefill, computed / seconds.max(1e-6));
            }
            // A chat template adds to short prompts what no byte of them shows.
            if prompt as f64 >= TELLING_TOKENS && bytes > 0 {
                mix(&mut self.bytes_per_token, (bytes as f64 / prompt as f64).clamp(0.5, 16.0));
            }
        }
        if let Some(output) = seen.output_tokens.filter(|tokens| *tokens > 0) {
            let decoding = seen.decode_seconds.or_else(|| first.map(|first| held - first));
            if let Some(seconds) = decoding.filter(|seconds| *seconds > 0.0) {
                mix(&mut self.decode, seconds / output as f64);
            }
            mix(&mut self.output, output as f64);
        }
        mix(&mut self.service, held);
        self.learned = true;
    }

    /// Tokens of a prompt of that many bytes.
    pub fn tokens(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reply_sets_the_means_and_later_ones_move_them() {
        let mut speed = Speed::new(None);
        let seen = Observation { prompt_tokens: Some(1000), prefill_seconds: Some(0.5), output_tokens: Some(10), ..Observation::default() };
        speed.learn(3000, Some(0.6), 1.6, &seen);
        assert!((speed.prefill - 2000.0).abs() < 1e-6 && (speed.bytes_per_token - 3.0).abs() < 1e-9);
        assert!((speed.decode - 0.1).abs() < 1e-9 && (speed.service - 1.6).abs() < 1e-9);
        speed.learn(3000, Some(0.6), 1.6, &Observation { prefill_seconds: Some(1.0), ..seen });
        assert!((speed.prefill - 1850.0).abs() < 1e-6);
    }

    #[test]
    fn a_cached_prompt_says_nothing_about_reading() {
        let mut speed = Speed::new(None);
        speed.learn(4000, Some(9.0), 9.0, &Observation { prompt_tokens: Some(1000), cached_tokens: Some(995), ..Observation::default() });
        assert!((speed.prefill - PREFILL_AT_FIRST).abs() < 1e-9);
    }
}
