//! Server rows: the desired half is written by the API, the status half by the supervisor.

use lifeboat_engines::spec::EngineSpec;

use crate::ids::{Generation, RowId};

/// One desired row.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerRow {
    /// Its id.
    pub id: RowId,
    /// Raised by every edit.
    pub generation: Generation,
    /// What the operator wrote.
    pub spec: EngineSpec,
    /// Unix milliseconds.
    pub created_at: i64,
    /// Unix milliseconds.
    pub updated_at: i64,
}
