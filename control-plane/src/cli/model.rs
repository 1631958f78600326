//! `lifeboat model`: models on disk.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::reach::with_api;
use super::settings::GlobalArgs;
use super::{follow, output};
use crate::host::http::encode;
use lifeboat_engines::sizing::show::size;

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
    /// Folders of yours that are scanned for models: list, add, remove
    #[command(subcommand)]
    Folder(FolderCommand),
}

/// Commands over folders that are scanned.
#[derive(Debug, Subcommand)]
pub enum FolderCommand {
    /// List the folders
    List,
    /// Scan one more folder; nothing in it is ever changed
    Add(FolderArgs),
    /// Scan a folder no longer; its files stay
    Remove(FolderArgs),
}

/// Which folder.
#[derive(Debug, Args)]
pub struct FolderArgs {
    /// Path of the folder
    pub path: PathBuf,
}

/// Which model.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// `hf:owner/repo[:quant or file]`, `https://…`, a path, `pip:package`
    pub source: String,
}

/// Runs one of the commands.
pub async fn run(global: &GlobalArgs, command: ModelCommand) -> anyhow::Result<()> {
    with_api(global, async |api| match command {
        ModelCommand::List => list(api, global.json).await,
        ModelCommand::Pull(args) => pull(api, global.json, &args).await,
        ModelCommand::Inspect(args) => inspect(api, global.json, &args).await,
        ModelCommand::Folder(command) => folder(api, global.json, &command).await,
        ModelCommand::Remove(args) => {
            api.delete(&format!("/api/models?source={}", encode(&absolute(&args.source)))).await?;
            if global.json {
                return output::json(&json!({"source": args.source, "removed": true}));
            }
            output::line(format!("{} is removed", args.source))?;
            Ok(())
        }
    })
    .await
}

async fn folder(api: &ApiClient, json: bool, command: &FolderCommand) -> anyhow::Result<()> {
    const ROUTE: &str = "/api/models/folders";
    let shown = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    match command {
        FolderCommand::List => {
            let folders = api.entries(ROUTE).await?;
            if json {
                return output::json(&folders);
            }
            let cells = |folder: &Value| ["path", "configured"].map(|field| output::text(&folder[field])).to_vec();
            output::table(&["folder", "from the settings"], folders.iter().map(cells))?;
        }
        FolderCommand::Add(args) => {
            let folder = api.post(ROUTE, Some(&json!({"path": shown(&args.path)?}))).await?;
            if json {
                return output::json(&folder);
            }
            output::line(format!("{} is scanned now", output::text(&folder["path"])))?;
        }
        FolderCommand::Remove(args) => {
            let path = shown(&args.path)?;
            api.delete(&format!("{ROUTE}?path={}", encode(&path))).await?;
            if json {
                return output::json(&json!({"path": path, "removed": true}));
            }
            output::line(format!("{path} is scanned no longer"))?;
        }
    }
    Ok(())
}

/// A path to a model that is named from where the user stands, as the server can find it; any other source as it is.
pub fn absolute(source: &str) -> String {
    let is_path = source.starts_with("./") || source.starts_with("../") || (!source.contains(':') && Path::new(source).exists());
    if !is_path {
        return source.to_owned();
    }
    std::path::absolute(source).map_or_else(|_| source.to_owned(), |path| path.display().to_string())
}

async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let models = api.list("/api/models").await?;
    if json {
        return output::json(&models);
    }
    let cells = |model: &Value| {
        let facts = &model["facts"];
        vec![
            output::text(&model["source"]),
            output::text(&facts["architecture"]),
            output::text(&facts["quantisation"]),
            model["bytes"].as_u64().map_or_else(|| output::NONE.to_owned(), size),
            output::text(&facts["native_context"]),
        ]
    };
    output::table(&["model", "architecture", "quantisation", "size", "context"], models.iter().map(cells))?;
    Ok(())
}

async fn pull(api: &ApiClient, json: bool, args: &SourceArgs) -> anyhow::Result<()> {
    let job = api.post("/api/models", Some(&json!({"source": absolute(&args.source)}))).await?;
    let result = follow::job(api, job).await?;
    if json {
        return output::json(&result);
    }
    output::line(format!("{} is here", args.source))?;
    Ok(())
}

async fn inspect(api: &ApiClient, json: bool, args: &SourceArgs) -> anyhow::Result<()> {
    let reply = api.get(&format!("/api/models/inspect?source={}", encode(&absolute(&args.source)))).await?;
    if json {
        return output::json(&reply);
    }
    output::fields(&reply)
}
