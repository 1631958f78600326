//! Anthropic's routes, as a table, and its list of models. What happens on them is `exchange`'s.

use std::sync::Arc;

use jiff::Timestamp;
use lifeboat_engines::dialect::Dialect;
use serde::Serialize;

use super::outlook::Class;
use super::route::{Api, Route, Shape};
use crate::keys::Principal;
use crate::registry::{RowView, Snapshot};

/// The header by which a client shows its dialect on routes that both have.
pub(super) const VERSION: &str = "anthropic-version";

const MESSAGES: Route = Route {
    path: "/v1/messages",
    upstream: "/v1/messages",
    dialect: Dialect::Anthropic,
    class: Class::Generation,
    shape: Shape::Json,
    has_prompt: true,
    api: Api::Messages,
    says_end: true,
};

/// Every route that an engine answers.
pub(super) static ROUTES: [Route; 2] = [
    MESSAGES,
    Route {
        path: "/v1/messages/count_tokens",
        upstream: "/v1/messages/count_tokens",
        class: Class::Light,
        has_prompt: false,
        api: Api::CountTokens,
        ..MESSAGES
    },
];

/// One entry of the list of models.
#[derive(Debug, Serialize)]
pub(super) struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    display_name: &'a str,
    created_at: String,
}

/// The list of models; always whole.
#[derive(Debug, Serialize)]
pub(super) struct Models<'a> {
    data: Vec<Model<'a>>,
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

/// The model as Anthropic describes it.
pub(super) fn model<'a>(id: &'a str, pool: &[Arc<RowView>]) -> Model<'a> {
    let created = Timestamp::from_second(super::created(pool)).unwrap_or(Timestamp::UNIX_EPOCH);
    Model { kind: "model", id, display_name: id, created_at: created.to_string() }
}

/// All models as Anthropic lists them.
pub(super) fn models<'a>(snapshot: &'a Snapshot, caller: &Principal) -> Models<'a> {
    let data: Vec<_> = super::served(snapshot, caller).map(|(name, pool)| model(name, pool)).collect();
    let (first_id, last_id) = (data.first().map(|model| model.id), data.last().map(|model| model.id));
    Models { data, has_more: false, first_id, last_id }
}
