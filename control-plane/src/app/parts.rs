//! Every part of a control plane, built once and joined: who gets a handle on whom is decided here and
//! nowhere else. Building starts no engine.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::time::Instant;

use super::Mode;
use crate::activator::Activator;
use crate::api;
use crate::api::servers::feed;
use crate::api::state::{ApiDeps, ApiState};
use crate::causes::chain;
use crate::config::Config;
use crate::download::Downloads;
use crate::engines::Engines;
use crate::events::Events;
use crate::gateway::active::ActiveRequests;
use crate::gateway::{self, GatewayDeps, Pools};
use crate::hop::Hop;
use crate::host::facts;
use crate::host::http::Http;
use crate::jobs::Jobs;
use crate::keys::Keys;
use crate::lifecycle::Lifecycle;
use crate::models::Models;
use crate::reconciler::driver::Driver;
use crate::recorder::{Recorder, Retention};
use crate::registry::Registry;
use crate::store::Store;
use crate::supervisor::{Deps, Supervisor};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::Spans;

/// How often the last use of keys is written.
const FLUSH_EVERY: Duration = Duration::from_secs(60);

/// The parts of one control plane.
#[derive(Debug)]
pub(super) struct Parts {
    pub config: Arc<Config>,
    pub store: Arc<Store>,
    pub keys: Arc<Keys>,
    pub models: Arc<Models>,
    /// `None` where only the API is up.
    pub supervisor: Option<Arc<Supervisor>>,
    pub lifecycle: Lifecycle,
    engines: Arc<Engines>,
    registry: Arc<Registry>,
    activator: Activator,
    events: Arc<Events>,
    jobs: Arc<Jobs>,
    /// How requests are shared among the rows of one name.
    pub pools: Pools,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    active: Arc<ActiveRequests>,
    hop: Hop,
    started: Instant,
}

impl Parts {
    /// Builds them over an open database.
    pub fn build(config: Config, store: Store, keys: Keys, mode: Mode, started: Instant) -> Self {
        let (config, store) = (Arc::new(config), Arc::new(store));
        let lifecycle = Lifecycle::new();
        let (tracker, hard) = (&lifecycle.tracker, &lifecycle.hard);
        let registry = Arc::new(Registry::default());
        let (activator, hop) = (Activator::default(), Hop::default());
        let events = Arc::new(Events::new(config.http.event_ring));
        let downloads = Downloads::new(Http::new(config.sources.connect), &config.sources);
        let models = Arc::new(Models::new(&config, downloads.clone(), facts::measure));
        let engines = Arc::new(Engines::new(Arc::clone(&config), downloads, Models::clone(&models), facts::measure));
        let metrics = Arc::new(Metrics::new(Arc::clone(&registry)));
        let retention = Retention {
            rows: config.gateway.request_log_max_rows,
            days: config.gateway.request_log_max_days,
            usage_days: config.gateway.usage_max_days,
        };
        let spans = Spans::start(&config.telemetry, Http::new(config.sources.connect), &metrics, tracker, hard.clone());
        let recorder = Recorder::start(Arc::clone(&metrics), Arc::clone(&store), retention, spans, tracker, hard.clone());
        let pools = Pools::new(Arc::clone(&registry), activator.clone(), Arc::clone(&metrics), config.gateway.clone());
        let (running, ended) = (config.http.running_jobs, config.http.ended_jobs);
        let jobs = Jobs::new(running, ended, Arc::clone(&events), tracker.clone(), lifecycle.soft.child_token());
        let supervisor = (mode == Mode::Serve).then(|| {
            Arc::new(Supervisor::new(Deps {
                config: Arc::clone(&config),
                store: Arc::clone(&store),
                engines: Arc::clone(&engines),
                models: Arc::clone(&models),
                registry: Arc::clone(&registry),
                activator: activator.clone(),
                hop: hop.clone(),
                tracker: tracker.clone(),
                token: hard.clone(),
            }))
        });
        Self {
            keys: Arc::new(keys),
            jobs: Arc::new(jobs),
            config,
            store,
            models,
            supervisor,
            lifecycle,
            engines,
            registry,
            activator,
            events,
            pools,
            metrics,
            recorder,
            active: Arc::default(),
            hop,
            started,
        }
    }

    /// Starts what runs by itself. The reconciler's first look adopts or starts the engines that are wanted.
    pub fn start_tasks(&self) {
        let Lifecycle { tracker, soft, .. } = &self.lifecycle;
        tracker.spawn(feed::run(Arc::clone(&self.registry), Arc::clone(&self.events), soft.clone()));
        tracker.spawn(flush_keys(Arc::clone(&self.keys), Arc::clone(&self.store), self.lifecycle.clone()));
        let (engines, stopping) = (Arc::clone(&self.engines), soft.clone());
        tracker.spawn(async move { stopping.run_until_cancelled(engines.clean()).await });
        if let Some(supervisor) = &self.supervisor {
            let driver = Driver {
                store: Arc::clone(&self.store),
                registry: Arc::clone(&self.registry),
                supervisor: Arc::clone(supervisor),
                activator: self.activator.clone(),
                token: soft.clone(),
            };
            tracker.spawn(driver.run());
        }
    }

    /// The routes of the REST API and of the data plane.
    pub fn routes(&self) -> Router {
        let api = ApiState::new(ApiDeps {
            config: Arc::clone(&self.config),
            store: Arc::clone(&self.store),
            keys: Arc::clone(&self.keys),
            registry: Arc::clone(&self.registry),
            activator: self.activator.clone(),
            models: Arc::clone(&self.models),
            engines: Arc::clone(&self.engines),
            supervisor: self.supervisor.clone(),
            jobs: Arc::clone(&self.jobs),
            events: Arc::clone(&self.events),
            pools: self.pools.clone(),
            metrics: Arc::clone(&self.metrics),
            recorder: Arc::clone(&self.recorder),
            active: Arc::clone(&self.active),
            started: self.started,
            tracker: self.lifecycle.tracker.clone(),
            stopping: self.lifecycle.soft.clone(),
        });
        let gateway = gateway::router(GatewayDeps {
            config: Arc::clone(&self.config),
            registry: Arc::clone(&self.registry),
            keys: Arc::clone(&self.keys),
            pools: self.pools.clone(),
            metrics: Arc::clone(&self.metrics),
            recorder: Arc::clone(&self.recorder),
            active: Arc::clone(&self.active),
            hop: self.hop.clone(),
            tracker: self.lifecycle.tracker.clone(),
            stopping: self.lifecycle.soft.clone(),
            token: self.lifecycle.hard.clone(),
        });
        api::router(api).merge(gateway)
    }
}

async fn flush_keys(keys: Arc<Keys>, store: Arc<Store>, lifecycle: Lifecycle) {
    loop {
        tokio::select! {
            () = lifecycle.soft.cancelled() => return,
            () = tokio::time::sleep(FLUSH_EVERY) => {}
        }
        if let Err(error) = keys.flush(&store).await {
            tracing::warn!(error = chain(&error), "the last use of keys was not written");
        }
    }
}
