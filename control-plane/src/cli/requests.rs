//! `lifeboat requests` and `lifeboat usage`: what was asked, what is under way, what keys used.

use clap::Args;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::reach::with_api;
use super::settings::GlobalArgs;
use super::{key, output};
use crate::host::http::encode;

/// Arguments of `requests`.
#[derive(Debug, Args)]
pub struct RequestsArgs {
    /// Show those under way instead of those that have ended
    #[arg(long)]
    pub active: bool,
    /// End the one with this id; its client is told
    #[arg(long, value_name = "ID", conflicts_with_all = ["active", "model", "key", "row", "status", "error", "min_total_ms"])]
    pub cancel: Option<String>,
    /// Only those of this model
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Only those of this key, by its id or name
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only those on this row, by its id
    #[arg(long, value_name = "ID")]
    pub row: Option<String>,
    /// Only those with this status (`429`) or of this class (`4xx`)
    #[arg(long, value_name = "STATUS", conflicts_with = "active")]
    pub status: Option<String>,
    /// Only those that ended with this error
    #[arg(long, value_name = "CODE", conflicts_with = "active")]
    pub error: Option<String>,
    /// Only those that took at least so many milliseconds
    #[arg(long, value_name = "NUMBER", conflicts_with = "active")]
    pub min_total_ms: Option<u64>,
    /// The last so many, at most 1000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 50)]
    pub limit: u32,
}

/// Arguments of `usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// First day (UTC), for example 2026-12-01 [default: 29 days before the last one]
    #[arg(long, value_name = "DAY")]
    pub from: Option<String>,
    /// Last day (UTC) [default: today]
    #[arg(long, value_name = "DAY")]
    pub to: Option<String>,
    /// Only this key, by its id or name; `none` = callers that needed none
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only this model
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

/// Runs `requests`.
pub async fn run(global: &GlobalArgs, args: RequestsArgs) -> anyhow::Result<()> {
    with_api(global, async |api| match &args.cancel {
        Some(id) => cancel(api, global.json, id).await,
        None => list(api, global.json, &args).await,
    })
    .await
}

/// Runs `usage`.
pub async fn run_usage(global: &GlobalArgs, args: UsageArgs) -> anyhow::Result<()> {
    with_api(global, async |api| usage(api, global.json, &args).await).await
}

async fn cancel(api: &ApiClient, json: bool, id: &str) -> anyhow::Result<()> {
    api.post(&format!("/api/requests/{}/cancel", encode(id)), None).await?;
    if json {
        return output::json(&json!({"request_id": id, "cancelled": true}));
    }
    output::line(format!("{id} is being ended"))?;
    Ok(())
}

/// A path with those parameters that were given.
fn with_query(path: &str, given: &[(&str, Option<String>)]) -> String {
    let query = given.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_ref()?))));
    format!("{path}?{}", query.collect::<Vec<_>>().join("&"))
}

async fn list(api: &ApiClient, json: bool, args: &RequestsArgs) -> anyhow::Result<()> {
    let path = with_query(
        "/api/requests",
        &[
            ("state", args.active.then(|| "active".to_owned())),
            ("model", args.model.clone()),
            ("key", args.key.clone()),
            ("row", args.row.clone()),
            ("status", args.status.clone()),
            ("error", args.error.clone()),
            ("min_total_ms", args.min_total_ms.map(|number| number.to_string())),
            ("limit", Some(args.limit.to_string())),
        ],
    );
    let requests = api.entries(&path).await?;
    if json {
        return output::json(&requests);
    }
    let (outcome, counts): (_, &[(&str, &str)]) = if args.active {
        ("phase", &[("pieces", "pieces")])
    } else {
        ("status", &[("prompt", "prompt_tokens"), ("cached", "cached_tokens"), ("made", "completion_tokens")])
    };
    let cells = |request: &Value| {
        let mut cells: Vec<_> =
            ["at", "request_id", "model", "key", outcome, "error"].iter().map(|field| output::text(&request[field])).collect();
        cells.extend(["queue_wait_ms", "first_byte_ms", "total_ms"].map(|field| milliseconds(&request[field])));
        cells.extend(counts.iter().map(|(_, field)| output::text(&request[field])));
        cells
    };
    let mut headers = vec!["arrived", "id", "model", "key", outcome, "error", "queued", "first", "total"];
    headers.extend(counts.iter().map(|(header, _)| header));
    output::table(&headers, requests.iter().map(cells))?;
    Ok(())
}

fn milliseconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| output::NONE.to_owned(), |number| format!("{number:.0} ms"))
}

async fn usage(api: &ApiClient, json: bool, args: &UsageArgs) -> anyhow::Result<()> {
    // A revoked key is found by its id only, which needs no look.
    let key = match &args.key {
        Some(wanted) if wanted != "none" && uuid::Uuid::parse_str(wanted).is_err() => {
            Some(output::text(&key::find(api, wanted).await?["id"]))
        }
        other => other.clone(),
    };
    let given = [("from", args.from.clone()), ("to", args.to.clone()), ("key", key), ("model", args.model.clone())];
    let sums = api.list(&with_query("/api/usage", &given)).await?;
    if json {
        return output::json(&sums);
    }
    let cells = |sum: &Value| {
        let key = if sum["key"].is_null() { &sum["key_id"] } else { &sum["key"] };
        let mut cells = vec![output::text(&sum["day"]), output::text(key), output::text(&sum["model"])];
        let numbers = ["requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens"];
        cells.extend(numbers.map(|field| output::text(&sum[field])));
        cells
    };
    let headers = ["day", "key", "model", "requests", "errors", "prompt", "cached", "made"];
    output::table(&headers, sums.iter().map(cells))?;
    Ok(())
}
