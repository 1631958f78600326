//! How many failed requests of a pool may be tried again.
//!
//! A retry helps while one engine fails and hurts while all of them do: then each request comes two or three times and
//! keeps down what is already down. So retries are paid from what requests pay in, a share of them over any longer time.
//! A stock is there from the start and fills up again slowly, so that a quiet pool can retry too; it covers at least the
//! slots of the largest row, because an engine that dies takes that many requests with it at once, and these must all find
//! another one.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

/// Seconds in which one retry comes back to the stock of a pool without traffic.
const REFILL_SECONDS: f64 = 1.0;

/// What a pool may spend on failed requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct RetriesView {
    /// Failed requests that could be tried again now.
    pub left: u32,
    /// Failed requests that were not tried again because too many were already, since the start.
    pub refused: u64,
}

/// What a pool may spend.
#[derive(Debug)]
struct Budget {
    left: f64,
    seen: f64,
    refused: u64,
}

/// The budgets of all pools.
#[derive(Debug)]
pub(super) struct Retries {
    /// Retries for each request.
    share: f64,
    /// Retries in stock at least.
    floor: f64,
    pools: HashMap<Arc<str>, Budget>,
}

impl Retries {
    pub(super) fn new(share: f64, floor: u32) -> Self {
        Self { share, floor: f64::from(floor), pools: HashMap::new() }
    }

    fn budget(&mut self, pool: &Arc<str>, slots: u32, now: f64) -> (&mut Budget, f64) {
        let stock = if self.share > 0.0 { self.floor.max(f64::from(slots)) } else { self.floor };
        let budget = self.pools.entry(Arc::clone(pool)).or_insert(Budget { left: stock, seen: now, refused: 0 });
        budget.left = (budget.left + (now - budget.seen).max(0.0) / REFILL_SECONDS).min(stock);
        budget.seen = now;
        (budget, stock)
    }

    /// A request of the pool asks for a slot for the first time. `slots` = those of the pool's largest row.
    pub(super) fn paid_in(&mut self, pool: &Arc<str>, slots: u32, now: f64) {
        let share = self.share;
        let (budget, stock) = self.budget(pool, slots, now);
        budget.left = (budget.left + share).min(stock);
    }

    /// Whether one more may be tried again; if so, it is paid for.
    pub(super) fn spend(&mut self, pool: &Arc<str>, slots: u32, now: f64) -> bool {
        let (budget, _) = self.budget(pool, slots, now);
        if budget.left < 1.0 {
            budget.refused += 1;
            return false;
        }
        budget.left -= 1.0;
        true
    }

    /// For people.
    pub(super) fn view(&mut self, pool: &Arc<str>, slots: u32, now: f64) -> RetriesView {
        let (budget, _) = self.budget(pool, slots, now);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and no more than a count of slots")]
        let left = budget.left as u32;
        RetriesView { left, refused: budget.refused }
    }

    /// Forgets all other pools.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.pools.retain(|pool, _| is_there(pool));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool() -> Arc<str> {
        Arc::from("m")
    }

    #[test]
    fn all_requests_of_an_engine_that_dies_are_tried_again() {
        let mut retries = Retries::new(0.2, 10);
        assert!((0..64).all(|_| retries.spend(&pool(), 64, 0.0)));
        assert!(!retries.spend(&pool(), 64, 0.0));
        assert_eq!(retries.view(&pool(), 64, 0.0), RetriesView { left: 0, refused: 1 });
    }

    #[test]
    fn a_quiet_pool_gets_its_stock_back_and_no_more_than_that() {
        let mut retries = Retries::new(0.2, 3);
        assert!((0..3).all(|_| retries.spend(&pool(), 1, 0.0)));
        assert!(!retries.spend(&pool(), 1, 0.5));
        assert!(retries.spend(&pool(), 1, 1.0));
        assert_eq!(retries.view(&pool(), 1, 1000.0).left, 3);
    }

    #[test]
    fn nothing_is_tried_again_where_both_settings_are_zero() {
        let mut retries = Retries::new(0.0, 0);
        retries.paid_in(&pool(), 8, 0.0);
        assert!(!retries.spend(&pool(), 8, 1000.0));
    }

    #[test]
    fn pools_pay_for_themselves_and_those_that_are_gone_are_forgotten() {
        let mut retries = Retries::new(0.2, 1);
        let other: Arc<str> = Arc::from("other");
        assert!(retries.spend(&pool(), 1, 0.0) && retries.spend(&other, 1, 0.0));
        assert!(!retries.spend(&pool(), 1, 0.0));
        retries.retain(|pool| pool == "other");
        assert_eq!(retries.pools.len(), 1);
    }

    proptest! {
        #[test]
        fn retries_stay_below_their_share_of_the_requests_and_the_stock(failing in proptest::collection::vec(any::<bool>(), 1..2000)) {
            let mut retries = Retries::new(0.2, 10);
            let mut tried = 0.0;
            for fails in &failing {
                retries.paid_in(&pool(), 4, 0.0);
                if *fails && retries.spend(&pool(), 4, 0.0) {
                    tried += 1.0;
                }
            }
            prop_assert!(tried <= 10.0 + 0.2 * failing.len() as f64 + 1e-6, "{tried} of {}", failing.len());
        }
    }
}
