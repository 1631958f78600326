//! The log of finished requests and the sums of what keys used.
//!
//! Lines are kept in segments of many and written, skipped and removed as such: a row and an index for each line would cost
//! more of a processor than all other accounting of a request. What is in a line is known to who writes and reads it.

use super::{Store, StoreError};

/// Segments looked at in one go, so that nobody waits long for the one writer.
const PRUNE: i64 = 64;
/// A segment with no more lines than this takes further ones: a quiet server would have one for each request otherwise.
const FEW: i64 = 32;

/// Some lines of the log, on their way into it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// How many.
    pub lines: u32,
    /// Earliest arrival, Unix milliseconds.
    pub oldest_at: i64,
    /// Latest arrival.
    pub newest_at: i64,
    /// One JSON object a line, each with its line end, oldest first.
    pub events: String,
}

/// Some lines of the log as they lie in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSegment {
    /// Running number of the last line; those before count down from it.
    pub last_line: i64,
    /// As in [`Segment::events`].
    pub events: String,
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
    /// Lines; a segment goes when all of its lines are beyond.
    pub rows: i64,
    /// Lines that arrived before go, Unix milliseconds.
    pub since: i64,
    /// Number of the first day whose sums are kept, counted from 1970-01-01.
    pub usage_since: i64,
}

impl Store {
    /// Appends segments and adds sums (a JSON array of arrays in the order of [`UsageRow`]), both or neither.
    pub async fn record_requests(&self, segments: &[Segment], sums: &str) -> Result<(), StoreError> {
        const DOING: &str = "writing the request log";
        let mut transaction = self.writer.begin().await.map_err(StoreError::sql(DOING))?;
        let last = sqlx::query!("SELECT last_line, lines FROM request_segments ORDER BY last_line DESC LIMIT 1")
            .fetch_optional(&mut *transaction)
            .await
            .map_err(StoreError::sql(DOING))?;
        let (mut last_line, mut lines) = last.map_or((0, FEW), |last| (last.last_line, last.lines));
        for segment in segments {
            let (before, added) = (last_line, i64::from(segment.lines));
            last_line += added;
            let (oldest, newest, events) = (segment.oldest_at, segment.newest_at, segment.events.as_str());
            let written = if lines + added <= FEW {
                sqlx::query!(
                    "UPDATE request_segments SET last_line = ?, lines = lines + ?, events = events || ?, \
                     oldest_at = min(oldest_at, ?), newest_at = max(newest_at, ?) WHERE last_line = ?",
                    last_line,
                    added,
                    events,
                    oldest,
                    newest,
                    before
                )
                .execute(&mut *transaction)
                .await
            } else {
                sqlx::query!(
                    "INSERT INTO request_segments (last_line, lines, oldest_at, newest_at, events) VALUES (?, ?, ?, ?, ?)",
                    last_line,
                    added,
                    oldest,
                    newest,
                    events
                )
                .execute(&mut *transaction)
                .await
            };
            written.map_err(StoreError::sql(DOING))?;
            // What comes behind this one never joins it: a batch has its segments full.
            lines = FEW;
        }
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
        let segments = sqlx::query!(
            "DELETE FROM request_segments WHERE last_line IN (SELECT last_line FROM request_segments ORDER BY last_line LIMIT ?) \
             AND (newest_at < ? OR last_line <= (SELECT max(last_line) FROM request_segments) - ?)",
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
        Ok(segments.rows_affected() > 0)
    }

    /// Segments with lines numbered below `before` that arrived in this time (Unix milliseconds), newest first.
    pub async fn list_request_segments(&self, before: i64, from: i64, to: i64, limit: u32) -> Result<Vec<StoredSegment>, StoreError> {
        sqlx::query_as!(
            StoredSegment,
            "SELECT last_line, events FROM request_segments WHERE last_line - lines + 1 < ? AND newest_at >= ? AND oldest_at < ? \
             ORDER BY last_line DESC LIMIT ?",
            before,
            from,
            to,
            limit
        )
        .fetch_all(&self.readers)
        .await
        .map_err(StoreError::sql("reading the request log"))
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
