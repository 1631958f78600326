//! The HTTP face: llama-server's paths, its key check, its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body as HttpBody;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::args::{CacheKind, Settings};
use super::decode::Handle;
use super::faults::Fault;
use super::replies::{Dialect, Finish, Reply, garbage};
use super::request::Body;
use super::slots::{Event, Job, Usage};
use super::text::{DIMENSIONS, VOCABULARY, embed, relevance, tokenize, tokens_of};
use super::tools::Script;
use crate::host::clock;

/// Events on their way to one client; a client that reads slower is left out of the batch.
const EVENTS: usize = 64;
/// Largest body read: more than the gateway passes on. llama-server takes 100 MiB.
const MAX_BODY_BYTES: usize = 128 << 20;

/// What every handler needs.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    key: Option<String>,
    decode: Handle,
    loaded: CancellationToken,
    requests: AtomicU64,
}

type App = State<Arc<Shared>>;

/// The routes. `loaded` is cancelled once the model is loaded.
pub fn router(settings: Settings, key: Option<String>, decode: Handle, loaded: CancellationToken) -> Router {
    let shared = Arc::new(Shared { settings, key, decode, loaded, requests: AtomicU64::new(0) });
    let others = Router::new()
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/responses", post(responses));
    Router::new()
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/models", get(models))
        .route("/v1/models", get(models))
        .route("/props", get(props))
        .route("/slots", get(slots))
        .route("/metrics", get(metrics))
        .route("/v1/chat/completions", post(chat))
        .route("/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/completion", post(native))
        .route("/completions", post(native))
        .merge(if shared.settings.chat_only { Router::new() } else { others })
        .route("/v1/embeddings", post(embeddings))
        .route("/embeddings", post(embeddings))
        .route("/v1/rerank", post(rerank))
        .route("/rerank", post(rerank))
        .route("/tokenize", post(tokenize_text))
        .fallback(|| async { unknown() })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), admit))
        .with_state(shared)
}

/// 503 until loaded, whatever the path and the key; then the key, but for /health.
async fn admit(State(shared): App, request: Request, next: Next) -> Response {
    if !shared.loaded.is_cancelled() {
        let mut refusal = error(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "Loading model");
        refusal.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        return refusal;
    }
    let public = matches!(request.uri().path(), "/health" | "/v1/health");
    if !public && shared.key.as_deref().is_some_and(|key| sent_key(request.headers()) != Some(key)) {
        return error(StatusCode::UNAUTHORIZED, "authentication_error", "Invalid API Key");
    }
    next.run(request).await
}

fn sent_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("authorization").and_then(|value| value.strip_prefix("Bearer ")).or_else(|| text("x-api-key"))
}

fn error_body(status: StatusCode, kind: &str, message: &str) -> Value {
    json!({"error": {"code": status.as_u16(), "message": message, "type": kind}})
}

fn error(status: StatusCode, kind: &str, message: &str) -> Response {
    (status, axum::Json(error_body(status, kind, message))).into_response()
}

fn bad_request(message: &str) -> Response {
    error(StatusCode::BAD_REQUEST, "invalid_request_error", message)
}

fn unknown() -> Response {
    error(StatusCode::NOT_FOUND, "not_found_error", "File Not Found")
}

fn gone() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "shutting down")
}

async fn health() -> Response {
    axum::Json(json!({"status": "ok"})).into_response()
}

async fn models(State(shared): App) -> Response {
    let context = shared.settings.context;
    axum::Json(json!({
        "object": "list",
        "data": [{
            "id": shared.settings.model, "aliases": [], "tags": [], "object": "model", "created": clock::unix_millis() / 1000,
            "owned_by": "llamacpp", "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "meta": {"vocab_type": 1, "n_vocab": VOCABULARY, "n_ctx": context, "n_ctx_train": context, "n_embd": DIMENSIONS,
                     "n_params": 0, "size": 0, "ftype": "sim"},
        }],
    }))
    .into_response()
}

async fn props(State(shared): App) -> Response {
    if shared.settings.cache == CacheKind::SharedPool {
        return unknown();
    }
    let settings = &shared.settings;
    axum::Json(json!({
        "default_generation_settings": {"params": {}, "n_ctx": settings.context}, "total_slots": settings.slots,
        "model_alias": settings.model, "model_ftype": "sim", "model_path": "", "modalities": {"vision": false, "video": false, "audio": false},
        "endpoint_slots": true, "endpoint_props": false, "endpoint_metrics": true, "chat_template": "chatml", "chat_template_caps": {},
        "bos_token": "", "eos_token": "<|im_end|>", "build_info": concat!("sim-engine ", env!("CARGO_PKG_VERSION")), "is_sleeping": false,
    }))
    .into_response()
}

async fn slots(State(shared): App) -> Response {
    if shared.settings.cache == CacheKind::SharedPool {
        return unknown();
    }
    let Some(report) = shared.decode.report().await else { return gone() };
    let context = shared.settings.context;
    let slots: Vec<Value> = report
        .slots
        .iter()
        .enumerate()
        .map(|(id, slot)| {
            let mut view = json!({"id": id, "n_ctx": context, "speculative": false, "is_processing": slot.serving.is_some()});
            if let Some((usage, left)) = slot.serving {
                view["n_prompt_tokens"] = json!(usage.prompt_tokens);
                view["n_prompt_tokens_processed"] = json!(usage.prompt_tokens - usage.cached_tokens);
                view["n_prompt_tokens_cache"] = json!(usage.cached_tokens);
                view["next_token"] =
                    json!([{"has_next_token": left > 0, "has_new_line": false, "n_remain": left, "n_decoded": usage.completion_tokens}]);
            }
            view
        })
        .collect();
    axum::Json(slots).into_response()
}

async fn metrics(State(shared): App) -> Response {
    let Some(report) = shared.decode.report().await else { return gone() };
    let mut response = super::metrics::text(&report, &shared.settings.model).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; version=0.0.4"));
    response
}

async fn chat(state: App, headers: HeaderMap, body: Bytes) -> Response {
    generate(state, &headers, &body, Dialect::Chat).await
}

async fn completions(state: App, headers: HeaderMap, body: Bytes) -> Response {
    generate(state, &headers, &body, Dialect::Completion).await
}

async fn native(state: App, headers: HeaderMap, body: Bytes) -> Response {
    generate(state, &headers, &body, Dialect::Native).await
}

async fn messages(state: App, headers: HeaderMap, body: Bytes) -> Response {
    generate(state, &headers, &body, Dialect::Messages).await
}

async fn responses(state: App, headers: HeaderMap, body: Bytes) -> Response {
    generate(state, &headers, &body, Dialect::Responses).await
}

fn read(body: &[u8]) -> Result<Body, Box<Response>> {
    serde_json::from_slice(body).map_err(|problem| Box::new(bad_request(&problem.to_string())))
}

async fn count_tokens(body: Bytes) -> Response {
    match read(&body).map(|body| body.prompt(Dialect::Messages)) {
        Ok(Ok(prompt)) => axum::Json(json!({"input_tokens": tokens_of(prompt.len())})).into_response(),
        Ok(Err(missing)) => bad_request(&missing),
        Err(refusal) => *refusal,
    }
}

async fn tokenize_text(body: Bytes) -> Response {
    match read(&body) {
        Ok(body) => {
            let text = body.content.as_ref().and_then(Value::as_str).unwrap_or_default();
            axum::Json(json!({"tokens": tokenize(text)})).into_response()
        }
        Err(refusal) => *refusal,
    }
}

async fn embeddings(State(shared): App, headers: HeaderMap, body: Bytes) -> Response {
    let (body, inputs) = match read(&body).map(|body| (body.inputs(), body)) {
        Ok((Ok(inputs), body)) => (body, inputs),
        Ok((Err(missing), _)) => return bad_request(&missing),
        Err(refusal) => return *refusal,
    };
    let mut data = Vec::with_capacity(inputs.len());
    let mut tokens = 0;
    for (index, input) in inputs.into_iter().enumerate() {
        let vector = embed(&input);
        match shared.read_only(&headers, &body, input).await {
            Ok(usage) => tokens += usage.prompt_tokens,
            Err(refusal) => return *refusal,
        }
        data.push(json!({"embedding": vector, "index": index, "object": "embedding"}));
    }
    let model = body.model.as_deref().unwrap_or(&shared.settings.model);
    axum::Json(json!({
        "model": model, "object": "list", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}, "data": data,
    }))
    .into_response()
}

async fn rerank(State(shared): App, headers: HeaderMap, body: Bytes) -> Response {
    let body = match read(&body) {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    let Some(query) = &body.query else { return bad_request("\"query\" must be provided") };
    let Some(documents) = body.documents.as_ref().filter(|documents| !documents.is_empty()) else {
        return bad_request("\"documents\" must be a non-empty string array");
    };
    let mut results = Vec::with_capacity(documents.len());
    let mut tokens = 0;
    for (index, document) in documents.iter().enumerate() {
        let text = document.as_str().or_else(|| document["text"].as_str()).unwrap_or_default();
        match shared.read_only(&headers, &body, format!("{query}\n{text}")).await {
            Ok(usage) => tokens += usage.prompt_tokens,
            Err(refusal) => return *refusal,
        }
        results.push(json!({"index": index, "relevance_score": relevance(query, text)}));
    }
    let model = body.model.as_deref().unwrap_or(&shared.settings.model);
    axum::Json(json!({
        "model": model, "object": "list", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}, "results": results,
    }))
    .into_response()
}

impl Shared {
    /// The fault of the next request: of its own, else of the flags.
    fn fault(&self, headers: &HeaderMap, body: &Body, prompt: &str) -> Option<Fault> {
        let served = self.requests.fetch_add(1, Ordering::Relaxed);
        let header = headers.get("x-sim-fault").and_then(|value| value.to_str().ok());
        let named = body.sim_fault.as_deref().or(header);
        named.and_then(Fault::parse).or_else(|| Fault::in_prompt(prompt)).or_else(|| Fault::by_flags(&self.settings, served))
    }

    /// llama-server's refusal of a prompt that fills the context.
    fn too_long(&self, prompt: &str) -> Option<Response> {
        let (tokens, context) = (tokens_of(prompt.len()), self.settings.context);
        (tokens >= context).then(|| {
            let message = format!("request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it");
            let mut body = error_body(StatusCode::BAD_REQUEST, "exceed_context_size_error", &message);
            body["error"]["n_prompt_tokens"] = json!(tokens);
            body["error"]["n_ctx"] = json!(context);
            (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
        })
    }

    /// Puts a prompt through a slot without an answer, as an embedding does.
    async fn read_only(&self, headers: &HeaderMap, body: &Body, prompt: String) -> Result<Usage, Box<Response>> {
        if let Some(refusal) = self.too_long(&prompt) {
            return Err(Box::new(refusal));
        }
        let fault = self.fault(headers, body, &prompt);
        let mut events = self.start(body, Kind { dialect: None, limit: 0 }, prompt, fault).await.ok_or_else(|| Box::new(gone()))?;
        loop {
            match events.recv().await {
                Some(Event::Done(usage)) => return Ok(usage),
                Some(Event::Begun | Event::Progress(_) | Event::Started(_) | Event::Word(_)) => {}
                Some(Event::Failed) => return Err(Box::new(failed())),
                Some(Event::Busy) => return Err(Box::new(busy())),
                Some(Event::Garbage) => return Err(Box::new(garbage().into_response())),
                Some(Event::Cut) | None => return Err(Box::new(cut())),
            }
        }
    }

    async fn start(&self, body: &Body, kind: Kind, prompt: String, fault: Option<Fault>) -> Option<mpsc::Receiver<Event>> {
        let (out, events) = mpsc::channel(EVENTS);
        // The converter of /v1/messages drops what Anthropic does not know.
        let steered = !self.settings.ignore_id_slot && kind.dialect != Some(Dialect::Messages);
        let streamed = kind.dialect.is_some() && body.stream.unwrap_or(false);
        let job = Job {
            prompt,
            limit: kind.limit,
            id_slot: body.id_slot.filter(|_| steered).and_then(|id| u32::try_from(id).ok()),
            reuse: body.cache_prompt.unwrap_or(true),
            completes: kind.dialect.is_some(),
            progress: streamed && body.return_progress.unwrap_or(false),
            streamed,
            fault,
            out,
        };
        self.decode.run(job).await.then_some(events)
    }

    /// What a reply tells of a request.
    const fn shown(&self, usage: &Usage) -> Usage {
        let cached_tokens = if self.settings.hide_cached_tokens { 0 } else { usage.cached_tokens };
        Usage { cached_tokens, ..*usage }
    }
}

/// What is done with a prompt.
#[derive(Clone, Copy)]
struct Kind {
    /// How it is answered; `None` = it is only read.
    dialect: Option<Dialect>,
    /// Tokens of the answer.
    limit: u32,
}

fn failed() -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "simulated failure")
}

fn busy() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "too many requests are waiting")
}

/// A reply that breaks off after its headers.
fn cut() -> Response {
    let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("simulated abort")) });
    Response::new(HttpBody::from_stream(broken))
}

async fn generate(State(shared): App, headers: &HeaderMap, body: &[u8], dialect: Dialect) -> Response {
    let body = match read(body) {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    let prompt = match body.prompt(dialect) {
        Ok(prompt) => prompt,
        Err(missing) => return bad_request(&missing),
    };
    if let Some(refusal) = shared.too_long(&prompt) {
        return refusal;
    }
    let room = shared.settings.context - tokens_of(prompt.len());
    let script = if dialect == Dialect::Chat { Script::of(&body) } else { None };
    let tokens = script.as_ref().map_or(shared.settings.tokens, Script::tokens);
    let (limit, finish) = match body.max_tokens() {
        Some(asked) if asked < tokens => (asked.min(room), Finish::Length),
        _ if room < tokens => (room, Finish::Length),
        _ => (tokens, Finish::Stop),
    };
    let fault = shared.fault(headers, &body, &prompt);
    let Some(mut events) = shared.start(&body, Kind { dialect: Some(dialect), limit }, prompt, fault).await else { return gone() };
    let id = format!("{}{}", prefix(dialect), uuid::Uuid::now_v7().simple());
    let model = body.model.as_deref().unwrap_or(&shared.settings.model);
    let include_usage = body.stream_options.as_ref().is_some_and(|options| options.include_usage);
    let reply = Reply::new(dialect, &id, model, clock::unix_millis() / 1000, include_usage, finish, script);
    // Nothing is answered before the prompt is read, so that an error can still have its status; but where the client asked
    // to be told how far it is, or the head is to come early.
    let first = match events.recv().await {
        Some(first @ (Event::Begun | Event::Progress(_) | Event::Started(_))) => first,
        Some(Event::Failed) => return failed(),
        Some(Event::Busy) => return busy(),
        Some(Event::Garbage) => return garbage().into_response(),
        Some(Event::Cut | Event::Word(_) | Event::Done(_)) | None => return cut(),
    };
    if body.stream.unwrap_or(false) {
        return stream(shared, reply, events, first);
    }
    let (mut reply, mut text) = (reply, String::new());
    while let Some(event) = events.recv().await {
        match event {
            Event::Word(word) => text.push_str(&reply.said(word)),
            Event::Done(usage) => return axum::Json(reply.whole(&text, &shared.shown(&usage))).into_response(),
            Event::Garbage => return garbage().into_response(),
            Event::Begun | Event::Progress(_) | Event::Started(_) | Event::Cut | Event::Failed | Event::Busy => break,
        }
    }
    cut()
}

const fn prefix(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "chatcmpl-",
        Dialect::Completion | Dialect::Native => "cmpl-",
        Dialect::Messages => "msg_",
        Dialect::Responses => "resp_",
    }
}

/// One streamed reply on its way out.
struct Streaming {
    shared: Arc<Shared>,
    reply: Reply,
    events: mpsc::Receiver<Event>,
    arrived: Vec<Event>,
    text: String,
    ended: bool,
    cut: bool,
}

fn stream(shared: Arc<Shared>, reply: Reply, events: mpsc::Receiver<Event>, first: Event) -> Response {
    let state = Streaming { shared, reply, events, arrived: vec![first], text: String::new(), ended: false, cut: false };
    let frames = futures_util::stream::unfold(state, |mut state| async move {
        let next = state.next().await?;
        Some((next, state))
    });
    let mut response = Response::new(HttpBody::from_stream(frames));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    response
}

impl Streaming {
    /// Everything that has arrived since the last call, as one piece; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        if self.cut {
            self.cut = false;
            self.ended = true;
            return Some(Err(std::io::Error::other("simulated abort")));
        }
        if self.ended {
            return None;
        }
        let mut bytes = Vec::new();
        while bytes.is_empty() && !self.ended && !self.cut {
            if self.arrived.is_empty() && self.events.recv_many(&mut self.arrived, EVENTS).await == 0 {
                self.cut = true;
            }
            let mut arrived = std::mem::take(&mut self.arrived);
            arrived.drain(..).for_each(|event| self.write(event, &mut bytes));
            self.arrived = arrived;
        }
        Some(Ok(bytes.into()))
    }

    fn write(&mut self, event: Event, bytes: &mut Vec<u8>) {
        match event {
            Event::Begun => {}
            Event::Progress(usage) => bytes.extend_from_slice(self.reply.progress(&self.shared.shown(&usage)).as_bytes()),
            Event::Started(usage) => bytes.extend_from_slice(self.reply.begin(&self.shared.shown(&usage)).as_bytes()),
            Event::Word(word) => {
                let said = self.reply.said(word);
                self.text.push_str(&said);
                self.reply.word(&said, bytes);
            }
            Event::Done(usage) => {
                bytes.extend_from_slice(self.reply.end(&self.text, &self.shared.shown(&usage)).as_bytes());
                self.ended = true;
            }
            Event::Garbage => {
                bytes.extend_from_slice(&garbage());
                self.ended = true;
            }
            Event::Cut | Event::Failed | Event::Busy => self.cut = true,
        }
    }
}
