//! What a request costs its key in tokens, counted once, when it has ended.
//!
//! What the engine told is taken. It often tells nothing: its usage comes at the very end, which a client that hangs up
//! never lets it reach, and some engines have none. Then the prompt is guessed from its bytes, as far as the router did not
//! expect it in the engine's cache, and the reply from the events or bytes that were passed on; a limit that holds only for
//! those who wait for the last event is none. These guesses are charged and never shown: the log keeps what engines say.

use lifeboat_engines::dialect::Usage;

/// Bytes of text taken for one token: English in today's vocabularies.
const BYTES_PER_TOKEN: u64 = 4;

/// What is known of the tokens of one request.
#[derive(Debug, Default)]
pub(super) struct Charge {
    prompt_bytes: u64,
    /// The reply is text made of the prompt: not vectors, ranks or sound.
    generates: bool,
    /// Most tokens of a prompt which the engine takes that works on it or has answered; 0 = not known.
    context: Option<u64>,
    /// Tokens expected in its cache.
    cached: u64,
    told: Option<Usage>,
    /// Tokens passed on.
    passed: u64,
    /// The reply has come to its end.
    whole: bool,
    failed: bool,
}

impl Charge {
    /// What is asked for.
    pub(super) const fn asks(&mut self, prompt_bytes: u64, generates: bool) {
        (self.prompt_bytes, self.generates) = (prompt_bytes, generates);
    }

    /// It is on an engine of that context.
    pub(super) fn on_engine(&mut self, context: u32) {
        self.context = Some(context.into());
    }

    /// It is expected to find so many tokens of its prompt there.
    pub(super) const fn finds(&mut self, cached: u64) {
        self.cached = cached;
    }

    /// The engine failed it and it is on none.
    pub(super) const fn back_in_line(&mut self) {
        self.context = None;
    }

    /// The engine says what it used so far.
    pub(super) const fn told(&mut self, usage: Usage) {
        self.told = Some(usage);
    }

    /// So many events that hold a piece of the reply were passed on.
    pub(super) const fn passed_events(&mut self, events: u64, whole: bool) {
        (self.passed, self.whole) = (events, whole);
    }

    /// So many bytes of a reply that is no stream were passed on.
    pub(super) const fn passed_bytes(&mut self, bytes: u64, whole: bool) {
        self.passed = if self.generates { bytes / BYTES_PER_TOKEN } else { 0 };
        self.whole = whole;
    }

    /// It ended with an error.
    pub(super) const fn failed(&mut self) {
        self.failed = true;
    }

    /// Tokens to charge: of the prompt as far as no cache had it, and of the reply.
    pub(super) fn tokens(&self) -> u64 {
        // Nobody pays for what was refused or failed before anything of it was answered.
        let answered = self.told.is_some() || self.passed > 0;
        if !answered && (self.context.is_none() || self.failed) {
            return 0;
        }
        let told = self.told.unwrap_or_default();
        let prompt = if told.prompt_tokens > 0 { told.prompt_tokens.saturating_sub(told.cached_tokens) } else { self.guessed_prompt() };
        // Half way, an engine has told of less than it sent.
        let reply = if self.whole && self.told.is_some() { told.completion_tokens } else { told.completion_tokens.max(self.passed) };
        prompt.saturating_add(reply)
    }

    fn guessed_prompt(&self) -> u64 {
        let guessed = self.prompt_bytes / BYTES_PER_TOKEN;
        // A picture has many bytes and few tokens, and nothing larger than the context was read.
        let bound = self.context.filter(|context| *context > 0).unwrap_or(u64::MAX);
        guessed.min(bound).saturating_sub(self.cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u64, cached_tokens: u64, completion_tokens: u64) -> Usage {
        Usage { prompt_tokens, cached_tokens, completion_tokens, ..Usage::default() }
    }

    /// A request of 400 bytes on an engine that is expected to have 30 tokens of it.
    fn asked() -> Charge {
        let mut charge = Charge::default();
        charge.asks(400, true);
        charge.on_engine(4096);
        charge.finds(30);
        charge
    }

    #[test]
    fn the_engines_word_counts_and_what_it_kept_to_itself_is_guessed() {
        type Happens = fn(&mut Charge);
        let table: [(&str, Happens, u64); 11] = [
            (
                "told at the end",
                |charge| {
                    charge.told(usage(90, 50, 7));
                    charge.passed_events(9, true);
                },
                47,
            ),
            ("nothing told", |charge| charge.passed_events(9, true), 79),
            ("the client left half way", |charge| charge.passed_events(5, false), 75),
            ("it left before the first word", |_| (), 70),
            (
                "only the prompt told by then",
                |charge| {
                    charge.told(usage(90, 50, 1));
                    charge.passed_events(20, false);
                },
                60,
            ),
            (
                "only the reply told",
                |charge| {
                    charge.told(usage(0, 0, 6));
                    charge.passed_events(9, true);
                },
                76,
            ),
            ("a whole document", |charge| charge.passed_bytes(40, true), 80),
            (
                "vectors",
                |charge| {
                    charge.asks(400, false);
                    charge.passed_bytes(40_000, true);
                },
                70,
            ),
            ("a picture", |charge| charge.asks(4_000_000, true), 4066),
            ("failed before a word", |charge| charge.failed(), 0),
            (
                "failed half way",
                |charge| {
                    charge.failed();
                    charge.passed_events(5, false);
                },
                75,
            ),
        ];
        for (what, happens, expected) in table {
            let mut charge = asked();
            happens(&mut charge);
            assert_eq!(charge.tokens(), expected, "{what}");
        }
    }

    #[test]
    fn who_never_reached_an_engine_pays_nothing() {
        let mut waiting = Charge::default();
        waiting.asks(400, true);
        assert_eq!(waiting.tokens(), 0);
        let mut retried = asked();
        retried.back_in_line();
        assert_eq!(retried.tokens(), 0);
    }
}
