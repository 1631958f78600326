//! How an engine is asked for what a client wants, and what its reply becomes: decided in one place, [`Form::of`].
//!
//! Client and engine mostly speak the same dialect, and bytes pass. Otherwise the request becomes a chat completion here
//! and the reply is told in the client's dialect. An engine whose endpoints are not known is asked in the client's
//! dialect once; if it lacks that, this is remembered and the same request goes on as a chat. The mapping itself is pure
//! and lives with the engines' adapters.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use lifeboat_engines::dialect::{ApiError, ErrorCode, FromChat, messages, ollama, responses};
use serde::Deserialize;

use super::outlook::Class;
use super::peek::Asked;
use super::proxy::outgoing::Segments;
use super::proxy::{Fault, Kind, Reply, kind};
use super::route::{Api, Route, Shape};

use crate::host::clock;
use crate::registry::{Endpoint, Native};

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
/// vLLM's, which takes a conversation.
const TOKENIZE: &str = "/tokenize";

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// How one engine is asked.
#[derive(Debug)]
pub(super) struct Form {
    /// Path on the engine.
    pub path: &'static str,
    /// What is sent.
    pub body: Segments,
    /// The engine streams, so that its first byte comes with its first token.
    pub streams: bool,
    /// The client does not: the stream is put together.
    pub gathers: bool,
    /// What it takes of the engine.
    pub class: Class,
    api: Api,
    way: Way,
}

/// How client and engine come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// They speak the same dialect.
    Straight,
    /// The engine is asked in another one.
    Translated,
    /// Nothing is to be asked: the client wants the model to be there, and it is.
    Answered,
}

/// What a translated reply says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ids<'a> {
    /// The request's id.
    pub request: &'a str,
    /// The model's name, as the client asked.
    pub model: &'a str,
    /// What the client sent.
    pub body: &'a [u8],
}

impl Form {
    /// The form for this engine.
    pub(super) fn of(route: &Route, asked: &Asked, body: &Bytes, endpoint: &Endpoint, slot: Option<u32>) -> Result<Self, Fault> {
        let is_lacking = lacked(route.api, endpoint).is_some_and(Native::is_lacking);
        if is_lacking || matches!(route.api, Api::Ollama(_) | Api::OllamaEmbed(_)) {
            return Self::by_another(route, body, endpoint, slot);
        }
        Self::new(route, route.upstream, asked, body, (endpoint, slot), Way::Straight)
    }

    /// The form for an engine that lacks the client's dialect.
    pub(super) fn by_another(route: &Route, body: &Bytes, endpoint: &Endpoint, slot: Option<u32>) -> Result<Self, Fault> {
        let flavor = endpoint.dialects.flavor;
        let (path, translated) = match route.api {
            Api::Messages => (CHAT, messages::to_chat(body, flavor)),
            Api::CountTokens => (TOKENIZE, messages::to_chat(body, flavor)),
            Api::Responses => (CHAT, responses::to_chat(body, flavor)),
            Api::OllamaEmbed(which) => (EMBEDDINGS, ollama::embed::to_openai(which, body)),
            Api::Ollama(which) => match ollama::to_upstream(which, body, flavor).map_err(Fault::Said)? {
                ollama::Upstream::Chat(body) => (CHAT, Ok(body)),
                ollama::Upstream::Text(body) => (COMPLETIONS, Ok(body)),
                ollama::Upstream::Load => {
                    return Self::new(route, CHAT, &Asked::default(), &Bytes::new(), (endpoint, None), Way::Answered);
                }
            },
            Api::Completions | Api::Other => (route.upstream, Ok(body.to_vec())),
        };
        let body = Bytes::from(translated.map_err(Fault::Said)?);
        let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).map_err(|failure| Fault::Said(failure.error().clone()))?;
        Self::new(route, path, &asked, &body, (endpoint, slot), Way::Translated)
    }

    fn new(
        route: &Route,
        path: &'static str,
        asked: &Asked,
        body: &Bytes,
        (endpoint, slot): (&Endpoint, Option<u32>),
        way: Way,
    ) -> Result<Self, Fault> {
        if path == CHAT && !endpoint.dialects.takes_tools && asked.offers_tools(body) {
            return Err(Fault::Said(no_tools()));
        }
        let generates = matches!(path, CHAT | COMPLETIONS);
        // With probabilities llama-server's streams leave out those of tokens that make no whole character.
        let gathers = endpoint.dialects.always_streams && generates && !asked.peek.stream && !asked.peek.wants_probabilities;
        Ok(Self {
            path,
            body: asked.body(body, endpoint.upstream_model.as_deref(), slot, gathers),
            streams: asked.peek.stream || gathers,
            gathers,
            class: route.class,
            api: route.api,
            way,
        })
    }

    /// The engine lacks the endpoint, which was not known, and may be asked in another way.
    pub(super) fn is_lacking(&self, fault: &Fault) -> bool {
        let can = matches!(self.api, Api::Messages | Api::CountTokens | Api::Responses) && self.way == Way::Straight;
        can && matches!(fault, Fault::Refused { status, .. } if matches!(status.as_u16(), 404 | 405 | 501))
    }

    /// Remembers that the engine lacks the client's dialect: it took this form instead.
    pub(super) fn found_lacking(&self, endpoint: &Endpoint) {
        if let Some(native) = lacked(self.api, endpoint) {
            native.found_lacking();
        }
    }

    /// What to tell where the other way fails too.
    pub(super) fn lacks_both(&self, fault: Fault) -> Fault {
        let cannot = self.api == Api::CountTokens && matches!(&fault, Fault::Refused { .. });
        if cannot { Fault::Said(cannot_count()) } else { fault }
    }

    /// The answer that needs no engine.
    pub(super) fn answer(&self, ids: &Ids<'_>) -> Option<Reply> {
        let Api::Ollama(endpoint) = self.api else { return None };
        (self.way == Way::Answered).then(|| document(head(endpoint, ids).loaded()))
    }

    /// A whole reply in the client's dialect. A stream is told as it comes.
    pub(super) fn translate(&self, reply: Reply, ids: &Ids<'_>) -> Result<Reply, Fault> {
        if self.way == Way::Straight || kind(&reply.headers) == Kind::Events {
            return Ok(reply);
        }
        if reply.rest.is_some() || kind(&reply.headers) != Kind::Json {
            let what = "the engine's reply is no JSON document, or one that is too large to be translated";
            return Err(Fault::Said(ApiError::new(ErrorCode::UpstreamFailed, what)));
        }
        let (from, model) = (&reply.first, ids.model);
        let translated = match self.api {
            Api::Messages => messages::to_message(from, &message_id(ids), model),
            Api::CountTokens => counted(from),
            Api::Responses => responses::to_response(from, &response_head(ids)),
            Api::Ollama(endpoint) => ollama::to_object(from, &head(endpoint, ids)),
            Api::OllamaEmbed(which) => ollama::embed::from_openai(which, from, model),
            Api::Completions | Api::Other => return Ok(reply),
        };
        Ok(Reply { headers: reply.headers, ..document(translated.map_err(Fault::Said)?) })
    }

    /// What tells the engine's stream in the client's dialect, where that is another.
    pub(super) fn stream(&self, ids: &Ids<'_>, limit: usize) -> Option<FromChat> {
        match self.api {
            Api::Messages if self.way == Way::Translated => Some(FromChat::messages(message_id(ids), ids.model.to_owned())),
            Api::Responses if self.way == Way::Translated => Some(FromChat::responses(response_head(ids), limit)),
            Api::Ollama(endpoint) => Some(FromChat::ollama(head(endpoint, ids), limit)),
            _ => None,
        }
    }

    /// The type of a translated stream.
    pub(super) fn content_type(&self) -> HeaderValue {
        let is_lines = matches!(self.api, Api::Ollama(_));
        HeaderValue::from_static(if is_lines { "application/x-ndjson" } else { "text/event-stream" })
    }
}

/// What is known of the engine's own endpoint for this.
fn lacked(api: Api, endpoint: &Endpoint) -> Option<&Native> {
    match api {
        Api::Messages => Some(&endpoint.dialects.messages),
        Api::CountTokens => Some(&endpoint.dialects.count_tokens),
        Api::Responses => Some(&endpoint.dialects.responses),
        _ => None,
    }
}

fn document(body: Vec<u8>) -> Reply {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, JSON)]);
    Reply { status: StatusCode::OK, headers, first: body.into(), rest: None }
}

fn message_id(ids: &Ids<'_>) -> String {
    format!("msg_{}", ids.request)
}

fn response_head(ids: &Ids<'_>) -> responses::Head {
    responses::Head::new(format!("resp_{}", ids.request), clock::unix_millis() / 1000, ids.model.to_owned(), ids.body)
}

fn head(endpoint: ollama::Endpoint, ids: &Ids<'_>) -> ollama::Head {
    let now = jiff::Timestamp::from_millisecond(clock::unix_millis()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    ollama::Head { endpoint, model: ids.model.to_owned(), created_at: now.to_string() }
}

/// The engine would drop them without a word.
fn no_tools() -> ApiError {
    let what = "this model's chat template takes no tools; ask a model whose template does, or leave `tools` out";
    ApiError::new(ErrorCode::InvalidRequest, what).with_param("tools")
}

/// Neither Anthropic's count nor vLLM's is there.
fn cannot_count() -> ApiError {
    let mut error = ApiError::new(ErrorCode::UnsupportedEndpoint, "this model's engine cannot count the tokens of a conversation");
    error.status = StatusCode::NOT_IMPLEMENTED.as_u16();
    error
}

/// Anthropic's count from vLLM's. A `/tokenize` that tells no count is another engine's, which takes no conversation.
fn counted(document: &[u8]) -> Result<Vec<u8>, ApiError> {
    #[derive(Deserialize)]
    struct Counted {
        count: Option<u64>,
    }
    let unreadable =
        |error: serde_json::Error| ApiError::new(ErrorCode::UpstreamFailed, format!("the engine's count cannot be read: {error}"));
    let count = serde_json::from_slice::<Counted>(document).map_err(unreadable)?.count.ok_or_else(cannot_count)?;
    Ok(serde_json::json!({ "input_tokens": count }).to_string().into_bytes())
}
