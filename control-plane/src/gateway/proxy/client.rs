//! The pooled HTTP client of the hot path, and its twin without a pool.
//!
//! Engines close idle connections (llama-server after 5 s), so ours are given up before that. Where a reused connection
//! turns out dead, the twin makes the one retry on a connection that is surely new. TLS is set up only when the first
//! `https` engine is called: reading the system's certificates costs memory that most setups never need.

use std::sync::OnceLock;
use std::time::Duration;

use http::uri::Scheme;
use http::{Extensions, Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, Client, connect::Connect};
use hyper_util::rt::TokioTimer;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::connector::{Answered, Connector};
use super::outgoing::Segments;
use crate::causes::chain;

/// Idle connections are given up before llama-server closes them at 5 s.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Idle connections kept for one engine; as many as a row may have slots.
const POOL_SIZE: usize = 256;
/// Read buffer of one connection: some tokens of a stream; a larger reply takes more reads.
const READ_BUFFER: usize = 4 << 10;

/// Runs connection tasks on the tracker, so that a stop waits for them. They end with their call, or with the pool.
#[derive(Debug, Clone)]
pub(super) struct Tasks(pub TaskTracker);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

#[derive(Debug, Clone)]
struct Pair<C> {
    pooled: Client<C, Segments>,
    single: Client<C, Segments>,
}

impl<C: Connect + Clone + Send + Sync + 'static> Pair<C> {
    fn new(connector: &C, tasks: &Tasks) -> Self {
        let build = |idle| {
            Client::builder(tasks.clone())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(idle)
                .http1_read_buf_exact_size(READ_BUFFER)
                .build(connector.clone())
        };
        Self { pooled: build(POOL_SIZE), single: build(0) }
    }

    async fn send(&self, request: &(dyn Fn() -> Request<Segments> + Sync)) -> Result<Response<Incoming>, Fault> {
        match self.pooled.request(request()).await {
            Err(error) if was_reused(&error) => self.single.request(request()).await.map_err(|error| fault(&error)),
            sent => sent.map_err(|error| fault(&error)),
        }
    }
}

/// Whether the request failed on a connection that had answered an earlier one.
fn was_reused(error: &legacy::Error) -> bool {
    let mut extras = Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extras);
    }
    extras.get::<Answered>().is_some_and(Answered::get)
}

fn fault(error: &legacy::Error) -> Fault {
    if error.is_connect() { Fault::Connect(chain(error)) } else { Fault::Closed(chain(error)) }
}

/// Both schemes.
#[derive(Debug)]
pub(super) struct Clients {
    connector: Connector,
    tasks: Tasks,
    plain: Pair<Connector>,
    secure: OnceLock<Pair<HttpsConnector<Connector>>>,
}

impl Clients {
    pub(super) fn new(connector: Connector, tasks: Tasks) -> Self {
        Self { plain: Pair::new(&connector, &tasks), secure: OnceLock::new(), connector, tasks }
    }

    /// Sends the request that `request` builds; a second time, on a new connection, if the first one was reused and dead.
    pub(super) async fn send(
        &self,
        scheme: &Scheme,
        request: &(dyn Fn() -> Request<Segments> + Sync),
    ) -> Result<Response<Incoming>, Fault> {
        if *scheme != Scheme::HTTPS {
            return self.plain.send(request).await;
        }
        self.secure()?.send(request).await
    }

    fn secure(&self) -> Result<&Pair<HttpsConnector<Connector>>, Fault> {
        if let Some(pair) = self.secure.get() {
            return Ok(pair);
        }
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new()
            .with_provider_and_platform_verifier(provider)
            .map_err(|error| Fault::Connect(format!("the system's certificates cannot be read: {error}")))?;
        let connector = builder.https_or_http().enable_http1().wrap_connector(self.connector.clone());
        Ok(self.secure.get_or_init(|| Pair::new(&connector, &self.tasks)))
    }
}
