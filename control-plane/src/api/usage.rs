//! What each key used, by day and model: sums that outlive the lines of the request log.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorEnvelope};
use super::extract::Params;
use super::page::{Page, checked_limit, no_cursor};
use super::state::ApiState;
use crate::host::clock::unix_millis;
use crate::store::requests::{UsageFilter, UsageRow};

/// Days shown where the caller does not say, today included.
const DAYS: i64 = 30;
/// What stands between the parts of a cursor. Days and ids of keys have none.
const JOINT: char = '/';

/// Which sums.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UsageParams {
    /// First day (UTC), `2026-12-01`. Default: 29 days before the last one.
    from: Option<String>,
    /// Last day (UTC). Default: today.
    to: Option<String>,
    /// Id of the key, or `none` for callers that needed none.
    key: Option<String>,
    /// Public name of the model.
    model: Option<String>,
    /// The most sums to answer. Default 100, at most 1000.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// What one key used of one model on one day.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// The day (UTC).
    #[schema(format = Date)]
    pub day: String,
    /// Id of the key; `null` = the callers needed none.
    pub key_id: Option<String>,
    /// What the key is called now.
    pub key: Option<String>,
    /// Public name of the model; `null` = the requests named none of ours.
    pub model: Option<String>,
    /// Requests that ended on that day.
    pub requests: i64,
    /// Of these, refused or failed ones. A client that left is none.
    pub errors: i64,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: i64,
    /// Prompt tokens from an engine's cache.
    pub cached_tokens: i64,
    /// Tokens generated.
    pub completion_tokens: i64,
}

/// What keys used, by day, key and model, oldest first.
#[utoipa::path(get, path = "/usage", tag = "requests", params(UsageParams),
    responses((status = 200, body = Page<Usage>), (status = 400, body = ErrorEnvelope)))]
pub async fn list_usage(State(state): State<ApiState>, Params(params): Params<UsageParams>) -> Result<Json<Page<Usage>>, ApiError> {
    let limit = checked_limit(params.limit)?;
    let asked = u32::try_from(limit + 1).unwrap_or(u32::MAX);
    let filter = filter(params)?;
    state.recorder.flush().await;
    let mut sums = state.store.list_usage(&filter, asked).await?;
    let more = sums.len() > limit;
    sums.truncate(limit);
    let last = sums.last().map(|sum| format!("{}{JOINT}{}{JOINT}{}", sum.day, sum.key_id, sum.model));
    let names: HashMap<String, String> = state.store.list_keys().await?.into_iter().map(|key| (key.id.to_string(), key.name)).collect();
    let data = sums.into_iter().map(|sum| shown(sum, &names)).collect();
    Ok(Json(Page { data, next_cursor: last.filter(|_| more) }))
}

fn shown(sum: UsageRow, names: &HashMap<String, String>) -> Usage {
    Usage {
        day: sum.day,
        key: names.get(&sum.key_id).cloned(),
        key_id: Some(sum.key_id).filter(|id| id != "none"),
        model: Some(sum.model).filter(|model| !model.is_empty()),
        requests: sum.requests,
        errors: sum.errors,
        prompt_tokens: sum.prompt_tokens,
        cached_tokens: sum.cached_tokens,
        completion_tokens: sum.completion_tokens,
    }
}

fn filter(params: UsageParams) -> Result<UsageFilter, ApiError> {
    let today = Timestamp::from_millisecond(unix_millis()).unwrap_or_default();
    let today = jiff::tz::TimeZone::UTC.to_datetime(today).date();
    let to = params.to.map_or(Ok(today), |text| day("to", &text))?;
    let from = params.from.map_or_else(|| Ok(to.saturating_sub((DAYS - 1).days())), |text| day("from", &text))?;
    let after = params.cursor.map(|text| {
        let mut parts = text.splitn(3, JOINT).map(str::to_owned);
        let parts = (parts.next(), parts.next(), parts.next());
        let (Some(day), Some(key), Some(model)) = parts else {
            return Err(no_cursor());
        };
        Ok((day, key, model))
    });
    Ok(UsageFilter { from: from.to_string(), to: to.to_string(), key: params.key, model: params.model, after: after.transpose()? })
}

fn day(field: &str, text: &str) -> Result<Date, ApiError> {
    let day = text.parse::<Date>().ok().filter(|_| text.len() == 10);
    day.ok_or_else(|| ApiError::invalid(format!("`{field}` must be a day such as 2026-12-01")).field(field))
}
