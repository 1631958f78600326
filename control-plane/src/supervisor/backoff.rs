//! How long a row rests after its engine died: longer each time, and after too many deaths a cool-down that no
//! amount of demand shortens.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::SupervisorConfig;

/// A rest between two starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// When it ends.
    pub until: Instant,
    /// Whether the row counts as failed meanwhile.
    pub cool_down: bool,
}

/// The deaths of one row's engine since it last served for a while.
#[derive(Debug, Default)]
pub struct Deaths {
    count: u32,
}

impl Deaths {
    /// Notes a death after that time of service; says how long to rest.
    pub fn note(&mut self, served: Duration, now: Instant, config: &SupervisorConfig) -> Rest {
        if served >= config.stable_after {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        if self.count >= config.restart_limit.max(1) {
            return Rest { until: now + config.cool_down, cool_down: true };
        }
        let doubled = config.restart_backoff.saturating_mul(1_u32.checked_shl(self.count - 1).unwrap_or(u32::MAX));
        Rest { until: now + doubled.min(config.restart_backoff_max), cool_down: false }
    }

    /// Deaths since the last stable service.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// An operator's restart or edit: a new beginning.
    pub const fn forgive(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SupervisorConfig {
        SupervisorConfig { restart_limit: 4, restart_backoff_max: Duration::from_secs(3), ..SupervisorConfig::default() }
    }

    fn rests(served: &[u64]) -> Vec<(u64, bool)> {
        let (now, mut deaths) = (Instant::now(), Deaths::default());
        let rest = |seconds: &u64| {
            let rest = deaths.note(Duration::from_secs(*seconds), now, &config());
            (rest.until.duration_since(now).as_secs(), rest.cool_down)
        };
        served.iter().map(rest).collect()
    }

    #[test]
    fn rests_grow_to_their_limit_and_end_in_a_cool_down() {
        assert_eq!(rests(&[0, 1, 59]), [(1, false), (2, false), (3, false)]);
        assert_eq!(rests(&[0, 0, 0, 0]).last(), Some(&(300, true)));
    }

    #[test]
    fn one_more_death_after_a_cool_down_is_the_next_cool_down() {
        assert_eq!(rests(&[0, 0, 0, 0, 0])[3..], [(300, true), (300, true)]);
    }

    #[test]
    fn stable_service_wipes_the_slate() {
        assert_eq!(rests(&[0, 0, 0, 60, 0])[3..], [(1, false), (2, false)]);
    }

    #[test]
    fn a_great_number_of_deaths_does_not_overflow() {
        let config = SupervisorConfig { restart_limit: u32::MAX, ..SupervisorConfig::default() };
        let mut deaths = Deaths { count: 70 };
        let now = Instant::now();
        assert_eq!(deaths.note(Duration::ZERO, now, &config).until, now + Duration::from_secs(60));
    }
}
