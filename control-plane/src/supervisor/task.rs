//! The task of one row: the only owner of its engine, its status and its rests.
//!
//! It always does one step of [`decide`], then looks again. Whatever may take long can be left at any point when the
//! orders change; what must not be left half done (a start, a stop) is short or bounded. Orders are a watch of the
//! latest one, so that none is lost and none queues.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lifeboat_engines::spec::EngineKind;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::backoff::{Deaths, Rest};
use super::decide::{EngineSituation, RestKind, Situation, Step, decide, usage};
use super::engine::Engine;
use super::failure::{Failure, Kind};
use super::fingerprint::fingerprint;
use super::publisher::Publisher;
use super::run_note::RunNote;
use super::{Deps, Want, external, launch, log_dir, run_dir};
use crate::engine_process::child::EngineChild;
use crate::host::clock::spoken;
use crate::host::http::Http;
use crate::ids::RowId;
use crate::memory::{self, Room};
use crate::registry::{Endpoint, RowState};
use crate::store::servers::ServerRow;

/// Longest pause between two looks for memory, where no row changes meanwhile: other programs give some back too.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_secs(2);

/// What a row's task is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The row as desired.
    pub row: ServerRow,
    /// What it should work towards.
    pub want: Want,
    /// Times an operator asked for a restart.
    pub restarts: u64,
    /// How to end, once it is time.
    pub end: Option<End>,
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The row is gone: so are its engine, its folders and its place in the registry.
    Forget,
    /// The control plane stops: the engine is drained and ended.
    Stop,
    /// The control plane is replaced: the engine stays, the next one takes it over.
    Release,
}

/// What all row tasks share.
#[derive(Debug)]
pub struct Shared {
    /// What the rest of the program gives.
    pub deps: Arc<Deps>,
    /// One load at a time, so that each sizes against the memory the others have left.
    pub turns: Arc<Semaphore>,
    /// For external servers behind TLS.
    pub http: Http,
}

/// The task.
#[derive(Debug)]
pub struct RowTask {
    shared: Arc<Shared>,
    orders: watch::Receiver<Order>,
    publisher: Publisher,
    engine: Option<Engine>,
    deaths: Deaths,
    rest: Option<Rest>,
    // The last start ended in a death, so that the next one counts as a restart.
    died: bool,
    seen_restarts: u64,
    restart: bool,
    probed: Option<String>,
}

/// An order that makes the present step pointless.
#[derive(Debug)]
struct Interrupted;

impl RowTask {
    /// A task for the row of the first order.
    pub fn new(shared: Arc<Shared>, mut orders: watch::Receiver<Order>) -> Self {
        let order = orders.borrow_and_update().clone();
        Self {
            publisher: Publisher::new(Arc::clone(&shared.deps), order.row),
            shared,
            orders,
            engine: None,
            deaths: Deaths::default(),
            rest: None,
            died: false,
            seen_restarts: order.restarts,
            restart: false,
            probed: None,
        }
    }

    fn id(&self) -> RowId {
        self.publisher.row().id
    }

    /// Works until it is told to end.
    pub async fn run(mut self) {
        self.adopt().await;
        loop {
            let order = self.orders.borrow_and_update().clone();
            let end = if self.shared.deps.token.is_cancelled() { Some(order.end.unwrap_or(End::Stop)) } else { order.end };
            if let Some(end) = end {
                return self.end(end).await;
            }
            self.take(&order).await;
            self.step(order.want).await;
        }
    }

    /// Takes over what the order changes.
    async fn take(&mut self, order: &Order) {
        let edited = order.row.generation != self.publisher.row().generation;
        if edited {
            self.publisher.take_row(order.row.clone()).await;
        }
        let restart = std::mem::replace(&mut self.seen_restarts, order.restarts) != order.restarts;
        self.restart |= restart && self.engine.is_some();
        if edited || restart {
            // The operator did something about it: rests and counts begin anew.
            self.deaths.forgive();
            self.rest = None;
            self.died = false;
        }
    }

    async fn step(&mut self, want: Want) {
        let now = Instant::now();
        self.rest = self.rest.filter(|rest| rest.until > now);
        let spec = &self.publisher.row().spec;
        let engine = self.engine.as_ref().map(|engine| EngineSituation {
            ready: engine.endpoint().is_some(),
            current: !self.restart && engine.fingerprint() == fingerprint(spec),
            usage: usage(spec, engine.endpoint().and_then(|endpoint| endpoint.idle_for(now))),
        });
        let failed = self.publisher.status().state == RowState::Failed;
        let rest = self.rest.map(|_| if failed { RestKind::Failed } else { RestKind::Short });
        match decide(Situation { want, external: spec.engine == EngineKind::External, engine, rest }) {
            Step::Launch => self.launch().await,
            Step::Load => self.load(want).await,
            Step::Serve => self.serve(want).await,
            Step::Stop => self.stop_engine("stopping").await,
            Step::Replace => self.stop_engine("restarting with new settings").await,
            Step::Unload => self.unload(want).await,
            Step::Rest => self.wait_for_rest(want).await,
            Step::Down => self.wait_without_engine(want, RowState::Stopped, None).await,
            Step::Sleep => self.wait_without_engine(want, RowState::Sleeping, Some("loads on the next request")).await,
            Step::Probe => self.probe(want).await,
        }
    }

    /// Returns when an order makes the present step pointless. Edits that do not touch the engine do not.
    fn interrupted(&self, want: Want) -> impl Future<Output = Interrupted> + use<> {
        let mut orders = self.orders.clone();
        let token = self.shared.deps.token.clone();
        let (generation, restarts) = (self.publisher.row().generation, self.seen_restarts);
        async move {
            let changed = orders.wait_for(|order| {
                order.end.is_some() || order.row.generation != generation || order.restarts != restarts || order.want != want
            });
            tokio::select! {
                () = token.cancelled() => {}
                _ = changed => {}
            }
            Interrupted
        }
    }

    async fn launch(&mut self) {
        let mut interrupted = pin!(self.interrupted(Want::Up));
        let deps = Arc::clone(&self.shared.deps);
        let prepared = tokio::select! {
            prepared = launch::prepare(&mut self.publisher, &deps) => prepared,
            Interrupted = &mut interrupted => return,
        };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => return self.note_failure(failure, Duration::ZERO).await,
        };
        loop {
            let turn = tokio::select! {
                turn = launch::turn(&mut self.publisher, &self.shared.turns) => turn,
                Interrupted = &mut interrupted => return,
            };
            let launched = match turn {
                Ok(turn) => launch::start(&mut self.publisher, &deps, &prepared, turn).await,
                Err(failure) => Err(failure),
            };
            let failure = match launched {
                Ok(engine) => {
                    if std::mem::take(&mut self.died) {
                        self.publisher.show(|status| status.restarts = status.restarts.saturating_add(1)).await;
                    }
                    self.engine = Some(engine);
                    return;
                }
                Err(failure) => failure,
            };
            let snapshot = deps.registry.snapshot();
            let room = failure.short.map_or(Room::Nowhere, |short| memory::room(&snapshot, self.id(), short, Instant::now()));
            let asked = match room {
                Room::From(rows) => rows,
                Room::Busy => Vec::new(),
                Room::Nowhere => return self.note_failure(failure, Duration::ZERO).await,
            };
            let reason = format!("waiting for memory that on-demand rows hold: {}", failure.reason);
            self.publisher.show_room(Some(asked), |status| (status.state, status.state_reason) = (RowState::Starting, Some(reason))).await;
            let mut changed = deps.registry.subscribe();
            let interrupted = tokio::select! {
                _ = changed.changed() => false,
                () = tokio::time::sleep(LOOK_FOR_ROOM_EVERY) => false,
                Interrupted = &mut interrupted => true,
            };
            // What was chosen held for the memory as it was.
            self.publisher.take_back_room();
            if interrupted {
                return;
            }
        }
    }

    async fn load(&mut self, want: Want) {
        let interrupted = self.interrupted(want);
        let deps = Arc::clone(&self.shared.deps);
        let Some(engine) = &mut self.engine else { return };
        let outcome = tokio::select! {
            outcome = engine.until_ready(&mut self.publisher, &deps.config.supervisor) => outcome,
            Interrupted = interrupted => return,
        };
        if let Err(failure) = outcome {
            self.bury(failure).await;
        }
    }

    async fn serve(&mut self, want: Want) {
        let interrupted = self.interrupted(want);
        let deps = Arc::clone(&self.shared.deps);
        let Some(engine) = &mut self.engine else { return };
        let failure = tokio::select! {
            failure = engine.until_broken(&deps.config.supervisor) => failure,
            Interrupted = interrupted => return,
        };
        self.bury(failure).await;
    }

    /// The engine died or hangs: whatever is left of it goes, and the row rests.
    async fn bury(&mut self, failure: Failure) {
        let Some(engine) = self.engine.take() else { return };
        let served = engine.served();
        self.publisher
            .show_endpoint(None, |status| {
                (status.state, status.state_reason) = (RowState::Starting, Some(failure.reason.clone()));
                (status.pid, status.endpoint, status.progress) = (None, None, None);
            })
            .await;
        engine.kill().await;
        self.died = true;
        self.note_failure(failure, served).await;
    }

    async fn note_failure(&mut self, failure: Failure, served: Duration) {
        let now = Instant::now();
        let config = &self.shared.deps.config.supervisor;
        let rest = match failure.kind {
            Kind::Died | Kind::Unavailable => self.deaths.note(served, now, config),
            Kind::Refused => Rest { until: now + config.cool_down, cool_down: true },
        };
        let pause = spoken(rest.until.saturating_duration_since(now));
        let next = match failure.kind {
            Kind::Died if rest.cool_down => {
                format!("{} deaths in a row, next try in {pause}; a restart or an edit tries at once", self.deaths.count())
            }
            _ if rest.cool_down => format!("next try in {pause}; a restart or an edit tries at once"),
            _ => format!("next try in {pause}"),
        };
        let state = if rest.cool_down || failure.kind != Kind::Died { RowState::Failed } else { RowState::Starting };
        tracing::warn!(server.id = %self.id(), server.reason = failure.reason, rest.ms = rest.until.saturating_duration_since(now).as_millis(), "server cannot serve");
        self.rest = Some(rest);
        self.publisher
            .show_endpoint(None, |status| {
                (status.state, status.state_reason) = (state, Some(format!("{} ({next})", failure.reason)));
                (status.pid, status.endpoint, status.progress) = (None, None, None);
            })
            .await;
    }

    async fn wait_for_rest(&mut self, want: Want) {
        let Some(rest) = self.rest else { return };
        tokio::select! {
            () = tokio::time::sleep_until(rest.until) => self.shared.deps.activator.wake(),
            Interrupted = self.interrupted(want) => {}
        }
    }

    async fn wait_without_engine(&mut self, want: Want, state: RowState, reason: Option<&str>) {
        self.probed = None;
        self.publisher
            .show_endpoint(None, |status| {
                (status.state, status.state_reason) = (state, reason.map(str::to_owned));
                (status.pid, status.endpoint, status.progress) = (None, None, None);
                if state == RowState::Stopped {
                    status.restarts = 0;
                }
            })
            .await;
        let Interrupted = self.interrupted(want).await;
    }

    async fn probe(&mut self, want: Want) {
        let print = fingerprint(&self.publisher.row().spec);
        if self.probed.as_ref() != Some(&print) {
            self.probed = Some(print);
            self.publisher
                .show_endpoint(None, |status| (status.state, status.state_reason) = (RowState::Starting, Some("not probed yet".into())))
                .await;
        }
        let interrupted = self.interrupted(want);
        let deps = Arc::clone(&self.shared.deps);
        let failure = tokio::select! {
            failure = external::watch(&mut self.publisher, &deps, &self.shared.http) => failure,
            Interrupted = interrupted => return,
        };
        self.note_failure(failure, Duration::ZERO).await;
    }

    /// Unloads if nobody is inside at this very moment; a request that comes later wakes the row again.
    async fn unload(&mut self, want: Want) {
        let reason = if want == Want::MakeRoom { "making room for another row" } else { "unloading after its idle time" };
        if self.engine.as_ref().is_some_and(Engine::close_if_idle) {
            self.stop_engine(reason).await;
        }
    }

    async fn stop_engine(&mut self, reason: &str) {
        self.restart = false;
        let Some(engine) = self.engine.take() else { return };
        let endpoint = engine.endpoint().map(Arc::<Endpoint>::clone);
        if let Some(endpoint) = &endpoint {
            // Before anything is shown, so that nobody who sees "ready" can still get in.
            endpoint.load.close();
        }
        self.publisher
            .show_endpoint(endpoint, |status| {
                (status.state, status.state_reason, status.progress) = (RowState::Draining, Some(reason.to_owned()), None);
            })
            .await;
        let exit = engine.stop(&self.shared.deps.config.supervisor, &self.shared.deps.token).await;
        tracing::info!(server.id = %self.id(), engine.exit = %exit, "engine ended");
        self.publisher.show_endpoint(None, |status| (status.pid, status.endpoint) = (None, None)).await;
    }

    /// Takes over the engine that an earlier control plane left, whatever its row wants by now: the next step sees to
    /// that.
    async fn adopt(&mut self) {
        let run_dir = run_dir(&self.shared.deps.config.data_dir, self.id());
        let Some(child) = EngineChild::adopt(&run_dir).await else { return };
        match serde_json::from_value::<RunNote>(child.note().clone()) {
            Ok(note) if note.row == self.id() => {
                tracing::info!(server.id = %self.id(), engine.pid = child.pid(), "found a running engine");
                let adapter = lifeboat_engines::adapter(note.build.engine);
                let engine = Engine::new(child, note, adapter, None);
                engine.show_starting(&mut self.publisher, "taking over the engine that runs").await;
                self.engine = Some(engine);
            }
            _ => {
                tracing::warn!(server.id = %self.id(), engine.pid = child.pid(), "found a running engine that nothing is known about, ending it");
                child.stop(self.shared.deps.config.supervisor.kill_after).await;
            }
        }
    }

    async fn end(mut self, end: End) {
        if end == End::Release {
            return;
        }
        self.stop_engine("stopping").await;
        let data_dir = &self.shared.deps.config.data_dir;
        // What cannot be removed is only untidy.
        let _ = tokio::fs::remove_dir_all(run_dir(data_dir, self.id())).await;
        if end == End::Forget {
            let _ = tokio::fs::remove_dir_all(log_dir(data_dir, self.id())).await;
            self.publisher.remove();
            return;
        }
        self.publisher
            .show_endpoint(None, |status| {
                (status.state, status.state_reason) = (RowState::Stopped, Some("Lifeboat was stopped".into()));
            })
            .await;
    }
}
