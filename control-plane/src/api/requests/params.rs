//! Which requests of the log are asked for.

use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::Request;
use crate::api::error::ApiError;
use crate::api::page::{checked_limit, no_cursor};
use crate::recorder::log::RequestFilter;

/// Whether a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// It has.
    #[default]
    Done,
    /// It is under way.
    Active,
}

/// Which requests.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RequestParams {
    /// `done` (default) or `active`.
    #[param(inline)]
    #[serde(default)]
    pub state: RequestState,
    /// Public name of the model.
    model: Option<String>,
    /// Id or name of the key.
    key: Option<String>,
    /// Id of the row.
    row: Option<String>,
    /// A status (`429`) or a class of them (`4xx`).
    status: Option<String>,
    /// Code of the error.
    error: Option<String>,
    /// First 8 hex digits of the session's hash.
    session: Option<String>,
    /// Shortest whole time, milliseconds.
    min_total_ms: Option<f64>,
    /// Arrived at or after this time, RFC 3339.
    from: Option<String>,
    /// Arrived before this time, RFC 3339.
    to: Option<String>,
    /// Part of the request's id.
    request_id: Option<String>,
    /// The most requests to answer. Default 100, at most 1000.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl RequestParams {
    /// Requests of the page.
    pub fn limit(&self) -> Result<usize, ApiError> {
        checked_limit(self.limit)
    }

    /// The same question to the log.
    pub fn filter(&self) -> Result<RequestFilter, ApiError> {
        let cursor = |text: &String| text.parse().map_err(|_| no_cursor());
        Ok(RequestFilter {
            model: self.model.clone(),
            key: self.key.clone(),
            row: self.row.clone(),
            status: self.status.as_deref().map(statuses).transpose()?,
            error: self.error.clone(),
            session: self.session.clone(),
            min_total_ms: self.min_total_ms,
            from: self.from.as_deref().map(|text| time("from", text)).transpose()?,
            to: self.to.as_deref().map(|text| time("to", text)).transpose()?,
            request_id: None,
            request_id_part: self.request_id.clone(),
            before: self.cursor.as_ref().map(cursor).transpose()?,
        })
    }

    /// Whether a request under way is meant.
    pub fn wants(&self, request: &Request) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|wanted| found == Some(wanted));
        let key_id = request.key_id.map(|id| id.to_string());
        let row = request.row.map(|id| id.to_string());
        is(&self.model, request.model.as_deref())
            && (is(&self.key, request.key.as_deref()) || is(&self.key, key_id.as_deref()))
            && is(&self.row, row.as_deref())
            && self.request_id.as_ref().is_none_or(|part| request.request_id.contains(part))
    }
}

/// `429` or `4xx` as the lowest and the highest status.
fn statuses(text: &str) -> Result<(u16, u16), ApiError> {
    let class = text.strip_suffix("xx").and_then(|digit| digit.parse::<u16>().ok()).filter(|class| (1..=5).contains(class));
    match (class, text.parse::<u16>()) {
        (Some(class), _) => Ok((class * 100, class * 100 + 99)),
        (None, Ok(status)) => Ok((status, status)),
        (None, Err(_)) => Err(ApiError::invalid("`status` must be a status such as 429 or a class such as 4xx").field("status")),
    }
}

/// A time as Unix milliseconds.
fn time(field: &str, text: &str) -> Result<i64, ApiError> {
    let time: Timestamp = text.parse().map_err(|error| {
        let message = format!("`{field}` must be a time such as 2026-12-01T08:00:00Z: {error}");
        ApiError::invalid(message).field(field)
    })?;
    Ok(time.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_or_a_class() {
        for (text, expected) in [("429", Some((429, 429))), ("4xx", Some((400, 499))), ("6xx", None), ("xx", None), ("ok", None)] {
            assert_eq!(statuses(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_time_names_its_zone() {
        assert_eq!(time("from", "1970-01-01T00:00:01Z").unwrap(), 1000);
        assert_eq!(time("from", "1970-01-01T01:00:01+01:00").unwrap(), 1000);
        assert!(time("from", "yesterday").is_err() && time("from", "2026-12-01").is_err());
    }
}
