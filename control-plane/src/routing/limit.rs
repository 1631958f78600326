//! How many requests a shared pool really takes at once, learned from what its engine reports.
//!
//! A tensor engine (`vLLM`, `SGLang`) takes any number of requests and queues what does not fit into its memory, where nobody
//! sees it, no fairness holds and a longer prompt of a waiting conversation cannot overtake. How many fit depends on the
//! lengths of prompts, so no fixed number is right. Here it is found as a sender on a network finds its rate: halved at
//! most, towards what the engine really runs, while its own queue does not empty; a little more, while it has none and
//! more could be sent. It is never above what the row was given, and never below one.

use lifeboat_engines::queue::EngineQueue;

use super::RowIndex;
use super::router::Router;

/// Reports of a queue in a row that count as one: a single one is the moment at which a batch ends.
const REPORTS: u32 = 2;
/// Part of the limit that is left after one step down, at least.
const DOWN: f64 = 0.5;
/// Part of the row's slots that one step up adds; at least one slot.
const UP: f64 = 1.0 / 32.0;
/// Part of the engine's cache in use above which nothing is added: more would push out what others come back for.
const FULL: f64 = 0.95;

/// The limit of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    slots: u32,
    now: u32,
    queued: u32,
    /// Requests waiting inside the engine by the last report.
    waiting: Option<u32>,
}

impl Limit {
    pub const fn new(slots: u32) -> Self {
        Self { slots, now: slots, queued: 0, waiting: None }
    }

    /// Requests at once.
    pub const fn get(&self) -> u32 {
        self.now
    }

    /// Requests that waited inside the engine by its last report.
    pub const fn waiting(&self) -> Option<u32> {
        self.waiting
    }

    /// A report came. `in_flight` = what we have on the row, `wanted` = more would be sent if the limit were higher.
    pub fn reported(&mut self, queue: EngineQueue, in_flight: u32, wanted: bool) {
        self.waiting = Some(queue.waiting);
        if queue.waiting > 0 {
            self.queued += 1;
            if self.queued >= REPORTS {
                self.queued = 0;
                let runs = in_flight.saturating_sub(queue.waiting);
                self.now = runs.max(part(self.now, DOWN)).clamp(1, self.now.max(1));
            }
            return;
        }
        self.queued = 0;
        if wanted && queue.cache_used.is_none_or(|used| used < FULL) {
            self.now = self.now.saturating_add(part(self.slots, UP)).min(self.slots);
        }
    }

    /// No report came for long: what the row was given counts.
    pub const fn forget(&mut self) {
        *self = Self::new(self.slots);
    }
}

impl Router {
    /// The engine of a row says how many wait inside it; `None` = it has not said so for long. Whoever waits for the row is
    /// to be looked at again.
    pub fn reported(&mut self, index: RowIndex, queue: Option<EngineQueue>, now: f64) {
        let queued = self.lines.values().any(|line| !line.queue.is_empty() && line.rows.contains(&index));
        let Some(row) = self.row_mut(index) else { return };
        let wanted = queued || row.waiters > 0 || row.in_flight >= row.limit(now);
        match queue {
            Some(queue) => row.learned.reported(queue, row.in_flight, wanted),
            None => row.learned.forget(),
        }
    }
}

/// At least one.
fn part(slots: u32, share: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count, not negative")]
    let part = (f64::from(slots) * share) as u32;
    part.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waits(waiting: u32) -> EngineQueue {
        EngineQueue { waiting, cache_used: Some(0.5) }
    }

    #[test]
    fn a_queue_that_stays_lowers_the_limit_to_what_the_engine_runs_by_half_at_most() {
        let mut limit = Limit::new(64);
        limit.reported(waits(60), 64, true);
        assert_eq!(limit.get(), 64, "one report is no trend");
        limit.reported(waits(60), 64, true);
        assert_eq!(limit.get(), 32);
        limit.reported(waits(4), 32, true);
        limit.reported(waits(4), 32, true);
        assert_eq!(limit.get(), 28);
    }

    #[test]
    fn without_a_queue_it_grows_by_steps_while_more_is_wanted_and_the_cache_has_room() {
        let mut limit = Limit { now: 10, ..Limit::new(64) };
        limit.reported(waits(0), 10, true);
        assert_eq!(limit.get(), 12);
        limit.reported(waits(0), 3, false);
        limit.reported(EngineQueue { waiting: 0, cache_used: Some(0.97) }, 12, true);
        assert_eq!(limit.get(), 12);
        (0..100).for_each(|_| limit.reported(EngineQueue { waiting: 0, cache_used: None }, 12, true));
        assert_eq!(limit.get(), 64);
    }

    #[test]
    fn what_is_not_reported_any_more_limits_nobody() {
        let mut limit = Limit::new(8);
        (0..2).for_each(|_| limit.reported(waits(8), 8, true));
        assert_eq!((limit.get(), limit.waiting()), (4, Some(8)));
        limit.forget();
        assert_eq!((limit.get(), limit.waiting()), (8, None));
    }

    proptest! {
        #[test]
        fn it_is_always_between_one_and_the_slots(slots in 1_u32..512, reports in proptest::collection::vec((0_u32..600, 0_u32..600, any::<bool>()), 0..100)) {
            let mut limit = Limit::new(slots);
            for (waiting, in_flight, wanted) in reports {
                limit.reported(waits(waiting), in_flight, wanted);
                prop_assert!((1..=slots).contains(&limit.get()));
            }
        }
    }
}
