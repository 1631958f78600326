//! `lifeboat key`: API keys.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::output;
use super::reach::with_api;
use super::settings::GlobalArgs;

/// Commands over API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key; it is shown once and never again
    Create(CreateArgs),
    /// List keys: name, scopes, last use
    List,
    /// Revoke a key at once
    Revoke(RevokeArgs),
}

/// Arguments of `create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// What the key is for, for people
    pub name: String,
    /// What it may do: `inference` is /v1, `admin` is /api; give it again for both
    #[arg(long = "scope", value_name = "SCOPE", value_parser = ["inference", "admin"], default_value = "inference")]
    pub scopes: Vec<String>,
}

/// Arguments of `revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Id of the key, or its name where only one key has it
    pub key: String,
}

/// Runs one of the commands.
pub async fn run(global: &GlobalArgs, command: KeyCommand) -> anyhow::Result<()> {
    with_api(global, async |api| match command {
        KeyCommand::Create(args) => create(api, global.json, &args).await,
        KeyCommand::List => list(api, global.json).await,
        KeyCommand::Revoke(args) => revoke(api, global.json, &args.key).await,
    })
    .await
}

async fn create(api: &ApiClient, json: bool, args: &CreateArgs) -> anyhow::Result<()> {
    let key = api.post("/api/keys", Some(&json!({"name": args.name, "scopes": args.scopes}))).await?;
    if json {
        return output::json(&key);
    }
    output::remark("Keep it now: it is not shown again.");
    output::line(output::text(&key["key"]))?;
    Ok(())
}

async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let keys = api.list("/api/keys").await?;
    if json {
        return output::json(&keys);
    }
    let cells = |key: &Value| {
        ["id", "name", "prefix", "scopes", "created_at", "last_used_at", "revoked_at"].map(|field| output::text(&key[field])).to_vec()
    };
    output::table(&["id", "name", "begins with", "scopes", "created", "last used", "revoked"], keys.iter().map(cells))?;
    Ok(())
}

async fn revoke(api: &ApiClient, json: bool, wanted: &str) -> anyhow::Result<()> {
    let keys = api.list("/api/keys").await?;
    let living = || keys.iter().filter(|key| key["revoked_at"].is_null());
    let mut found: Vec<&Value> = living().filter(|key| key["id"] == wanted).collect();
    if found.is_empty() {
        found = living().filter(|key| key["name"] == wanted).collect();
    }
    let key = match found.as_slice() {
        [key] => *key,
        [] => {
            return Err(Failure::new(Kind::NotFound, format!("there is no living key `{wanted}`"))
                .hint("`lifeboat key list` shows them all")
                .into());
        }
        _ => {
            return Err(Failure::new(Kind::Conflict, format!("{} keys are called `{wanted}`", found.len()))
                .hint("name one by its id")
                .into());
        }
    };
    api.delete(&format!("/api/keys/{}", output::text(&key["id"]))).await?;
    if json {
        return output::json(&json!({"id": key["id"], "revoked": true}));
    }
    output::line(format!("{} is revoked", output::text(&key["name"])))?;
    Ok(())
}
