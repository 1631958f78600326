//! Tells slow from stuck, by what a process does rather than by how long it takes.
//!
//! No limit on the time of a load or of a reply: a slow disk is slow, a long prompt is long. What ends an engine is
//! that nothing moves: no line of its log, no memory, no reading, no CPU time worth the name, no byte sent.

use std::time::Duration;

use tokio::time::Instant;

use crate::host::process::Usage;

/// A clock tick of CPU time counts as work if there was one in each so many milliseconds: 2% of one core, ticks
/// being hundredths of a second on Linux. Answering our own probes costs less.
const MILLIS_PER_TICK: u128 = 500;
/// Growth of memory that counts, pages (1 MiB with pages of 4 KiB).
const GROWN_PAGES: u64 = 256;
/// Reading that counts, bytes.
const READ_BYTES: u64 = 1 << 20;

/// One look at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// What its processes have used.
    pub usage: Usage,
    /// Whatever else shows life; only its change means anything.
    pub signs: u64,
}

/// Remembers when something last moved.
#[derive(Debug)]
pub struct Movement {
    mark: Look,
    since: Instant,
    worked: Instant,
}

impl Movement {
    /// Nothing seen yet.
    pub const fn new(look: Look, now: Instant) -> Self {
        Self { mark: look, since: now, worked: now }
    }

    /// Takes a look; says for how long nothing has moved at all.
    pub fn still_for(&mut self, look: Look, now: Instant) -> Duration {
        let signs = look.signs != self.mark.signs;
        let grown = look.usage.resident_pages.abs_diff(self.mark.usage.resident_pages) >= GROWN_PAGES;
        let read = look.usage.read_bytes.saturating_sub(self.mark.usage.read_bytes) >= READ_BYTES;
        if signs || grown || read || self.has_worked(look, now) {
            self.mark = look;
            self.worked = now;
        }
        if signs {
            self.since = now;
        }
        now.saturating_duration_since(self.worked)
    }

    /// For how long no sign has come, whatever the processes did. To be asked after [`Movement::still_for`].
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// CPU time since the mark is more than a process that only waits would use.
    fn has_worked(&self, look: Look, now: Instant) -> bool {
        let used = look.usage.cpu_ticks.saturating_sub(self.mark.usage.cpu_ticks);
        let passed = now.saturating_duration_since(self.worked).as_millis();
        used > 0 && u128::from(used).saturating_mul(MILLIS_PER_TICK) >= passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(signs: u64, cpu_ticks: u64, resident_pages: u64, read_bytes: u64) -> Look {
        Look { signs, usage: Usage { cpu_ticks, resident_pages, read_bytes, stopped: false } }
    }

    #[test]
    fn anything_that_moves_starts_the_clock_again() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let begin = look(1, 1000, 1000, 1000);
        // (what is seen after 100 s, for how long nothing moved)
        let table = [
            (begin, 100),
            (look(2, 1000, 1000, 1000), 0),
            (look(1, 1000 + 199, 1000, 1000), 100),
            (look(1, 1000 + 200, 1000, 1000), 0),
            (look(1, 1000, 1000 + 255, 1000), 100),
            (look(1, 1000, 1000 + 256, 1000), 0),
            (look(1, 1000, 1000 - 256, 1000), 0),
            (look(1, 1000, 1000, 1000 + (1 << 20)), 0),
            (look(1, 1000, 1000, 1100), 100),
        ];
        for (seen, still) in table {
            let mut movement = Movement::new(begin, start);
            assert_eq!(movement.still_for(seen, at(100)), Duration::from_secs(still), "{seen:?}");
        }
    }

    #[test]
    fn slow_growth_adds_up() {
        let start = Instant::now();
        let mut movement = Movement::new(look(0, 0, 0, 0), start);
        let still: Vec<u64> =
            (1..=4).map(|step| movement.still_for(look(0, 0, step * 100, 0), start + Duration::from_secs(step * 10)).as_secs()).collect();
        assert_eq!(still, [10, 20, 0, 10]);
    }

    #[test]
    fn work_without_a_sign_is_silent_but_not_still() {
        let start = Instant::now();
        let mut movement = Movement::new(look(0, 0, 0, 0), start);
        let later = start + Duration::from_secs(50);
        assert_eq!(movement.still_for(look(0, 5000, 0, 0), later), Duration::ZERO);
        assert_eq!(movement.silent_for(later), Duration::from_secs(50));
    }
}
