//! A gateway on a real socket, with rows published by hand.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use lifeboat::activator::Activator;
use lifeboat::config::{Config, GatewayConfig};
use lifeboat::gateway::active::ActiveRequests;
use lifeboat::gateway::{GatewayDeps, Pools, router};
use lifeboat::hop::Hop;
use lifeboat::ids::{Generation, RowId};
use lifeboat::keys::Keys;
use lifeboat::recorder::log::{self, RequestFilter};
use lifeboat::recorder::{Recorder, Retention, UsageEvent};
use lifeboat::registry::{Demand, Dialects, Endpoint, LastQueue, PromptCache, Registry, RowLoad, RowState, RowStatus, RowView};
use lifeboat::store::Store;
use lifeboat::telemetry::metrics::Metrics;
use lifeboat_engines::spec::{DesiredState, EngineKind};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Engine;
use crate::support::client;

/// Waits for something that must happen, and soon.
pub async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it did not happen")
}

/// Everything is kept.
const RETENTION: Retention = Retention { rows: 1000, days: 3650, usage_days: 3650 };

pub struct World {
    pub base: String,
    pub address: SocketAddr,
    pub client: reqwest::Client,
    pub registry: Arc<Registry>,
    pub activator: Activator,
    pub recorder: Arc<Recorder>,
    pub active: Arc<ActiveRequests>,
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    pub token: CancellationToken,
    pub tracker: TaskTracker,
    _data: TempDir,
}

/// What the gateway needs of an engine.
pub fn endpoint(address: SocketAddr, slots: u32) -> Endpoint {
    Endpoint {
        scheme: Scheme::HTTP,
        authority: Authority::try_from(address.to_string()).unwrap(),
        prefix: String::new(),
        authorization: Some("Bearer engine-key".parse().unwrap()),
        upstream_model: None,
        slots,
        context: 4096,
        cache: PromptCache::Pool { tokens: 100_000 },
        dialects: Dialects::of(EngineKind::Sim),
        load: RowLoad::default(),
        queue: LastQueue::default(),
        ready_since: Instant::now(),
        load_time: None,
        ended: CancellationToken::new(),
    }
}

/// A row in some state.
pub fn row(name: &str, state: RowState, endpoint: Option<Endpoint>) -> RowView {
    RowView {
        id: RowId::new(),
        generation: Generation(1),
        model_name: name.to_owned(),
        aliases: Vec::new(),
        engine: EngineKind::Sim,
        desired_state: DesiredState::Running,
        status: RowStatus { state, ..RowStatus::default() },
        endpoint: endpoint.map(Arc::new),
        demand: Arc::new(Demand::default()),
        room: None,
    }
}

impl World {
    pub async fn start() -> Self {
        Self::with(GatewayConfig::default(), true).await
    }

    /// A gateway with these limits; `open` = callers need no key.
    pub async fn with(limits: GatewayConfig, open: bool) -> Self {
        let data = TempDir::with_prefix("lifeboat-gateway-").unwrap();
        let store = Arc::new(Store::open(&data.path().join("lifeboat.db")).await.unwrap());
        let mut config = Config::new(data.path().join("data"));
        config.gateway = limits;
        let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
        let registry = Arc::new(Registry::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&registry)));
        let recorder = Recorder::start(Arc::clone(&metrics), Arc::clone(&store), RETENTION, None, &tracker, token.clone());
        let active = Arc::<ActiveRequests>::default();
        let activator = Activator::default();
        let pools = Pools::new(Arc::clone(&registry), activator.clone(), Arc::clone(&metrics), config.gateway.clone());
        let router = router(GatewayDeps {
            config: Arc::new(config),
            registry: Arc::clone(&registry),
            keys: Arc::new(Keys::load(&store, None, open).await.unwrap()),
            pools,
            metrics: Arc::clone(&metrics),
            recorder: Arc::clone(&recorder),
            active: Arc::clone(&active),
            hop: Hop::default(),
            tracker: tracker.clone(),
            stopping: token.clone(),
            token: token.clone(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = token.clone();
        tracker.spawn(async move {
            let serving = std::future::IntoFuture::into_future(axum::serve(listener, router));
            stop.run_until_cancelled(serving).await;
        });
        Self {
            base: format!("http://{address}"),
            address,
            client: client(),
            registry,
            activator,
            recorder,
            active,
            store,
            metrics,
            token,
            tracker,
            _data: data,
        }
    }

    /// Publishes a ready row over an engine.
    pub fn serve(&self, name: &str, engine: &Engine, slots: u32) -> RowView {
        let view = row(name, RowState::Ready, Some(endpoint(engine.address, slots)));
        self.registry.publish(view.clone());
        view
    }

    pub fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.base))
    }

    /// A JSON request and its whole reply.
    pub async fn call(&self, path: &str, body: &Value) -> (u16, Value) {
        let reply = soon(self.post(path).json(body).send()).await.unwrap();
        let status = reply.status().as_u16();
        let bytes = soon(reply.bytes()).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&bytes))))
    }

    /// A request sent by a task of its own.
    pub fn spawn(&self, path: &str, body: &Value) -> tokio::task::JoinHandle<(u16, Value)> {
        let request = self.post(path).json(body);
        tokio::spawn(async move {
            let reply = request.send().await.unwrap();
            (reply.status().as_u16(), reply.json().await.unwrap())
        })
    }

    /// All finished requests, newest first.
    pub async fn events(&self) -> Vec<UsageEvent> {
        self.recorder.flush().await;
        let lines = log::list(&self.store, &RequestFilter::default(), 1000).await.unwrap();
        lines.into_iter().map(|(_, event)| event).collect()
    }

    /// The last finished request, once so many are done.
    pub async fn finished(&self, count: usize) -> UsageEvent {
        soon(async {
            loop {
                let mut events = self.events().await;
                if events.len() >= count {
                    return events.swap_remove(0);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
    }

    /// Waits until the gauge of waiting requests says so.
    pub async fn until_waiting(&self, name: &str, count: usize) {
        let line = format!("lifeboat_queue_length{{model=\"{name}\"}} {count}\n");
        soon(async {
            while !self.metrics.encode().unwrap().contains(&line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    /// Waits until every slot is free and no request is under way, ends every task, and asserts that all of it happens.
    pub async fn stop(self) {
        soon(async {
            while self.taken() > 0 || !self.active.list().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        drop(self.client);
        self.token.cancel();
        self.tracker.close();
        soon(self.tracker.wait()).await;
    }

    /// Slots taken, over all rows.
    pub fn taken(&self) -> u32 {
        let load = |row: &Arc<RowView>| row.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight() + endpoint.load.light());
        self.registry.snapshot().rows.values().map(load).sum()
    }
}
