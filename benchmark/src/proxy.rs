//! `proxy`: what a proxy costs and adds, beside others, in one interleaved run.
//!
//! Each round asks every target for the same: requests one after another on one connection, requests on 32 connections,
//! then streams at the same time. CPU is what the proxy's processes took of it by `/proc`, memory their highest. A target
//! without a process is the way without a proxy: its times are taken off the others'.

pub mod backend;
mod load;
mod process;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

use self::load::Load;
use self::process::Tree;
use crate::client::Client;
use crate::report;
use crate::stats::{median, quantile};

/// What proxies cost: CPU per request and per streamed token, added time to the first byte.
#[derive(Debug, Args)]
pub struct Options {
    /// What to measure: NAME=URL@PID for a proxy whose process and its children are counted, NAME=URL@PID! where its
    /// children are not (they are engines), NAME=URL for the way without a proxy. May be given several times.
    #[arg(long, required = true)]
    target: Vec<String>,
    /// Rounds; every target has a part of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests that are not streamed, in one part, on one connection and again on 32.
    #[arg(long, default_value_t = 500)]
    requests: usize,
    /// Streams at the same time.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// Times the streams are started in one part.
    #[arg(long, default_value_t = 4)]
    waves: usize,
    /// Bytes of each prompt.
    #[arg(long, default_value_t = 512)]
    prompt_bytes: usize,
    /// The model to ask for.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Write the results here.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Connections of the crowded part.
const CROWD: usize = 32;
/// Requests of the first, uncounted part.
const WARM_UP: usize = 50;

struct Target {
    name: String,
    base: String,
    tree: Option<Tree>,
    parts: Vec<Part>,
}

/// What one target did in one round.
#[derive(Debug, Default)]
struct Part {
    alone: Vec<f64>,
    crowded: Vec<f64>,
    streamed: Vec<f64>,
    request_cpu: f64,
    token_cpu: f64,
    requests_per_second: f64,
    errors: usize,
}

/// One line of the results. Times in microseconds.
#[derive(Debug, Serialize)]
struct Line {
    target: String,
    /// CPU of a request that is not streamed, on one connection and on 32 together: the median of the rounds.
    cpu_per_request: Option<f64>,
    cpu_per_token: Option<f64>,
    /// First byte of a reply, and what it is more than without a proxy.
    alone_p50: f64,
    alone_p99: f64,
    alone_added_p50: Option<f64>,
    alone_added_p99: Option<f64>,
    crowded_p50: f64,
    crowded_p99: f64,
    crowded_added_p50: Option<f64>,
    crowded_added_p99: Option<f64>,
    stream_first_p50: f64,
    requests_per_second: f64,
    peak_mib: Option<f64>,
    errors: usize,
}

/// Runs it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rounds > 0 && options.requests > 0 && options.streams > 0, "--rounds, --requests and --streams must be above 0");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let mut targets = options.target.iter().map(|text| Target::read(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let client = Client::new()?;
    let load = Load::new(client, options);
    for target in &targets {
        let warm = load.requests(&target.base, WARM_UP, CROWD).await;
        ensure!(warm.errors == 0, "{}: {}", target.name, warm.first_error.unwrap_or_default());
    }
    for round in 0..options.rounds {
        for target in &mut targets {
            let mut part = Part::default();
            let before = target.cpu()?;
            let alone = load.requests(&target.base, options.requests, 1).await;
            let crowded = load.requests(&target.base, options.requests, CROWD).await;
            let between = target.cpu()?;
            let streamed = load.streams(&target.base, options.streams, options.waves).await;
            let after = target.cpu()?;
            part.request_cpu = (between - before) / (2 * options.requests) as f64;
            part.token_cpu = (after - between) / (streamed.tokens as f64).max(1.0);
            part.requests_per_second = options.requests as f64 / crowded.seconds;
            part.errors = alone.errors + crowded.errors + streamed.errors;
            part.alone = alone.first_bytes;
            part.crowded = crowded.first_bytes;
            part.streamed = streamed.first_bytes;
            target.parts.push(part);
        }
        report::problem(&format!("round {} of {}", round + 1, options.rounds));
    }
    let lines = lines(&targets)?;
    print(&lines);
    report::json(options.json.as_deref(), &lines)
}

impl Target {
    fn read(text: &str) -> anyhow::Result<Self> {
        let (name, place) = text.split_once('=').context("--target wants NAME=URL or NAME=URL@PID")?;
        let (base, tree) = match place.rsplit_once('@') {
            Some((base, pid)) => {
                let (pid, alone) = pid.strip_suffix('!').map_or((pid, false), |pid| (pid, true));
                let pid = pid.parse().with_context(|| format!("`{pid}` is no process id"))?;
                (base, Some(Tree::new(pid, !alone)))
            }
            None => (place, None),
        };
        Ok(Self { name: name.to_owned(), base: base.to_owned(), tree, parts: Vec::new() })
    }

    /// Microseconds of CPU so far.
    fn cpu(&self) -> anyhow::Result<f64> {
        self.tree.as_ref().map_or(Ok(0.0), |tree| tree.cpu_micros().with_context(|| format!("{}: no process to count", self.name)))
    }

    /// Quantile of one kind of times in microseconds: of every round by itself, then the median of these.
    fn time(&self, which: fn(&Part) -> &Vec<f64>, part: f64) -> f64 {
        let of_round = |times: &Vec<f64>| {
            let mut times = times.clone();
            times.sort_by(f64::total_cmp);
            quantile(&times, part) * 1e6
        };
        median(self.parts.iter().map(|part| of_round(which(part))).collect())
    }

    fn middle(&self, which: fn(&Part) -> f64) -> f64 {
        median(self.parts.iter().map(which).collect())
    }
}

fn lines(targets: &[Target]) -> anyhow::Result<Vec<Line>> {
    let direct = targets.iter().find(|target| target.tree.is_none());
    let line = |target: &Target| {
        let added = |which: fn(&Part) -> &Vec<f64>, part| {
            let direct = direct.filter(|_| target.tree.is_some())?;
            Some(target.time(which, part) - direct.time(which, part))
        };
        let counted = target.tree.is_some();
        let peak_mib = target.tree.as_ref().map(Tree::peak_mib).transpose().with_context(|| format!("{}: no memory", target.name))?;
        Ok(Line {
            target: target.name.clone(),
            cpu_per_request: counted.then(|| target.middle(|part| part.request_cpu)),
            cpu_per_token: counted.then(|| target.middle(|part| part.token_cpu)),
            alone_p50: target.time(|part| &part.alone, 0.5),
            alone_p99: target.time(|part| &part.alone, 0.99),
            alone_added_p50: added(|part| &part.alone, 0.5),
            alone_added_p99: added(|part| &part.alone, 0.99),
            crowded_p50: target.time(|part| &part.crowded, 0.5),
            crowded_p99: target.time(|part| &part.crowded, 0.99),
            crowded_added_p50: added(|part| &part.crowded, 0.5),
            crowded_added_p99: added(|part| &part.crowded, 0.99),
            stream_first_p50: target.time(|part| &part.streamed, 0.5),
            requests_per_second: target.middle(|part| part.requests_per_second),
            peak_mib,
            errors: target.parts.iter().map(|part| part.errors).sum(),
        })
    };
    targets.iter().map(line).collect()
}

fn print(lines: &[Line]) {
    let header = [
        "target",
        "CPU µs/request",
        "CPU µs/token",
        "1 conn p50 µs",
        "added p50",
        "added p99",
        "32 conn p50 µs",
        "added p50",
        "added p99",
        "stream p50",
        "req/s",
        "peak MiB",
        "errors",
    ];
    let number = |value: f64| format!("{value:.0}");
    let maybe = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.target.clone(),
                line.cpu_per_request.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}")),
                line.cpu_per_token.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}")),
                number(line.alone_p50),
                maybe(line.alone_added_p50),
                maybe(line.alone_added_p99),
                number(line.crowded_p50),
                maybe(line.crowded_added_p50),
                maybe(line.crowded_added_p99),
                number(line.stream_first_p50),
                number(line.requests_per_second),
                line.peak_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1}")),
                line.errors.to_string(),
            ]
        })
        .collect();
    report::table(&header, &rows);
}
