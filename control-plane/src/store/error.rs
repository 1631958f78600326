//! What can go wrong with the database, sorted by what a caller or an operator can do about it.

use std::path::PathBuf;

use sqlx::migrate::MigrateError;

use crate::ids::Generation;

/// `SQLITE_FULL`.
const FULL: &str = "13";
/// `SQLITE_IOERR_SHMSIZE`: the WAL index could not grow, which is how a full disk shows first.
const SHARED_MEMORY_FULL: &str = "4874";

/// What can go wrong with the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The schema was written by a newer Lifeboat.
    #[error("the database has schema {found}, this Lifeboat knows {known}: start the newer Lifeboat, or use another data directory")]
    NewerSchema {
        /// Last migration in the database.
        found: i64,
        /// Last migration this binary has.
        known: i64,
    },
    /// The disk is full; serving goes on.
    #[error("the disk is full, nothing was written")]
    DiskFull(#[source] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("database: bringing the schema up to date")]
    Migrate(#[source] MigrateError),
    /// The database file could not be opened or created.
    #[error("database: opening {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Anything else.
    #[error("database: {doing}")]
    Sql {
        /// What was being done.
        doing: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// A stored value this binary cannot read: somebody edited the database by hand.
    #[error("database: {table} {id} cannot be read")]
    Unreadable {
        /// Table.
        table: &'static str,
        /// Id of the row.
        id: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
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

impl StoreError {
    /// For `map_err`: a full disk is told apart, the rest keeps what was being done.
    pub(super) fn sql(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| if is_full(&source) { Self::DiskFull(source) } else { Self::Sql { doing, source } }
    }

    /// A line of the request log that cannot be read.
    pub fn line(number: i64, error: serde_json::Error) -> Self {
        Self::unreadable("request log line", &number.to_string())(error)
    }

    /// For `map_err` of migrations.
    pub(super) fn migrate(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) if is_full(&source) => Self::DiskFull(source),
            other => Self::Migrate(other),
        }
    }

    /// For `map_err` of a stored value.
    pub(super) fn unreadable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(table: &'static str, id: &str) -> impl FnOnce(E) -> Self {
        let id = id.to_owned();
        move |source| Self::Unreadable { table, id, source: source.into() }
    }
}

fn is_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some(FULL | SHARED_MEMORY_FULL))
}
