//! API keys: only their hash is kept. Revoked keys stay, so that an audit can still name them.

use uuid::Uuid;

use super::{Store, StoreError};
use crate::host::clock::unix_millis;
use crate::key_limits::KeyLimits;

/// One key as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Its id.
    pub id: Uuid,
    /// What the operator called it.
    pub name: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// First characters, to recognise it by.
    pub prefix: String,
    /// May call `/v1`.
    pub inference: bool,
    /// May call `/api`.
    pub admin: bool,
    /// What it may use.
    pub limits: KeyLimits,
    /// Unix milliseconds.
    pub created_at: i64,
    /// Unix milliseconds of the last call, to the minute.
    pub last_used_at: Option<i64>,
    /// Unix milliseconds; set = the key is dead.
    pub revoked_at: Option<i64>,
}

struct Stored {
    id: String,
    name: String,
    hash: Vec<u8>,
    prefix: String,
    inference: i64,
    admin: i64,
    limits: String,
    created_at: i64,
    last_used_at: Option<i64>,
    revoked_at: Option<i64>,
}

impl TryFrom<Stored> for KeyRow {
    type Error = StoreError;

    fn try_from(row: Stored) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id.parse().map_err(StoreError::unreadable::<uuid::Error>("keys", &row.id))?,
            name: row.name,
            hash: row.hash.as_slice().try_into().map_err(StoreError::unreadable::<std::array::TryFromSliceError>("keys", &row.id))?,
            prefix: row.prefix,
            inference: row.inference != 0,
            admin: row.admin != 0,
            limits: serde_json::from_str(&row.limits).map_err(StoreError::unreadable("keys", &row.id))?,
            created_at: row.created_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
        })
    }
}

impl Store {
    /// All keys, oldest first, revoked ones included.
    pub async fn list_keys(&self) -> Result<Vec<KeyRow>, StoreError> {
        sqlx::query_as!(
            Stored,
            "SELECT id, name, hash, prefix, inference, admin, limits, created_at, last_used_at, revoked_at FROM keys ORDER BY id"
        )
        .fetch_all(&self.readers)
        .await
        .map_err(StoreError::sql("listing keys"))?
        .into_iter()
        .map(KeyRow::try_from)
        .collect()
    }

    /// Keeps a new key.
    pub async fn create_key(&self, key: &KeyRow) -> Result<(), StoreError> {
        let (id, hash, limits) = (key.id.to_string(), key.hash.as_slice(), written(&key.limits));
        sqlx::query!(
            "INSERT INTO keys (id, name, hash, prefix, inference, admin, limits, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            key.name,
            hash,
            key.prefix,
            key.inference,
            key.admin,
            limits,
            key.created_at
        )
        .execute(&self.writer)
        .await
        .map_err(StoreError::sql("creating a key"))?;
        Ok(())
    }

    /// Changes name and limits of a living key and gives it back; `None` if there is none. `change` sees the key as it is
    /// while nobody else can write, so that of two changes at once none is lost; its error leaves everything as it was.
    pub async fn update_key<E: From<StoreError>>(
        &self,
        id: Uuid,
        change: impl FnOnce(&mut KeyRow) -> Result<(), E>,
    ) -> Result<Option<KeyRow>, E> {
        let doing = "changing a key";
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(StoreError::sql(doing))?;
        let id = id.to_string();
        let found = sqlx::query_as!(
            Stored,
            "SELECT id, name, hash, prefix, inference, admin, limits, created_at, last_used_at, revoked_at FROM keys \
             WHERE id = ? AND revoked_at IS NULL",
            id
        )
        .fetch_optional(&mut *transaction)
        .await
        .map_err(StoreError::sql(doing))?;
        let Some(mut row) = found.map(KeyRow::try_from).transpose()? else { return Ok(None) };
        change(&mut row)?;
        let limits = written(&row.limits);
        sqlx::query!("UPDATE keys SET name = ?, limits = ? WHERE id = ?", row.name, limits, id)
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::sql(doing))?;
        transaction.commit().await.map_err(StoreError::sql(doing))?;
        Ok(Some(row))
    }

    /// Ends a key for good; false if there is no such living key.
    pub async fn revoke_key(&self, id: Uuid) -> Result<bool, StoreError> {
        let (id, now) = (id.to_string(), unix_millis());
        let done = sqlx::query!("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", now, id)
            .execute(&self.writer)
            .await
            .map_err(StoreError::sql("revoking a key"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Writes when keys were last used, all in one transaction.
    pub async fn record_key_use(&self, used: &[(Uuid, i64)]) -> Result<(), StoreError> {
        let mut transaction = self.writer.begin().await.map_err(StoreError::sql("recording the use of keys"))?;
        for (id, at) in used {
            let id = id.to_string();
            sqlx::query!("UPDATE keys SET last_used_at = ? WHERE id = ?", at, id)
                .execute(&mut *transaction)
                .await
                .map_err(StoreError::sql("recording the use of keys"))?;
        }
        transaction.commit().await.map_err(StoreError::sql("recording the use of keys"))
    }
}

/// The limits as they are stored. Plain numbers, words and lists of them: writing them cannot fail.
fn written(limits: &KeyLimits) -> String {
    serde_json::to_string(limits).unwrap_or_default()
}
