//! What can go wrong with the database, sorted by what a caller or an operator can do about it.

use std::path::PathBuf;

use sqlx::migrate::MigrateError;

use crate::ids::Generation;

/// `SQLITE_FULL`.
const FULL: u32 = 13;
/// `SQLITE_IOERR_SHMSIZE`: the WAL index could not grow, which is how a full disk shows first.
const SHARED_MEMORY_FULL: u32 = 4874;
/// The primary code in an extended one.
const PRIMARY: u32 = 0xff;
/// `SQLITE_PERM`, `SQLITE_READONLY`, `SQLITE_IOERR`, `SQLITE_CANTOPEN`.
const UNUSABLE: [u32; 4] = [3, 8, 10, 14];
/// `SQLITE_CORRUPT`, `SQLITE_NOTADB`.
const DAMAGED: [u32; 2] = [11, 26];

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
    /// The disk or the system does not let the database be read or written.
    #[error("the database cannot be used ({doing})")]
    Unusable {
        /// What was being done.
        doing: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// The file is no database, or a damaged one.
    #[error("the database is damaged ({doing})")]
    Damaged {
        /// What was being done.
        doing: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
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
        move |source| match code(&source) {
            Some(FULL | SHARED_MEMORY_FULL) => Self::DiskFull(source),
            Some(code) if UNUSABLE.contains(&(code & PRIMARY)) => Self::Unusable { doing, source },
            Some(code) if DAMAGED.contains(&(code & PRIMARY)) => Self::Damaged { doing, source },
            _ => Self::Sql { doing, source },
        }
    }

    /// A line of the request log that cannot be read.
    pub fn line(number: i64, error: serde_json::Error) -> Self {
        Self::unreadable("request log line", &number.to_string())(error)
    }

    /// For `map_err` of migrations.
    pub(super) fn migrate(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) if code(&source).is_some_and(is_the_files) => {
                Self::sql("bringing the schema up to date")(source)
            }
            other => Self::Migrate(other),
        }
    }

    /// For `map_err` of a stored value.
    pub(super) fn unreadable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(table: &'static str, id: &str) -> impl FnOnce(E) -> Self {
        let id = id.to_owned();
        move |source| Self::Unreadable { table, id, source: source.into() }
    }
}

/// Whether a code tells of the file or its disk, and not of a statement.
fn is_the_files(code: u32) -> bool {
    matches!(code, FULL | SHARED_MEMORY_FULL) || UNUSABLE.contains(&(code & PRIMARY)) || DAMAGED.contains(&(code & PRIMARY))
}

/// SQLite's own code, extended.
fn code(error: &sqlx::Error) -> Option<u32> {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code)?.parse().ok()
}
