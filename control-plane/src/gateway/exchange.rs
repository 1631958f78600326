//! One request as a straight line: key, body, model, slot, engine, reply.
//!
//! Read from top to bottom this is all that happens to a request. Each step is a module of its own and knows nothing of the
//! others; what passes between them is here, and so are the two loops: another engine where one has failed, another form
//! where an engine lacks the client's dialect. Nothing may be tried again once a byte of the reply has left.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use lifeboat_engines::dialect::{BodyReader, Dialect, Usage, usage};
use tokio::runtime::{Handle, RuntimeFlavor};
use tracing::Instrument;

use super::Gateway;
use super::admission::Claim;
use super::body::{Limits, Parts, ReplyBody, rename_document};
use super::error::Failure;
use super::heartbeat::{self, Answer};
use super::intake::Held;
use super::meter::Meter;
use super::outlook::Class;
use super::peek::Asked;
use super::permit::Permit;
use super::prompt;
use super::proxy::outgoing::Outgoing;
use super::proxy::{Fault, Kind, Patience, Reply, kind};
use super::resume::{Asking, Resume};
use super::route::{Route, Shape};
use super::standing;
use super::translate::{Form, Ids};
use crate::host::clock;
use crate::keys::{Denied, Principal, Scope};
use crate::registry::{Endpoint, RowView, Snapshot};
use crate::route_trace::{RouteMode, RouteTrace};
use crate::routing::{Ask, Mode};

/// Names the request in every reply; the client's own, if it is sane.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Names the row that answered.
const ROW: HeaderName = HeaderName::from_static("x-lifeboat-row");
/// Tells where the request went and why.
const ROUTE: HeaderName = HeaderName::from_static("x-lifeboat-route");
/// The type of a document that was put together or translated.
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
/// Bytes of a body above which its reading is work for a thread of its own: about a millisecond.
const LARGE_BODY: usize = 1 << 20;
/// Longest request id taken over from a client.
const REQUEST_ID_BYTES: usize = 128;

/// Headers of an engine's reply that concern its own connection or that are ours to set.
const NOT_RETURNED: [HeaderName; 15] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TRANSFER_ENCODING,
    header::TRAILER,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::SERVER,
    header::DATE,
    header::SET_COOKIE,
    header::ALT_SVC,
    header::STRICT_TRANSPORT_SECURITY,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    REQUEST_ID,
    ANTHROPIC_REQUEST_ID,
];

/// Answers one request of a route.
pub(super) async fn exchange(gateway: Arc<Gateway>, route: &'static Route, request: Request) -> Response {
    let (id, id_value) = request_id(request.headers());
    let mut meter = Meter::start(Arc::clone(&gateway.recorder), &gateway.active, route.path, id);
    meter.belongs_to(request.headers());
    let span = meter.span().clone();
    let caller = gateway.keys.authorize(request.headers(), Scope::Inference);
    let asking = caller.clone();
    let answering = async move {
        match prepare(&gateway, route, request, asking, &mut meter).await {
            Ok(prepared) => answer(gateway, route, prepared, meter).await,
            Err(failure) => {
                meter.failed(failure.status(route.dialect), &failure);
                Err(failure)
            }
        }
    };
    let mut response = answering.instrument(span).await.unwrap_or_else(|failure| failure.response(route.dialect));
    let headers = response.headers_mut();
    if route.dialect == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, id_value.clone());
    }
    headers.insert(REQUEST_ID, id_value);
    if let Ok(caller) = &caller {
        standing::tell(caller, response.headers_mut());
    }
    response
}

/// A request that may wait for its slot.
struct Prepared {
    asked: Asked,
    /// What the router is told.
    ask: Ask,
    /// The model's name as asked.
    name: String,
    held: Held,
    outgoing: Outgoing,
}

/// Key, body, model.
async fn prepare(
    gateway: &Gateway,
    route: &Route,
    request: Request,
    caller: Result<Principal, Denied>,
    meter: &mut Meter,
) -> Result<Prepared, Failure> {
    let (mut parts, body) = request.into_parts();
    if gateway.hop.is_in(&parts.headers) {
        return Err(Failure::request_loop());
    }
    let caller = caller.map_err(Failure::denied)?;
    let running = caller.begin().map_err(|reached| Failure::limited(&reached))?;
    let priority = caller.priority(&parts.headers);
    meter.called_by(running, priority);
    let held = gateway.intake.collect(&parts.headers, body).await.map_err(|error| Failure::intake(&error))?;
    let mut asked = aside(&held, || Asked::read(route.shape, &parts.headers, &held.bytes))?;
    asked.peek.stream |= route.api.streams_unless_told() && asked.peek.stream_at.is_none();
    let snapshot = gateway.registry.snapshot();
    let name = match asked.model() {
        Some(name) => known_as(name, route.dialect, &snapshot).to_owned(),
        None if route.shape == Shape::JsonModelOptional => only_model(&snapshot, &caller)?,
        None => return Err(Failure::missing_model(known(&snapshot, Some(&caller)).into_iter())),
    };
    let known = || known(&snapshot, Some(&caller)).into_iter();
    let Some(pool) = snapshot.by_name.get(&name) else { return Err(Failure::unknown_model(&name, known())) };
    if !may_use(&caller, &name, pool) {
        return Err(Failure::model_not_allowed(&name, known()));
    }
    let public = pool.first().map_or(&name, |row| &row.model_name);
    meter.asked(public, asked.peek.stream);
    let ask = aside(&held, || prompt::ask(route, &parts.headers, &asked, &held.bytes, public, caller.key_id(), priority.band()));
    meter.asks(prompt_bytes(route, &ask, &held.bytes), route.has_prompt);
    gateway.hop.add(&mut parts.headers);
    let outgoing = Outgoing::new(parts.uri.query(), &parts.headers);
    Ok(Prepared { asked, ask, name, held, outgoing })
}

/// Reads or translates a body; a large one without holding up whatever else this thread has to move.
fn aside<T>(held: &Held, work: impl FnOnce() -> T) -> T {
    let is_long = held.bytes.len() > LARGE_BODY && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if is_long { tokio::task::block_in_place(work) } else { work() }
}

/// Bytes of the text that an engine reads.
fn prompt_bytes(route: &Route, ask: &Ask, body: &[u8]) -> u64 {
    match (route.class, route.shape) {
        (Class::Generation, _) if route.has_prompt => ask.prefix.bytes,
        (Class::Generation, Shape::Json | Shape::JsonModelOptional) => body.len() as u64,
        // A file holds no text, and counting tokens costs none.
        (Class::Generation, Shape::Multipart) | (Class::Light, _) => 0,
    }
}

/// Ollama's clients put a tag behind a name that has none.
pub(super) fn known_as<'a>(name: &'a str, dialect: Dialect, snapshot: &Snapshot) -> &'a str {
    let bare = name.strip_suffix(":latest").filter(|_| dialect == Dialect::Ollama && !snapshot.by_name.contains_key(name));
    bare.unwrap_or(name)
}

/// All names that this caller may use, in order; without a caller, all there are.
pub(super) fn known<'a>(snapshot: &'a Snapshot, caller: Option<&Principal>) -> Vec<&'a str> {
    let allowed = |name: &str, pool: &[Arc<RowView>]| caller.is_none_or(|caller| may_use(caller, name, pool));
    let mut names: Vec<_> = snapshot.by_name.iter().filter(|(name, pool)| allowed(name, pool)).map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Whether a caller may use the rows that have this name.
pub(super) fn may_use(caller: &Principal, name: &str, pool: &[Arc<RowView>]) -> bool {
    caller.may_use(name, pool.iter().map(|row| row.model_name.as_str()))
}

fn only_model(snapshot: &Snapshot, caller: &Principal) -> Result<String, Failure> {
    let mut names = snapshot.rows.values().map(|row| &row.model_name);
    let first = names.next();
    match first {
        Some(first) if names.all(|name| name == first) => Ok(first.clone()),
        _ => Err(Failure::missing_model(known(snapshot, Some(caller)).into_iter())),
    }
}

async fn answer(gateway: Arc<Gateway>, route: &'static Route, prepared: Prepared, meter: Meter) -> Result<Response, Failure> {
    let streams = prepared.asked.peek.stream;
    let every = gateway.config.heartbeat;
    // Boxed once and early: the state of a whole request is large, and every layer above would move it.
    let active = Arc::clone(meter.active());
    let ended = Arc::clone(&active);
    let serving = async move {
        tokio::select! {
            biased;
            () = ended.cancelled() => Err(Failure::cancelled()),
            answered = serve(gateway, route, prepared, meter) => answered,
        }
    };
    let serving: Answer = Box::pin(serving.in_current_span());
    // Ollama's lines have no room for company.
    if !streams || route.dialect == Dialect::Ollama {
        return serving.await;
    }
    let mut headers = HeaderMap::new();
    event_headers(&mut headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    heartbeat::accompany(serving, &active, every, route.dialect, headers).await
}

/// Slot, engine, reply; again elsewhere while nothing was sent.
async fn serve(gateway: Arc<Gateway>, route: &'static Route, prepared: Prepared, mut meter: Meter) -> Result<Response, Failure> {
    let mut failed: Vec<Arc<Endpoint>> = Vec::new();
    let mut last: Option<Failure> = None;
    loop {
        let claim = Claim { name: &prepared.name, class: route.class, ask: &prepared.ask, avoid: &failed, arrived: meter.arrived() };
        let admitted = gateway.admission.admit(claim).await;
        let failure = match admitted {
            Ok(mut permit) => {
                meter.admitted(&permit);
                meter.routed(trace(&permit, prepared.ask.session));
                match call(&gateway, route, &prepared, &permit, &mut meter).await {
                    // Behind the head and the comments of a stream nothing else can follow.
                    Ok(answered) if meter.active().has_begun() && kind(&answered.reply.headers) != Kind::Events => Failure::no_stream(),
                    Ok(answered) => return Ok(respond(&gateway, route, prepared, permit, answered, meter)),
                    Err(fault) => {
                        permit.failed(&fault);
                        if !fault.is_the_clients() {
                            tracing::warn!(request.id = meter.request_id(), server.id = %permit.row.id, error = %fault, "an engine did not answer");
                        }
                        let failure = Failure::fault(&fault, &permit.endpoint);
                        if fault.may_retry() && failed.len() < gateway.config.retries as usize {
                            if gateway.admission.may_retry(&prepared.name) {
                                meter.retried();
                                failed.push(Arc::clone(&permit.endpoint));
                                last = Some(failure);
                                continue;
                            }
                            meter.retry_refused();
                            tracing::warn!(
                                request.id = meter.request_id(),
                                model = prepared.name,
                                "not tried again: too many of its pool's requests fail (gateway.retry_share, gateway.retry_floor)"
                            );
                        }
                        failure
                    }
                }
            }
            // Where an engine has failed, its failure says more than the lack of another.
            Err(refusal) => last.unwrap_or_else(|| {
                Failure::refused(&refusal, &prepared.name, known(&gateway.registry.snapshot(), meter.caller()).into_iter())
            }),
        };
        meter.failed(failure.status(route.dialect), &failure);
        return Err(failure);
    }
}

/// Asks one engine, in its own dialect; in another where it turns out to lack it.
async fn call(gateway: &Gateway, route: &Route, prepared: &Prepared, permit: &Permit, meter: &mut Meter) -> Result<Answered, Fault> {
    let endpoint = &permit.endpoint;
    let slot = permit.placement.slot.filter(|_| route.has_prompt);
    let form = aside(&prepared.held, || Form::of(route, &prepared.asked, &prepared.held.bytes, endpoint, slot))?;
    match ask(gateway, prepared, &form, permit, meter).await {
        Err(fault) if form.is_lacking(&fault) => {
            let other = aside(&prepared.held, || Form::by_another(route, &prepared.held.bytes, endpoint, slot))?;
            let (reply, used) = ask(gateway, prepared, &other, permit, meter).await.map_err(|fault| other.lacks_both(fault))?;
            other.found_lacking(endpoint);
            Ok(Answered { form: other, reply, used })
        }
        Err(fault) => Err(fault),
        Ok((reply, used)) => Ok(Answered { form, reply, used }),
    }
}

/// The engine's reply in the client's dialect, and what the engine says it used, where that is known by now.
async fn ask(
    gateway: &Gateway,
    prepared: &Prepared,
    form: &Form,
    permit: &Permit,
    meter: &mut Meter,
) -> Result<(Reply, Option<Usage>), Fault> {
    let config = &gateway.config;
    let mebibytes = prepared.held.bytes.len() as f64 / f64::from(1 << 20);
    let first_byte = if form.streams || form.class == Class::Light {
        config.first_byte + config.first_byte_per_mib.mul_f64(mebibytes)
    } else {
        // A reply that is not streamed comes whole, after all of its tokens.
        config.total
    };
    let patience = Patience { first_byte, until: meter.arrived() + config.total, total: config.total };
    if let Some(reply) = form.answer(&ids(prepared, meter)) {
        return Ok((reply, None));
    }
    let endpoint = &permit.endpoint;
    let body = form.body.clone();
    let mut reply = gateway.proxy.call(endpoint, &prepared.outgoing, form.path, body, patience).await?;
    meter.first_byte();
    permit.first_byte();
    if form.gathers && kind(&reply.headers) == Kind::Events {
        let (status, mut headers) = (reply.status, std::mem::take(&mut reply.headers));
        let first = gateway.proxy.put_together(endpoint, reply, patience).await?;
        headers.insert(header::CONTENT_TYPE, JSON);
        reply = Reply { status, headers, first, rest: None };
    }
    let is_whole = kind(&reply.headers) == Kind::Json && reply.rest.is_none();
    let used = is_whole.then(|| usage::from_body(&reply.first)).flatten();
    Ok((form.translate(reply, &ids(prepared, meter))?, used))
}

fn ids<'a>(prepared: &'a Prepared, meter: &'a Meter) -> Ids<'a> {
    Ids { request: meter.request_id(), model: &prepared.name, body: &prepared.held.bytes }
}

/// An engine's reply and what it becomes.
struct Answered {
    form: Form,
    reply: Reply,
    /// What the engine says it used, where the reply is whole.
    used: Option<Usage>,
}

/// The router's decision, for people.
fn trace(permit: &Permit, session: Option<u64>) -> RouteTrace {
    let placement = &permit.placement;
    let whole = |value: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
        let value = value.round() as u64;
        value
    };
    RouteTrace {
        row: permit.row.id,
        slot: placement.slot,
        reason: placement.reason.as_str().into(),
        predicted_cached_tokens: whole(placement.cached_tokens),
        predicted_wait_ms: whole(placement.first_token * 1000.0),
        resumed: 0,
        retry_refused: false,
        mode: match placement.mode {
            Mode::Throughput => RouteMode::Throughput,
            Mode::Sticky => RouteMode::Sticky,
            Mode::Ttft | Mode::Hybrid => RouteMode::Ttft,
        },
        session: session.map(|session| format!("{:08x}", session >> 32)),
    }
}

fn respond(gateway: &Arc<Gateway>, route: &Route, prepared: Prepared, permit: Permit, answered: Answered, meter: Meter) -> Response {
    let Answered { form, reply, used } = answered;
    let config = &gateway.config;
    let kind = kind(&reply.headers);
    let mut headers = reply.headers;
    let kept_back: Vec<HeaderName> = headers.keys().filter(|name| NOT_RETURNED.contains(name)).cloned().collect();
    for name in &kept_back {
        headers.remove(name);
    }
    if let Ok(row) = HeaderValue::try_from(permit.row.id.to_string()) {
        headers.insert(ROW, row);
    }
    let limits = Limits { between: config.between_chunks, until: meter.arrived() + config.total, total: config.total };
    let status = reply.status.as_u16();
    let translation = if kind == Kind::Events { form.stream(&ids(&prepared, &meter), config.whole_reply_bytes) } else { None };
    let asking = (kind == Kind::Events && reply.rest.is_some()).then(|| Asking {
        name: prepared.name.clone(),
        ask: prepared.ask,
        outgoing: prepared.outgoing,
        path: form.path,
        body: form.body.clone(),
        arrived: meter.arrived(),
    });
    let resume = asking.and_then(|asking| Resume::of(gateway, asking));
    let mut parts = Parts { first: reply.first, rest: reply.rest, dialect: route.dialect, status, limits, meter, permit, resume };
    let body = match (kind, translation) {
        (Kind::Events, Some(translation)) => {
            event_headers(&mut headers);
            headers.insert(header::CONTENT_TYPE, form.content_type());
            ReplyBody::translated(parts, translation)
        }
        (Kind::Events, None) => {
            event_headers(&mut headers);
            ReplyBody::events(parts, prepared.name, route.says_end)
        }
        (Kind::Json, _) => {
            if parts.rest.is_none()
                && let Some(renamed) = rename_document(&parts.first, &prepared.name)
            {
                parts.first = renamed;
            }
            // The usage of what is too large to be held back is read along.
            let along = parts.rest.is_some().then(BodyReader::default);
            ReplyBody::plain(parts, used, along)
        }
        (Kind::Other, _) => ReplyBody::plain(parts, None, None),
    };
    if let Some(trace) = body.route() {
        headers.insert(ROUTE, trace);
    }
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    *response.headers_mut() = headers;
    response
}

/// Keeps proxies from storing or holding back a stream.
fn event_headers(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// The request's id, as text and as a header.
pub(super) fn request_id(headers: &HeaderMap) -> (String, HeaderValue) {
    let sane =
        |value: &&HeaderValue| value.len() <= REQUEST_ID_BYTES && !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_graphic);
    if let Some(value) = headers.get(REQUEST_ID).filter(sane)
        && let Ok(text) = value.to_str()
    {
        return (text.to_owned(), value.clone());
    }
    // As `Uuid::now_v7`, but from this thread's generator instead of the system's.
    let now = u64::try_from(clock::unix_millis()).unwrap_or_default();
    let id = uuid::Builder::from_unix_timestamp_millis(now, &rand::random()).into_uuid().to_string();
    let value = HeaderValue::try_from(&id).unwrap_or_else(|_| HeaderValue::from_static("none"));
    (id, value)
}
