//! Rows of a server somebody else runs: probed, shown as ready or failed, never started and never stopped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use lifeboat_engines::adapter;
use lifeboat_engines::dialect::{ApiError, ErrorCode};
use lifeboat_engines::queue;
use lifeboat_engines::spec::{EngineSpec, Health};
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Deps;
use super::engine::bearer;
use super::failure::Failure;
use super::publisher::Publisher;
use crate::causes::chain;
use crate::engine_process::probe::{self, Answer, Target};
use crate::host::clock::spoken;
use crate::host::facts;
use crate::host::http::Http;
use crate::registry::{Dialects, Endpoint, LastQueue, PromptCache, RowLoad, RowState};

/// Longest wait for an answer.
const WITHIN: Duration = Duration::from_secs(5);

/// Where engines tell of themselves.
const METRICS_PATH: &str = "/metrics";
/// Longest wait for that.
const METRICS_WITHIN: Duration = Duration::from_millis(500);
/// A server without such a page is asked for it this often.
const METRICS_AGAIN: Duration = Duration::from_secs(60);

/// The routes a server of models has at least one of.
const ROUTES: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"];

/// The part of a model list that matters.
#[derive(Debug, Deserialize)]
struct ModelList {
    data: Vec<ListedModel>,
}

#[derive(Debug, Deserialize)]
struct ListedModel {
    id: String,
}

/// Probes a row for ever and shows what it finds. To be dropped when the row changes.
pub async fn watch(publisher: &mut Publisher, deps: &Deps, http: &Http) -> Failure {
    let spec = publisher.row().spec.clone();
    let target = match target(&spec, deps, http) {
        Ok(target) => target,
        Err(failure) => return failure,
    };
    let adapter = adapter(spec.engine);
    let measured = match tokio::task::spawn_blocking(facts::measure_for_launch).await {
        Ok(measured) => measured,
        Err(error) => return Failure::unavailable(&error),
    };
    let resolved = match adapter.resolve(&spec, None, &measured) {
        Ok(resolved) => resolved,
        Err(error) => return Failure::refused(&error),
    };
    let mut endpoint: Option<Arc<Endpoint>> = None;
    let mut metrics = MetricsPage::default();
    loop {
        let problem = match probe::get(&target, adapter.capabilities().health_path, WITHIN).await {
            Ok(answer) => match adapter.read_health(answer.status, &answer.body) {
                Health::Ready => None,
                Health::Loading => Some("it is still loading".to_owned()),
                Health::Broken => Some(format!("its health path answers {}", answer.status)),
            },
            Err(error) => Some(chain(&error)),
        };
        let shown = publisher.status().state;
        // Asked again after each absence: another server, or another model, may be there now.
        let found = match problem {
            Some(problem) => Err(problem),
            None if shown == RowState::Ready => Ok(None),
            None => upstream_model(&target, &spec).await.map(Some),
        };
        if let Err(problem) = &found {
            let url = spec.url.as_deref().unwrap_or_default();
            let reason = format!("{url} cannot serve: {problem}; probed every {}", spoken(deps.config.supervisor.probe_every));
            publisher
                .show_endpoint(None, |status| {
                    status.state = RowState::Failed;
                    status.state_reason = Some(reason);
                })
                .await;
        } else if let Ok(upstream_model @ Some(_)) = found {
            let reached = endpoint.take().filter(|endpoint| endpoint.upstream_model == upstream_model).unwrap_or_else(|| {
                Arc::new(Endpoint {
                    scheme: target.scheme.clone(),
                    authority: target.authority.clone(),
                    prefix: target.prefix.clone(),
                    authorization: target.authorization.clone(),
                    upstream_model,
                    slots: resolved.slots,
                    context: resolved.context,
                    cache: PromptCache::of(&resolved, false),
                    dialects: Dialects::of(spec.engine),
                    load: RowLoad::default(),
                    queue: LastQueue::default(),
                    ready_since: Instant::now(),
                    load_time: None,
                    ended: CancellationToken::new(),
                })
            });
            endpoint = Some(Arc::clone(&reached));
            publisher
                .show_endpoint(Some(reached), |status| {
                    status.state = RowState::Ready;
                    status.state_reason = None;
                    status.endpoint.clone_from(&spec.url);
                    status.resolved = Some(resolved.clone());
                })
                .await;
        }
        if let Some(endpoint) = endpoint.as_ref().filter(|_| publisher.status().state == RowState::Ready) {
            metrics.read(&target, endpoint).await;
        }
        tokio::time::sleep(deps.config.supervisor.probe_every).await;
    }
}

/// The page on which a server tells of its own queue, if it has one.
#[derive(Debug, Default)]
struct MetricsPage {
    /// It had none; to be asked again then.
    again: Option<Instant>,
}

impl MetricsPage {
    async fn read(&mut self, target: &Target, endpoint: &Endpoint) {
        if self.again.is_some_and(|again| Instant::now() < again) {
            return;
        }
        // One that is too busy to answer in time has said nothing, and is asked again at the next probe.
        let Ok(answer) = probe::get(target, METRICS_PATH, METRICS_WITHIN).await else { return };
        let queue = (answer.status == 200).then(|| queue::read(&String::from_utf8_lossy(&answer.body))).flatten();
        self.again = if queue.is_none() { Some(Instant::now() + METRICS_AGAIN) } else { None };
        if let Some(queue) = queue {
            endpoint.queue.says(queue);
        }
    }
}

fn target(spec: &EngineSpec, deps: &Deps, http: &Http) -> Result<Target, Failure> {
    let url = spec.url.as_deref().unwrap_or_default();
    let unusable = || Failure::died(format!("the url {url:?} is not of the form http://host:port"));
    let parts = url.parse::<Uri>().map_err(|_| unusable())?.into_parts();
    let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else { return Err(unusable()) };
    let prefix = parts.path_and_query.map_or_else(String::new, |path| path.path().trim_end_matches('/').to_owned());
    let https = if scheme == http::uri::Scheme::HTTPS { Some(http.client().map_err(|error| Failure::unavailable(&error))?) } else { None };
    let (authorization, via) = (spec.api_key.as_deref().and_then(bearer), Some(deps.hop.name().clone()));
    Ok(Target { scheme, authority, prefix, authorization, via, https })
}

/// The name that server knows its model by: as the row says, else the only one it lists, else the row's own. `Err` says
/// why it cannot be a server of models at all.
async fn upstream_model(target: &Target, spec: &EngineSpec) -> Result<String, String> {
    let listed = probe::get(target, "/v1/models", WITHIN).await.map_err(|error| chain(&error))?;
    if ApiError::from_engine(listed.status, &listed.body).code == ErrorCode::RequestLoop {
        return Err("this Lifeboat itself answers there, and it cannot be its own engine; give the row another `url`".into());
    }
    let models = serde_json::from_slice::<ModelList>(&listed.body).ok().filter(|_| listed.status == 200).map(|list| list.data);
    if models.is_none() && !speaks_openai(target, &listed).await {
        return Err(format!(
            "it answers, but not as OpenAI's API does (/v1/models: {}, and none of {} is there); is this the base URL of a model server, without /v1?",
            listed.status,
            ROUTES.join(", ")
        ));
    }
    if let Some(name) = &spec.upstream_model {
        return Ok(name.clone());
    }
    Ok(match models.as_deref() {
        Some([only]) => only.id.clone(),
        _ => spec.model_name.clone(),
    })
}

/// Whether a server without a list of models has any of the routes. One that wants a key, or that words its refusals in
/// JSON, is taken for a server of models: some have no list.
async fn speaks_openai(target: &Target, listed: &Answer) -> bool {
    // No such route (404), nothing to post to (405), no such method at all (501).
    let knows = |answer: &Answer| says_object(answer) || !matches!(answer.status, 404 | 405 | 501);
    if matches!(listed.status, 401 | 403) || says_object(listed) {
        return true;
    }
    for route in ROUTES {
        // Nothing any of them could act on.
        if let Ok(answer) = probe::post(target, route, Bytes::from_static(b"{}"), WITHIN).await
            && knows(&answer)
        {
            return true;
        }
    }
    false
}

fn says_object(answer: &Answer) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&answer.body).is_ok()
}
