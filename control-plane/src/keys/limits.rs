//! The count of what a key uses, against what it may use.
//!
//! Two buckets that fill evenly and hold what a minute gives, and a number of running requests. A request takes one from
//! the first bucket when it begins. Its tokens are known when it ends, so the second one is charged then and may fall
//! below zero: while it is above, the next request may begin, whatever its size, and the debt is waited off afterwards. A
//! bucket that were asked for a guess beforehand would shut out for ever whoever sends more than it holds.

use std::time::Duration;

use tokio::time::Instant;

use crate::key_limits::KeyLimits;

/// Seconds in which a bucket fills.
const MINUTE: f64 = 60.0;
/// When to come back where it depends on others: a running request must end first.
const SOON: Duration = Duration::from_secs(1);
/// Longest wait we tell.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A limit that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `requests_per_minute`.
    Requests(u32),
    /// `tokens_per_minute`.
    Tokens(u32),
    /// `concurrent_requests`.
    Concurrent(u32),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Requests(limit) => write!(f, "{limit} requests a minute (`requests_per_minute`)"),
            Self::Tokens(limit) => write!(f, "{limit} tokens a minute (`tokens_per_minute`)"),
            Self::Concurrent(limit) => write!(f, "{limit} requests at once (`concurrent_requests`)"),
        }
    }
}

/// Why a request of a key may not begin now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key `{key}` may use {limit}")]
pub struct LimitReached {
    /// Name of the key.
    pub key: String,
    /// What it ran into.
    pub limit: Limit,
    /// When it is worth trying again.
    pub retry_after: Duration,
}

/// Where a key stands with one of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The limit.
    pub limit: u32,
    /// What is left of it.
    pub remaining: u32,
    /// Until all of it is there again.
    pub reset: Duration,
}

/// Fills evenly; holds at most what a minute gives.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// What is in it, and when that was so; `None` = full, as it is until it is first used.
    level: Option<(f64, Instant)>,
}

impl Bucket {
    /// What is in it now. A limit that was changed holds from here on.
    fn level(&mut self, limit: u32, now: Instant) -> f64 {
        let full = f64::from(limit);
        let level = match self.level {
            Some((level, then)) => (level + (now - then).as_secs_f64() * full / MINUTE).min(full),
            None => full,
        };
        self.level = Some((level, now));
        level
    }

    fn take(&mut self, limit: u32, amount: f64, now: Instant) {
        self.level = Some((self.level(limit, now) - amount, now));
    }

    fn standing(&mut self, limit: u32, now: Instant) -> Standing {
        let level = self.level(limit, now);
        // Saturates at both ends, and the level is never above the limit.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bucket's level is clamped to what a u32 holds")]
        let remaining = level.clamp(0.0, f64::from(limit)) as u32;
        Standing { limit, remaining, reset: until(limit, level, f64::from(limit)) }
    }
}

/// Until a bucket at `level` is at `wanted`.
fn until(limit: u32, level: f64, wanted: f64) -> Duration {
    let seconds = (wanted - level).max(0.0) * MINUTE / f64::from(limit);
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |wait| wait.min(LONGEST))
}

/// What a key uses now.
#[derive(Debug, Default)]
pub(super) struct Use {
    requests: Bucket,
    tokens: Bucket,
    running: u32,
}

impl Use {
    /// Counts a request in, or tells what it ran into and when to come back. Nothing is taken from who is refused.
    pub(super) fn begin(&mut self, limits: &KeyLimits, now: Instant) -> Result<(), (Limit, Duration)> {
        if let Some(limit) = limits.concurrent_requests.filter(|limit| self.running >= *limit) {
            return Err((Limit::Concurrent(limit), SOON));
        }
        if let Some(limit) = limits.tokens_per_minute {
            let level = self.tokens.level(limit, now);
            if level <= 0.0 {
                // One whole token, so that who comes back in time finds the bucket above zero.
                return Err((Limit::Tokens(limit), until(limit, level, 1.0)));
            }
        }
        if let Some(limit) = limits.requests_per_minute {
            let level = self.requests.level(limit, now);
            if level < 1.0 {
                return Err((Limit::Requests(limit), until(limit, level, 1.0)));
            }
            self.requests.take(limit, 1.0, now);
        }
        self.running += 1;
        Ok(())
    }

    /// Counts it out and charges what it used.
    pub(super) fn end(&mut self, limits: &KeyLimits, tokens: u64, now: Instant) {
        self.running = self.running.saturating_sub(1);
        if let Some(limit) = limits.tokens_per_minute {
            self.tokens.take(limit, tokens as f64, now);
        }
    }

    /// Where the key stands with its requests and with its tokens.
    pub(super) fn standing(&mut self, limits: &KeyLimits, now: Instant) -> (Option<Standing>, Option<Standing>) {
        let requests = limits.requests_per_minute.map(|limit| self.requests.standing(limit, now));
        (requests, limits.tokens_per_minute.map(|limit| self.tokens.standing(limit, now)))
    }

    /// Requests running now.
    #[cfg(test)]
    pub(super) const fn running(&self) -> u32 {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_come_back_evenly_and_a_pause_saves_up_one_minutes_worth() {
        let limits = KeyLimits { requests_per_minute: Some(6), ..KeyLimits::default() };
        let (start, mut used) = (Instant::now(), Use::default());
        for _ in 0..6 {
            used.begin(&limits, start).unwrap();
        }
        assert_eq!(used.begin(&limits, at(start, 1.0)), Err((Limit::Requests(6), Duration::from_secs(9))));
        assert!(used.begin(&limits, at(start, 10.0)).is_ok());
        assert!(used.begin(&limits, at(start, 10.0)).is_err());
        let later = at(start, 7200.0);
        for _ in 0..6 {
            used.begin(&limits, later).unwrap();
        }
        assert_eq!(used.begin(&limits, later), Err((Limit::Requests(6), Duration::from_secs(10))));
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_larger_than_the_limit_is_served_and_its_debt_is_waited_off() {
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        let (start, mut used) = (Instant::now(), Use::default());
        used.begin(&limits, start).unwrap();
        used.end(&limits, 1200, start);
        let (limit, wait) = used.begin(&limits, start).unwrap_err();
        assert_eq!((limit, wait), (Limit::Tokens(600), Duration::from_secs_f64(60.1)));
        assert!(used.begin(&limits, at(start, 59.9)).is_err());
        assert!(used.begin(&limits, start + wait).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_pays_nothing() {
        let limits =
            KeyLimits { requests_per_minute: Some(2), tokens_per_minute: Some(60), concurrent_requests: Some(1), ..KeyLimits::default() };
        let (start, mut used) = (Instant::now(), Use::default());
        used.begin(&limits, start).unwrap();
        for _ in 0..5 {
            assert_eq!(used.begin(&limits, start), Err((Limit::Concurrent(1), SOON)));
        }
        used.end(&limits, 60, start);
        for _ in 0..5 {
            assert_eq!(used.begin(&limits, start), Err((Limit::Tokens(60), Duration::from_secs(1))));
        }
        assert!(used.begin(&limits, at(start, 1.0)).is_ok(), "one of the two requests is left");
        assert_eq!(used.running(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_standing_is_what_is_left_and_when_all_is_there_again() {
        let limits = KeyLimits { requests_per_minute: Some(60), tokens_per_minute: Some(600), ..KeyLimits::default() };
        let (start, mut used) = (Instant::now(), Use::default());
        used.begin(&limits, start).unwrap();
        used.end(&limits, 900, start);
        let (requests, tokens) = used.standing(&limits, start);
        assert_eq!(requests, Some(Standing { limit: 60, remaining: 59, reset: Duration::from_secs(1) }));
        assert_eq!(tokens, Some(Standing { limit: 600, remaining: 0, reset: Duration::from_secs(90) }));
        assert_eq!(used.standing(&KeyLimits::default(), start), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_limit_holds_at_once() {
        let (start, mut used) = (Instant::now(), Use::default());
        let wide = KeyLimits { requests_per_minute: Some(1000), ..KeyLimits::default() };
        used.begin(&wide, start).unwrap();
        let narrow = KeyLimits { requests_per_minute: Some(1), concurrent_requests: Some(1), ..KeyLimits::default() };
        assert_eq!(used.begin(&narrow, start), Err((Limit::Concurrent(1), SOON)), "what runs already counts");
        used.end(&narrow, 0, start);
        assert!(used.begin(&narrow, start).is_ok(), "what was saved up is cut to the new limit");
        used.end(&narrow, 0, start);
        assert!(matches!(used.begin(&narrow, start), Err((Limit::Requests(1), _))));
    }
}
