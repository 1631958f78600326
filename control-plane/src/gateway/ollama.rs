//! Ollama's routes, for clients that speak nothing else. What they ask is always translated; see [`super::translate`].
//!
//! Models are loaded and unloaded by their rows: `keep_alive` and options about loading are ignored, and routes that
//! would change models (`/api/pull`, `/api/delete`, …) are not here. The admin API has other paths below `/api`.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, Uri};
use jiff::Timestamp;
use lifeboat_engines::dialect::{self, Dialect, ollama};
use lifeboat_engines::spec::{EngineKind, Task};
use serde_json::{Value, json};

use super::error::Failure;
use super::outlook::Class;
use super::route::{Api, Route, Shape};
use super::{Gateway, exchange, json, served, with_id, wrong_method};
use crate::keys::{Principal, Scope};
use crate::registry::{RowState, RowView};

/// The release of Ollama whose API this is.
const VERSION: &str = "0.12.0";

const fn route(path: &'static str, api: Api) -> Route {
    Route {
        path,
        upstream: path,
        dialect: Dialect::Ollama,
        class: Class::Generation,
        shape: Shape::Json,
        has_prompt: false,
        api,
        says_end: true,
    }
}

/// Every route that an engine answers.
static ROUTES: [Route; 4] = [
    Route { has_prompt: true, ..route("/api/chat", Api::Ollama(ollama::Endpoint::Chat)) },
    Route { has_prompt: true, ..route("/api/generate", Api::Ollama(ollama::Endpoint::Generate)) },
    route("/api/embed", Api::OllamaEmbed(ollama::embed::Endpoint::Embed)),
    route("/api/embeddings", Api::OllamaEmbed(ollama::embed::Endpoint::Embeddings)),
];

/// Adds them all.
pub(super) fn mount(mut router: Router<Arc<Gateway>>) -> Router<Arc<Gateway>> {
    for route in &ROUTES {
        let answer = move |State(gateway): State<Arc<Gateway>>, request: Request| exchange::exchange(gateway, route, request);
        router = router.route(route.path, post(answer).fallback(wrong_method));
    }
    router
        .route("/api/tags", get(list_tags).fallback(wrong_method))
        .route("/api/ps", get(list_loaded).fallback(wrong_method))
        .route("/api/show", post(show).fallback(wrong_method))
        .route("/api/version", get(version).fallback(wrong_method))
}

/// Whether a path is one of these.
pub(super) fn has(uri: &Uri) -> bool {
    uri.path().starts_with("/api/")
}

async fn version() -> Response {
    json(&json!({ "version": VERSION }))
}

async fn list_tags(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response {
    list(&gateway, &headers, |_| true, entry)
}

async fn list_loaded(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response {
    let is_loaded = |pool: &[Arc<RowView>]| pool.iter().any(|row| row.status.state == RowState::Ready);
    list(&gateway, &headers, is_loaded, |name, pool| {
        let mut entry = entry(name, pool);
        // An idle row is unloaded by its own rule, which Ollama's clients cannot be told.
        entry["expires_at"] = json!("9999-12-31T23:59:59Z");
        entry["size_vram"] = entry["size"].clone();
        entry["context_length"] = json!(context(pool));
        entry
    })
}

fn list(
    gateway: &Gateway,
    headers: &HeaderMap,
    keep: impl Fn(&[Arc<RowView>]) -> bool,
    entry: impl Fn(&str, &[Arc<RowView>]) -> Value,
) -> Response {
    let reply = match caller(gateway, headers) {
        Err(failure) => failure.response(Dialect::Ollama),
        Ok(caller) => {
            let snapshot = gateway.registry.snapshot();
            let models: Vec<_> = served(&snapshot, &caller).filter(|(_, pool)| keep(pool)).map(|(name, pool)| entry(name, pool)).collect();
            json(&json!({ "models": models }))
        }
    };
    with_id(headers, reply)
}

async fn show(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Bytes) -> Response {
    let reply = match described(&gateway, &headers, &body) {
        Ok(described) => json(&described),
        Err(failure) => failure.response(Dialect::Ollama),
    };
    with_id(&headers, reply)
}

fn described(gateway: &Gateway, headers: &HeaderMap, body: &[u8]) -> Result<Value, Failure> {
    let caller = caller(gateway, headers)?;
    let snapshot = gateway.registry.snapshot();
    let known = || exchange::known(&snapshot, Some(&caller)).into_iter();
    let asked = asked(body)?.ok_or_else(|| Failure::missing_model(known()))?;
    let name = exchange::known_as(&asked, Dialect::Ollama, &snapshot);
    let Some(pool) = snapshot.by_name.get(name) else { return Err(Failure::unknown_model(name, known())) };
    if !exchange::may_use(&caller, name, pool) {
        return Err(Failure::model_not_allowed(name, known()));
    }
    let entry = entry(name, pool);
    Ok(json!({
        "modelfile": "", "parameters": "", "template": "", "details": entry["details"], "modified_at": entry["modified_at"],
        "model_info": { "general.architecture": "lifeboat", "lifeboat.context_length": context(pool) },
        "capabilities": capabilities(pool),
    }))
}

/// The model's name under either of the fields that clients use.
fn asked(body: &[u8]) -> Result<Option<String>, Failure> {
    if let Some((name, _)) = dialect::peek(body)?.model {
        return Ok(Some(name));
    }
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    Ok(value["name"].as_str().map(str::to_owned))
}

fn caller(gateway: &Gateway, headers: &HeaderMap) -> Result<Principal, Failure> {
    gateway.keys.authorize(headers, Scope::Inference).map_err(Failure::denied)
}

fn entry(name: &str, pool: &[Arc<RowView>]) -> Value {
    let modified = Timestamp::from_second(super::created(pool)).unwrap_or(Timestamp::UNIX_EPOCH).to_string();
    let size = pool.iter().filter_map(|row| Some(row.status.resolved.as_ref()?.memory.weights_bytes)).max().unwrap_or(0);
    // Ollama's digest names a file's content; here it names the row, which is as steady.
    let digest = pool.first().map_or_else(String::new, |row| row.id.0.simple().to_string().repeat(2));
    let format = if pool.iter().any(|row| row.engine == EngineKind::LlamaCpp) { "gguf" } else { "" };
    json!({
        "name": name, "model": name, "modified_at": modified, "size": size, "digest": digest,
        "details": {
            "parent_model": "", "format": format, "family": "", "families": [], "parameter_size": "", "quantization_level": "",
        },
    })
}

fn context(pool: &[Arc<RowView>]) -> u32 {
    pool.iter().filter_map(|row| Some(row.status.resolved.as_ref()?.context)).min().unwrap_or(0)
}

fn capabilities(pool: &[Arc<RowView>]) -> &'static [&'static str] {
    let embeds = pool.iter().any(|row| row.status.resolved.as_ref().is_some_and(|resolved| resolved.task == Task::Embedding));
    let takes_tools = pool.iter().filter_map(|row| row.endpoint.as_ref()).all(|endpoint| endpoint.dialects.takes_tools);
    match (embeds, takes_tools) {
        (true, _) => &["embedding"],
        (false, true) => &["completion", "tools"],
        (false, false) => &["completion"],
    }
}
