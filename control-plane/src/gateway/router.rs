//! Which row of a pool serves a request: a pure function over one snapshot.
//!
//! Least loaded by share of slots taken, equal ones in turn. Sessions, prefixes and costs come in here later, behind the
//! same question and answer; nothing outside this file may prefer one row over another.

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

/// What is asked of the router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// What the request takes.
    pub class: Class,
    /// Light calls on one row at once.
    pub light_limit: u32,
    /// Engines that failed this request already. A restarted engine is another endpoint.
    pub avoid: &'a [Arc<Endpoint>],
    /// Counts the answers, so that equal rows take turns.
    pub turn: usize,
}

impl Question<'_> {
    /// Whether this engine takes new requests of ours, free slot or not.
    fn accepts<'a>(&self, row: &'a RowView) -> Option<&'a Arc<Endpoint>> {
        let endpoint = row.endpoint.as_ref().filter(|_| row.is_ready())?;
        let usable = !endpoint.load.is_closed() && !self.avoid.iter().any(|failed| Arc::ptr_eq(failed, endpoint));
        usable.then_some(endpoint)
    }

    /// Requests of this class on the engine, and how many it may have.
    pub(super) fn load(&self, endpoint: &Endpoint) -> (u32, u32) {
        match self.class {
            Class::Generation => (endpoint.load.in_flight(), endpoint.slots),
            Class::Light => (endpoint.load.light(), self.light_limit),
        }
    }
}

/// The best row with room now; `None` = all are full or none serves.
pub(super) fn pick<'a>(pool: &'a [Arc<RowView>], question: &Question<'_>) -> Option<(&'a Arc<RowView>, &'a Arc<Endpoint>)> {
    let mut best: Option<(usize, u32, u32)> = None;
    for step in 0..pool.len() {
        let index = (question.turn + step) % pool.len();
        let Some(endpoint) = question.accepts(&pool[index]) else { continue };
        let (taken, limit) = question.load(endpoint);
        if taken >= limit {
            continue;
        }
        // taken / limit, compared across without a division; the first of equals stays.
        if best.is_none_or(|(_, least, of)| u64::from(taken) * u64::from(of) < u64::from(least) * u64::from(limit)) {
            best = Some((index, taken, limit));
        }
    }
    best.and_then(|(index, ..)| pool[index].endpoint.as_ref().map(|endpoint| (&pool[index], endpoint)))
}

/// What a pool can do for a request that found no free slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// At least one row serves; a slot comes free. Holds the requests its rows may have at once.
    Serving(u32),
    /// No row serves, at least one is on its way or can be woken.
    Coming,
    /// The only rows left are those whose engine failed this request; their state may change any moment.
    Suspect,
    /// Nothing can serve; each row with its reason.
    Hopeless(String),
}

/// What a pool can do for a request that found no free slot.
pub(super) fn outlook(pool: &[Arc<RowView>], question: &Question<'_>) -> Outlook {
    let limits = pool.iter().filter_map(|row| question.accepts(row)).map(|endpoint| question.load(endpoint).1);
    let limit = limits.fold(0, u32::saturating_add);
    if limit > 0 {
        return Outlook::Serving(limit);
    }
    if pool.iter().any(|row| is_coming(row)) {
        return Outlook::Coming;
    }
    if pool.iter().any(|row| row.is_ready()) {
        return Outlook::Suspect;
    }
    let reasons = pool.iter().map(|row| {
        let reason = row.status.state_reason.as_deref().unwrap_or("no reason is known");
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

    const QUESTION: Question<'_> = Question { class: Class::Generation, light_limit: 2, avoid: &[], turn: 0 };

    fn with_load(slots: u32, taken: u32) -> Arc<RowView> {
        let endpoint = endpoint(9, slots);
        (0..taken).for_each(|_| assert!(endpoint.load.try_enter(slots)));
        Arc::new(RowView { endpoint: Some(endpoint), ..row("chat", RowState::Ready) })
    }

    fn state(state: RowState, desired_state: DesiredState) -> Arc<RowView> {
        Arc::new(RowView { desired_state, ..row("chat", state) })
    }

    #[test]
    fn the_row_with_the_smallest_share_of_slots_taken_is_picked() {
        let pool = [with_load(4, 2), with_load(8, 3), with_load(2, 1)];
        assert_eq!(pick(&pool, &QUESTION).unwrap().0.id, pool[1].id);
    }

    #[test]
    fn equal_rows_take_turns() {
        let pool = [with_load(2, 0), with_load(2, 0), with_load(2, 0)];
        let picked: Vec<_> = (0..6).map(|turn| pick(&pool, &Question { turn, ..QUESTION }).unwrap().0.id).collect();
        let expected: Vec<_> = pool.iter().chain(&pool).map(|row| row.id).collect();
        assert_eq!(picked, expected);
    }

    #[test]
    fn full_closed_and_failed_engines_are_never_picked() {
        let (full, closed, failed) = (with_load(1, 1), with_load(2, 0), with_load(2, 0));
        closed.endpoint.as_ref().unwrap().load.close();
        let avoid = [Arc::clone(failed.endpoint.as_ref().unwrap())];
        let pool = [full, closed, failed, state(RowState::Draining, DesiredState::Running)];
        assert!(pick(&pool, &Question { avoid: &avoid, ..QUESTION }).is_none());
    }

    #[test]
    fn a_light_call_goes_to_an_engine_whose_slots_are_all_taken() {
        let pool = [with_load(1, 1)];
        let question = Question { class: Class::Light, ..QUESTION };
        assert!(pick(&pool, &question).is_some());
        let load = &pool[0].endpoint.as_ref().unwrap().load;
        assert!(load.try_enter_light(2) && load.try_enter_light(2));
        assert!(pick(&pool, &question).is_none());
    }

    #[test]
    fn the_outlook_tells_waiting_from_hopeless() {
        use DesiredState::{OnDemand, Running, Stopped};
        let table = [
            (vec![with_load(2, 2), state(RowState::Failed, Running)], Outlook::Serving(2)),
            (vec![state(RowState::Sleeping, OnDemand)], Outlook::Coming),
            (vec![state(RowState::Starting, Running)], Outlook::Coming),
            (vec![state(RowState::Draining, OnDemand)], Outlook::Coming),
            (vec![state(RowState::Draining, Stopped)], Outlook::Hopeless("draining: no reason is known".into())),
            (vec![state(RowState::Stopped, Running)], Outlook::Coming),
            (
                vec![state(RowState::Stopped, Stopped), state(RowState::Failed, Running)],
                Outlook::Hopeless("stopped: no reason is known; failed: no reason is known".into()),
            ),
        ];
        for (pool, expected) in table {
            assert_eq!(outlook(&pool, &QUESTION), expected);
        }
        let failed = with_load(2, 0);
        let avoid = [Arc::clone(failed.endpoint.as_ref().unwrap())];
        assert_eq!(outlook(&[failed], &Question { avoid: &avoid, ..QUESTION }), Outlook::Suspect);
    }

    #[test]
    fn one_sleeping_row_is_asked_for_and_none_where_another_comes_by_itself() {
        use DesiredState::{OnDemand, Running};
        let (asleep, starting) = (state(RowState::Sleeping, OnDemand), state(RowState::Starting, OnDemand));
        assert_eq!(wanted(&[Arc::clone(&asleep), Arc::clone(&starting)]).unwrap().id, starting.id);
        assert_eq!(wanted(&[with_load(1, 1), Arc::clone(&asleep)]).unwrap().id, asleep.id);
        assert!(wanted(&[asleep, state(RowState::Starting, Running)]).is_none());
        assert!(wanted(&[with_load(1, 1)]).is_none());
    }
}
