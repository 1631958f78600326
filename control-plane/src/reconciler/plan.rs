//! What each row's task should work towards, as a pure function of what is desired and what is observed.

use std::collections::HashSet;
use std::time::Duration;

use lifeboat_engines::spec::{DesiredState, EngineKind, EngineSpec};

use crate::ids::RowId;
use crate::registry::RowState;
use crate::store::servers::ServerRow;
use crate::supervisor::{Want, idle_is_over};

/// What is seen of one row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// Where it stands.
    pub state: RowState,
    /// Requests that wait for it.
    pub waiting: u32,
    /// How long it has been ready without a request; `None` while it has one, or is not ready.
    pub idle: Option<Duration>,
    /// Rows that should sleep so that this one, which waits for memory, can start ([`crate::memory`] chose them); `None` = it
    /// does not wait for any.
    pub room: Option<Vec<RowId>>,
}

/// One thing to tell the supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The row's task works towards this.
    Ensure(Box<ServerRow>, Want),
    /// The row is gone: so are its engine and its task.
    Forget(RowId),
}

/// All actions of one pass. Rows keep their order, oldest first; rows that are gone come last.
pub fn plan(desired: Vec<ServerRow>, observed: impl Fn(RowId) -> Observed, tasks: &[RowId]) -> Vec<Action> {
    let rows: HashSet<RowId> = desired.iter().map(|row| row.id).collect();
    // What such a row wants is not known for sure: nothing is started for it, and nothing that runs is ended.
    let readable: Vec<(ServerRow, Observed)> = desired
        .into_iter()
        .filter(|row| row.unreadable.is_none())
        .map(|row| {
            let observed = observed(row.id);
            (row, observed)
        })
        .collect();
    // Whoever is not wanted up any more needs no room either.
    let asking = readable.iter().filter(|(row, observed)| want(&row.spec, observed, false) == Want::Up);
    let asked: HashSet<RowId> = asking.filter_map(|(_, observed)| observed.room.as_ref()).flatten().copied().collect();
    let ensure = readable.into_iter().map(|(row, observed)| {
        let want = want(&row.spec, &observed, asked.contains(&row.id));
        Action::Ensure(Box::new(row), want)
    });
    let forget = tasks.iter().filter(|id| !rows.contains(id)).map(|id| Action::Forget(*id));
    ensure.chain(forget).collect()
}

/// What one row's task should work towards. `asked` = another row waits for its memory.
fn want(spec: &EngineSpec, observed: &Observed, asked: bool) -> Want {
    match spec.desired_state {
        DesiredState::Stopped => Want::Down,
        DesiredState::Running => Want::Up,
        // There is nothing to load: it is probed, and serves whenever it can.
        DesiredState::OnDemand if spec.engine == EngineKind::External => Want::Up,
        DesiredState::OnDemand if observed.waiting > 0 => Want::Up,
        DesiredState::OnDemand => match observed.state {
            // Nothing is loaded yet, and nobody wants it any more.
            RowState::Starting if observed.room.is_some() => Want::Asleep,
            // A load that somebody asked for is finished even if he has left: the next one will be glad.
            RowState::Downloading | RowState::Starting => Want::Up,
            RowState::Ready if asked && observed.idle.is_some() => Want::MakeRoom,
            RowState::Ready if !idle_is_over(spec, observed.idle) => Want::Up,
            RowState::Ready | RowState::Draining | RowState::Sleeping | RowState::Stopped | RowState::Failed => Want::Asleep,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;

    fn row(engine: EngineKind, desired_state: DesiredState) -> ServerRow {
        let spec = serde_json::json!({ "model_name": "m", "engine": engine, "desired_state": desired_state, "idle_seconds": 10 });
        ServerRow {
            id: RowId::new(),
            generation: Generation(1),
            spec: serde_json::from_value(spec).unwrap(),
            created_at: 0,
            updated_at: 0,
            unreadable: None,
        }
    }

    fn seen(state: RowState, waiting: u32, idle: Option<u64>) -> Observed {
        Observed { state, waiting, idle: idle.map(Duration::from_secs), room: None }
    }

    #[test]
    fn each_row_gets_what_its_desired_state_and_its_demand_call_for() {
        use DesiredState::{OnDemand, Running, Stopped};
        use EngineKind::{External, Sim};
        use RowState as S;
        let table = [
            (Sim, Running, seen(S::Stopped, 0, None), Want::Up),
            (Sim, Running, seen(S::Failed, 0, None), Want::Up),
            (Sim, Running, seen(S::Ready, 0, Some(99)), Want::Up),
            (Sim, Stopped, seen(S::Ready, 3, None), Want::Down),
            (Sim, Stopped, seen(S::Stopped, 1, None), Want::Down),
            (Sim, OnDemand, seen(S::Stopped, 0, None), Want::Asleep),
            (Sim, OnDemand, seen(S::Sleeping, 0, None), Want::Asleep),
            (Sim, OnDemand, seen(S::Sleeping, 1, None), Want::Up),
            (Sim, OnDemand, seen(S::Downloading, 0, None), Want::Up),
            (Sim, OnDemand, seen(S::Starting, 0, None), Want::Up),
            (Sim, OnDemand, seen(S::Ready, 0, None), Want::Up),
            (Sim, OnDemand, seen(S::Ready, 0, Some(9)), Want::Up),
            (Sim, OnDemand, seen(S::Ready, 0, Some(10)), Want::Asleep),
            (Sim, OnDemand, seen(S::Ready, 1, Some(10)), Want::Up),
            (Sim, OnDemand, seen(S::Draining, 0, None), Want::Asleep),
            (Sim, OnDemand, seen(S::Draining, 1, None), Want::Up),
            (Sim, OnDemand, seen(S::Failed, 0, None), Want::Asleep),
            (External, OnDemand, seen(S::Ready, 0, Some(99)), Want::Up),
            (External, Stopped, seen(S::Ready, 0, None), Want::Down),
        ];
        for (engine, desired_state, observed, expected) in table {
            let row = row(engine, desired_state);
            let actions = plan(vec![row.clone()], |_| observed.clone(), &[row.id]);
            assert_eq!(actions, [Action::Ensure(Box::new(row), expected)], "{engine} {desired_state:?} {observed:?}");
        }
    }

    #[test]
    fn a_row_makes_room_for_one_that_is_wanted_and_only_while_nobody_uses_it() {
        let (asker, holder) = (row(EngineKind::Sim, DesiredState::OnDemand), row(EngineKind::Sim, DesiredState::OnDemand));
        let wants = |asking: &Observed, holding: &Observed| -> Vec<Want> {
            let observe = |id| if id == asker.id { asking.clone() } else { holding.clone() };
            let actions = plan(vec![asker.clone(), holder.clone()], observe, &[]);
            actions
                .into_iter()
                .filter_map(|action| match action {
                    Action::Ensure(_, want) => Some(want),
                    Action::Forget(_) => None,
                })
                .collect()
        };
        let asking = |waiting| Observed { room: Some(vec![holder.id]), ..seen(RowState::Starting, waiting, None) };
        assert_eq!(wants(&asking(1), &seen(RowState::Ready, 0, Some(1))), [Want::Up, Want::MakeRoom]);
        assert_eq!(wants(&asking(1), &seen(RowState::Ready, 0, None)), [Want::Up, Want::Up], "a request is on it");
        assert_eq!(wants(&asking(1), &seen(RowState::Ready, 1, Some(1))), [Want::Up, Want::Up], "a request waits for it");
        assert_eq!(wants(&asking(0), &seen(RowState::Ready, 0, Some(1))), [Want::Asleep, Want::Up], "nobody wants the asker any more");
    }

    #[test]
    fn a_row_nobody_has_looked_at_yet_is_down() {
        let row = row(EngineKind::Sim, DesiredState::OnDemand);
        assert_eq!(plan(vec![row.clone()], |_| Observed::default(), &[]), [Action::Ensure(Box::new(row), Want::Asleep)]);
    }

    #[test]
    fn tasks_without_a_row_are_forgotten() {
        let (kept, gone) = (row(EngineKind::Sim, DesiredState::Running), RowId::new());
        let actions = plan(vec![kept.clone()], |_| Observed::default(), &[gone, kept.id]);
        assert_eq!(actions, [Action::Ensure(Box::new(kept), Want::Up), Action::Forget(gone)]);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_let_alone_and_the_others_go_on() {
        let good = row(EngineKind::Sim, DesiredState::Running);
        let bad = ServerRow { unreadable: Some("unknown field".into()), ..row(EngineKind::Sim, DesiredState::Running) };
        let (good_id, bad_id) = (good.id, bad.id);
        let actions = plan(vec![bad, good], |_| Observed::default(), &[bad_id]);
        assert!(matches!(actions.as_slice(), [Action::Ensure(row, Want::Up)] if row.id == good_id), "{actions:?}");
    }
}
