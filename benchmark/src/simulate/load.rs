//! What arrives in a simulation: conversations with their texts, answers and pauses.
//!
//! Numbers of tokens are drawn around a mean, pauses are exponential, conversations begin as a Poisson stream. All of it
//! depends on the seed alone, not on what a strategy does with it.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::strategy::Part;

/// The workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// People: 8 turns, one of 4 system texts of 1000 tokens, 80 a message, 200 an answer, 12 s between.
    Chat,
    /// Coding agents: 20 turns, a shared text of 4000 tokens, a task of 2000, 1200 of tool output a turn, 150 an answer, 2 s.
    Agent,
    /// Every prompt is its own: 1500 tokens, 200 an answer.
    Unique,
    /// Single questions behind one of 150 prefixes of 6000 tokens, 1000 a question, 100 an answer.
    BackToBack,
}

/// Its numbers.
struct Numbers {
    turns: u32,
    systems: u64,
    system: u32,
    first: u32,
    further: u32,
    answer: u32,
    pause: f64,
}

impl Shape {
    const fn numbers(self) -> Numbers {
        match self {
            Self::Chat => Numbers { turns: 8, systems: 4, system: 1000, first: 80, further: 80, answer: 200, pause: 12.0 },
            Self::Agent => Numbers { turns: 20, systems: 1, system: 4000, first: 2000, further: 1200, answer: 150, pause: 2.0 },
            Self::Unique => Numbers { turns: 1, systems: 0, system: 0, first: 1500, further: 0, answer: 200, pause: 0.0 },
            Self::BackToBack => Numbers { turns: 1, systems: 150, system: 6000, first: 1000, further: 0, answer: 100, pause: 0.0 },
        }
    }
}

/// One turn.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// What the user adds.
    pub message: Part,
    /// What the engine answers.
    pub answer: Part,
    /// Seconds after the last answer.
    pub pause: f64,
}

/// One conversation.
#[derive(Debug)]
pub struct Conversation {
    /// When it begins.
    pub begins: f64,
    /// What stands before it, where something does.
    pub system: Option<Part>,
    /// Its turns.
    pub turns: Vec<Turn>,
}

/// A stream of conversations.
#[derive(Debug)]
pub struct Load {
    random: SmallRng,
    shape: Shape,
    rate: f64,
    end: f64,
    now: f64,
    next_id: u64,
}

/// Ids of system texts begin here; all others are below.
const SYSTEMS: u64 = 1 << 60;

impl Load {
    /// Conversations that begin at `rate` per second until `end`.
    pub fn new(shape: Shape, rate: f64, end: f64, seed: u64) -> Self {
        Self { random: SmallRng::seed_from_u64(seed), shape, rate, end, now: 0.0, next_id: 1 }
    }

    /// When nothing arrives any more.
    pub const fn end(&self) -> f64 {
        self.end
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.random.random::<f64>()).ln()
    }

    /// From half the mean to half as much again.
    fn around(&mut self, mean: u32) -> u32 {
        if mean == 0 { 0 } else { self.random.random_range(mean.div_ceil(2)..=mean + mean / 2) }
    }

    fn part(&mut self, mean: u32) -> Part {
        self.next_id += 1;
        Part { id: self.next_id, tokens: self.around(mean).max(1) }
    }
}

impl Iterator for Load {
    type Item = Conversation;

    fn next(&mut self) -> Option<Conversation> {
        self.now += self.exponential(1.0 / self.rate);
        if self.now >= self.end {
            return None;
        }
        let numbers = self.shape.numbers();
        let system = (numbers.systems > 0).then(|| {
            let which = self.random.random_range(0..numbers.systems);
            Part { id: SYSTEMS + which, tokens: numbers.system }
        });
        // Between half and one and a half times as many turns, at least one.
        let turns = self.around(numbers.turns).max(1);
        let turns = (0..turns)
            .map(|turn| {
                let message = self.part(if turn == 0 { numbers.first } else { numbers.further });
                let answer = self.part(numbers.answer);
                Turn { message, answer, pause: self.exponential(numbers.pause) }
            })
            .collect();
        Some(Conversation { begins: self.now, system, turns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_brings_the_same_conversations_at_the_rate_asked_for() {
        let all = |seed| Load::new(Shape::Agent, 2.0, 500.0, seed).map(|one| (one.begins, one.turns.len())).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let count = all(3).len() as f64;
        assert!((900.0..1100.0).contains(&count), "{count}");
    }

    #[test]
    fn conversations_share_system_texts_and_nothing_else() {
        let all: Vec<_> = Load::new(Shape::Chat, 1.0, 200.0, 1).collect();
        let mut ids: Vec<u64> = all.iter().flat_map(|one| one.turns.iter().flat_map(|turn| [turn.message.id, turn.answer.id])).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(all.iter().all(|one| one.system.is_some_and(|system| system.id >= SYSTEMS)));
    }
}
