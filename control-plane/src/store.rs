//! All SQL. One write connection behind a queue, a pool of readers, WAL.

pub mod keys;
pub mod servers;

use std::path::Path;

use lifeboat_engines::spec::EngineSpec;

use crate::ids::{Generation, RowId};
use crate::registry::RowStatus;
use servers::ServerRow;

/// The database of one data directory. Clone the `Arc`, not this.
#[derive(Debug)]
pub struct Store {}

/// What can go wrong with the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The schema was written by a newer Lifeboat.
    #[error("the database is from a newer Lifeboat")]
    NewerSchema,
    /// The disk is full; serving goes on.
    #[error("the disk is full, nothing was written")]
    DiskFull(#[source] sqlx::Error),
    /// Anything else.
    #[error("database: {doing}")]
    Sql {
        /// What was being done.
        doing: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// An edit expected another generation.
    #[error("the row is at generation {found}, the edit expected {expected}")]
    Conflict {
        /// What the editor saw.
        expected: Generation,
        /// What is stored.
        found: Generation,
    },
}

impl Store {
    /// Opens or creates the database and brings it to this binary's schema.
    pub async fn open(_path: &Path) -> Result<Self, StoreError> {
        todo!()
    }

    /// All rows, oldest first.
    pub async fn list_servers(&self) -> Result<Vec<ServerRow>, StoreError> {
        todo!()
    }

    /// One row.
    pub async fn find_server(&self, _id: RowId) -> Result<Option<ServerRow>, StoreError> {
        todo!()
    }

    /// A new row at generation 1.
    pub async fn create_server(&self, _spec: &EngineSpec) -> Result<ServerRow, StoreError> {
        todo!()
    }

    /// Replaces the desired half and raises the generation; `None` if there is no such row.
    pub async fn update_server(
        &self,
        _id: RowId,
        _expected: Option<Generation>,
        _spec: &EngineSpec,
    ) -> Result<Option<ServerRow>, StoreError> {
        todo!()
    }

    /// Forgets a row; false if there was none. The reconciler ends its engine.
    pub async fn delete_server(&self, _id: RowId) -> Result<bool, StoreError> {
        todo!()
    }

    /// Writes the observed half (never the desired one). A row that is gone is not an error.
    pub async fn record_status(&self, _id: RowId, _generation: Generation, _status: &RowStatus) -> Result<(), StoreError> {
        todo!()
    }
}
