//! What a route is to the gateway; the tables stand with their dialects.

use lifeboat_engines::dialect::Dialect;

use super::outlook::Class;

/// How a request names its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The `model` field of a JSON object.
    Json,
    /// As [`Shape::Json`], but a request without one is meant for the only model there is.
    JsonModelOptional,
    /// The `model` part of a form.
    Multipart,
}

/// One route that is answered by an engine.
#[derive(Debug)]
pub(super) struct Route {
    /// Path of ours, and the label in the metrics.
    pub path: &'static str,
    /// Path on the engine.
    pub upstream: &'static str,
    /// Shape of its errors.
    pub dialect: Dialect,
    /// What it takes of an engine.
    pub class: Class,
    /// How the model is named.
    pub shape: Shape,
    /// Engines keep what they have read of its prompts.
    pub has_prompt: bool,
    /// Its streams say that they are complete; one that does not was cut off.
    pub says_end: bool,
}
