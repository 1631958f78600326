//! Server rows, the observed half: what the supervisor last saw. For people and for `lifeboat status`
//! when no server runs; the living state is in the registry. Never touches the desired half.

use super::{Store, StoreError};
use crate::host::clock::unix_millis;
use crate::ids::{Generation, RowId};
use crate::registry::{RowState, RowStatus};

/// What was last observed of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredStatus {
    /// The row.
    pub id: RowId,
    /// The observation; progress is not kept.
    pub status: RowStatus,
}

impl Store {
    /// Writes the observed half (never the desired one). A row that is gone is not an error.
    pub async fn record_status(&self, id: RowId, generation: Generation, status: &RowStatus) -> Result<(), StoreError> {
        let id = id.to_string();
        let resolved =
            status.resolved.as_ref().map(serde_json::to_string).transpose().map_err(StoreError::unreadable("server_status", &id))?;
        let (state, now) = (status.state.as_str(), unix_millis());
        sqlx::query!(
            "INSERT INTO server_status \
             (server_id, generation, state, state_reason, pid, endpoint, restarts, resolved, build, observed_at) \
             SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 FROM servers WHERE id = ?1 \
             ON CONFLICT (server_id) DO UPDATE SET generation = excluded.generation, state = excluded.state, \
             state_reason = excluded.state_reason, pid = excluded.pid, endpoint = excluded.endpoint, \
             restarts = excluded.restarts, resolved = excluded.resolved, build = excluded.build, \
             observed_at = excluded.observed_at",
            id,
            generation.0,
            state,
            status.state_reason,
            status.pid,
            status.endpoint,
            status.restarts,
            resolved,
            status.build,
            now
        )
        .execute(&self.writer)
        .await
        .map_err(StoreError::sql("recording what was observed"))?;
        Ok(())
    }

    /// What was last observed of every row.
    pub async fn list_statuses(&self) -> Result<Vec<StoredStatus>, StoreError> {
        let rows = sqlx::query!(
            "SELECT server_id, state, state_reason, pid, endpoint, restarts, resolved, build \
             FROM server_status ORDER BY server_id"
        )
        .fetch_all(&self.readers)
        .await
        .map_err(StoreError::sql("listing what was observed"))?;
        rows.into_iter()
            .map(|row| {
                let id = row.server_id.as_str();
                let state: RowState =
                    serde_json::from_value(serde_json::Value::String(row.state)).map_err(StoreError::unreadable("server_status", id))?;
                let resolved = row
                    .resolved
                    .map(|text| serde_json::from_str(&text))
                    .transpose()
                    .map_err(StoreError::unreadable("server_status", id))?;
                Ok(StoredStatus {
                    id: id.parse().map_err(StoreError::unreadable::<uuid::Error>("server_status", id))?,
                    status: RowStatus {
                        state,
                        state_reason: row.state_reason,
                        pid: row.pid.and_then(|pid| u32::try_from(pid).ok()),
                        endpoint: row.endpoint,
                        restarts: u32::try_from(row.restarts).unwrap_or(u32::MAX),
                        resolved,
                        build: row.build,
                        progress: None,
                    },
                })
            })
            .collect()
    }
}
