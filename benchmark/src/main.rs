//! Benchmarks of Lifeboat and its peers. docs/BENCHMARKS.md says how to run and read each.
//!
//! - `conversations` many-turn chats against any OpenAI base URL, or against engines through a router in this process
//! - `proxy` what a proxy costs: CPU per request and token, added time to the first byte
//! - `backend` the smallest engine there can be, for `proxy`
//! - `simulate` strategies, the real one of Lifeboat among them, on simulated rows in simulated time
//!
//! Nothing here is part of the product, and nothing of the product depends on it.

mod client;
mod conversations;
mod proxy;
mod report;
mod simulate;
mod stats;
mod strategy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Benchmarks of Lifeboat and its peers.
#[derive(Debug, Parser)]
#[command(name = "lifeboat-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Many-turn conversations: time to the first token, cached share.
    Conversations(conversations::Options),
    /// What proxies cost: CPU per request and per streamed token, added time to the first byte.
    Proxy(proxy::Options),
    /// An engine that answers at once, for `proxy`.
    Backend(proxy::backend::Options),
    /// Strategies on simulated rows, in simulated time.
    Simulate(simulate::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Conversations(options) => conversations::run(&options),
        Command::Proxy(options) => proxy::run(&options),
        Command::Backend(options) => proxy::backend::run(&options),
        Command::Simulate(options) => simulate::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::problem(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
