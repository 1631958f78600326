//! Where a request goes and who waits: decisions, and nothing but decisions.
//!
//! A pure state machine: events come in with the time they happened at, placements come out. No clock, no lock, no task, no
//! socket, so the same code decides for the gateway, for the property tests and for the simulation in `benchmark/`. Time is
//! `f64` seconds on any clock that only moves forward. The algorithm is told in docs/ROUTING.md.
//!
//! - `router` the events and the state; `choose` the cost of each row; `row` what is known of one
//! - `prefix` a prompt as a chain of hashes; `index` who has seen which block; `known` conversations and their homes
//! - `shadow` what the slots of a llama.cpp row hold; `speed` how fast a row is; `limit` how many it takes at once
//! - `fair` the order of those who wait; `heat` how hot a pool is; `breaker` when a row is left alone; `view` what people see

mod breaker;
mod choose;
mod fair;
mod glance;
mod heat;
mod index;
mod known;
mod limit;
mod prefix;
mod returns;
mod router;
mod row;
mod shadow;
mod speed;
#[cfg(test)]
mod tests;
mod view;

use serde::Serialize;
use utoipa::ToSchema;

pub use breaker::{BreakerState, Outcome};
pub use fair::{BANDS, Ticket};
pub use heat::Mode;
pub use index::PrefixIndex;
pub use prefix::{Prefix, PrefixBuilder};
pub use router::{Arrival, Grant, Router, Settings};
pub use row::{CacheModel, RowSetup};
pub use speed::Observation;
pub use view::{LineView, RowLoadView};

/// Names one row within a router, for as long as it is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowIndex(pub u16);

/// Names one request that was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlightId(pub u64);

/// A request as the router sees it.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Its prompt.
    pub prefix: Prefix,
    /// Its session, where the client named one; hashed with its tenant.
    pub session: Option<u64>,
    /// Who pays for it in the queue.
    pub tenant: u64,
    /// Priority, 0 (bulk) to 3 (system).
    pub band: u8,
    /// Slots it takes (`n`, or the prompts of an array).
    pub weight: u32,
    /// Tokens it may generate, where it says.
    pub output_tokens: Option<u32>,
    /// Seconds by which it must be served.
    pub deadline: f64,
    /// Incarnations of rows that failed it already.
    pub avoid: Vec<u64>,
}

/// Why a row was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It holds this conversation (found by its prompt).
    Conversation,
    /// It holds this session (found by the client's key).
    Session,
    /// It holds the beginning of the prompt.
    Prefix,
    /// It answers soonest; none holds anything of it.
    Fastest,
    /// Its conversation was elsewhere, which would have been slower or is gone.
    Moved,
    /// It had waited for its conversation's row for as long as that is allowed.
    Overdue,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Conversation, Self::Session, Self::Prefix, Self::Fastest, Self::Moved, Self::Overdue];

    /// The name used in headers, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::Fastest => "fastest",
            Self::Moved => "moved",
            Self::Overdue => "overdue",
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Names it from now on.
    pub flight: FlightId,
    /// The row.
    pub row: RowIndex,
    /// The slot it is to be given, where the row is steered.
    pub slot: Option<u32>,
    /// Why.
    pub reason: Reason,
    /// Tokens of the prompt that the row is thought to hold.
    pub cached_tokens: f64,
    /// Seconds to the first token as predicted.
    pub first_token: f64,
    /// The mode that decided (`hybrid` shows what it was then).
    pub mode: Mode,
}
