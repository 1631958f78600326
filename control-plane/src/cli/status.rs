//! `lifeboat status`: whether a server runs here, and how its rows are.

use std::time::Duration;

use serde_json::{Value, json};

use super::output;
use super::reach::running;
use super::server::print_rows;
use super::settings::GlobalArgs;

/// Shows the server and its rows.
pub async fn run(global: &GlobalArgs) -> anyhow::Result<()> {
    let api = running(global).await?;
    let status = api.get("/api/status").await?;
    let rows = api.list("/api/servers").await?;
    if global.json {
        return output::json(&json!({"url": api.base(), "status": status, "servers": rows}));
    }
    let uptime = Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or_default());
    output::line(format!(
        "lifeboat {} serves at {} (process {}, up {})",
        field(&status, "version"),
        api.base(),
        field(&status, "pid"),
        output::duration(uptime)
    ))?;
    output::line(format!("data in {}", field(&status, "data_dir")))?;
    let ready = rows.iter().filter(|row| row["state"] == "ready").count();
    let keys = if status["keys_required"] == true { "an API key is required" } else { "no API key is required" };
    output::line(format!("{ready} of {} rows ready, {} requests running, {keys}", rows.len(), field(&status, "requests_in_flight")))?;
    if rows.is_empty() {
        return Ok(());
    }
    output::line("")?;
    print_rows(&rows)
}

fn field(status: &Value, name: &str) -> String {
    output::text(&status[name])
}
