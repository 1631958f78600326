//! Where a request goes, as seen by the simulation and by the router in this process.
//!
//! A strategy may send a request on at once (the engine then queues it where nobody sees it) or keep it and send it later.
//! It is told everything that happens to what it sent. `S` is what a prompt is made of: bytes in front of engines, runs of
//! pretended tokens in the simulation.

mod immediate;
mod lifeboat;
mod oracle;
mod rules;

use ::lifeboat::routing::Mode;
use ::lifeboat::sim_engine::model::{CacheSetup, EngineSetup, Runs, Sequence};
use clap::ValueEnum;

/// A part of a prompt: a system text, a message, an answer. The same id is the same text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Names its text.
    pub id: u64,
    /// Its length.
    pub tokens: u32,
}

/// A request to be sent somewhere.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a, S> {
    /// Names it.
    pub id: u64,
    /// Its prompt.
    pub prompt: &'a S,
    /// The same in parts, where they are known.
    pub parts: &'a [Part],
    /// Names its conversation, as a session header would.
    pub session: u64,
    /// Tokens it may generate.
    pub output: u32,
}

/// A request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// Which.
    pub id: u64,
    /// To which row.
    pub row: usize,
    /// For which slot.
    pub slot: Option<usize>,
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Of them found in a cache.
    pub cached: u32,
    /// Tokens generated.
    pub output: u32,
    /// Seconds of reading.
    pub prefill_seconds: f64,
    /// Seconds of decoding.
    pub decode_seconds: f64,
}

/// Decides. Times are seconds on any clock that only moves forward; what is sent is appended to `sent`.
pub trait Strategy<S>: Send {
    /// A request arrived.
    fn arrive(&mut self, question: &Question<'_, S>, now: f64, sent: &mut Vec<Dispatch>);

    /// The first token of one came.
    fn first_token(&mut self, id: u64, now: f64);

    /// One has ended.
    fn done(&mut self, id: u64, outcome: &Outcome, now: f64, sent: &mut Vec<Dispatch>);

    /// When it wants to be asked again though nothing happens.
    fn wake(&self) -> Option<f64> {
        None
    }

    /// That time has come.
    fn woken(&mut self, _now: f64, _sent: &mut Vec<Dispatch>) {}
}

/// The strategies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Each row in turn.
    RoundRobin,
    /// The row with the fewest requests, ties in turn (nginx `least_conn`).
    LeastConnections,
    /// The session's place on a ring of rows.
    ConsistentHash,
    /// vllm-router's `sticky_table`: the session's row, unless it is far busier than another one.
    StickyTable,
    /// sglang-router's `cache_aware` with its defaults.
    CacheAware,
    /// llm-d's gate: rows with 80% of the prompt, unless they have far more tokens in flight.
    PrefixGate,
    /// Knows what every slot and host cache holds, and sends to where the first token comes soonest. Not for pools.
    Oracle,
    /// Lifeboat's own decisions, mode `ttft`, without a session key.
    Lifeboat,
    /// The same with a session key.
    LifeboatKeyed,
    /// The same in mode `hybrid`, without a session key.
    LifeboatHybrid,
}

impl Kind {
    /// Its name on the command line and in reports.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// One for rows of engines like this, for any kind of prompt; `None` where the parts of it are needed, or
    /// the engines are not of its kind.
    pub fn build<S: Sequence + Clone + Send + 'static>(self, rows: usize, engine: &EngineSetup) -> Option<Box<dyn Strategy<S>>> {
        Some(match self {
            Self::RoundRobin => Box::new(immediate::Immediate::new(rows, rules::RoundRobin::default())),
            Self::LeastConnections => Box::new(immediate::Immediate::new(rows, rules::LeastConnections::default())),
            Self::ConsistentHash => Box::new(immediate::Immediate::new(rows, rules::ConsistentHash)),
            Self::StickyTable => Box::new(immediate::Immediate::new(rows, rules::StickyTable::default())),
            Self::CacheAware => Box::new(immediate::Immediate::new(rows, rules::CacheAware::new(rows))),
            Self::PrefixGate => Box::new(immediate::Immediate::new(rows, rules::PrefixGate::new(rows))),
            Self::Oracle => match engine.cache {
                CacheSetup::Slots(rules) => Box::new(oracle::Oracle::new(rows, engine, rules)),
                CacheSetup::Pool { .. } => return None,
            },
            Self::Lifeboat | Self::LifeboatKeyed | Self::LifeboatHybrid => return None,
        })
    }

    /// One for the simulation.
    pub fn simulated(self, rows: usize, engine: &EngineSetup) -> Option<Box<dyn Strategy<Runs>>> {
        let own = |mode, keyed| -> Box<dyn Strategy<Runs>> { Box::new(lifeboat::Lifeboat::new(rows, engine, mode, keyed)) };
        match self {
            Self::Lifeboat => Some(own(Mode::Ttft, false)),
            Self::LifeboatKeyed => Some(own(Mode::Ttft, true)),
            Self::LifeboatHybrid => Some(own(Mode::Hybrid, false)),
            _ => self.build(rows, engine),
        }
    }
}
