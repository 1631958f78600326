//! All SQL. One write connection behind a queue, a small pool of readers, WAL.
//!
//! One writer, because SQLite has one: waiting for it in a fair queue of our own beats retrying on
//! "database is locked". WAL with `synchronous = NORMAL` keeps what was committed through a `kill -9`
//! at any point. Caches are kept tiny: the tables are small and the control plane's memory is not.
//! Every statement is checked against `migrations/` at compile time. Nothing on the path of a request
//! of `/v1` may call into here.

mod error;
pub mod keys;
pub mod pools;
pub mod requests;
pub mod servers;
pub mod status;

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection, SqlitePool};

pub use error::StoreError;

/// The schema this binary knows, embedded.
static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// Longest wait for a connection or for another process's lock (a backup tool, say).
const WAIT: Duration = Duration::from_secs(10);
/// Readers at once. List requests are rare and short; each connection costs a thread and its cache.
const READERS: u32 = 2;
/// An idle reader is closed after this.
const READER_IDLE: Duration = Duration::from_secs(30);
/// Page cache of one connection, in KiB (a negative `cache_size` counts KiB).
const CACHE_KIB: &str = "-256";
/// Pages after which the WAL is folded back into the database: 1 MiB of 4 KiB pages.
const CHECKPOINT_PAGES: &str = "256";

/// The database of one data directory. Clone the `Arc`, not this.
#[derive(Debug)]
pub struct Store {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Store {
    /// Opens or creates the database (readable by its owner only) and brings it to this binary's schema.
    /// A database of a newer Lifeboat is left untouched.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        create_private(path).map_err(|source| StoreError::File { path: path.into(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(WAIT)
            .statement_cache_capacity(16)
            .pragma("cache_size", CACHE_KIB)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .pragma("temp_store", "memory");
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(WAIT)
            .test_before_acquire(false)
            .after_release(|connection, _| Box::pin(is_at_rest(connection)))
            .connect_with(options.clone())
            .await
            .map_err(StoreError::sql("opening it"))?;
        migrate(&writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .idle_timeout(READER_IDLE)
            .max_lifetime(None)
            .acquire_timeout(WAIT)
            .test_before_acquire(false)
            .connect_lazy_with(options.read_only(true));
        Ok(Self { writer, readers })
    }

    /// Folds the WAL back and closes every connection. Later calls fail.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Whether a connection may be used again. A full disk makes SQLite end a transaction by itself; sqlx then fails to roll it
/// back, and takes the next one for a part of it, which nobody ever commits. Such a connection is closed.
async fn is_at_rest(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    // A rollback that was only asked for has been tried once this is answered.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

/// Applies the missing steps, after making sure that none is there which this binary does not know.
async fn migrate(writer: &SqlitePool) -> Result<(), StoreError> {
    let mut connection = writer.acquire().await.map_err(StoreError::sql("connecting"))?;
    let table = &MIGRATIONS.table_name;
    connection.ensure_migrations_table(table).await.map_err(StoreError::migrate)?;
    let applied = connection.list_applied_migrations(table).await.map_err(StoreError::migrate)?;
    let found = applied.iter().map(|step| step.version).max().unwrap_or(0);
    let known = MIGRATIONS.iter().map(|step| step.version).max().unwrap_or(0);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    MIGRATIONS.run(&mut *connection).await.map_err(|error: MigrateError| StoreError::migrate(error))
}

/// The file holds keys of external engines, so only its owner may read it; SQLite gives the WAL the same mode.
fn create_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

#[cfg(test)]
mod tests;
