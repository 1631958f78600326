//! `lifeboat engine`: builds of engines.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::reach::with_api;
use super::settings::GlobalArgs;
use super::{follow, output};
use crate::host::http::encode;
use lifeboat_engines::sizing::show::size;

/// Commands over engine builds.
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    /// List the builds that are installed
    List,
    /// List the builds there are for this host, best first, and why the others are not taken
    Candidates(KindArgs),
    /// Install a build: fetch, verify, unpack, prove with a model, activate
    Install(InstallArgs),
    /// Make an installed build the active one
    Use(BuildArgs),
    /// Go back to the build that was active before
    Rollback(KindArgs),
    /// Remove a build that is not in use
    Remove(BuildArgs),
}

/// Which kind of engine.
#[derive(Debug, Args)]
pub struct KindArgs {
    /// Kind of engine
    #[arg(long, value_name = "KIND", default_value = "llama_cpp")]
    pub engine: String,
}

/// Which build.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Id of the build, as `lifeboat engine list` shows it
    pub build: String,
}

/// Arguments of `install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Candidate, as `lifeboat engine candidates` names it [default: the best one that works here]
    pub candidate: Option<String>,
    /// Kind of engine
    #[arg(long, value_name = "KIND", default_value = "llama_cpp")]
    pub engine: String,
    /// Build it here from source (needs a C++ compiler, cmake and ninja; takes long)
    #[arg(long, conflicts_with = "candidate")]
    pub from_source: bool,
    /// Your own llama-server program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["candidate", "from_source", "release"])]
    pub path: Option<std::path::PathBuf>,
    /// A release tag, such as b11434 [default: the one llama.cpp promotes]
    #[arg(long, value_name = "TAG")]
    pub release: Option<String>,
}

/// Runs one of the commands.
pub async fn run(global: &GlobalArgs, command: EngineCommand) -> anyhow::Result<()> {
    with_api(global, async |api| match command {
        EngineCommand::List => list(api, global.json).await,
        EngineCommand::Candidates(args) => candidates(api, global.json, &args).await,
        EngineCommand::Install(args) => install(api, global.json, args).await,
        EngineCommand::Use(args) => {
            let build = api.post(&format!("/api/engines/{}/activate", encode(&args.build)), None).await?;
            done(global.json, &build, &format!("{} is active now", args.build))
        }
        EngineCommand::Rollback(args) => {
            let build = api.post("/api/engines/rollback", Some(&json!({"engine": args.engine}))).await?;
            done(global.json, &build, &format!("{} is active again", output::text(&build["id"])))
        }
        EngineCommand::Remove(args) => {
            let reply = api.delete(&format!("/api/engines/{}", encode(&args.build))).await?;
            done(global.json, &reply, &format!("{} is removed", args.build))
        }
    })
    .await
}

async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let builds = api.list("/api/engines").await?;
    if json {
        return output::json(&builds);
    }
    let cells = |build: &Value| {
        vec![
            output::text(&build["id"]),
            output::text(&build["engine"]),
            output::text(&build["version"]),
            output::text(&build["source"]),
            standing(build).to_owned(),
            build["size_bytes"].as_u64().map_or_else(|| output::NONE.to_owned(), size),
            output::text(&build["proof"]["cause"]),
        ]
    };
    output::table(&["build", "engine", "version", "source", "state", "size", "reason"], builds.iter().map(cells))?;
    Ok(())
}

/// What a build is to the engine it belongs to.
fn standing(build: &Value) -> &'static str {
    match (build["active"] == true, build["previous"] == true, build["proof"]["result"].as_str()) {
        (true, ..) => "active",
        (_, true, _) => "previous",
        (.., Some("failed")) => "failed",
        _ => "kept",
    }
}

async fn candidates(api: &ApiClient, json: bool, args: &KindArgs) -> anyhow::Result<()> {
    let candidates = api.entries(&format!("/api/engines/candidates?engine={}", encode(&args.engine))).await?;
    if json {
        return output::json(&candidates);
    }
    let cells = |candidate: &Value| {
        let verdict = if candidate["usable"] == true { "fits" } else { "not taken" };
        vec![output::text(&candidate["id"]), output::text(&candidate["source"]), verdict.to_owned(), output::text(&candidate["reason"])]
    };
    output::table(&["candidate", "source", "verdict", "reason"], candidates.iter().map(cells))?;
    Ok(())
}

async fn install(api: &ApiClient, json: bool, args: InstallArgs) -> anyhow::Result<()> {
    // The server may have been started elsewhere.
    let path = args.path.map(std::path::absolute).transpose()?;
    let body = json!({
        "engine": args.engine,
        "candidate": args.candidate,
        "from_source": args.from_source,
        "path": path,
        "version": args.release,
    });
    let job = api.post("/api/engines", Some(&body)).await?;
    let result = follow::job(api, job).await?;
    done(json, &result, &format!("{} is installed and active", output::text(&result["id"])))
}

fn done(json: bool, value: &Value, text: &str) -> anyhow::Result<()> {
    if json {
        return output::json(value);
    }
    output::line(text)?;
    Ok(())
}
