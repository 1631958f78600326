//! What memory the rows hold, and who must make room for whom: pure arithmetic over one snapshot.
//!
//! A row's hold is what its launch was sized to, not what it is seen to use: llama.cpp touches its cache little by little, and
//! a plan must not promise twice what is not used yet. Only `on_demand` rows make room, never one with a request on it, and
//! first those whose idle time is longest for what loading them again costs.

use std::time::Duration;

use lifeboat_engines::sizing::{Pool, Shortage};
use lifeboat_engines::spec::{DesiredState, Resolved};
use tokio::time::Instant;

use crate::ids::RowId;
use crate::registry::{RowState, RowView, Snapshot};

/// Bytes a second that a load is taken to read, where none was seen yet: a slow disk.
const UNSEEN_LOAD_RATE: f64 = 500e6;

/// One row with an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Holder {
    id: RowId,
    bytes: u64,
    on_devices: bool,
    /// Its engine is on its way out.
    leaves: bool,
    /// It may be asked to go when nobody uses it.
    may_sleep: bool,
    /// How long nobody has used it; `None` = somebody does.
    idle: Option<Duration>,
    /// What its next load takes.
    reload: Duration,
}

/// Where memory for a row can come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// Enough comes free once these rows sleep. None are named where those that leave already are enough.
    From(Vec<RowId>),
    /// Enough would come free, but requests run on some of the rows that hold it.
    Busy,
    /// Not even all rows that may sleep hold that much.
    Nowhere,
}

fn on_devices(resolved: &Resolved) -> bool {
    resolved.gpu_layers != Some(0)
}

fn holder(row: &RowView, now: Instant) -> Option<Holder> {
    let resolved = row.status.resolved.as_ref().filter(|_| row.status.pid.is_some())?;
    let bytes = resolved.memory.total_bytes();
    let unseen = || Duration::from_secs_f64(bytes as f64 / UNSEEN_LOAD_RATE);
    Some(Holder {
        id: row.id,
        bytes,
        on_devices: on_devices(resolved),
        leaves: row.status.state == RowState::Draining,
        may_sleep: row.desired_state == DesiredState::OnDemand && row.status.state == RowState::Ready && row.demand.waiting() == 0,
        idle: row.endpoint.as_ref().and_then(|endpoint| endpoint.idle_for(now)),
        reload: row.endpoint.as_ref().and_then(|endpoint| endpoint.load_time).unwrap_or_else(unseen).max(Duration::from_millis(1)),
    })
}

/// Where the memory that `row` is short of can come from.
pub fn room(snapshot: &Snapshot, row: RowId, short: Shortage, now: Instant) -> Room {
    let holders = snapshot.rows.values().filter(|view| view.id != row).filter_map(|view| holder(view, now));
    let of_that_pool = |holder: &Holder| match short.of {
        Pool::Host => !holder.on_devices,
        Pool::Devices => holder.on_devices,
        Pool::Either => true,
    };
    choose(holders.filter(of_that_pool).collect(), short.bytes)
}

/// Bytes of host memory that a limit on all rows together leaves for `row`.
pub fn left_of(limit: u64, snapshot: &Snapshot, row: RowId) -> u64 {
    let others = snapshot.rows.values().filter(|view| view.id != row && view.status.pid.is_some());
    let held = others.filter_map(|view| view.status.resolved.as_ref()).filter(|resolved| !on_devices(resolved));
    limit.saturating_sub(held.map(|resolved| resolved.memory.total_bytes()).fold(0, u64::saturating_add))
}

/// Idle time over the cost of another load, longest first, until there is enough; then whoever is not needed after all stays.
fn choose(holders: Vec<Holder>, bytes: u64) -> Room {
    let sum = |holders: &[Holder]| holders.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
    let (leaving, stay): (Vec<Holder>, Vec<Holder>) = holders.into_iter().partition(|holder| holder.leaves);
    let Some(missing) = bytes.checked_sub(sum(&leaving)).filter(|missing| *missing > 0) else { return Room::From(Vec::new()) };
    let may_sleep: Vec<Holder> = stay.into_iter().filter(|holder| holder.may_sleep).collect();
    if sum(&may_sleep) < missing {
        return Room::Nowhere;
    }
    let mut idle: Vec<(f64, Holder)> =
        may_sleep.into_iter().filter_map(|holder| Some((holder.idle?.as_secs_f64() / holder.reload.as_secs_f64(), holder))).collect();
    idle.sort_by(|(one, _), (two, _)| two.total_cmp(one));
    let mut chosen: Vec<Holder> = Vec::new();
    for (_, holder) in idle {
        if sum(&chosen) >= missing {
            break;
        }
        chosen.push(holder);
    }
    if sum(&chosen) < missing {
        return Room::Busy;
    }
    for at in (0..chosen.len()).rev() {
        let rest: Vec<Holder> = chosen.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, holder)| *holder).collect();
        if sum(&rest) >= missing {
            chosen = rest;
        }
    }
    Room::From(chosen.into_iter().map(|holder| holder.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(bytes: u64, idle: u64, reload: u64) -> Holder {
        Holder {
            id: RowId::new(),
            bytes,
            on_devices: false,
            leaves: false,
            may_sleep: true,
            idle: Some(Duration::from_secs(idle)),
            reload: Duration::from_secs(reload),
        }
    }

    #[test]
    fn whoever_is_idle_longest_for_what_its_load_costs_goes_first() {
        let (cheap, dear) = (idle(10, 60, 1), idle(10, 120, 30));
        assert_eq!(choose(vec![dear, cheap], 5), Room::From(vec![cheap.id]));
        assert_eq!(choose(vec![dear, cheap], 15), Room::From(vec![cheap.id, dear.id]));
    }

    #[test]
    fn nobody_goes_who_is_not_needed() {
        let (small, large) = (idle(2, 100, 1), idle(10, 50, 1));
        assert_eq!(choose(vec![small, large], 8), Room::From(vec![large.id]));
        let leaving = Holder { leaves: true, may_sleep: false, ..idle(10, 0, 1) };
        assert_eq!(choose(vec![small, leaving], 8), Room::From(vec![]));
        assert_eq!(choose(vec![small, leaving], 11), Room::From(vec![small.id]));
    }

    #[test]
    fn a_busy_row_never_goes_and_is_worth_waiting_for() {
        let busy = Holder { idle: None, ..idle(10, 0, 1) };
        let small = idle(2, 100, 1);
        assert_eq!(choose(vec![busy, small], 8), Room::Busy);
        assert_eq!(choose(vec![busy, small], 2), Room::From(vec![small.id]));
    }

    #[test]
    fn rows_that_are_meant_to_run_hold_what_they_have() {
        let running = Holder { may_sleep: false, ..idle(100, 1000, 1) };
        assert_eq!(choose(vec![running, idle(5, 10, 1)], 8), Room::Nowhere);
        assert_eq!(choose(vec![], 1), Room::Nowhere);
    }
}
