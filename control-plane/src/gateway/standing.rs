//! What a key has left of its limits, as the headers OpenAI's clients know. A key without limits gets none. They are the
//! state when the reply begins: what this request costs is known when it has ended.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::keys::{Principal, Standing};

/// Limit, remaining, reset.
const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Adds the headers of every limit the caller's key has. Tokens are those of requests that have ended.
pub(super) fn tell(caller: &Principal, headers: &mut HeaderMap) {
    let (requests, tokens) = caller.standing();
    for (names, standing) in [(REQUESTS, requests), (TOKENS, tokens)] {
        if let Some(standing) = standing {
            write(names, standing, headers);
        }
    }
}

fn write([limit, remaining, reset]: [HeaderName; 3], standing: Standing, headers: &mut HeaderMap) {
    headers.insert(limit, HeaderValue::from(standing.limit));
    headers.insert(remaining, HeaderValue::from(standing.remaining));
    if let Ok(value) = HeaderValue::try_from(duration(standing.reset)) {
        headers.insert(reset, value);
    }
}

/// As OpenAI writes it: `850ms`, `12s`, `6m30s`.
fn duration(time: Duration) -> String {
    let milliseconds = time.as_millis();
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let seconds = milliseconds.div_ceil(1000);
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_writes_them_and_never_too_short() {
        for (milliseconds, text) in [(0, "0ms"), (850, "850ms"), (1001, "2s"), (59_000, "59s"), (60_000, "1m0s"), (390_000, "6m30s")] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), text);
        }
    }
}
