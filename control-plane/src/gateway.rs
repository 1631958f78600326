//! The data plane: `/v1/*` for OpenAI's and Anthropic's clients, over whichever engines serve.
//!
//! One request is one straight line (`exchange`): key, body, model, slot, engine, reply. The body goes to the engine byte
//! for byte but for what that engine must be told otherwise (model, slot, that it is to stream), the reply comes back as it
//! is unless it has to be told in another dialect; neither touches the database. A slot is held by the reply's body and
//! released by its end or drop and by nothing else.
//!
//! - `openai`, `anthropic` the routes of each dialect, and its list of models; `route` what a route is
//! - `intake` request bodies, bounded; `peek` the few fields that are read
//! - `prompt` what the router is told of a request; `admission` who may use an engine now and who waits, by the decisions of
//!   [`crate::routing`]; `fleet` its rows as the router knows them; `outlook` whether waiting makes sense; `permit` the right
//!   to use an engine; `pools` all of it for those who show or set something
//! - `proxy` one call up to its first byte, and what may be tried again
//! - `translate` how an engine is asked, and its reply in the client's dialect; `ollama` the routes that always need it
//! - `body` the rest of the reply; `resume` another engine that goes on with it; `heartbeat` company for those who wait
//! - `standing` what a key has left, as headers
//! - `active` the requests under way, and how one is ended
//! - `error` every failure in either dialect; `meter` what the recorder gets; `charge` what a key pays

pub mod active;
mod admission;
mod anthropic;
mod body;
mod charge;
mod error;
mod exchange;
mod fleet;
mod heartbeat;
mod intake;
mod interleave;
mod meter;
mod ollama;
mod openai;
mod outlook;
mod peek;
mod permit;
mod pools;
mod prompt;
mod proxy;
mod resume;
mod retries;
mod route;
mod standing;
#[cfg(test)]
mod testing;
mod translate;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http::{HeaderMap, Method, Uri};
use lifeboat_engines::dialect::Dialect;
use lifeboat_engines::spec::DesiredState;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::active::ActiveRequests;
use self::admission::Admission;
use self::error::Failure;
use self::intake::Intake;
pub use self::pools::{Pools, RetriesView};
use self::proxy::Proxy;
use crate::config::{Config, GatewayConfig};
use crate::hop::Hop;
use crate::keys::{Keys, Principal, Scope};
use crate::recorder::Recorder;
use crate::registry::{Registry, RowView, Snapshot};
use crate::telemetry::metrics::Metrics;

/// What the gateway needs of the rest.
#[derive(Debug, Clone)]
pub struct GatewayDeps {
    /// Settings.
    pub config: Arc<Config>,
    /// All rows.
    pub registry: Arc<Registry>,
    /// All keys.
    pub keys: Arc<Keys>,
    /// Who may use which row, and who waits.
    pub pools: Pools,
    /// Numbers.
    pub metrics: Arc<Metrics>,
    /// Takes usage events.
    pub recorder: Arc<Recorder>,
    /// Requests under way.
    pub active: Arc<ActiveRequests>,
    /// Names this control plane to the engines.
    pub hop: Hop,
    /// Holds every task.
    pub tracker: TaskTracker,
    /// Soft stop: nothing new is begun for a reply that breaks off.
    pub stopping: CancellationToken,
    /// Hard stop. Connections to engines end with the calls on them, idle ones with the routes.
    pub token: CancellationToken,
}

/// What every request shares.
#[derive(Debug)]
struct Gateway {
    stopping: CancellationToken,
    config: GatewayConfig,
    registry: Arc<Registry>,
    keys: Arc<Keys>,
    admission: Arc<Admission>,
    proxy: Arc<Proxy>,
    intake: Arc<Intake>,
    recorder: Arc<Recorder>,
    active: Arc<ActiveRequests>,
    hop: Hop,
}

/// The routes of the data plane. Starts the task that follows the registry on the given tracker.
pub fn router(deps: GatewayDeps) -> Router {
    let config = deps.config.gateway.clone();
    let admission = deps.pools.0;
    deps.tracker.spawn(Arc::clone(&admission).follow(deps.token.clone()));
    let gateway = Arc::new(Gateway {
        proxy: Proxy::new(&config, &deps.tracker, &deps.stopping),
        stopping: deps.stopping,
        intake: Intake::new(&config, deps.metrics),
        config,
        registry: deps.registry,
        keys: deps.keys,
        admission,
        recorder: deps.recorder,
        active: deps.active,
        hop: deps.hop,
    });
    let mut router = Router::new();
    for route in openai::ROUTES.iter().chain(&anthropic::ROUTES) {
        let answer = move |State(gateway): State<Arc<Gateway>>, request: Request| exchange::exchange(gateway, route, request);
        router = router.route(route.path, post(answer).fallback(wrong_method));
    }
    ollama::mount(router)
        .route("/v1/models", get(list_models).fallback(wrong_method))
        .route("/v1/models/{*id}", get(show_model).fallback(wrong_method))
        .route("/v1/{*rest}", any(unknown_path))
        .with_state(gateway)
}

/// The dialect of a client on a route that both have.
fn dialect(headers: &HeaderMap, uri: &Uri) -> Dialect {
    if ollama::has(uri) {
        return Dialect::Ollama;
    }
    if headers.contains_key(anthropic::VERSION) || uri.path().starts_with("/v1/messages") { Dialect::Anthropic } else { Dialect::OpenAi }
}

async fn unknown_path(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    with_id(&headers, Failure::unknown_path(&method, uri.path()).response(dialect(&headers, &uri)))
}

async fn wrong_method(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    with_id(&headers, Failure::wrong_method(&method, uri.path()).response(dialect(&headers, &uri)))
}

async fn list_models(State(gateway): State<Arc<Gateway>>, uri: Uri, headers: HeaderMap) -> Response {
    let dialect = dialect(&headers, &uri);
    let snapshot = gateway.registry.snapshot();
    let reply = match (gateway.keys.authorize(&headers, Scope::Inference), dialect) {
        // It would look like a server of models, and be its own engine.
        _ if gateway.hop.is_in(&headers) => Failure::request_loop().response(dialect),
        (Err(denied), _) => Failure::denied(denied).response(dialect),
        (Ok(caller), Dialect::OpenAi | Dialect::Ollama) => json(&openai::models(&snapshot, &caller)),
        (Ok(caller), Dialect::Anthropic) => json(&anthropic::models(&snapshot, &caller)),
    };
    with_id(&headers, reply)
}

async fn show_model(
    State(gateway): State<Arc<Gateway>>,
    uri: Uri,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let dialect = dialect(&headers, &uri);
    let snapshot = gateway.registry.snapshot();
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let reply = match (gateway.keys.authorize(&headers, Scope::Inference), snapshot.by_name.get(&id), dialect) {
        (Err(denied), ..) => Failure::denied(denied).response(dialect),
        (Ok(caller), None, _) => Failure::unknown_model(&id, exchange::known(&snapshot, Some(&caller)).into_iter()).response(dialect),
        (Ok(caller), Some(pool), _) if !exchange::may_use(&caller, &id, pool) => {
            Failure::model_not_allowed(&id, exchange::known(&snapshot, Some(&caller)).into_iter()).response(dialect)
        }
        (Ok(_), Some(pool), Dialect::OpenAi | Dialect::Ollama) => json(&openai::model(&id, pool)),
        (Ok(_), Some(pool), Dialect::Anthropic) => json(&anthropic::model(&id, pool)),
    };
    with_id(&headers, reply)
}

fn json(value: &impl Serialize) -> Response {
    axum::Json(value).into_response()
}

fn with_id(headers: &HeaderMap, mut response: Response) -> Response {
    response.headers_mut().insert("x-request-id", exchange::request_id(headers).1);
    response
}

/// Names that a caller may use now or after a wait, in order: those whose rows are not all stopped by their operator.
fn served<'a>(snapshot: &'a Snapshot, caller: &Principal) -> impl Iterator<Item = (&'a str, &'a [Arc<RowView>])> + use<'a> {
    exchange::known(snapshot, Some(caller)).into_iter().filter_map(|name| {
        let pool = snapshot.by_name.get(name)?;
        pool.iter().any(|row| row.desired_state != DesiredState::Stopped).then_some((name, pool.as_slice()))
    })
}

/// Unix seconds at which the oldest row of a pool was made: its id tells.
fn created(pool: &[Arc<RowView>]) -> i64 {
    let made = pool.iter().filter_map(|row| row.id.0.get_timestamp()).map(|time| time.to_unix().0).min();
    made.and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0)
}
