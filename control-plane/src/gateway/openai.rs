//! OpenAI's routes, and llama.cpp's own beside them, as a table, and its list of models. What happens on them is
//! `exchange`'s.

use std::sync::Arc;

use lifeboat_engines::dialect::Dialect;
use serde::Serialize;

use super::outlook::Class;
use super::route::{Api, Route, Shape};
use crate::keys::Principal;
use crate::registry::{RowView, Snapshot};

const fn route(path: &'static str) -> Route {
    Route {
        path,
        upstream: path,
        dialect: Dialect::OpenAi,
        class: Class::Generation,
        shape: Shape::Json,
        has_prompt: false,
        api: Api::Other,
        says_end: true,
    }
}

const fn conversation(path: &'static str, api: Api) -> Route {
    Route { has_prompt: true, api, ..route(path) }
}

const fn audio(path: &'static str, shape: Shape) -> Route {
    Route { shape, says_end: false, ..route(path) }
}

const fn native(path: &'static str, upstream: &'static str) -> Route {
    Route { upstream, class: Class::Light, shape: Shape::JsonModelOptional, ..route(path) }
}

/// Every route that an engine answers.
pub(super) static ROUTES: [Route; 12] = [
    conversation("/v1/chat/completions", Api::Completions),
    conversation("/v1/completions", Api::Completions),
    route("/v1/embeddings"),
    route("/v1/rerank"),
    conversation("/v1/responses", Api::Responses),
    audio("/v1/audio/speech", Shape::Json),
    audio("/v1/audio/transcriptions", Shape::Multipart),
    audio("/v1/audio/translations", Shape::Multipart),
    native("/tokenize", "/tokenize"),
    native("/detokenize", "/detokenize"),
    native("/v1/tokenize", "/tokenize"),
    native("/v1/detokenize", "/detokenize"),
];

/// One entry of the list of models.
#[derive(Debug, Serialize)]
pub(super) struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    owned_by: &'static str,
    /// Tokens of context, where known (the name vLLM gave it).
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
}

/// The list of models.
#[derive(Debug, Serialize)]
pub(super) struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

/// The model as OpenAI describes it.
pub(super) fn model<'a>(id: &'a str, pool: &[Arc<RowView>]) -> Model<'a> {
    let context = pool.iter().filter_map(|row| row.status.resolved.as_ref().map(|resolved| resolved.context)).min();
    Model {
        id,
        object: "model",
        created: super::created(pool),
        owned_by: "lifeboat",
        max_model_len: context.filter(|context| *context > 0),
    }
}

/// All models as OpenAI lists them.
pub(super) fn models<'a>(snapshot: &'a Snapshot, caller: &Principal) -> Models<'a> {
    let data = super::served(snapshot, caller).map(|(name, pool)| model(name, pool)).collect();
    Models { object: "list", data }
}
