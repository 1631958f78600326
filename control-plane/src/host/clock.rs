//! Wall clock. Durations come from `tokio::time::Instant` instead.

/// Unix time in milliseconds.
#[expect(clippy::disallowed_methods, reason = "this is the one door to the wall clock")]
pub fn unix_millis() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Unix milliseconds as RFC 3339 in UTC, the form every reply of the API uses.
pub fn rfc3339(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).unwrap_or_default().to_string()
}
