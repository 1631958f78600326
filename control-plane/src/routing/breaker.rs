//! When a row that fails is left alone, and how it comes back.
//!
//! Failures of the engine count, never those of the client (a bad request, a hang-up, a long reply). Once open, the row is
//! tried again with one real request after a pause that doubles; if that one succeeds, it gets its full share back over ten
//! seconds. A row can therefore never be shut out for ever, nor be flooded the moment it recovers.

/// Connections that fail in a row and open the breaker.
const CONNECT_LIMIT: u32 = 3;
/// Failed requests in a row that open it.
const FAILURE_LIMIT: u32 = 5;
/// Requests in the window before their share of failures counts.
const WINDOW_LEAST: f64 = 20.0;
/// Share of successes below which it opens.
const SUCCESS_SHARE: f64 = 0.8;
/// Seconds of memory of that share.
const WINDOW: f64 = 10.0;
/// First pause in seconds; doubles up to the last one.
const FIRST_PAUSE: f64 = 1.0;
/// Longest pause in seconds.
const LAST_PAUSE: f64 = 60.0;
/// Seconds until a row that recovered has its full share again.
const SLOW_START: f64 = 10.0;

/// How a request ended, as far as its engine is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine did its part.
    Good,
    /// Not the engine's doing: the client left, or asked for what cannot be.
    Neutral,
    /// No connection came about.
    NoConnection,
    /// The engine failed.
    Failed,
}

/// Where the breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// None passes.
    Open,
    /// One passes, to see.
    HalfOpen,
}

impl BreakerState {
    /// The name used in the API and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// The breaker of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breaker {
    connects: u32,
    failures: u32,
    good: f64,
    bad: f64,
    seen: f64,
    /// Until when nothing passes; `None` = closed.
    open_until: Option<f64>,
    pause: f64,
    probing: bool,
    recovered: f64,
}

impl Breaker {
    /// A closed one.
    pub const fn new() -> Self {
        Self {
            connects: 0,
            failures: 0,
            good: 0.0,
            bad: 0.0,
            seen: 0.0,
            open_until: None,
            pause: FIRST_PAUSE,
            probing: false,
            recovered: f64::NEG_INFINITY,
        }
    }

    /// Where it stands.
    pub fn state(&self, now: f64) -> BreakerState {
        match self.open_until {
            None => BreakerState::Closed,
            Some(until) if now < until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Whether a request may pass now.
    pub fn allows(&self, now: f64) -> bool {
        match self.state(now) {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            BreakerState::HalfOpen => !self.probing,
        }
    }

    /// Whether time alone changes nothing about it.
    pub fn is_settled(&self, now: f64) -> bool {
        self.open_until.is_none() && now - self.recovered >= SLOW_START
    }

    /// Seconds until it lets a request pass; 0 = now.
    pub fn opens_in(&self, now: f64) -> f64 {
        self.open_until.map_or(0.0, |until| (until - now).max(0.0))
    }

    /// The slots of `all` that may be used: few right after a recovery, one for a probe.
    pub fn share(&self, all: u32, now: f64) -> u32 {
        if self.open_until.is_some() {
            return 1;
        }
        let part = (now - self.recovered) / SLOW_START;
        if part >= 1.0 {
            return all;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and `all`")]
        let slots = (f64::from(all) * part.max(0.0)).ceil() as u32;
        slots.clamp(all.min(1), all)
    }

    /// A request was sent.
    pub fn sent(&mut self, now: f64) {
        self.probing |= self.state(now) == BreakerState::HalfOpen;
    }

    /// A request ended. True if this opened the breaker. `jitter` = 0 to 1, spreads the next try.
    pub fn ended(&mut self, outcome: Outcome, now: f64, jitter: f64) -> bool {
        let fade = (-(now - self.seen).max(0.0) / WINDOW).exp();
        self.good *= fade;
        self.bad *= fade;
        self.seen = now;
        match outcome {
            Outcome::Neutral => {
                self.probing = false;
                return false;
            }
            Outcome::Good => {
                self.good += 1.0;
                self.connects = 0;
                self.failures = 0;
                if self.probing {
                    *self = Self { recovered: now, seen: now, ..Self::new() };
                }
                return false;
            }
            Outcome::NoConnection => {
                self.connects += 1;
                self.failures += 1;
                self.bad += 1.0;
            }
            Outcome::Failed => {
                self.failures += 1;
                self.bad += 1.0;
            }
        }
        let all = self.good + self.bad;
        let failing = all >= WINDOW_LEAST && self.good / all < SUCCESS_SHARE;
        let probe_failed = std::mem::take(&mut self.probing);
        let closed = self.open_until.is_none();
        if probe_failed || (closed && (self.connects >= CONNECT_LIMIT || self.failures >= FAILURE_LIMIT || failing)) {
            // Half of the pause is certain, half is chance.
            self.open_until = Some(now + self.pause * (0.5 + 0.5 * jitter.clamp(0.0, 1.0)));
            self.pause = (self.pause * 2.0).min(LAST_PAUSE);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::new();
        (0..CONNECT_LIMIT).for_each(|_| _ = breaker.ended(Outcome::NoConnection, 0.0, 1.0));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_what_is_not_the_engines_doing_does_not() {
        let mut breaker = Breaker::new();
        for _ in 0..100 {
            assert!(!breaker.ended(Outcome::Neutral, 0.0, 1.0));
        }
        assert_eq!((0..FAILURE_LIMIT).filter(|_| breaker.ended(Outcome::Failed, 0.0, 1.0)).count(), 1);
        assert_eq!(breaker.state(0.5), BreakerState::Open);
        assert_eq!(opened().state(0.5), BreakerState::Open);
    }

    #[test]
    fn one_request_tries_it_and_its_success_brings_the_row_back_slowly() {
        let mut breaker = opened();
        assert!(!breaker.allows(0.9) && breaker.allows(1.1));
        breaker.sent(1.1);
        assert!(!breaker.allows(1.2));
        assert!(!breaker.ended(Outcome::Good, 1.3, 1.0));
        assert!(breaker.allows(1.3));
        assert_eq!((breaker.share(4, 1.3), breaker.share(4, 6.4), breaker.share(4, 20.0)), (1, 3, 4));
    }

    #[test]
    fn each_failed_try_doubles_the_pause_up_to_a_minute() {
        let mut breaker = opened();
        let mut now = 0.0;
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            assert!((breaker.opens_in(now) - expected).abs() < 1e-9);
            now += expected;
            breaker.sent(now);
            assert!(breaker.ended(Outcome::Failed, now, 1.0));
        }
    }

    #[test]
    fn a_try_whose_client_left_lets_another_one_try() {
        let mut breaker = opened();
        breaker.sent(2.0);
        breaker.ended(Outcome::Neutral, 2.1, 1.0);
        assert!(breaker.allows(2.2));
    }

    #[test]
    fn many_failures_among_successes_open_it_too() {
        let mut breaker = Breaker::new();
        let opened = (0..60).any(|step| breaker.ended(if step % 3 == 0 { Outcome::Failed } else { Outcome::Good }, 0.1, 1.0));
        assert!(opened);
    }
}
