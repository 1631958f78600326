//! The next step of a row's task, as a pure function of what is wanted and what is there.

use std::time::Duration;

use lifeboat_engines::spec::{DEFAULT_IDLE_SECONDS, EngineSpec};

use super::Want;

/// What the task knows of its row at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// What the reconciler wants.
    pub want: Want,
    /// The row is a server somebody else runs.
    pub external: bool,
    /// The engine, if there is one.
    pub engine: Option<EngineSituation>,
    /// A rest after a death or a failure, if one is going on.
    pub rest: Option<RestKind>,
}

/// What the task knows of its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineSituation {
    /// It serves.
    pub ready: bool,
    /// It is what the row asks for, and nobody asked for another start.
    pub current: bool,
    /// Whether anybody uses it.
    pub usage: Usage,
}

/// Whether anybody uses an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A request is on it, or it does not serve yet.
    Used,
    /// No request is on it.
    Unused,
    /// None has been for the row's idle time.
    Idle,
}

/// A rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestKind {
    /// Between two starts.
    Short,
    /// The row counts as failed meanwhile.
    Failed,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Fetch, size and start an engine.
    Launch,
    /// Wait for the engine to be ready.
    Load,
    /// Watch the engine serve.
    Serve,
    /// End the engine, whoever is on it, because the row is to be down.
    Stop,
    /// End the engine because another one is to take its place.
    Replace,
    /// End the engine if nobody is on it.
    Unload,
    /// Wait for the end of the rest.
    Rest,
    /// No engine, and none wanted.
    Down,
    /// No engine until the next request.
    Sleep,
    /// Probe a server somebody else runs.
    Probe,
}

/// Decides.
pub const fn decide(situation: Situation) -> Step {
    let Situation { want, external, engine, rest } = situation;
    match (engine, want) {
        (Some(_), Want::Down) => Step::Stop,
        (Some(engine), _) if !engine.current || external => Step::Replace,
        (Some(EngineSituation { ready: false, .. }), _) => Step::Load,
        (Some(EngineSituation { usage: Usage::Idle, .. }), Want::Asleep)
        | (Some(EngineSituation { usage: Usage::Unused | Usage::Idle, .. }), Want::MakeRoom) => Step::Unload,
        (Some(_), Want::Up | Want::Asleep | Want::MakeRoom) => Step::Serve,
        (None, Want::Down) => Step::Down,
        (None, Want::Up) if rest.is_some() => Step::Rest,
        (None, Want::Asleep | Want::MakeRoom) if matches!(rest, Some(RestKind::Failed)) => Step::Rest,
        (None, Want::Asleep | Want::MakeRoom | Want::Up) if external => Step::Probe,
        (None, Want::Asleep | Want::MakeRoom) => Step::Sleep,
        (None, Want::Up) => Step::Launch,
    }
}

/// Whether anybody uses an engine that has been without a request for `idle`; `None` = it has one, or does not serve.
pub fn usage(spec: &EngineSpec, idle: Option<Duration>) -> Usage {
    match idle {
        None => Usage::Used,
        Some(_) if idle_is_over(spec, idle) => Usage::Idle,
        Some(_) => Usage::Unused,
    }
}

/// Whether an `on_demand` row has been without a request for its idle time.
pub fn idle_is_over(spec: &EngineSpec, idle: Option<Duration>) -> bool {
    let limit = Duration::from_secs(u64::from(spec.idle_seconds.unwrap_or(DEFAULT_IDLE_SECONDS)));
    idle.is_some_and(|idle| idle >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: EngineSituation = EngineSituation { ready: true, current: true, usage: Usage::Used };

    fn step(want: Want, engine: Option<EngineSituation>, rest: Option<RestKind>) -> Step {
        decide(Situation { want, external: false, engine, rest })
    }

    #[test]
    fn every_situation_has_its_step() {
        use RestKind::{Failed, Short};
        use Want::{Asleep, Down, MakeRoom, Up};
        let old = EngineSituation { current: false, ..READY };
        let loading = EngineSituation { ready: false, ..READY };
        let unused = EngineSituation { usage: Usage::Unused, ..READY };
        let idle = EngineSituation { usage: Usage::Idle, ..READY };
        let table = [
            (Up, None, None, Step::Launch),
            (Up, None, Some(Short), Step::Rest),
            (Up, None, Some(Failed), Step::Rest),
            (Up, Some(loading), None, Step::Load),
            (Up, Some(READY), None, Step::Serve),
            (Up, Some(idle), None, Step::Serve),
            (Up, Some(old), None, Step::Replace),
            (Asleep, None, None, Step::Sleep),
            (Asleep, None, Some(Short), Step::Sleep),
            (Asleep, None, Some(Failed), Step::Rest),
            (Asleep, Some(READY), None, Step::Serve),
            (Asleep, Some(idle), None, Step::Unload),
            (Asleep, Some(loading), None, Step::Load),
            (Asleep, Some(old), None, Step::Replace),
            (Asleep, Some(unused), None, Step::Serve),
            (MakeRoom, Some(unused), None, Step::Unload),
            (MakeRoom, Some(idle), None, Step::Unload),
            (MakeRoom, Some(READY), None, Step::Serve),
            (MakeRoom, Some(loading), None, Step::Load),
            (MakeRoom, None, None, Step::Sleep),
            (Down, None, None, Step::Down),
            (Down, None, Some(Failed), Step::Down),
            (Down, Some(READY), None, Step::Stop),
            (Down, Some(loading), None, Step::Stop),
            (Down, Some(old), None, Step::Stop),
        ];
        for (want, engine, rest, expected) in table {
            assert_eq!(step(want, engine, rest), expected, "{want:?} {engine:?} {rest:?}");
        }
    }

    #[test]
    fn an_external_row_is_probed_and_an_engine_it_had_before_is_ended() {
        for (want, engine, expected) in [
            (Want::Up, None, Step::Probe),
            (Want::Asleep, None, Step::Probe),
            (Want::Down, None, Step::Down),
            (Want::Up, Some(READY), Step::Replace),
        ] {
            assert_eq!(decide(Situation { want, external: true, engine, rest: None }), expected, "{want:?} {engine:?}");
        }
    }

    #[test]
    fn a_row_without_idle_time_has_the_default() {
        let row = |idle: Option<u32>| -> EngineSpec {
            serde_json::from_value(serde_json::json!({ "model_name": "m", "engine": "sim", "idle_seconds": idle })).unwrap()
        };
        for (idle_seconds, idle, over) in [
            (None, Some(299), false),
            (None, Some(300), true),
            (Some(10), Some(9), false),
            (Some(10), Some(10), true),
            (Some(1), None, false),
        ] {
            assert_eq!(idle_is_over(&row(idle_seconds), idle.map(Duration::from_secs)), over, "{idle_seconds:?} {idle:?}");
        }
    }
}
