//! `simulate`: strategies on simulated rows, in simulated time.
//!
//! The rows are the engine model of the simulated engine itself, the strategies are the rules of peers, an oracle, and the
//! decisions that Lifeboat's gateway takes. A thousand rows take minutes on one core, and nothing depends on the machine
//! but the time a decision took.

mod load;
mod world;

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use lifeboat::sim_engine::model::{CacheSetup, EngineSetup, SlotRules, Speed};
use serde::Serialize;

use self::load::{Load, Shape};
use self::world::Measured;
use crate::report::{self, percent, seconds};
use crate::stats::{self, Summary, summary};
use crate::strategy::Kind;

/// How the simulated engines keep what they have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// llama.cpp: a sequence in each slot, some in host memory.
    Slots,
    /// vLLM: one pool of blocks.
    Pool,
}

/// Strategies on simulated rows, in simulated time.
#[derive(Debug, Args)]
pub struct Options {
    /// What arrives.
    #[arg(long, value_enum, default_value_t = Shape::Chat)]
    workload: Shape,
    /// Conversations (or requests, where each is its own) that begin per second, over all rows.
    #[arg(long, default_value_t = 0.45)]
    rate: f64,
    /// Strategies to compare; all of them if none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    strategy: Vec<Kind>,
    /// Rows.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    rows: u16,
    /// What the engines are.
    #[arg(long, value_enum, default_value_t = Engine::Slots)]
    engine: Engine,
    /// Requests at once on one row [default: 4, with a pool 64].
    #[arg(long)]
    slots: Option<usize>,
    /// Prompt tokens a row reads per second [default: 1500, with a pool 12000].
    #[arg(long)]
    prefill: Option<f64>,
    /// Milliseconds of one decode step.
    #[arg(long, default_value_t = 20.0)]
    decode_ms: f64,
    /// What each further busy slot adds to a step, as a part of it [default: 0.1, with a pool 0.01].
    #[arg(long)]
    batch_slowdown: Option<f64>,
    /// Tokens of a row's host cache.
    #[arg(long, default_value_t = 60_000)]
    host_tokens: usize,
    /// Tokens of a row's pool.
    #[arg(long, default_value_t = 400_000)]
    pool_tokens: usize,
    /// llama-server's stock flags (-sps 0.1 --cache-idle-slots) instead of those Lifeboat launches it with.
    #[arg(long)]
    stock: bool,
    /// Runs, each with its own arrivals.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Simulated seconds of arrivals.
    #[arg(long, default_value_t = 900.0)]
    seconds: f64,
    /// Write the results here.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One line of the results.
#[derive(Debug, Serialize)]
struct Line {
    workload: String,
    engine: &'static str,
    rows: u16,
    rate: f64,
    strategy: String,
    /// Seconds from the arrival of a request to its first token, over all runs.
    ttft: Summary,
    /// 95% interval of the mean over runs.
    mean_interval: (f64, f64),
    /// Of all prompt tokens.
    cached_share: f64,
    requests_per_second: f64,
    /// Requests that had no first token when the time was up; they count with the time they had waited.
    unanswered: usize,
    /// Microseconds of real time for each request that the strategy took.
    decision_micros: f64,
}

/// Runs it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rate > 0.0 && options.seconds > 0.0 && options.seeds > 0, "--rate, --seconds and --seeds must be above 0");
    let engine = options.engine();
    let kinds = if options.strategy.is_empty() { Kind::value_variants() } else { &options.strategy };
    let mut lines = Vec::new();
    for kind in kinds {
        let runs: Vec<Measured> = (0..options.seeds)
            .filter_map(|seed| {
                let load = Load::new(options.workload, options.rate, options.seconds, seed);
                let strategy = kind.simulated(usize::from(options.rows), &engine)?;
                Some(world::run(usize::from(options.rows), &engine, strategy, load))
            })
            .collect();
        if !runs.is_empty() {
            lines.push(options.line(*kind, &runs));
        }
    }
    print(options, &lines);
    report::json(options.json.as_deref(), &lines)
}

impl Options {
    fn engine(&self) -> EngineSetup {
        let pool = self.engine == Engine::Pool;
        let rules = SlotRules {
            similarity: if self.stock { 0.1 } else { 0.8 },
            host_tokens: self.host_tokens,
            cache_idle_slots: self.stock,
            unified_tokens: None,
        };
        EngineSetup {
            slots: self.slots.unwrap_or(if pool { 64 } else { 4 }).max(1),
            cache: if pool { CacheSetup::Pool { tokens: self.pool_tokens, block: 16 } } else { CacheSetup::Slots(rules) },
            speed: Speed {
                prefill_micros: 1e6 / self.prefill.unwrap_or(if pool { 12_000.0 } else { 1500.0 }).max(1.0),
                decode_micros: self.decode_ms * 1e3,
                batch_slowdown: self.batch_slowdown.unwrap_or(if pool { 0.01 } else { 0.1 }),
                copy_micros: 0.0,
            },
        }
    }

    fn line(&self, kind: Kind, runs: &[Measured]) -> Line {
        let means: Vec<f64> = runs.iter().map(|run| stats::mean(&run.first_tokens)).collect();
        let sum = |what: fn(&Measured) -> f64| runs.iter().map(what).sum::<f64>();
        let requests = sum(|run| run.requests as f64);
        Line {
            workload: self.workload.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
            engine: if self.engine == Engine::Pool { "pool" } else { "slots" },
            rows: self.rows,
            rate: self.rate,
            strategy: kind.name(),
            ttft: summary(runs.iter().flat_map(|run| run.first_tokens.iter().copied()).collect()),
            mean_interval: stats::interval(&means),
            cached_share: sum(|run| run.cached) / sum(|run| run.prompt).max(1.0),
            requests_per_second: sum(|run| run.answered as f64) / (self.seconds * runs.len() as f64),
            unanswered: runs.iter().map(|run| run.unanswered).sum(),
            decision_micros: sum(|run| run.decision_seconds) * 1e6 / requests.max(1.0),
        }
    }
}

fn print(options: &Options, lines: &[Line]) {
    let header = ["strategy", "TTFT mean s", "95% interval", "p50", "p95", "p99", "cached", "req/s", "unanswered", "decision µs"];
    if let Some(first) = lines.first() {
        report::line(&format!(
            "{} {}/s, {} rows of {}, {} x {} s",
            first.workload, options.rate, options.rows, first.engine, options.seeds, options.seconds
        ));
    }
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.strategy.clone(),
                seconds(line.ttft.mean),
                format!("{}..{}", seconds(line.mean_interval.0), seconds(line.mean_interval.1)),
                seconds(line.ttft.p50),
                seconds(line.ttft.p95),
                seconds(line.ttft.p99),
                percent(line.cached_share),
                format!("{:.2}", line.requests_per_second),
                line.unanswered.to_string(),
                format!("{:.1}", line.decision_micros),
            ]
        })
        .collect();
    report::table(&header, &rows);
}
