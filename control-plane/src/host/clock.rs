//! Wall clock, and times in words. Durations come from `tokio::time::Instant` instead.

use std::time::Duration;

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

/// A time as people say it: `2 s`, `5 min`.
pub fn spoken(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spoken_in_the_unit_that_fits() {
        for (time, words) in [(200, "200 ms"), (1000, "1 s"), (90_000, "90 s"), (120_000, "2 min"), (0, "0 ms")] {
            assert_eq!(spoken(Duration::from_millis(time)), words);
        }
    }
}
