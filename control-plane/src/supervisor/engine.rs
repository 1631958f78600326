//! One engine process of a row: from its launch over its readiness to its end. Its row's task owns it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::{Authority, Scheme};
use lifeboat_engines::EngineAdapter;
use lifeboat_engines::diagnose::diagnose;
use lifeboat_engines::spec::Health;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::publisher::Publisher;
use super::run_note::RunNote;
use crate::causes::chain;
use crate::config::SupervisorConfig;
use crate::engine_process::child::{EngineChild, Exit, SECOND_SIGNAL};
use crate::engine_process::logs::Tail;
use crate::engine_process::probe::{self, Target};
use crate::engine_process::stall::{Look, Movement};
use crate::host::clock::spoken;
use crate::host::facts;
use crate::progress::Progress;
use crate::registry::{Dialects, Endpoint, LastQueue, PromptCache, RowLoad, RowState};

/// First pause between two looks at a loading engine; small, because a cached load takes less than a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at what the processes of a loading engine use: each reads all of /proc.
const USAGE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for one health answer, where the time until an engine counts as hung has room for three of them.
const HEALTH_WITHIN: Duration = Duration::from_secs(5);
/// Health answers in a row that must be missing before silence counts, so that a pause of this process itself (a
/// suspended machine, a debugger) does not look like the engine's.
const MISSING_ANSWERS: u32 = 3;
/// For connections to be dropped once their time is over.
const DROP_CONNECTIONS: Duration = Duration::from_secs(1);
/// Steps in which a load's progress is shown.
const LOAD_STEPS: u64 = 1000;
/// Lines of the engine's log shown with a load that stands still.
const LAST_LINES: usize = 6;
/// Lines of the engine's log that may tell why it died.
const DIAGNOSED_LINES: usize = 100;

/// A launched engine.
pub struct Engine {
    child: EngineChild,
    note: RunNote,
    adapter: &'static dyn EngineAdapter,
    launched: Instant,
    // Held until the load is over, so that the next load sees the memory that is really left.
    loading: Option<OwnedSemaphorePermit>,
    endpoint: Option<Arc<Endpoint>>,
    answered: Instant,
    missing: u32,
    movement: Option<Movement>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("note", &self.note).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine that was just launched, or one that was found running.
    pub fn new(child: EngineChild, note: RunNote, adapter: &'static dyn EngineAdapter, loading: Option<OwnedSemaphorePermit>) -> Self {
        let now = Instant::now();
        Self { child, note, adapter, launched: now, loading, endpoint: None, answered: now, missing: 0, movement: None }
    }

    /// What it depends on.
    pub fn fingerprint(&self) -> &str {
        &self.note.fingerprint
    }

    /// The way to it, once it is ready.
    pub const fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.as_ref()
    }

    /// How long it has served.
    pub fn served(&self) -> Duration {
        self.endpoint.as_ref().map_or(Duration::ZERO, |endpoint| endpoint.ready_since.elapsed())
    }

    fn target(&self) -> Target {
        Target {
            scheme: Scheme::HTTP,
            authority: authority(self.note.port),
            prefix: String::new(),
            authorization: bearer(&self.note.api_key),
            via: None,
            https: None,
        }
    }

    /// Watches the load until the engine is ready. Dropping the wait changes nothing; it can be taken up again.
    pub async fn until_ready(&mut self, publisher: &mut Publisher, config: &SupervisorConfig) -> Result<(), Failure> {
        let target = self.target();
        let mut tail = Tail::from_end(self.child.log_dir());
        let mut look = Look { usage: self.child.usage().await, signs: 0 };
        let mut movement = Movement::new(look, Instant::now());
        let (mut looked, mut stopped_since) = (Instant::now(), None);
        let mut pause = FIRST_PAUSE;
        loop {
            let health = tokio::select! {
                exit = self.child.wait() => return Err(self.death(exit).await),
                health = self.ask_health(&target, config) => health,
            };
            if health == Ok(Health::Ready) {
                break;
            }
            let now = Instant::now();
            for line in tail.new_lines() {
                look.signs = look.signs.wrapping_add(1);
                if let Some(fraction) = self.adapter.read_load_progress(&line) {
                    publisher.show_progress(|_| (), Some(load_progress(fraction)));
                }
            }
            if now.saturating_duration_since(looked) >= USAGE_EVERY {
                looked = now;
                look.usage = self.child.usage().await;
                if !look.usage.stopped {
                    stopped_since = None;
                } else if now.saturating_duration_since(*stopped_since.get_or_insert(now)) >= config.hang_after {
                    return Err(Failure::died("the engine was stopped (SIGSTOP) while it loaded"));
                }
            }
            let still = movement.still_for(look, now);
            if still >= config.load_stall {
                let reason = format!("the load made no progress for {}", spoken(still));
                return Err(Failure::died(with_lines(reason, &self.child.last_log_lines(LAST_LINES))));
            }
            tokio::select! {
                exit = self.child.wait() => return Err(self.death(exit).await),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 5 / 4).min(LONGEST_PAUSE);
        }
        self.become_ready(publisher).await;
        Ok(())
    }

    async fn become_ready(&mut self, publisher: &mut Publisher) {
        let now = Instant::now();
        let authority = authority(self.note.port);
        let endpoint = Arc::new(Endpoint {
            scheme: Scheme::HTTP,
            authority: authority.clone(),
            prefix: String::new(),
            authorization: bearer(&self.note.api_key),
            upstream_model: None,
            slots: self.note.resolved.slots,
            context: self.note.resolved.context,
            cache: PromptCache::of(&self.note.resolved, self.note.build.takes_slot),
            dialects: Dialects { takes_tools: self.takes_tools().await, ..Dialects::of(self.adapter.kind()) },
            load: RowLoad::default(),
            queue: LastQueue::default(),
            ready_since: now,
            load_time: self.loading.is_some().then(|| self.launched.elapsed()),
            ended: CancellationToken::new(),
        });
        self.loading = None;
        self.answered = now;
        self.missing = 0;
        self.endpoint = Some(Arc::clone(&endpoint));
        tracing::info!(server.id = %self.note.row, load.ms = self.launched.elapsed().as_millis(), "engine is ready");
        publisher
            .show_endpoint(Some(endpoint), |status| {
                status.state = RowState::Ready;
                status.state_reason = None;
                status.progress = None;
                status.endpoint = Some(format!("http://{authority}"));
            })
            .await;
    }

    /// Shows what is known of it before it is ready.
    pub async fn show_starting(&self, publisher: &mut Publisher, reason: &str) {
        publisher
            .show_endpoint(None, |status| {
                status.state = RowState::Starting;
                status.state_reason = Some(reason.to_owned());
                status.pid = Some(self.child.pid());
                (status.endpoint, status.progress) = (None, None);
                status.resolved = Some(self.note.resolved.clone());
                status.build = Some(self.note.build.id.clone());
            })
            .await;
    }

    /// Watches a ready engine; returns only when it has died or hangs. Dropping the watch changes nothing; it can be
    /// taken up again.
    pub async fn until_broken(&mut self, config: &SupervisorConfig) -> Failure {
        loop {
            tokio::select! {
                exit = self.child.wait() => return self.death(exit).await,
                () = tokio::time::sleep(config.probe_every) => {}
            }
            let target = self.target();
            let health = tokio::select! {
                exit = self.child.wait() => return self.death(exit).await,
                health = self.ask_health(&target, config) => health,
            };
            if let Some(reason) = self.judge_health(health, config).await {
                return Failure::died(reason);
            }
            if self.decoding_stands_still(config).await {
                let (task, within) = (self.note.resolved.task, config.hang_after);
                let confirmed = tokio::select! {
                    exit = self.child.wait() => return self.death(exit).await,
                    answer = probe::one_token(&target, task, "probe", within) => answer,
                };
                self.movement = None;
                if let Err(error) = confirmed {
                    return Failure::died(format!("its health answers but it makes no tokens ({})", chain(&error)));
                }
            }
        }
    }

    async fn takes_tools(&self) -> bool {
        let Some(path) = self.adapter.capabilities().props_path else { return true };
        let answer = probe::get(&self.target(), path, HEALTH_WITHIN).await;
        answer.ok().and_then(|answer| self.adapter.read_takes_tools(&answer.body)).unwrap_or(true)
    }

    async fn ask_health(&self, target: &Target, config: &SupervisorConfig) -> Result<Health, String> {
        let within = HEALTH_WITHIN.min(config.hang_after / MISSING_ANSWERS);
        let answer = probe::get(target, self.adapter.capabilities().health_path, within).await;
        answer.map(|answer| self.adapter.read_health(answer.status, &answer.body)).map_err(|error| chain(&error))
    }

    /// Notes one health answer; the reason why the engine counts as hung, if it does by now.
    async fn judge_health(&mut self, health: Result<Health, String>, config: &SupervisorConfig) -> Option<String> {
        if health == Ok(Health::Ready) {
            self.answered = Instant::now();
            self.missing = 0;
            return None;
        }
        self.missing = self.missing.saturating_add(1);
        let silent = self.answered.elapsed();
        if silent < config.hang_after || self.missing < MISSING_ANSWERS {
            return None;
        }
        let why = match health {
            _ if self.child.usage().await.stopped => "it was stopped (SIGSTOP)".to_owned(),
            Ok(Health::Loading) => "it says that it is loading".to_owned(),
            Ok(_) => "its answer is not that of a working engine".to_owned(),
            Err(error) => error,
        };
        Some(format!("it has answered no health probe for {}: {why}", spoken(silent)))
    }

    /// Requests are on it, and it neither sends nor works, or has not sent for a very long time.
    async fn decoding_stands_still(&mut self, config: &SupervisorConfig) -> bool {
        let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| endpoint.load.in_flight() > 0) else {
            self.movement = None;
            return false;
        };
        let look = Look { usage: self.child.usage().await, signs: endpoint.load.pieces() };
        let now = Instant::now();
        let Some(movement) = &mut self.movement else {
            self.movement = Some(Movement::new(look, now));
            return false;
        };
        movement.still_for(look, now) >= config.decode_stall || movement.silent_for(now) >= config.decode_silence
    }

    /// How it died, in words.
    async fn death(&self, exit: Exit) -> Failure {
        let lines = self.child.last_log_lines(DIAGNOSED_LINES);
        let doing = if self.endpoint.is_some() { "the engine died" } else { "the engine died while it loaded" };
        let build = self.note.build.clone();
        let diagnosis =
            tokio::task::spawn_blocking(move || diagnose(exit.code, exit.signal, &lines, &build, &facts::measure_for_launch())).await;
        Failure::died(match diagnosis {
            Ok(diagnosis) if diagnosis.hint.is_empty() => format!("{doing}: {}; the log of the row has all it said", diagnosis.cause),
            Ok(diagnosis) => format!("{doing}: {}; {}", diagnosis.cause, diagnosis.hint),
            Err(_) => format!("{doing}: {exit}"),
        })
    }

    /// Lets nobody in any more, if nobody is inside. True if the gate is shut now.
    pub fn close_if_idle(&self) -> bool {
        self.endpoint.as_ref().is_none_or(|endpoint| endpoint.load.close_if_idle())
    }

    /// Ends it: no new requests, time for the running ones, connections dropped, then the process
    /// (ENGINES 2.2: an engine with a connection open does not exit).
    pub async fn stop(self, config: &SupervisorConfig, hard: &CancellationToken) -> Exit {
        if let Some(endpoint) = &self.endpoint {
            endpoint.load.close();
            tokio::select! {
                () = endpoint.load.drained() => {}
                () = tokio::time::sleep(config.drain) => {}
                () = hard.cancelled() => {}
            }
            endpoint.ended.cancel();
            // Whoever does not drop his connection in this time sees the engine drop it.
            let _ = tokio::time::timeout(DROP_CONNECTIONS, endpoint.load.drained()).await;
        }
        tokio::select! {
            exit = self.child.stop(config.kill_after) => exit,
            () = hard.cancelled() => self.child.kill().await,
        }
    }

    /// Ends it at once: it hangs, or is dead already and only what it left behind has to go.
    pub async fn kill(self) -> Exit {
        if let Some(endpoint) = &self.endpoint {
            endpoint.load.close();
            endpoint.ended.cancel();
        }
        self.child.kill().await
    }
}

/// The longest that an orderly end of an engine takes: what [`Engine::stop`] waits for, step by step.
pub const fn longest_stop(config: &SupervisorConfig) -> Duration {
    config.drain.saturating_add(DROP_CONNECTIONS).saturating_add(config.kill_after).saturating_add(SECOND_SIGNAL)
}

/// The loopback address of an engine.
fn authority(port: u16) -> Authority {
    // A number after a fixed host always makes an authority; the other arm is never taken.
    Authority::try_from(format!("127.0.0.1:{port}")).unwrap_or_else(|_| Authority::from_static("127.0.0.1"))
}

/// The key as a header that no log shows.
pub fn bearer(key: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the fraction is clamped to 0..=1 first")]
fn load_progress(fraction: f32) -> Progress {
    let done = (f64::from(fraction.clamp(0.0, 1.0)) * LOAD_STEPS as f64) as u64;
    Progress { step: "loading the model".into(), done, total: Some(LOAD_STEPS), bytes: false }
}

fn with_lines(reason: String, lines: &[String]) -> String {
    if lines.is_empty() { reason } else { format!("{reason}; its last lines: {}", lines.join(" | ")) }
}
