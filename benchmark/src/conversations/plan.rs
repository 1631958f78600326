//! What each conversation of a run says and when: settled by the seed before anything is sent.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Options;

/// Words of the texts, three letters and a space each, as the simulated engine counts a token.
const WORDS: [&str; 48] = [
    "oar", "sea", "rib", "bow", "fin", "ice", "sun", "fog", "tar", "map", "net", "log", "row", "jib", "ebb", "bay", "bar", "tug", "fly",
    "fix", "cod", "eel", "ray", "kit", "sky", "key", "tip", "tow", "dry", "wet", "ton", "run", "ask", "aid", "air", "box", "cup", "day",
    "end", "far", "gap", "hot", "job", "lid", "mid", "new", "old", "pan",
];

/// One conversation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name.
    pub session: String,
    /// The model to ask for.
    pub model: String,
    /// The text before it; empty = none.
    pub system: String,
    /// Seconds from the start of the run to its first message.
    pub begins: f64,
    /// Each message, and the pause before it.
    pub messages: Vec<(String, f64)>,
    /// Tokens of an answer at most.
    pub answer_tokens: u32,
    /// The header its name is sent in.
    pub session_header: Option<String>,
}

fn text(random: &mut SmallRng, tokens: usize) -> String {
    let mut text = String::with_capacity(tokens * 4);
    for _ in 0..tokens {
        text.push_str(WORDS[random.random_range(0..WORDS.len())]);
        text.push(' ');
    }
    text
}

/// All conversations of one run.
pub fn plans(options: &Options, seed: u64) -> Vec<Plan> {
    // The system text is the same in every run, as it would be in life.
    let system = text(&mut SmallRng::seed_from_u64(0), options.system_tokens);
    let mut random = SmallRng::seed_from_u64(seed);
    (0..options.conversations)
        .map(|number| {
            let begins = random.random::<f64>() * options.ramp;
            let messages = (0..options.turns)
                .map(|turn| {
                    let tokens = if turn == 0 { options.first_tokens } else { options.message_tokens };
                    let pause = if turn == 0 { 0.0 } else { -options.pause * (1.0 - random.random::<f64>()).ln() };
                    (text(&mut random, tokens), pause)
                })
                .collect();
            Plan {
                session: format!("bench-{seed}-{number}"),
                model: options.model.clone(),
                system: system.clone(),
                begins,
                messages,
                answer_tokens: options.answer_tokens,
                session_header: options.session_header.clone(),
            }
        })
        .collect()
}
