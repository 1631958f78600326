//! One finished request, as the gateway tells it and as the log keeps it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::RowId;
use crate::key_limits::Priority;
use crate::route_trace::{RouteTrace, TraceParent};

/// The status of a request whose client left before the reply was done.
pub const CLIENT_LEFT: u16 = 499;

/// One finished request. Its JSON is what the log keeps: a member may be added (with `default`), none may change its meaning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UsageEvent {
    /// Unix time of the arrival, milliseconds.
    pub at: i64,
    /// The id every reply carries in `x-request-id`.
    pub request_id: String,
    /// Row that answered, where one did.
    pub row: Option<RowId>,
    /// Public name of the model; `None` = the request named none of ours.
    pub model: Option<String>,
    /// Route, for example `/v1/chat/completions`.
    pub endpoint: Cow<'static, str>,
    /// Status sent; 499 = the client left first. A stream that broke half way keeps its 200 and sets `error`.
    pub status: u16,
    /// Code of the error, where there was one.
    pub error: Option<String>,
    /// Whether the client asked for a stream.
    pub streamed: bool,
    /// Attempts repeated because an engine failed before its first byte.
    pub retries: u32,
    /// Time to the slot.
    #[serde(rename = "queue_wait_ms", with = "some_millis")]
    pub queue_wait: Option<Duration>,
    /// Time to the first byte of the reply.
    #[serde(rename = "first_byte_ms", with = "some_millis")]
    pub first_byte: Option<Duration>,
    /// Time to the last byte.
    #[serde(rename = "total_ms", with = "millis")]
    pub total: Duration,
    /// Prompt tokens, cached ones included; 0 = the engine did not say.
    pub prompt_tokens: u64,
    /// Prompt tokens from the engine's cache.
    pub cached_tokens: u64,
    /// Tokens generated; 0 = the engine did not say.
    pub completion_tokens: u64,
    /// Id of the API key, where one was needed.
    pub key_id: Option<Uuid>,
    /// Name of that key when the request arrived.
    pub key: Option<Arc<str>>,
    /// Band it waited in.
    pub priority: Priority,
    /// Why the row was chosen, where one was.
    pub route: Option<RouteTrace>,
    /// Where it belongs in its client's trace; not kept in the log.
    #[serde(skip)]
    pub parent: Option<TraceParent>,
}

impl UsageEvent {
    /// Whether it was refused or failed; a client that leaves is no error.
    pub fn is_error(&self) -> bool {
        self.error.is_some() || (self.status >= 400 && self.status != CLIENT_LEFT)
    }

    /// Prompt tokens that were computed.
    pub const fn prefill_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }

    /// Mean time between two tokens of a stream, from its first to its last byte.
    pub fn between_tokens(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.completion_tokens.checked_sub(1)?).ok().filter(|gaps| *gaps > 0 && self.streamed)?;
        Some(self.total.saturating_sub(self.first_byte?) / gaps)
    }
}

/// A duration as milliseconds to the microsecond: more digits would only make the log larger.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_micros() as f64 / 1000.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let milliseconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(serde::de::Error::custom)
    }
}

/// The same, where there may be none.
mod some_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Millis(#[serde(with = "super::millis")] Duration);

    #[expect(clippy::ref_option, reason = "serde hands the field over by reference")]
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(Millis).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Millis>::deserialize(deserializer)?.map(|millis| millis.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::testing::event;

    #[test]
    fn what_the_log_keeps_comes_back() {
        let mut kept = event(200);
        kept.key = Some("laptop".into());
        kept.first_byte = None;
        let text = serde_json::to_string(&kept).unwrap();
        assert!(text.contains(r#""total_ms":110.0"#) && text.contains(r#""queue_wait_ms":3.0"#), "{text}");
        let back: UsageEvent = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        assert_eq!((back.total, back.first_byte), (kept.total, None));
    }

    #[test]
    fn a_client_that_leaves_is_no_error_and_a_broken_stream_is_one() {
        for (status, error, expected) in
            [(200, None, false), (499, None, false), (429, None, true), (200, Some("upstream_failed"), true), (502, Some("x"), true)]
        {
            let event = UsageEvent { error: error.map(str::to_owned), ..event(status) };
            assert_eq!(event.is_error(), expected, "{status} {error:?}");
        }
    }

    #[test]
    fn the_time_between_tokens_needs_two_of_a_stream() {
        assert_eq!(event(200).between_tokens(), Some(Duration::from_millis(10)));
        for other in [
            UsageEvent { completion_tokens: 1, ..event(200) },
            UsageEvent { completion_tokens: 0, ..event(200) },
            UsageEvent { streamed: false, ..event(200) },
            UsageEvent { first_byte: None, ..event(200) },
        ] {
            assert_eq!(other.between_tokens(), None, "{other:?}");
        }
    }
}
