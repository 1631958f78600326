//! `lifeboat status`: whether a server runs here, and how its rows are.

use serde_json::{Value, json};

use super::api_client::items;
use super::output;
use super::server::print_rows;
use super::settings::GlobalArgs;

/// Shows the server and its rows.
pub async fn run(global: &GlobalArgs) -> anyhow::Result<()> {
    let api = global.running_api().await?;
    let health = api.get("/health").await?;
    let rows = api.get("/api/servers").await?;
    let ready = items(&rows).iter().filter(|row| row["state"] == "ready").count();
    if global.json {
        return output::json(&json!({"url": api.base(), "health": health, "ready": ready, "servers": items(&rows)}));
    }
    output::line(format!("lifeboat {} serves at {}", version(&health), api.base()))?;
    output::line(format!("{ready} of {} rows are ready", items(&rows).len()))?;
    output::line("")?;
    print_rows(items(&rows))
}

fn version(health: &Value) -> String {
    output::text(&health["version"])
}
