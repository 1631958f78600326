//! What a route is to the gateway; the tables stand with their dialects. All that differs between routes is said in these
//! fields, so that nothing on the way of a request looks at its path.

use lifeboat_engines::dialect::{Dialect, ollama};

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

/// What a request means: whatever can be said in another dialect where an engine lacks this one has its own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    /// Chat or text completions: every engine has them.
    Completions,
    /// Anthropic's Messages.
    Messages,
    /// Anthropic's count of a prompt's tokens.
    CountTokens,
    /// OpenAI's Responses.
    Responses,
    /// Ollama's chat and generate.
    Ollama(ollama::Endpoint),
    /// Ollama's embeddings.
    OllamaEmbed(ollama::embed::Endpoint),
    /// Anything else passes as it is or not at all.
    Other,
}

impl Api {
    /// A request that does not say whether it wants a stream wants one.
    pub(super) const fn streams_unless_told(self) -> bool {
        matches!(self, Self::Ollama(_))
    }
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
    /// What it means.
    pub api: Api,
    /// Its streams say that they are complete; one that does not was cut off.
    pub says_end: bool,
}
