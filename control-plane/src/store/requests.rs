//! The log of finished requests and the sums of what keys used.
//!
//! Written in batches of many, as one JSON document a statement: a statement costs more than a line. The callers know what
//! is in a line; here it is JSON with a few members that lists are filtered by.

use super::{Store, StoreError};

/// Lines removed at once, so that nobody waits long for the one writer.
const PRUNE: i64 = 5000;

/// Which lines. What is `None` is not looked at.
#[derive(Debug, Clone, Default)]
pub struct RequestFilter {
    /// Public name.
    pub model: Option<String>,
    /// Id or name.
    pub key: Option<String>,
    /// Id.
    pub row: Option<String>,
    /// Lowest and highest status.
    pub status: Option<(u16, u16)>,
    /// Code.
    pub error: Option<String>,
    /// First digits of the session's hash.
    pub session: Option<String>,
    /// Shortest whole time, milliseconds.
    pub min_total_ms: Option<f64>,
    /// Arrival, Unix milliseconds: the first.
    pub from: Option<i64>,
    /// Arrival, Unix milliseconds: the first not.
    pub to: Option<i64>,
    /// Part of the request's id.
    pub request_id: Option<String>,
    /// Only lines older than this one.
    pub before: Option<i64>,
}

/// What one key used of one model on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// `YYYY-MM-DD`, UTC.
    pub day: String,
    /// `none` = no key.
    pub key_id: String,
    /// Empty = none of ours.
    pub model: String,
    /// Requests that ended.
    pub requests: i64,
    /// Of these, refused or failed ones.
    pub errors: i64,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: i64,
    /// Prompt tokens from a cache.
    pub cached_tokens: i64,
    /// Tokens generated.
    pub completion_tokens: i64,
}

/// Which sums.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    /// First day.
    pub from: String,
    /// Last day.
    pub to: String,
    /// Id of the key, or `none`.
    pub key: Option<String>,
    /// Public name.
    pub model: Option<String>,
    /// Only sums behind this day, key and model.
    pub after: Option<(String, String, String)>,
}

/// How much of the log is kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Most lines.
    pub rows: i64,
    /// Lines that arrived before go, Unix milliseconds.
    pub since: i64,
    /// Number of the first day whose sums are kept, counted from 1970-01-01.
    pub usage_since: i64,
}

impl Store {
    /// Appends lines (a JSON array of objects with `at`) and adds sums (a JSON array of arrays in the order of
    /// [`UsageRow`]), both or neither.
    pub async fn record_requests(&self, lines: &str, sums: &str) -> Result<(), StoreError> {
        const DOING: &str = "writing the request log";
        let mut transaction = self.writer.begin().await.map_err(StoreError::sql(DOING))?;
        sqlx::query!("INSERT INTO requests (at, event) SELECT value ->> '$.at', value FROM json_each(?)", lines)
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::sql(DOING))?;
        sqlx::query!(
            "INSERT INTO usage_days (day, key_id, model, requests, errors, prompt_tokens, cached_tokens, completion_tokens) \
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7 \
             FROM json_each(?) WHERE true \
             ON CONFLICT (day, key_id, model) DO UPDATE SET requests = requests + excluded.requests, \
             errors = errors + excluded.errors, prompt_tokens = prompt_tokens + excluded.prompt_tokens, \
             cached_tokens = cached_tokens + excluded.cached_tokens, \
             completion_tokens = completion_tokens + excluded.completion_tokens",
            sums
        )
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::sql(DOING))?;
        transaction.commit().await.map_err(StoreError::sql(DOING))
    }

    /// Removes what is too much or too old, a part at a time; true = there may be more.
    pub async fn prune_requests(&self, keep: Keep) -> Result<bool, StoreError> {
        const DOING: &str = "pruning the request log";
        // Lines are numbered in the order they ended in, so the oldest ones are the first.
        let lines = sqlx::query!(
            "DELETE FROM requests WHERE id IN (SELECT id FROM requests ORDER BY id LIMIT ?) \
             AND (at < ? OR id <= (SELECT max(id) FROM requests) - ?)",
            PRUNE,
            keep.since,
            keep.rows
        )
        .execute(&self.writer)
        .await
        .map_err(StoreError::sql(DOING))?;
        sqlx::query!("DELETE FROM usage_days WHERE day < date(? * 86400, 'unixepoch')", keep.usage_since)
            .execute(&self.writer)
            .await
            .map_err(StoreError::sql(DOING))?;
        Ok(lines.rows_affected() > 0)
    }

    /// Lines, newest first: number and JSON.
    pub async fn list_requests(&self, filter: &RequestFilter, limit: u32) -> Result<Vec<(i64, String)>, StoreError> {
        let (low, high) = filter.status.map_or((None, None), |(low, high)| (Some(i64::from(low)), Some(i64::from(high))));
        let rows = sqlx::query!(
            "SELECT id, event FROM requests WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR at >= ?2) AND (?3 IS NULL OR at < ?3) \
             AND (?4 IS NULL OR model = ?4) AND (?5 IS NULL OR key_id = ?5 OR key_name = ?5) AND (?6 IS NULL OR row_id = ?6) \
             AND (?7 IS NULL OR status BETWEEN ?7 AND ?8) AND (?9 IS NULL OR error = ?9) AND (?10 IS NULL OR session = ?10) \
             AND (?11 IS NULL OR total_ms >= ?11) AND (?12 IS NULL OR instr(request_id, ?12) > 0) ORDER BY id DESC LIMIT ?13",
            filter.before,
            filter.from,
            filter.to,
            filter.model,
            filter.key,
            filter.row,
            low,
            high,
            filter.error,
            filter.session,
            filter.min_total_ms,
            filter.request_id,
            limit
        )
        .fetch_all(&self.readers)
        .await
        .map_err(StoreError::sql("reading the request log"))?;
        Ok(rows.into_iter().map(|row| (row.id, row.event)).collect())
    }

    /// The last line with this id.
    pub async fn find_request(&self, request_id: &str) -> Result<Option<String>, StoreError> {
        let row = sqlx::query!("SELECT event FROM requests WHERE request_id = ? ORDER BY id DESC LIMIT 1", request_id)
            .fetch_optional(&self.readers)
            .await
            .map_err(StoreError::sql("reading the request log"))?;
        Ok(row.map(|row| row.event))
    }

    /// Sums in order of day, key and model.
    pub async fn list_usage(&self, filter: &UsageFilter, limit: u32) -> Result<Vec<UsageRow>, StoreError> {
        let after = filter.after.as_ref();
        let (day, key, model) = (after.map(|after| &after.0), after.map(|after| &after.1), after.map(|after| &after.2));
        sqlx::query_as!(
            UsageRow,
            "SELECT day, key_id, model, requests, errors, prompt_tokens, cached_tokens, completion_tokens FROM usage_days \
             WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR key_id = ?3) AND (?4 IS NULL OR model = ?4) \
             AND (?5 IS NULL OR (day, key_id, model) > (?5, ?6, ?7)) ORDER BY day, key_id, model LIMIT ?8",
            filter.from,
            filter.to,
            filter.key,
            filter.model,
            day,
            key,
            model,
            limit
        )
        .fetch_all(&self.readers)
        .await
        .map_err(StoreError::sql("reading what keys used"))
    }
}
