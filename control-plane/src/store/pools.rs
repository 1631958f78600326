//! How each pool chooses its rows, where its operator said so.

use super::{Store, StoreError};
use crate::host::clock::unix_millis;

impl Store {
    /// Every pool with a mode of its own: its public name and the mode's.
    pub async fn list_pool_modes(&self) -> Result<Vec<(String, String)>, StoreError> {
        let rows = sqlx::query!("SELECT name, mode FROM pools ORDER BY name")
            .fetch_all(&self.readers)
            .await
            .map_err(StoreError::sql("listing pools"))?;
        Ok(rows.into_iter().map(|row| (row.name, row.mode)).collect())
    }

    /// Sets the mode of a pool.
    pub async fn set_pool_mode(&self, name: &str, mode: &str) -> Result<(), StoreError> {
        let now = unix_millis();
        sqlx::query!(
            "INSERT INTO pools (name, mode, updated_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET mode = excluded.mode, updated_at = excluded.updated_at",
            name,
            mode,
            now
        )
        .execute(&self.writer)
        .await
        .map_err(StoreError::sql("setting the mode of a pool"))?;
        Ok(())
    }
}
