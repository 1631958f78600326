//! Server rows, the desired half: what the operator wrote. Written by the API only; every write raises
//! the generation, and an edit that saw another generation is refused.

use lifeboat_engines::spec::{EngineKind, EngineSpec};
use serde_json::Value;

use super::{Store, StoreError};
use crate::host::clock::unix_millis;
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
    /// Why `spec` is only the part of the row that this binary understands, where it is: another version wrote the row,
    /// or a hand. Such a row is shown and can be deleted; it is neither run nor written.
    pub unreadable: Option<String>,
}

/// The columns as stored.
struct Stored {
    id: String,
    generation: i64,
    spec: String,
    created_at: i64,
    updated_at: i64,
}

impl TryFrom<Stored> for ServerRow {
    type Error = StoreError;
    fn try_from(stored: Stored) -> Result<Self, StoreError> {
        let (spec, unreadable) = match serde_json::from_str(&stored.spec) {
            Ok(spec) => (spec, None),
            Err(error) => (understood(&stored.spec), Some(error.to_string())),
        };
        Ok(Self {
            id: stored.id.parse().map_err(StoreError::unreadable::<uuid::Error>("servers", &stored.id))?,
            generation: Generation(stored.generation),
            spec,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            unreadable,
        })
    }
}

/// The members of a stored specification that this binary understands.
fn understood(text: &str) -> EngineSpec {
    let mut spec = EngineSpec::new("(unreadable)", EngineKind::External);
    let Ok(Value::Object(members)) = serde_json::from_str(text) else { return spec };
    for (name, value) in members {
        let Ok(Value::Object(mut with)) = serde_json::to_value(&spec) else { return spec };
        with.insert(name, value);
        if let Ok(read) = serde_json::from_value(Value::Object(with)) {
            spec = read;
        }
    }
    spec
}

fn to_json(id: RowId, spec: &EngineSpec) -> Result<String, StoreError> {
    serde_json::to_string(spec).map_err(StoreError::unreadable("servers", &id.to_string()))
}

impl Store {
    /// All rows, oldest first. One that cannot be read does not take the others with it.
    pub async fn list_servers(&self) -> Result<Vec<ServerRow>, StoreError> {
        sqlx::query_as!(Stored, "SELECT id, generation, spec, created_at, updated_at FROM servers ORDER BY id")
            .fetch_all(&self.readers)
            .await
            .map_err(StoreError::sql("listing servers"))?
            .into_iter()
            .map(ServerRow::try_from)
            .collect()
    }

    /// One row.
    pub async fn find_server(&self, id: RowId) -> Result<Option<ServerRow>, StoreError> {
        let id = id.to_string();
        sqlx::query_as!(Stored, "SELECT id, generation, spec, created_at, updated_at FROM servers WHERE id = ?", id)
            .fetch_optional(&self.readers)
            .await
            .map_err(StoreError::sql("reading a server"))?
            .map(ServerRow::try_from)
            .transpose()
    }

    /// A new row at generation 1.
    pub async fn create_server(&self, spec: &EngineSpec) -> Result<ServerRow, StoreError> {
        let now = unix_millis();
        let row = ServerRow {
            id: RowId::new(),
            generation: Generation(1),
            spec: spec.clone(),
            created_at: now,
            updated_at: now,
            unreadable: None,
        };
        let (id, json) = (row.id.to_string(), to_json(row.id, spec)?);
        sqlx::query!("INSERT INTO servers (id, generation, spec, created_at, updated_at) VALUES (?, 1, ?, ?, ?)", id, json, now, now)
            .execute(&self.writer)
            .await
            .map_err(StoreError::sql("creating a server"))?;
        Ok(row)
    }

    /// Replaces the desired half and raises the generation; `None` if there is no such row. With `expected`
    /// the write happens only if the row is still at that generation.
    pub async fn update_server(&self, id: RowId, expected: Option<Generation>, spec: &EngineSpec) -> Result<Option<ServerRow>, StoreError> {
        let (text, json, now, wanted) = (id.to_string(), to_json(id, spec)?, unix_millis(), expected.map(|expected| expected.0));
        let mut transaction = self.writer.begin().await.map_err(StoreError::sql("editing a server"))?;
        let changed = sqlx::query_as!(
            Stored,
            "UPDATE servers SET generation = generation + 1, spec = ?1, updated_at = ?2 \
             WHERE id = ?3 AND generation = coalesce(?4, generation) \
             RETURNING id, generation, spec, created_at, updated_at",
            json,
            now,
            text,
            wanted
        )
        .fetch_optional(&mut *transaction)
        .await
        .map_err(StoreError::sql("editing a server"))?;
        if let (None, Some(expected)) = (&changed, expected) {
            let found = sqlx::query_scalar!("SELECT generation FROM servers WHERE id = ?", text)
                .fetch_optional(&mut *transaction)
                .await
                .map_err(StoreError::sql("editing a server"))?;
            return found.map_or(Ok(None), |found| Err(StoreError::Conflict { expected, found: Generation(found) }));
        }
        transaction.commit().await.map_err(StoreError::sql("editing a server"))?;
        changed.map(ServerRow::try_from).transpose()
    }

    /// Forgets a row; false if there was none. The reconciler ends its engine.
    pub async fn delete_server(&self, id: RowId) -> Result<bool, StoreError> {
        let id = id.to_string();
        let done = sqlx::query!("DELETE FROM servers WHERE id = ?", id)
            .execute(&self.writer)
            .await
            .map_err(StoreError::sql("deleting a server"))?;
        Ok(done.rows_affected() > 0)
    }
}
