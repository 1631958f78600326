//! The only place that builds and joins everything ([`parts`]), starts it and stops it.
//!
//! Start: claim the data directory, open the database, load the keys, bind the address, and only then let
//! the reconciler look at the rows, so that a start that fails has touched no engine. Stop: the reverse, and
//! nothing is left behind.

mod error;
mod listener;
mod parts;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::causes::chain;
use crate::config::Config;
use crate::host::instance::Instance;
use crate::keys::{Keys, LocalToken};
use crate::lifecycle::Lifecycle;
use crate::models::Models;
use crate::security::{self, is_loopback};
use crate::store::Store;
use crate::supervisor::longest_stop;

pub use error::StartError;
use parts::Parts;

/// What small tasks, and then the last writes, get to end after everything else has.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// What a hard stop may take beyond the time that engines get between signal and kill. A stop always ends: whatever
/// is stuck by then (a disk, a process that the kernel holds) goes with the process, and guards end the engines.
const HARD_STOP: Duration = Duration::from_secs(20);

/// How much of a control plane is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All of it.
    Serve,
    /// The REST API over the data directory, for one command of the CLI where no server runs: no row is started, adopted
    /// or ended. An engine that proves a build is, and only it is kept by this control plane.
    ApiOnly,
}

/// A control plane that runs.
#[derive(Debug)]
pub struct RunningApp {
    /// Where it listens (the real port, where 0 was asked for).
    pub address: SocketAddr,
    /// Models on disk.
    pub models: Arc<Models>,
    /// Ends it.
    pub lifecycle: Lifecycle,
    parts: Parts,
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
        let path = config.database();
        let failed = |source| StartError::Store { path: path.clone(), source };
        let store = Store::open(&path).await.map_err(failed)?;
        let listener = bind(&config, &store).await?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { address: config.listen, source })?;
        config.listen = address;
        instance.announce(address, mode == Mode::Serve).map_err(StartError::DataDir)?;
        let token = LocalToken::create(&config.data_dir).map_err(StartError::DataDir)?;
        let keys = Keys::load(&store, Some(&token), is_loopback(address.ip())).await.map_err(failed)?;

        let modes = store.list_pool_modes().await.map_err(failed)?;
        let parts = Parts::build(config, store, keys, mode, started);
        for (name, mode) in modes {
            parts.pools.set_mode(&name, crate::routing::Mode::named(&mode));
        }
        parts.start_tasks();
        let service = routes::service(parts.routes(), &parts.config.security, address);
        let (config, lifecycle) = (Arc::clone(&parts.config), parts.lifecycle.clone());
        tracing::info!(%address, data_dir = %config.data_dir.display(), "lifeboat {} listens", env!("CARGO_PKG_VERSION"));
        let accept = async move { listener::serve(listener, service, &config.http, &lifecycle).await };
        let accepting = parts.lifecycle.tracker.spawn(accept);
        let (models, lifecycle) = (Arc::clone(&parts.models), parts.lifecycle.clone());
        Ok(Self { address, models, lifecycle, parts, accepting, _token: token, _instance: instance })
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
        let Self { parts, accepting, lifecycle, _token: token, _instance: instance, .. } = self;
        lifecycle.stop();
        let mut ending = std::pin::pin!(end(&parts, accepting));
        let soft_deadline = parts.config.http.stop_grace.max(longest_stop(&parts.config.supervisor));
        let ended = tokio::select! {
            () = ending.as_mut() => true,
            () = lifecycle.hard.cancelled() => false,
            () = tokio::time::sleep(soft_deadline) => {
                tracing::warn!(deadline_seconds = soft_deadline.as_secs(), "the soft stop took too long, stopping at once");
                false
            }
        };
        if !ended {
            lifecycle.stop_now();
            let last = parts.config.supervisor.kill_after + HARD_STOP;
            if tokio::time::timeout(last, ending).await.is_err() {
                tracing::error!(deadline_seconds = last.as_secs(), "not everything could be ended");
            }
        }
        lifecycle.stop_now();
        lifecycle.tracker.close();
        if tokio::time::timeout(LAST_TASKS, lifecycle.tracker.wait()).await.is_err() {
            tracing::warn!(tasks = lifecycle.tracker.len(), "tasks did not end in time");
        }
        let last_writes = async {
            if let Err(error) = parts.keys.flush(&parts.store).await {
                tracing::warn!(error = chain(&error), "the last use of keys was not written");
            }
            parts.store.close().await;
        };
        if tokio::time::timeout(LAST_TASKS, last_writes).await.is_err() {
            tracing::warn!("the database was not closed in time; what was committed is safe");
        }
        drop(token);
        drop(instance);
        tracing::info!("stopped");
    }
}

/// Ends connections and engines.
async fn end(parts: &Parts, accepting: tokio::task::JoinHandle<()>) {
    // The accept loop cannot fail but by a bug of ours, which the log shows.
    match &parts.supervisor {
        Some(supervisor) if parts.lifecycle.handover.is_cancelled() => {
            // Released first: a hard stop that comes while replies still run must find no engine to end.
            let (_connections, ()) = tokio::join!(accepting, supervisor.release_all());
        }
        Some(supervisor) => {
            let (_connections, ()) = tokio::join!(accepting, supervisor.stop_all());
        }
        None => {
            let _connections = accepting.await;
        }
    }
}

/// Listens, unless that would open this machine to others.
async fn bind(config: &Config, store: &Store) -> Result<TcpListener, StartError> {
    let keys = store.list_keys().await.map_err(|source| StartError::Store { path: config.database(), source })?;
    let keys_exist = keys.iter().any(|key| key.revoked_at.is_none());
    security::check_listen(config.listen, keys_exist)?;
    listener::bind(config.listen).map_err(|source| StartError::Listen { address: config.listen, source })
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
