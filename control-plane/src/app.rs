//! The only place that builds and joins everything.
//!
//! Start: claim the data directory, open the database, load the keys, bind the address, and only then let
//! the reconciler look at the rows, so that a start that fails has touched no engine. Stop: the reverse, and
//! nothing is left behind.

mod error;
mod listener;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::activator::Activator;
use crate::api;
use crate::api::servers::feed;
use crate::api::state::{ApiDeps, ApiState};
use crate::config::Config;
use crate::download::Downloads;
use crate::engines::Engines;
use crate::events::Events;
use crate::gateway::{self, GatewayDeps};
use crate::host::facts;
use crate::host::http::Http;
use crate::host::instance::Instance;
use crate::jobs::Jobs;
use crate::keys::{Keys, LocalToken};
use crate::lifecycle::Lifecycle;
use crate::models::Models;
use crate::reconciler::driver::Driver;
use crate::recorder::Recorder;
use crate::registry::Registry;
use crate::security::{self, is_loopback};
use crate::store::Store;
use crate::supervisor::failure::chain;
use crate::supervisor::{Deps, Supervisor};
use crate::telemetry::metrics::Metrics;

pub use error::StartError;

/// How often the last use of keys is written.
const FLUSH_EVERY: Duration = Duration::from_secs(60);
/// What small tasks get to end after everything else has.
const LAST_TASKS: Duration = Duration::from_secs(5);

/// How much of a control plane is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All of it.
    Serve,
    /// The REST API over the data directory, for one command of the CLI where no server runs: no engine is
    /// started, adopted or ended.
    ApiOnly,
}

/// A control plane that runs.
#[derive(Debug)]
pub struct RunningApp {
    /// Where it listens (the real port, where 0 was asked for).
    pub address: SocketAddr,
    /// Observed rows.
    pub registry: Arc<Registry>,
    /// Models on disk.
    pub models: Arc<Models>,
    /// Ends it.
    pub lifecycle: Lifecycle,
    config: Arc<Config>,
    store: Arc<Store>,
    keys: Arc<Keys>,
    supervisor: Option<Arc<Supervisor>>,
    accepting: tokio::task::JoinHandle<()>,
    // Dropped in this order: the token's file goes while the directory is still ours.
    _token: LocalToken,
    _instance: Instance,
}

impl RunningApp {
    /// Builds, joins and starts everything; returns once the address is listened on.
    pub async fn start(mut config: Config, mode: Mode) -> Result<Self, StartError> {
        let started = Instant::now();
        let instance = Instance::claim(&config.data_dir)?;
        let store = Arc::new(Store::open(&config.database()).await?);
        let listener = bind(&config, &store).await?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { address: config.listen, source })?;
        config.listen = address;
        instance.announce(address).map_err(StartError::DataDir)?;
        let token = LocalToken::create(&config.data_dir).map_err(StartError::DataDir)?;
        let keys = Arc::new(Keys::load(&store, Some(&token), is_loopback(address.ip())).await?);

        let config = Arc::new(config);
        let lifecycle = Lifecycle::new();
        let registry = Arc::new(Registry::default());
        let activator = Activator::default();
        let events = Arc::new(Events::new(config.http.event_ring));
        let downloads = Downloads::new(Http::new(config.sources.connect), &config.sources);
        let models = Arc::new(Models::new(&config, downloads.clone(), facts::measure));
        let engines = Arc::new(Engines::new(Arc::clone(&config), downloads, Models::clone(&models), facts::measure));
        let metrics = Arc::new(Metrics::new(Arc::clone(&registry)));
        let supervisor = (mode == Mode::Serve).then(|| {
            Arc::new(Supervisor::new(Deps {
                config: Arc::clone(&config),
                store: Arc::clone(&store),
                engines: Arc::clone(&engines),
                models: Arc::clone(&models),
                registry: Arc::clone(&registry),
                activator: activator.clone(),
                tracker: lifecycle.tracker.clone(),
                token: lifecycle.hard.clone(),
            }))
        });
        let jobs = Jobs::new(
            config.http.running_jobs,
            config.http.ended_jobs,
            Arc::clone(&events),
            lifecycle.tracker.clone(),
            lifecycle.soft.child_token(),
        );
        if let Some(supervisor) = &supervisor {
            let driver = Driver {
                store: Arc::clone(&store),
                registry: Arc::clone(&registry),
                supervisor: Arc::clone(supervisor),
                activator: activator.clone(),
                token: lifecycle.soft.clone(),
            };
            lifecycle.tracker.spawn(driver.run());
        }
        lifecycle.tracker.spawn(feed::run(Arc::clone(&registry), Arc::clone(&events), lifecycle.soft.clone()));
        lifecycle.tracker.spawn(flush_keys(Arc::clone(&keys), Arc::clone(&store), lifecycle.clone()));
        let api = ApiState::new(ApiDeps {
            config: Arc::clone(&config),
            store: Arc::clone(&store),
            keys: Arc::clone(&keys),
            registry: Arc::clone(&registry),
            activator,
            models: Arc::clone(&models),
            engines,
            supervisor: supervisor.clone(),
            jobs: Arc::new(jobs),
            events,
            metrics,
            started,
            tracker: lifecycle.tracker.clone(),
            stopping: lifecycle.soft.clone(),
        });
        let gateway = gateway::router(GatewayDeps {
            config: Arc::clone(&config),
            registry: Arc::clone(&registry),
            keys: Arc::clone(&keys),
            activator: api.activator.clone(),
            metrics: Arc::clone(&api.metrics),
            recorder: Recorder::start(Arc::clone(&api.metrics), config.gateway.recent_requests, &lifecycle.tracker, lifecycle.hard.clone()),
            tracker: lifecycle.tracker.clone(),
            token: lifecycle.hard.clone(),
        });
        let service = routes::service(api::router(api).merge(gateway), &config.security, address);
        let accepting = lifecycle.tracker.spawn({
            let (config, lifecycle) = (Arc::clone(&config), lifecycle.clone());
            async move { listener::serve(listener, service, &config.http, &lifecycle).await }
        });
        tracing::info!(%address, data_dir = %config.data_dir.display(), "lifeboat {} listens", env!("CARGO_PKG_VERSION"));
        Ok(Self { address, registry, models, lifecycle, config, store, keys, supervisor, accepting, _token: token, _instance: instance })
    }

    /// Where programs of this machine reach it.
    pub fn base_url(&self) -> String {
        format!("http://{}", reachable(self.address))
    }

    /// Runs until something asks for the stop, then stops.
    pub async fn run(self) {
        self.lifecycle.soft.cancelled().await;
        self.stop().await;
    }

    /// Soft stop, turned hard by [`Lifecycle::stop_now`] or by its deadline. Returns when nothing is left.
    pub async fn stop(self) {
        let Self { lifecycle, config, store, keys, supervisor, accepting, .. } = self;
        lifecycle.stop();
        let ending = async {
            // The accept loop cannot fail but by a bug of ours, which the log shows.
            match &supervisor {
                Some(supervisor) if lifecycle.handover.is_cancelled() => {
                    let _connections = accepting.await;
                    supervisor.release_all().await;
                }
                Some(supervisor) => {
                    let (_connections, ()) = tokio::join!(accepting, supervisor.stop_all());
                }
                None => {
                    let _connections = accepting.await;
                }
            }
        };
        let mut ending = std::pin::pin!(ending);
        let deadline = config.http.stop_grace.max(config.supervisor.drain + config.supervisor.kill_after);
        if tokio::time::timeout(deadline, ending.as_mut()).await.is_err() {
            tracing::warn!(deadline_seconds = deadline.as_secs(), "the soft stop took too long, stopping at once");
            lifecycle.stop_now();
            ending.await;
        }
        lifecycle.stop_now();
        lifecycle.tracker.close();
        if tokio::time::timeout(LAST_TASKS, lifecycle.tracker.wait()).await.is_err() {
            tracing::warn!(tasks = lifecycle.tracker.len(), "tasks did not end in time");
        }
        if let Err(error) = keys.flush(&store).await {
            tracing::warn!(error = chain(&error), "the last use of keys was not written");
        }
        store.close().await;
        tracing::info!("stopped");
    }
}

/// Listens, unless that would open this machine to others.
async fn bind(config: &Config, store: &Store) -> Result<TcpListener, StartError> {
    let keys_exist = store.list_keys().await?.iter().any(|key| key.revoked_at.is_none());
    security::check_listen(config.listen, keys_exist)?;
    TcpListener::bind(config.listen).await.map_err(|source| StartError::Listen { address: config.listen, source })
}

/// The same address as a client on this machine has to write it.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
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
