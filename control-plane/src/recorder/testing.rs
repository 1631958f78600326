//! Events for unit tests.

use std::time::Duration;

use super::UsageEvent;
use crate::key_limits::Priority;

/// A stream of ten tokens, 10 ms apart.
pub(crate) fn event(status: u16) -> UsageEvent {
    UsageEvent {
        at: 1_764_547_200_000,
        request_id: "r".into(),
        row: None,
        model: Some("chat".into()),
        endpoint: "/v1/chat/completions".into(),
        status,
        error: None,
        streamed: true,
        retries: 0,
        queue_wait: Some(Duration::from_millis(3)),
        first_byte: Some(Duration::from_millis(20)),
        total: Duration::from_millis(110),
        prompt_tokens: 7,
        cached_tokens: 5,
        completion_tokens: 10,
        key_id: None,
        key: None,
        priority: Priority::Default,
        route: None,
        parent: None,
    }
}
