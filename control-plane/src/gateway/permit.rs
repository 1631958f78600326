//! The right to use one engine, and what was learned while it was used.
//!
//! Owned by whatever carries the request at the time, at last by the body of its reply; its drop gives the slot back on
//! every way out there is. What the engine showed is noted here and reaches the router with that drop.

use std::sync::Arc;

use lifeboat_engines::dialect::Usage;

use super::admission::Admission;
use super::fleet::Entered;
use super::interleave;
use super::outlook::Class;
use super::proxy::Fault;
use crate::registry::{Endpoint, RowView};
use crate::routing::{Observation, Outcome, Placement};

/// The right to use one engine; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    /// The row.
    pub row: Arc<RowView>,
    /// Its engine.
    pub endpoint: Arc<Endpoint>,
    /// The router's decision.
    pub placement: Placement,
    /// What it takes of the engine.
    pub class: Class,
    /// How it ends for the engine; until told otherwise, the client is the one who left.
    pub outcome: Outcome,
    /// What the engine showed.
    pub seen: Observation,
    weight: u32,
}

impl Permit {
    pub(super) fn new(admission: Arc<Admission>, class: Class, entered: Entered) -> Self {
        let Entered { row, endpoint, weight, placement } = entered;
        Self { admission, row, endpoint, placement, class, outcome: Outcome::Neutral, seen: Observation::default(), weight }
    }

    /// The first byte of the reply is here.
    pub(super) fn first_byte(&self) {
        self.admission.first_byte(self);
    }

    /// The engine says what it used.
    pub(super) fn used(&mut self, usage: &Usage) {
        let seconds = |millis: Option<f64>| millis.filter(|millis| *millis > 0.0).map(|millis| millis / 1000.0);
        self.seen = Observation {
            prompt_tokens: Some(usage.prompt_tokens).filter(|tokens| *tokens > 0),
            cached_tokens: Some(usage.cached_tokens),
            output_tokens: Some(usage.completion_tokens).filter(|tokens| *tokens > 0),
            prefill_seconds: seconds(usage.prompt_ms),
            decode_seconds: seconds(usage.decode_ms),
        };
    }

    /// The engine did its part.
    pub(super) const fn done(&mut self) {
        self.outcome = Outcome::Good;
    }

    /// The engine did not.
    pub(super) fn failed(&mut self, fault: &Fault) {
        self.outcome = match fault {
            Fault::Connect(_) => Outcome::NoConnection,
            // It was ended by us, or did what it could.
            Fault::Ended | Fault::Cancelled | Fault::TooLong(_) => Outcome::Neutral,
            Fault::Refused { .. } | Fault::Said(_) if fault.is_the_clients() => Outcome::Neutral,
            Fault::Said(_)
            | Fault::Closed(_)
            | Fault::Garbled(_)
            | Fault::Torn(_)
            | Fault::Silent(_)
            | Fault::Strange(_)
            | Fault::Refused { .. } => Outcome::Failed,
        };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.class {
            Class::Generation => self.endpoint.load.leave(self.weight),
            Class::Light => self.endpoint.load.leave_light(),
        }
        interleave::point();
        self.admission.given_back(self);
    }
}
