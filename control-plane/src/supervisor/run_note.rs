//! What a row's task leaves with the guard of its engine, to know the engine again after a crash of its own.

use lifeboat_engines::spec::{Build, Resolved};
use serde::{Deserialize, Serialize};

use crate::ids::{Generation, RowId};

/// Kept private to this user in the guard's record.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct RunNote {
    /// The row.
    pub row: RowId,
    /// The generation it was launched at.
    pub generation: Generation,
    /// What the process depends on ([`super::fingerprint`]).
    pub fingerprint: String,
    /// Loopback port it listens on.
    pub port: u16,
    /// Its key.
    pub api_key: String,
    /// What "auto" became.
    pub resolved: Resolved,
    /// The build it runs.
    pub build: Build,
}

impl std::fmt::Debug for RunNote {
    /// Never shows the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunNote")
            .field("row", &self.row)
            .field("generation", &self.generation)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
