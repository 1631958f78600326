//! The order of those who wait: priority bands, then fair shares, then age.
//!
//! Start-time fair queueing: every request gets a virtual start, and the one with the smallest goes first. A tenant's next
//! start lies after the work of its last one, so whoever asks much waits for its own requests and not for those of others;
//! who was idle cannot save up. Waiting too long lifts a request by one band. One queue serves one pool.

use std::collections::{BTreeMap, HashMap};

/// Bands: 0 bulk, 1 default, 2 interactive, 3 system.
pub const BANDS: u8 = 4;
/// Seconds of waiting that lift a request by one band.
pub const LIFT_AFTER: f64 = 30.0;
/// Tenants remembered; beyond, those without a debt are forgotten.
const MAX_TENANTS: usize = 65_536;

/// Names one waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The order: best band, smallest virtual start (its bits sort as the number does, it is never negative), oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    below_best: u8,
    start: u64,
    ticket: Ticket,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    /// When the band was last changed.
    since: f64,
}

/// What a request asks of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// Who pays.
    pub tenant: u64,
    /// Priority, 0 to 3.
    pub band: u8,
    /// Work, in tokens.
    pub cost: f64,
}

/// A queue of one pool.
#[derive(Debug)]
pub struct FairQueue<T> {
    waiting: BTreeMap<Key, Entry<T>>,
    keys: HashMap<Ticket, Key>,
    /// Virtual time at which each tenant's work so far is done.
    tenants: HashMap<u64, f64>,
    now: f64,
    next_lift: f64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), keys: HashMap::new(), tenants: HashMap::new(), now: 0.0, next_lift: f64::INFINITY }
    }
}

impl<T> FairQueue<T> {
    /// Requests waiting.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Books the work of a request on its tenant; its virtual start.
    fn book(&mut self, claim: &Claim) -> f64 {
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(&claim.tenant) {
            let now = self.now;
            self.tenants.retain(|_, done| *done > now);
        }
        let done = self.tenants.entry(claim.tenant).or_insert(self.now);
        let start = done.max(self.now);
        *done = start + claim.cost.max(1.0);
        start
    }

    /// A request that need not wait still pays.
    pub fn pass(&mut self, claim: &Claim) {
        let start = self.book(claim);
        self.now = self.now.max(start.min(self.now + claim.cost));
    }

    /// Puts a request where it belongs.
    pub fn push(&mut self, ticket: Ticket, claim: &Claim, item: T, now: f64) {
        let start = self.book(claim);
        let key = Key { below_best: (BANDS - 1).saturating_sub(claim.band), start: start.to_bits(), ticket };
        self.keys.insert(ticket, key);
        self.waiting.insert(key, Entry { item, since: now });
        self.next_lift = self.next_lift.min(now + LIFT_AFTER);
    }

    /// Takes a request out because it got what it waited for.
    pub fn serve(&mut self, ticket: Ticket) -> Option<T> {
        let start = f64::from_bits(self.keys.get(&ticket)?.start);
        self.now = self.now.max(start);
        self.remove(ticket)
    }

    /// Takes a request out, wherever it stands.
    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let key = self.keys.remove(&ticket)?;
        let item = self.waiting.remove(&key).map(|entry| entry.item);
        if self.waiting.is_empty() {
            self.next_lift = f64::INFINITY;
            let now = self.now;
            self.tenants.retain(|_, done| *done > now);
        }
        item
    }

    /// Books what a request turned out to cost beyond (or below) what was thought.
    pub fn correct(&mut self, tenant: u64, difference: f64) {
        let now = self.now;
        if let Some(done) = self.tenants.get_mut(&tenant) {
            *done = (*done + difference).max(now);
        }
    }

    /// Lifts those who have waited too long in their band.
    pub fn lift(&mut self, now: f64) {
        if now < self.next_lift {
            return;
        }
        let late: Vec<Key> =
            self.waiting.iter().filter(|(key, entry)| key.below_best > 0 && now - entry.since >= LIFT_AFTER).map(|(key, _)| *key).collect();
        for key in late {
            let Some(entry) = self.waiting.remove(&key) else { continue };
            let lifted = Key { below_best: key.below_best - 1, ..key };
            self.keys.insert(key.ticket, lifted);
            self.waiting.insert(lifted, Entry { since: now, ..entry });
        }
        self.next_lift = self.waiting.values().map(|entry| entry.since + LIFT_AFTER).fold(f64::INFINITY, f64::min);
    }

    /// Where the first in order stands among the first of several queues: bands below the best, then age.
    pub fn first(&self) -> Option<(u8, Ticket)> {
        self.waiting.first_key_value().map(|(key, _)| (key.below_best, key.ticket))
    }

    /// Those who wait, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &T)> {
        self.waiting.iter().map(|(key, entry)| (key.ticket, &entry.item))
    }

    /// Those who wait, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.values_mut().map(|entry| &mut entry.item)
    }

    /// One of them.
    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        let key = self.keys.get(&ticket)?;
        self.waiting.get_mut(key).map(|entry| &mut entry.item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| {
            let first = queue.iter().next()?.0;
            queue.serve(first)
        })
        .collect()
    }

    const fn claim(tenant: u64, band: u8, cost: f64) -> Claim {
        Claim { tenant, band, cost }
    }

    #[test]
    fn one_who_asks_much_waits_for_its_own_requests_and_not_for_those_of_others() {
        let mut queue = FairQueue::default();
        for (ticket, (tenant, name)) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2")].into_iter().enumerate() {
            queue.push(Ticket(ticket as u64), &claim(tenant, 1, 100.0), name, 0.0);
        }
        assert_eq!(order(&mut queue), ["a1", "b1", "a2", "b2", "a3"]);
    }

    #[test]
    fn a_better_band_goes_first_and_waiting_lifts_by_one() {
        let mut queue = FairQueue::default();
        queue.push(Ticket(1), &claim(1, 0, 1.0), "bulk", 0.0);
        queue.push(Ticket(2), &claim(2, 1, 1.0), "default", 0.0);
        assert_eq!(queue.iter().next().unwrap().1, &"default");
        queue.lift(LIFT_AFTER + 1.0);
        queue.push(Ticket(3), &claim(3, 1, 1.0), "late", LIFT_AFTER + 2.0);
        assert_eq!(order(&mut queue), ["default", "bulk", "late"]);
    }

    #[test]
    fn an_idle_tenant_cannot_save_up() {
        let mut queue = FairQueue::default();
        (0..10).for_each(|_| queue.pass(&claim(1, 1, 100.0)));
        queue.push(Ticket(1), &claim(1, 1, 100.0), "busy", 0.0);
        queue.push(Ticket(2), &claim(2, 1, 100.0), "idle1", 0.0);
        queue.push(Ticket(3), &claim(2, 1, 100.0), "idle2", 0.0);
        assert_eq!(order(&mut queue)[0], "idle1");
    }

    proptest! {
        #[test]
        fn shares_of_two_that_always_ask_differ_by_one_request_at_most(costs in proptest::collection::vec((1.0..50.0_f64, 1.0..50.0_f64), 40)) {
            let mut queue = FairQueue::default();
            let mut ticket = 0;
            for (one, two) in &costs {
                for (tenant, cost) in [(1_u64, *one), (2, *two)] {
                    ticket += 1;
                    queue.push(Ticket(ticket), &claim(tenant, 1, cost), (tenant, cost), 0.0);
                }
            }
            let (mut got, largest) = ([0.0_f64; 2], costs.iter().flat_map(|(one, two)| [*one, *two]).fold(0.0, f64::max));
            // While both still have requests waiting.
            for _ in 0..30 {
                let first = queue.iter().next().unwrap().0;
                let (tenant, cost) = queue.serve(first).unwrap();
                got[usize::try_from(tenant - 1).unwrap()] += cost;
                if queue.iter().map(|(_, item)| item.0).collect::<std::collections::HashSet<_>>().len() < 2 {
                    break;
                }
                prop_assert!((got[0] - got[1]).abs() <= 2.0 * largest, "{got:?}");
            }
        }
    }
}
