//! Strategies that send every request on at once: a rule, and the counts it goes by.

use std::collections::HashMap;

use lifeboat::sim_engine::model::Sequence;

use super::{Dispatch, Outcome, Question, Strategy};

/// What has been sent to each row and has not ended.
#[derive(Debug)]
pub struct Loads {
    /// Requests.
    pub requests: Vec<u32>,
    /// Tokens of their prompts, and those they may generate.
    pub tokens: Vec<u64>,
}

impl Loads {
    /// The row with the fewest requests, looked for from this one on.
    pub fn least(&self, from: usize) -> usize {
        let rows = self.requests.len();
        (0..rows).map(|step| (from + step) % rows).min_by_key(|row| self.requests[*row]).unwrap_or_default()
    }
}

/// Picks a row.
pub trait Rule<S>: Send {
    /// Where this goes.
    fn pick(&mut self, question: &Question<'_, S>, loads: &Loads) -> usize;
}

/// A rule at work.
#[derive(Debug)]
pub struct Immediate<R> {
    rule: R,
    loads: Loads,
    sent: HashMap<u64, (usize, u64)>,
}

impl<R> Immediate<R> {
    /// With nothing sent yet.
    pub fn new(rows: usize, rule: R) -> Self {
        Self { rule, loads: Loads { requests: vec![0; rows], tokens: vec![0; rows] }, sent: HashMap::new() }
    }
}

impl<S: Sequence, R: Rule<S>> Strategy<S> for Immediate<R> {
    fn arrive(&mut self, question: &Question<'_, S>, _now: f64, sent: &mut Vec<Dispatch>) {
        let row = self.rule.pick(question, &self.loads);
        let tokens = question.prompt.tokens() as u64 + u64::from(question.output);
        self.loads.requests[row] += 1;
        self.loads.tokens[row] += tokens;
        self.sent.insert(question.id, (row, tokens));
        sent.push(Dispatch { id: question.id, row, slot: None });
    }

    fn first_token(&mut self, _id: u64, _now: f64) {}

    fn done(&mut self, id: u64, _outcome: &Outcome, _now: f64, _sent: &mut Vec<Dispatch>) {
        if let Some((row, tokens)) = self.sent.remove(&id) {
            self.loads.requests[row] -= 1;
            self.loads.tokens[row] -= tokens;
        }
    }
}
