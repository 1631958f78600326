//! The simulated engine: a process with llama-server's HTTP face and a model of its time, but no model.
//!
//! It exists for what a real engine cannot give a test: chosen timing, chosen faults, hundreds of slots on two
//! cores. It is a real engine kind (`"engine": "sim"`), launched, probed, adopted and stopped like any other, so
//! no path of the control plane knows that it is simulated.
//!
//! What it keeps of llama-server: it listens before it has loaded and answers 503 meanwhile; a slot remembers its
//! last prompt and answer, and only what a new prompt adds is paid for; slots are chosen, saved to host memory and
//! fetched from there by its rules ([`model`]); surplus requests wait as they do there; all slots share one decode step;
//! the first SIGTERM stops decoding and waits for the clients, the second ends the process. With `--cache shared-pool`
//! it remembers as `vLLM` does, and counts under that engine's names. A chat request that forces a tool call or JSON gets
//! it, written from its schema ([`tools`]).
//!
//! Faults come by flag (`--help` lists them) or with a request, as `"sim_fault"` in the body, as the header
//! `x-sim-fault`, or as `[[sim:…]]` anywhere in the prompt; [`faults`] lists them.
//!
//! It must never be reachable from the hot path of the control plane and never needs a file.

mod args;
mod decode;
mod faults;
mod log;
mod metrics;
pub mod model;
mod replies;
mod request;
mod routes;
mod slots;
mod text;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use args::Settings;
use axum::serve::ListenerExt;
use clap::Parser;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs the simulated engine if this process was started as one. To be asked before the command line is read.
pub fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == "sim-engine").then(|| run(arguments))
}

/// The prompt that the simulated engine makes of a chat request, for a benchmark that has to know what it remembers.
pub fn chat_prompt(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<request::Body>(body).ok()?.prompt(replies::Dialect::Chat).ok()
}

/// Runs the process to its end. `arguments` are those after `lifeboat sim-engine`.
fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let all = std::iter::once(OsString::from("sim-engine")).chain(arguments);
    let settings = match Settings::try_parse_from(all) {
        Ok(settings) => settings,
        Err(error) => {
            // Nothing is left to report to when the terminal is gone.
            let _unwritable = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    if settings.grandchild {
        return faults::live_as_grandchild();
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::line("sim", &format!("could not start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(live(settings));
    // Connections of clients that stayed are cut here, as the end of a process cuts them.
    runtime.shutdown_background();
    code
}

/// Listens, loads, serves, ends.
async fn live(settings: Settings) -> ExitCode {
    faults::no_core_file();
    if settings.crash_at_start {
        log::line("sim", "exiting due to model loading error (--crash-at-start)");
        return ExitCode::FAILURE;
    }
    let mut listeners = Vec::new();
    for instance in 0..settings.instances {
        let port = if settings.port == 0 { 0 } else { settings.port.saturating_add(instance) };
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                log::line("sim", &format!("couldn't bind HTTP server socket, port {port}: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
    let loaded = CancellationToken::new();
    let stop = CancellationToken::new();
    let mut addresses = Vec::new();
    let mut loops = FuturesUnordered::new();
    let mut servers = FuturesUnordered::new();
    for listener in listeners {
        addresses.extend(listener.local_addr());
        let (decode, handle) = decode::channel(&settings);
        let router = routes::router(settings.clone(), key.clone(), handle, loaded.clone());
        // A peer that is gone already is noticed by the next read.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        loops.push(decode.run(stop.clone()));
        servers.push(axum::serve(listener, router).into_future());
    }
    let work = async {
        let _held = load(&settings).await;
        loaded.cancel();
        log::line("srv", "llama_server: model loaded");
        for address in &addresses {
            log::line("srv", &format!("llama_server: listening on http://{address}"));
        }
        let all = async { while loops.next().await.is_some() {} };
        tokio::select! {
            () = all => ExitCode::SUCCESS,
            code = obey_signals(&settings, stop) => code,
        }
    };
    let ignored = async {
        if settings.ignore_sigterm {
            ignore_sigterm().await;
        }
        std::future::pending::<ExitCode>().await
    };
    tokio::select! {
        code = work => code,
        code = ignored => code,
        Some(served) = servers.next() => {
            if let Err(error) = served {
                log::line("sim", &format!("the HTTP server ended: {error}"));
            }
            ExitCode::FAILURE
        }
    }
}

/// Environment variable that carries the API key; arguments are readable by everybody on the machine.
const KEY_VARIABLE: &str = "LIFEBOAT_SIM_API_KEY";
/// Pieces a load is reported in.
const LOAD_STEPS: u32 = 20;

/// Takes the time and the memory of a load. What it returns is to be held as long as the engine lives.
async fn load(settings: &Settings) -> Vec<Vec<u8>> {
    if settings.spawn_grandchild {
        faults::spawn_grandchild();
    }
    let mut weights = Vec::new();
    let piece = Duration::from_millis(settings.load_ms) / LOAD_STEPS;
    for step in 1..=LOAD_STEPS {
        if settings.stall_load && step > LOAD_STEPS / 2 {
            std::future::pending::<()>().await;
        }
        if settings.memory_mib > 0 {
            // Written, not only reserved: the system counts touched pages.
            weights.push(vec![1_u8; settings.memory_mib.saturating_mul(1 << 20) / LOAD_STEPS as usize]);
        }
        if !piece.is_zero() {
            tokio::time::sleep(piece).await;
        }
        log::line("load", &format!("load progress: {}%", step * 100 / LOAD_STEPS));
    }
    weights
}

/// First SIGTERM or SIGINT: stop decoding, wait for the clients to go. Second: end at once.
async fn obey_signals(settings: &Settings, stop: CancellationToken) -> ExitCode {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        log::line("sim", "cannot listen for signals");
        return ExitCode::FAILURE;
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if settings.ignore_sigterm {
            log::line("srv", "signal ignored (--ignore-sigterm)");
        } else if stop.is_cancelled() {
            log::line("srv", "Received second interrupt, terminating immediately.");
            return ExitCode::FAILURE;
        } else {
            log::line("srv", "operator(): cleaning up before exit...");
            stop.cancel();
        }
    }
}

/// Keeps SIGTERM from its default action while loading too.
async fn ignore_sigterm() {
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        while terminate.recv().await.is_some() {}
    }
}
