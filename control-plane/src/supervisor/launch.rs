//! Everything before an engine's process exists: build, model, sizes, port, key, plan.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lifeboat_engines::adapter;
use lifeboat_engines::host::HostFacts;
use lifeboat_engines::spec::{Build, EngineSpec, LaunchInput};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::MissedTickBehavior;

use super::engine::Engine;
use super::failure::Failure;
use super::fingerprint::fingerprint;
use super::publisher::Publisher;
use super::run_note::RunNote;
use super::{Deps, log_dir, run_dir};
use crate::engine_process::child::{ChildSpec, EngineChild};
use crate::host::hex::random_key;
use crate::host::{facts, files, instance, ports};
use crate::ids::RowId;
use crate::memory;
use crate::models::LocalModel;
use crate::progress::ProgressSender;
use crate::registry::RowState;

/// Time between two looks at the progress of a download.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// Where an engine's home is, in its run folder.
const HOME: &str = "home";

/// What a launch needs on disk.
#[derive(Debug)]
pub struct Prepared {
    build: Option<Arc<Build>>,
    model: Option<Arc<LocalModel>>,
}

/// Fetches what is missing. May be dropped at any point.
pub async fn prepare(publisher: &mut Publisher, deps: &Deps) -> Result<Prepared, Failure> {
    let spec = publisher.row().spec.clone();
    let capabilities = adapter(spec.engine).capabilities();
    publisher.show_endpoint(None, |status| (status.state, status.state_reason) = (RowState::Starting, Some("preparing".into()))).await;
    // The model first: a build that is new here is proved with the smallest model at hand, and would fetch one otherwise.
    let model = match spec.model.as_deref().filter(|_| capabilities.needs_model) {
        Some(source) => Some(
            with_progress(publisher, async |progress| deps.models.ensure(source, &progress).await)
                .await
                .map_err(|error| Failure::unavailable(&error))?,
        ),
        None => None,
    };
    let build = if capabilities.needs_build {
        let work = async |progress| deps.engines.ensure(spec.engine, spec.engine_build.as_deref(), &progress).await;
        Some(with_progress(publisher, work).await.map_err(|error| Failure::unavailable(&error))?)
    } else {
        None
    };
    Ok(Prepared { build, model })
}

/// Waits for the turn to load. May be dropped at any point.
pub async fn turn(publisher: &mut Publisher, turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    if let Ok(turn) = Arc::clone(turns).try_acquire_owned() {
        return Ok(turn);
    }
    publisher
        .show(|status| (status.state, status.state_reason) = (RowState::Starting, Some("waiting for another model to load".into())))
        .await;
    Arc::clone(turns).acquire_owned().await.map_err(|error| Failure::unavailable(&error))
}

/// Does a piece of work and shows its progress as a download, as soon as it has any.
async fn with_progress<T, F: Future<Output = T>>(publisher: &mut Publisher, work: impl FnOnce(ProgressSender) -> F) -> T {
    let (progress, mut seen) = ProgressSender::channel();
    let mut work = pin!(work(progress));
    let mut tick = tokio::time::interval(SHOW_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = tick.tick() => {
                // Work that finds everything in place has no step to show.
                let progress = seen.borrow_and_update().clone();
                if !progress.step.is_empty() && publisher.status().progress.as_ref() != Some(&progress) {
                    publisher.show_progress(|status| {
                        status.state = RowState::Downloading;
                        status.state_reason = Some(progress.step.clone());
                    }, Some(progress.clone()));
                }
            }
        }
    }
}

/// Sizes the row against the memory that is free now and starts the process. Not to be dropped half way: it takes
/// only as long as starting a program.
pub async fn start(publisher: &mut Publisher, deps: &Deps, prepared: &Prepared, turn: OwnedSemaphorePermit) -> Result<Engine, Failure> {
    let row = publisher.row().clone();
    let adapter = adapter(row.spec.engine);
    let io = |error: std::io::Error| Failure::unavailable(&error);
    let mut measured = tokio::task::spawn_blocking(facts::measure_for_launch).await.map_err(|error| Failure::unavailable(&error))?;
    limit_memory(&mut measured, deps, row.id);
    let Some(build) = &prepared.build else {
        return Err(Failure::died("there is nothing to start for this kind of engine"));
    };
    let resolved = adapter
        .resolve(&row.spec, prepared.model.as_ref().map(|model| &model.facts), &measured.usable_by(build))
        .map_err(|error| Failure::refused(&error))?;

    let run_dir = run_dir(&deps.config.data_dir, row.id);
    let home = run_dir.join(HOME);
    files::create_private_dir(&home).map_err(io)?;
    let note = RunNote {
        row: row.id,
        generation: row.generation,
        fingerprint: fingerprint(&row.spec),
        port: ports::free_loopback_port().map_err(io)?,
        api_key: random_key(),
        resolved,
        build: Build::clone(build),
    };
    let plan = adapter.launch(&launch_input(&row.spec, &note, build, prepared.model.as_deref(), &home));
    let supervisor = &deps.config.supervisor;
    let child = EngineChild::spawn(ChildSpec {
        plan,
        run_dir,
        log_dir: log_dir(&deps.config.data_dir, row.id),
        control_file: instance::control_file(&deps.config.data_dir),
        lease: supervisor.lease,
        kill_after: supervisor.kill_after,
        log_rotate_bytes: supervisor.log_rotate_bytes,
        log_keep: supervisor.log_keep,
        guard_program: supervisor.guard_program.clone(),
        note: serde_json::to_value(&note).map_err(|error| Failure::unavailable(&error))?,
    })
    .await
    .map_err(|error| Failure::unavailable(&error))?;
    let engine = Engine::new(child, note, adapter, Some(turn));
    engine.show_starting(publisher, "loading the model").await;
    Ok(engine)
}

/// Takes no more memory for granted than the operator lets all engines together have.
fn limit_memory(measured: &mut HostFacts, deps: &Deps, row: RowId) {
    let limit = deps.config.supervisor.memory_limit_bytes;
    if limit == 0 {
        return;
    }
    let left = memory::left_of(limit, &deps.registry.snapshot(), row);
    if left < measured.memory.available_bytes {
        measured.memory.available_bytes = left;
        measured.memory.source = format!("supervisor.memory_limit_bytes {limit}, less what other rows hold");
    }
}

fn launch_input<'a>(
    spec: &'a EngineSpec,
    note: &'a RunNote,
    build: &'a Build,
    model: Option<&'a LocalModel>,
    home: &'a Path,
) -> LaunchInput<'a> {
    LaunchInput {
        spec,
        resolved: &note.resolved,
        build,
        model_path: model.map(|model| model.path.as_path()),
        mmproj_path: model.and_then(|model| model.mmproj.as_deref()),
        port: note.port,
        api_key: &note.api_key,
        home,
    }
}
