//! What a key may use, as it is written down: by the operator, in the database, in the API. `keys` counts against it.

mod priority;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use priority::Priority;

/// Most models a key may name.
const MODELS: usize = 100;
/// Longest name of a model, in bytes.
const MODEL_BYTES: usize = 256;
/// Largest number a limit may have.
const LARGEST: u32 = 1_000_000_000;

/// What a key may use. What is left out is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeyLimits {
    /// Requests that may begin in a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens in a minute: of prompts as far as no cache had them, and of replies. Counted when a reply has ended; where the
    /// engine did not tell them (the client hung up, say), guessed from what passed.
    pub tokens_per_minute: Option<u32>,
    /// Requests at once, waiting ones included.
    pub concurrent_requests: Option<u32>,
    /// Highest band of priority that `x-lifeboat-priority` may ask for; `default` if left out.
    pub priority: Priority,
    /// Public names of the models it may use; empty = all.
    pub models: Vec<String>,
}

impl KeyLimits {
    /// What a caller without a key has: only this machine can call.
    pub fn none() -> Self {
        Self { priority: Priority::System, ..Self::default() }
    }

    /// The field that no key can have with this value, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (field, value) in [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("concurrent_requests", self.concurrent_requests),
        ] {
            if value.is_some_and(|value| !(1..=LARGEST).contains(&value)) {
                return Err((field, format!("it must be between 1 and {LARGEST}; leave it out for no limit, revoke the key to stop it")));
            }
        }
        if self.models.len() > MODELS {
            return Err(("models", format!("a key names at most {MODELS} models")));
        }
        if self.models.iter().any(|name| name.is_empty() || name.len() > MODEL_BYTES) {
            return Err(("models", format!("a model's name has 1 to {MODEL_BYTES} bytes")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_no_key_can_have_are_named() {
        let of = |value: serde_json::Value| serde_json::from_value::<KeyLimits>(value).unwrap().check().err().map(|(field, _)| field);
        for (value, field) in [
            (serde_json::json!({}), None),
            (serde_json::json!({"requests_per_minute": 0}), Some("requests_per_minute")),
            (serde_json::json!({"tokens_per_minute": 2_000_000_000}), Some("tokens_per_minute")),
            (serde_json::json!({"concurrent_requests": 1, "models": ["a", ""]}), Some("models")),
            (serde_json::json!({"models": vec!["m"; 101]}), Some("models")),
        ] {
            assert_eq!(of(value.clone()), field, "{value}");
        }
    }
}
