//! The command line: one file per command, the only printing code.
//!
//! Every command but `up` and `serve` is a client of the REST API: of the server that runs on this data
//! directory, or, where none runs, of one opened in this process for that command ([`reach`]). So a command
//! means the same thing whether or not a server is up, and nothing here reads or writes a store by itself.
//!
//! A failure prints one line with what failed, the chain of causes, then a `hint:` line, all to the
//! error stream; results go to the output stream and to nowhere else, so that `--json` can be piped.

pub mod api_client;
pub mod chat;
pub mod completions;
pub mod doctor;
pub mod engine;
pub mod failure;
pub mod follow;
pub mod key;
pub mod model;
pub mod output;
pub mod reach;
pub mod requests;
pub mod serve;
pub mod server;
pub mod settings;
pub mod status;
pub mod up;
pub mod version;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use failure::{Failure, Kind};
use settings::GlobalArgs;

/// What `--help` says about exit codes; `docs/OPERATIONS.md` repeats it.
const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed
  2    the command line is wrong
  3    a running server is needed and none answers
  4    there is no such server, model, engine build or key
  5    conflict: somebody else changed it, holds it or uses the address
  6    the API key is missing, wrong or lacks the scope
  7    refused: this host, this value or this state does not allow it
  130  interrupted";

/// A local inference control plane: one binary, any machine, OpenAI- and Anthropic-compatible.
#[derive(Debug, Parser)]
#[command(name = "lifeboat", version, after_help = EXIT_CODES, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model: engine and model are picked and fetched where they are missing
    Up(Box<up::UpArgs>),
    /// Serve what is configured, without creating anything
    Serve(Box<serve::ServeArgs>),
    /// Show whether a server runs here and how its rows are
    Status,
    /// Check this host and say how to cure what is wrong
    Doctor,
    /// Engine builds: list, candidates, install, use, rollback, remove
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// Models: list, pull, inspect, remove
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Server rows: list, create, show, edit, start, stop, restart, delete, logs
    #[command(subcommand)]
    Server(server::ServerCommand),
    /// API keys: create, list, edit, revoke
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Show what was asked and how it went, what is under way, and end it
    Requests(Box<requests::RequestsArgs>),
    /// Show what each key used, by day and model
    Usage(requests::UsageArgs),
    /// Talk to a model in the terminal
    Chat(chat::ChatArgs),
    /// Show the version
    Version,
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// Parses the arguments, runs the command, prints its failure if it fails.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { Kind::Usage.code() } else { 0 };
            // A help text that cannot be written has nobody to tell.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let json = cli.global.json;
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, json),
    }
}

/// tokio's own variable for the number of its threads, which goes before ours.
const WORKERS: &str = "TOKIO_WORKER_THREADS";
/// Processors for each thread that moves requests. One moves tens of thousands of tokens a second; a second one that is woken for
/// each of them costs a fifth more processor time, and takes it from an engine that wants all cores.
const PROCESSORS_PER_WORKER: usize = 8;
/// Most such threads.
const MOST_WORKERS: usize = 4;

fn workers(processors: usize) -> usize {
    (processors / PROCESSORS_PER_WORKER).clamp(1, MOST_WORKERS)
}

/// How long blocking work may take to end once everything else has.
const LAST_THREADS: Duration = Duration::from_secs(2);

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, command } = cli;
    match command {
        Command::Version => return version::run(&global),
        Command::Completions(args) => return completions::run(&args),
        _ => {}
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os(WORKERS).is_none() {
        runtime.worker_threads(workers(std::thread::available_parallelism().map_or(1, usize::from)));
    }
    let runtime =
        runtime.enable_all().build().map_err(|error| Failure::new(Kind::Failed, "could not start the runtime").caused_by(error))?;
    run_on(runtime, async {
        match command {
            Command::Up(args) => up::run(&global, *args).await,
            Command::Serve(args) => serve::run(&global, *args).await,
            Command::Doctor => doctor::run(&global).await,
            Command::Status => status::run(&global).await,
            Command::Engine(command) => engine::run(&global, command).await,
            Command::Model(command) => model::run(&global, command).await,
            Command::Server(command) => server::run(&global, command).await,
            Command::Key(command) => key::run(&global, command).await,
            Command::Requests(args) => requests::run(&global, *args).await,
            Command::Usage(args) => requests::run_usage(&global, args).await,
            Command::Chat(args) => chat::run(&global, args).await,
            Command::Version | Command::Completions(_) => Ok(()),
        }
    })
}

/// Runs the work to its end. A thread that still waits for a file system then does not keep the process from its own.
fn run_on<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_THREADS);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_have_one_thread_for_requests_and_large_ones_a_few() {
        assert_eq!([1, 2, 8, 15, 16, 24, 256].map(workers), [1, 1, 1, 1, 2, 3, 4]);
    }

    #[test]
    fn a_thread_that_waits_for_ever_does_not_keep_the_process() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (never, waits) = std::sync::mpsc::channel::<()>();
        let (done_tx, done_rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            run_on(runtime, async { drop(tokio::task::spawn_blocking(move || waits.recv())) });
            done_tx.send(()).unwrap();
        });
        assert_eq!(done_rx.recv_timeout(LAST_THREADS * 5), Ok(()));
        drop(never);
    }
}
