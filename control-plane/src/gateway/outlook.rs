//! What a pool can do for a request that found no slot: a pure look at one snapshot.
//!
//! Tells waiting from hoping in vain, and names the sleeping row that a wait should wake. Which of the rows that serve is
//! best is not asked here but of [`crate::routing`].

use std::sync::Arc;

use lifeboat_engines::spec::DesiredState;

use crate::registry::{Endpoint, RowState, RowView};

/// What a request takes of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// A slot, until its reply has ended.
    Generation,
    /// No slot: tokenise, count tokens.
    Light,
}

impl Class {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Generation, Self::Light];
}

/// Whether an engine takes new requests, free slot or not. `avoid` = those that failed this one already; a restarted
/// engine is another endpoint.
fn accepts<'a>(row: &'a RowView, avoid: &[Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
    let endpoint = row.endpoint.as_ref().filter(|_| row.is_ready())?;
    let usable = !endpoint.load.is_closed() && !avoid.iter().any(|failed| Arc::ptr_eq(failed, endpoint));
    usable.then_some(endpoint)
}

/// What a pool can do for a request that found no free slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// At least one row serves; a slot comes free. Holds the slots of the largest of them.
    Serving(u32),
    /// No row serves, at least one is on its way or can be woken.
    Coming,
    /// The only rows left are those whose engine failed this request; their state may change any moment.
    Suspect,
    /// Nothing can serve; each row with its reason.
    Hopeless(String),
}

/// What a pool can do for a request that found no free slot.
pub(super) fn outlook(pool: &[Arc<RowView>], avoid: &[Arc<Endpoint>]) -> Outlook {
    if let Some(slots) = pool.iter().filter_map(|row| accepts(row, avoid)).map(|endpoint| endpoint.slots).max() {
        return Outlook::Serving(slots);
    }
    if pool.iter().any(|row| is_coming(row)) {
        return Outlook::Coming;
    }
    if pool.iter().any(|row| row.is_ready()) {
        return Outlook::Suspect;
    }
    let reasons = pool.iter().map(|row| {
        let none = if row.desired_state == DesiredState::Stopped {
            "its operator stopped it; `lifeboat server start` starts it"
        } else {
            "no reason is known"
        };
        let reason = row.status.state_reason.as_deref().unwrap_or(none);
        format!("{}: {reason}", row.status.state.as_str())
    });
    Outlook::Hopeless(reasons.take(REASONS_SHOWN).collect::<Vec<_>>().join("; "))
}

/// Rows named in one refusal.
const REASONS_SHOWN: usize = 4;

/// Whether a row will serve without an operator doing anything.
fn is_coming(row: &RowView) -> bool {
    match row.status.state {
        RowState::Starting | RowState::Downloading => true,
        // A ready row with a shut gate is about to be published as draining.
        RowState::Ready => {
            row.endpoint.as_ref().is_none_or(|endpoint| endpoint.load.is_closed()) && row.desired_state != DesiredState::Stopped
        }
        RowState::Sleeping | RowState::Draining | RowState::Stopped => row.desired_state != DesiredState::Stopped,
        RowState::Failed => false,
    }
}

/// The row a waiting request should ask for, where waiting alone would not bring one: an `on_demand` row that is down or
/// going down, unless one is on its way already (which is then asked for, so that it stays).
pub(super) fn wanted(pool: &[Arc<RowView>]) -> Option<&Arc<RowView>> {
    let rank = |row: &RowView| match row.status.state {
        RowState::Starting | RowState::Downloading => Some(0),
        RowState::Draining => Some(1),
        RowState::Sleeping | RowState::Stopped => Some(2),
        RowState::Ready if row.endpoint.as_ref().is_some_and(|endpoint| endpoint.load.is_closed()) => Some(1),
        RowState::Ready | RowState::Failed => None,
    };
    let coming = pool.iter().any(|row| row.desired_state == DesiredState::Running && is_coming(row));
    if coming {
        return None;
    }
    let asleep = pool.iter().filter(|row| row.desired_state == DesiredState::OnDemand);
    asleep.filter_map(|row| rank(row).map(|rank| (rank, row))).min_by_key(|(rank, _)| *rank).map(|(_, row)| row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::testing::{endpoint, row};

    fn ready(slots: u32) -> Arc<RowView> {
        Arc::new(RowView { endpoint: Some(endpoint(9, slots)), ..row("chat", RowState::Ready) })
    }

    fn state(state: RowState, desired_state: DesiredState) -> Arc<RowView> {
        Arc::new(RowView { desired_state, ..row("chat", state) })
    }

    #[test]
    fn the_outlook_tells_waiting_from_hopeless() {
        use DesiredState::{OnDemand, Running, Stopped};
        let table = [
            (vec![ready(2), state(RowState::Failed, Running)], Outlook::Serving(2)),
            (vec![state(RowState::Sleeping, OnDemand)], Outlook::Coming),
            (vec![state(RowState::Starting, Running)], Outlook::Coming),
            (vec![state(RowState::Draining, OnDemand)], Outlook::Coming),
            (
                vec![state(RowState::Draining, Stopped)],
                Outlook::Hopeless("draining: its operator stopped it; `lifeboat server start` starts it".into()),
            ),
            (vec![state(RowState::Stopped, Running)], Outlook::Coming),
            (
                vec![state(RowState::Stopped, Stopped), state(RowState::Failed, Running)],
                Outlook::Hopeless("stopped: its operator stopped it; `lifeboat server start` starts it; failed: no reason is known".into()),
            ),
        ];
        for (pool, expected) in table {
            assert_eq!(outlook(&pool, &[]), expected);
        }
        let failed = ready(2);
        let avoid = [Arc::clone(failed.endpoint.as_ref().unwrap())];
        assert_eq!(outlook(&[failed], &avoid), Outlook::Suspect);
    }

    #[test]
    fn one_sleeping_row_is_asked_for_and_none_where_another_comes_by_itself() {
        use DesiredState::{OnDemand, Running};
        let (asleep, starting) = (state(RowState::Sleeping, OnDemand), state(RowState::Starting, OnDemand));
        assert_eq!(wanted(&[Arc::clone(&asleep), Arc::clone(&starting)]).unwrap().id, starting.id);
        assert_eq!(wanted(&[ready(1), Arc::clone(&asleep)]).unwrap().id, asleep.id);
        assert!(wanted(&[asleep, state(RowState::Starting, Running)]).is_none());
        assert!(wanted(&[ready(1)]).is_none());
    }
}
