//! `conversations`: many-turn chats against servers, in turn, and what their users would have seen.
//!
//! A conversation is a loop of its own: message, answer, pause. When it begins, and how long each pause is, is settled by the
//! seed before anything is sent, and the time to the first token counts from the moment a message was meant to be sent, so a
//! server that is slow does not hide it by being asked less.
//!
//! A target is a base URL, or the engines behind it with a router in this process (round robin, least connections, the
//! oracle) to compare with. Targets take turns, seed by seed, or all serve the same conversations at the same time.

mod plan;
mod route;
mod talk;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use lifeboat::sim_engine::model::{CacheSetup, EngineSetup, SlotRules, Speed};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::route::Router;
use self::talk::Turn;
use crate::client::Client;
use crate::report::{self, percent, seconds};
use crate::stats::{self, Summary, summary};
use crate::strategy::Kind;

/// Many-turn conversations: time to the first token, cached share.
#[derive(Debug, Args)]
pub struct Options {
    /// What to measure: NAME=URL, or NAME=STRATEGY@URL,URL,… with round-robin, least-connections or oracle in this process.
    /// May be given several times.
    #[arg(long, required = true)]
    target: Vec<String>,
    /// Conversations at the same time.
    #[arg(long, default_value_t = 16)]
    conversations: usize,
    /// Messages of each.
    #[arg(long, default_value_t = 6)]
    turns: usize,
    /// Tokens (of four letters) of the system text all conversations share; 0 = none.
    #[arg(long, default_value_t = 300)]
    system_tokens: usize,
    /// Tokens of the first message.
    #[arg(long, default_value_t = 200)]
    first_tokens: usize,
    /// Tokens of each further message.
    #[arg(long, default_value_t = 60)]
    message_tokens: usize,
    /// Tokens of each answer at most.
    #[arg(long, default_value_t = 48)]
    answer_tokens: u32,
    /// Mean seconds between an answer and the next message.
    #[arg(long, default_value_t = 2.0)]
    pause: f64,
    /// Seconds over which the conversations begin.
    #[arg(long, default_value_t = 4.0)]
    ramp: f64,
    /// Send the conversation's name in this header.
    #[arg(long)]
    session_header: Option<String>,
    /// The model to ask for.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Runs, each with its own texts and pauses.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first seed. Texts of the same seed are the same, so use each only once on engines that remember.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// All targets at the same time, for ones with engines of their own: what disturbs one disturbs all.
    #[arg(long)]
    together: bool,
    /// For the oracle: slots of one engine.
    #[arg(long, default_value_t = 4)]
    engine_slots: usize,
    /// For the oracle: tokens of one engine's host cache.
    #[arg(long, default_value_t = 65_536)]
    engine_host_tokens: usize,
    /// For the oracle: microseconds one engine takes to read a byte.
    #[arg(long, default_value_t = 5.0)]
    engine_prefill_us_per_char: f64,
    /// For the oracle: microseconds of a decode step.
    #[arg(long, default_value_t = 5000.0)]
    engine_decode_us: f64,
    /// Write the results here.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One line of the results.
#[derive(Debug, Serialize)]
struct Line {
    target: String,
    conversations: usize,
    /// Seconds from the intended time of sending to the first token.
    ttft: Summary,
    /// 95% interval of the mean over seeds.
    mean_interval: (f64, f64),
    /// The same of all turns but the first.
    later_ttft: Summary,
    /// Of all prompt tokens.
    cached_share: f64,
    /// Prompt tokens that engines had to read.
    computed_tokens: u64,
    requests: usize,
    requests_per_second: f64,
    errors: usize,
    /// The first error.
    first_error: Option<String>,
}

/// Where requests of one target go.
struct Target {
    name: String,
    router: Arc<Router>,
    turns: Vec<Turn>,
    means: Vec<f64>,
    seconds: f64,
}

impl Target {
    /// All conversations of one seed.
    async fn hold(&mut self, options: &Options, seed: u64, client: &Client) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut talks = JoinSet::new();
        for plan in plan::plans(options, seed) {
            talks.spawn(talk::hold(client.clone(), Arc::clone(&self.router), plan, began));
        }
        let mut turns = Vec::new();
        while let Some(talk) = talks.join_next().await {
            turns.extend(talk.context("a conversation broke off")?);
        }
        self.seconds += began.elapsed().as_secs_f64();
        self.means.push(stats::mean(&turns.iter().filter_map(Turn::first_token).collect::<Vec<_>>()));
        report::problem(&format!("{}: seed {seed}, {} requests", self.name, turns.len()));
        self.turns.extend(turns);
        Ok(())
    }
}

/// Runs it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.conversations > 0 && options.turns > 0 && options.seeds > 0, "--conversations, --turns and --seeds must be above 0");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let client = Client::new()?;
    let engine = options.engine();
    let mut targets = Vec::new();
    for text in &options.target {
        let (name, place) = text.split_once('=').context("--target wants NAME=URL or NAME=STRATEGY@URL,URL")?;
        targets.push(Target {
            name: name.to_owned(),
            router: Arc::new(router(place, &engine)?),
            turns: Vec::new(),
            means: Vec::new(),
            seconds: 0.0,
        });
    }
    for seed in options.first_seed..options.first_seed + options.seeds {
        let held = targets.iter_mut().map(|target| target.hold(options, seed, &client));
        if options.together {
            try_join_all(held).await?;
        } else {
            for held in held {
                held.await?;
            }
        }
    }
    let lines: Vec<Line> = targets.iter().map(|target| line(options, target)).collect();
    print(&lines);
    report::json(options.json.as_deref(), &lines)
}

fn router(place: &str, engine: &EngineSetup) -> anyhow::Result<Router> {
    let Some((strategy, engines)) = place.split_once('@') else { return Ok(Router::one(place)) };
    let engines: Vec<String> = engines.split(',').map(str::to_owned).collect();
    let kind = match strategy {
        "round-robin" => Kind::RoundRobin,
        "least-connections" => Kind::LeastConnections,
        "oracle" => Kind::Oracle,
        other => bail!("no strategy `{other}` here: round-robin, least-connections or oracle"),
    };
    let rows = engines.len();
    let strategy = kind.build(rows, engine).context("this strategy is for the simulation")?;
    Ok(Router::with(engines, strategy))
}

impl Options {
    fn engine(&self) -> EngineSetup {
        EngineSetup {
            slots: self.engine_slots.max(1),
            cache: CacheSetup::Slots(SlotRules { host_tokens: self.engine_host_tokens, ..SlotRules::default() }),
            speed: Speed {
                prefill_micros: self.engine_prefill_us_per_char * 4.0,
                decode_micros: self.engine_decode_us,
                batch_slowdown: 0.02,
                copy_micros: 0.0,
            },
        }
    }
}

fn line(options: &Options, target: &Target) -> Line {
    let replies = || target.turns.iter().filter_map(|turn| turn.reply.as_ref().ok());
    let prompt: u64 = replies().map(|reply| u64::from(reply.prompt_tokens)).sum();
    let cached: u64 = replies().map(|reply| u64::from(reply.cached_tokens)).sum();
    let errors = || target.turns.iter().filter_map(|turn| turn.reply.as_ref().err());
    Line {
        target: target.name.clone(),
        conversations: options.conversations,
        ttft: summary(target.turns.iter().filter_map(Turn::first_token).collect()),
        mean_interval: stats::interval(&target.means),
        later_ttft: summary(target.turns.iter().filter(|turn| turn.number > 0).filter_map(Turn::first_token).collect()),
        cached_share: cached as f64 / (prompt as f64).max(1.0),
        computed_tokens: prompt - cached,
        requests: target.turns.len(),
        requests_per_second: target.turns.len() as f64 / target.seconds.max(1e-9),
        errors: errors().count(),
        first_error: errors().next().cloned(),
    }
}

fn print(lines: &[Line]) {
    let header =
        ["target", "TTFT mean s", "95% interval", "p50", "p95", "p99", "later mean", "cached", "computed", "requests", "req/s", "errors"];
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.target.clone(),
                seconds(line.ttft.mean),
                format!("{}..{}", seconds(line.mean_interval.0), seconds(line.mean_interval.1)),
                seconds(line.ttft.p50),
                seconds(line.ttft.p95),
                seconds(line.ttft.p99),
                seconds(line.later_ttft.mean),
                percent(line.cached_share),
                line.computed_tokens.to_string(),
                line.requests.to_string(),
                format!("{:.1}", line.requests_per_second),
                line.errors.to_string(),
            ]
        })
        .collect();
    report::table(&header, &rows);
    for line in lines {
        if let Some(error) = &line.first_error {
            report::line(&format!("first error of {}: {error}", line.target));
        }
    }
}
