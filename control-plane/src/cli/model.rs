//! `lifeboat model`: models on disk.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api_client::{ApiClient, encode, items};
use super::settings::GlobalArgs;
use super::{follow, output};

/// Commands over models.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// List the models on disk
    List,
    /// Download a model (goes on where an earlier try stopped)
    Pull(SourceArgs),
    /// Show what a model is and what it needs on this host
    Inspect(SourceArgs),
    /// Remove a model that no row uses
    Remove(SourceArgs),
}

/// Which model.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// `hf:owner/repo[:quant or file]`, `https://…`, a path, `pip:package`
    pub source: String,
}

/// Runs one of the commands.
pub async fn run(global: &GlobalArgs, command: ModelCommand) -> anyhow::Result<()> {
    let api = global.running_api().await?;
    match command {
        ModelCommand::List => list(&api, global.json).await,
        ModelCommand::Pull(args) => pull(&api, global.json, &args).await,
        ModelCommand::Inspect(args) => inspect(&api, global.json, &args).await,
        ModelCommand::Remove(args) => {
            api.delete(&format!("/api/models?source={}", encode(&args.source))).await?;
            if global.json {
                return output::json(&json!({"source": args.source, "removed": true}));
            }
            output::line(format!("{} is removed", args.source))?;
            Ok(())
        }
    }
}

async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let reply = api.get("/api/models").await?;
    if json {
        return output::json(&reply);
    }
    let cells = |model: &Value| {
        let facts = &model["facts"];
        vec![
            output::text(&model["source"]),
            output::text(&facts["architecture"]),
            output::text(&facts["quantisation"]),
            model["bytes"].as_u64().map_or_else(|| output::NONE.to_owned(), output::bytes),
            output::text(&facts["native_context"]),
        ]
    };
    output::table(&["model", "architecture", "quantisation", "size", "context"], items(&reply).iter().map(cells))?;
    Ok(())
}

async fn pull(api: &ApiClient, json: bool, args: &SourceArgs) -> anyhow::Result<()> {
    let job = api.post("/api/models", Some(&json!({"source": args.source}))).await?;
    let result = follow::job(api, job).await?;
    if json {
        return output::json(&result);
    }
    output::line(format!("{} is here", args.source))?;
    Ok(())
}

async fn inspect(api: &ApiClient, json: bool, args: &SourceArgs) -> anyhow::Result<()> {
    let reply = api.get(&format!("/api/models/inspect?source={}", encode(&args.source))).await?;
    if json {
        return output::json(&reply);
    }
    output::fields(&reply)
}
