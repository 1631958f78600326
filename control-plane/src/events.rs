//! What has just changed, for clients that follow along: a bounded ring and a live feed over it.
//!
//! An event tells that something changed and what it is now; nobody needs it to be right, because every
//! event can be replaced by a fresh read of the API. So a client that was away too long, or that comes
//! from an earlier run, is told to read afresh ([`Feed::reset`]) instead of being sent what is missing.
//! Nothing here waits for a reader.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use crate::host::clock::unix_millis;

/// Events a slow reader may be behind before it has to read afresh.
const LAG: usize = 128;

/// One change.
#[derive(Debug)]
pub struct Event {
    /// Place in this run's order.
    pub sequence: u64,
    /// `server.changed`, `server.deleted`, `job.changed`, …
    pub kind: &'static str,
    /// Unix milliseconds.
    pub at: i64,
    /// What it is now, as the API would show it.
    pub data: Box<RawValue>,
}

/// The ring of this run.
#[derive(Debug)]
pub struct Events {
    /// Tells this run's event ids from those of an earlier one.
    run: i64,
    capacity: usize,
    ring: Mutex<Ring>,
    live: broadcast::Sender<Arc<Event>>,
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    kept: VecDeque<Arc<Event>>,
}

/// What a client gets first, and then the live feed. Nothing is missing and nothing doubled between the two.
#[derive(Debug)]
pub struct Feed {
    /// The client has missed events that are gone: it must read afresh.
    pub reset: bool,
    /// Events since the one the client saw last.
    pub missed: Vec<Arc<Event>>,
    /// Everything from now on.
    pub live: broadcast::Receiver<Arc<Event>>,
}

impl Events {
    /// An empty ring that keeps this many events.
    pub fn new(capacity: usize) -> Self {
        Self { run: unix_millis(), capacity, ring: Mutex::default(), live: broadcast::Sender::new(LAG) }
    }

    /// Adds an event. Data that cannot be written as JSON is dropped with a log line.
    pub fn publish(&self, kind: &'static str, data: &impl Serialize) {
        let data = match serde_json::value::to_raw_value(data) {
            Ok(data) => data,
            Err(error) => return tracing::error!(event.kind = kind, %error, "an event could not be written"),
        };
        let mut ring = self.ring.lock();
        let event = Arc::new(Event { sequence: ring.next, kind, at: unix_millis(), data });
        ring.next += 1;
        if ring.kept.len() == self.capacity {
            ring.kept.pop_front();
        }
        ring.kept.push_back(Arc::clone(&event));
        // Sent under the lock, so that a feed never misses or doubles one. Nobody listening is fine.
        let _ = self.live.send(event);
    }

    /// The last events, oldest first.
    pub fn latest(&self, count: usize) -> Vec<Arc<Event>> {
        let ring = self.ring.lock();
        ring.kept.iter().skip(ring.kept.len().saturating_sub(count)).cloned().collect()
    }

    /// The name of an event for `Last-Event-ID`.
    pub fn id(&self, event: &Event) -> String {
        format!("{}-{}", self.run, event.sequence)
    }

    /// Follows from the event with this id on, or from now on.
    pub fn follow(&self, last_id: Option<&str>) -> Feed {
        let ring = self.ring.lock();
        let live = self.live.subscribe();
        let Some(last_id) = last_id else { return Feed { reset: false, missed: Vec::new(), live } };
        let oldest = ring.next - ring.kept.len() as u64;
        let wanted = last_id
            .split_once('-')
            .filter(|(run, _)| run.parse() == Ok(self.run))
            .and_then(|(_, sequence)| sequence.parse::<u64>().ok()?.checked_add(1))
            .filter(|wanted| (oldest..=ring.next).contains(wanted));
        match wanted {
            Some(wanted) => {
                let missed = ring.kept.iter().filter(|event| event.sequence >= wanted).cloned().collect();
                Feed { reset: false, missed, live }
            }
            None => Feed { reset: true, missed: Vec::new(), live },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(events: &[Arc<Event>]) -> Vec<u64> {
        events.iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn the_ring_keeps_the_latest_and_no_more_than_it_may() {
        let events = Events::new(3);
        (0..5).for_each(|number| events.publish("server.changed", &number));
        assert_eq!(sequences(&events.latest(10)), [2, 3, 4]);
        assert_eq!(sequences(&events.latest(1)), [4]);
    }

    #[test]
    fn a_client_that_comes_back_gets_what_it_missed_once() {
        let events = Events::new(8);
        (0..3).for_each(|number| events.publish("server.changed", &number));
        let seen = events.id(&events.latest(3)[0]);
        let mut feed = events.follow(Some(&seen));
        events.publish("server.changed", &3);
        assert!(!feed.reset);
        assert_eq!(sequences(&feed.missed), [1, 2]);
        assert_eq!(feed.live.try_recv().unwrap().sequence, 3);
        assert!(feed.live.try_recv().is_err());
    }

    #[test]
    fn a_client_that_is_up_to_date_gets_nothing_and_one_that_is_not_known_reads_afresh() {
        let events = Events::new(2);
        (0..5).for_each(|number| events.publish("server.changed", &number));
        let id = |sequence: u64| format!("{}-{sequence}", events.run);
        for (last, reset, missed) in [
            (Some(id(4)), false, vec![]),
            (Some(id(3)), false, vec![4]),
            (Some(id(2)), false, vec![3, 4]),
            (Some(id(1)), true, vec![]),
            (Some(id(9)), true, vec![]),
            (Some(id(u64::MAX)), true, vec![]),
            (Some("1-4".into()), true, vec![]),
            (Some("nonsense".into()), true, vec![]),
            (None, false, vec![]),
        ] {
            let feed = events.follow(last.as_deref());
            assert_eq!((feed.reset, sequences(&feed.missed)), (reset, missed), "{last:?}");
        }
    }
}
