//! `lifeboat up`: from nothing to a served model, with one command.
//!
//! It starts the same server as `serve`, then goes through the same API as everybody else: it creates a row
//! where none is there and follows that row's own progress. So a first start has no path of its own, and a
//! second start of the same command only waits for the row that is there. Only which model to suggest, where none is
//! named, it asks the server's own `models` without the API.

mod banner;
mod naming;

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lifeboat_engines::spec::Task;
use serde_json::{Map, Value, json};

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::follow::Meter;
use super::serve::{self, ServeArgs};
use super::server::Auto;
use super::settings::GlobalArgs;
use super::{model, output};
use crate::app::RunningApp;
use crate::keys::read_local_token;
use crate::progress::Progress;
use banner::Served;

/// Time between two looks at a row that comes up.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What `up` logs unless told otherwise: it shows progress by itself.
const QUIET: &str = "warn";

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Model to serve: `hf:owner/repo[:quant or file]`, `https://…`, a path, `pip:package`
    /// [default: what is there already, else the best one for this host]
    pub model: Option<String>,
    /// Public name of a new row [default: from the model]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Engine of a new row: `llama_cpp` or `sim`
    #[arg(long, value_name = "KIND", default_value = "llama_cpp")]
    pub engine: String,
    /// Requests that a new row serves at the same time [default: auto]
    #[arg(long, value_name = "NUMBER|auto")]
    pub slots: Option<Auto>,
    /// Tokens of context of one slot of a new row [default: auto]
    #[arg(long, value_name = "NUMBER|auto")]
    pub context: Option<Auto>,
    /// What `serve` takes too.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Serves until a signal.
pub async fn run(global: &GlobalArgs, args: UpArgs) -> anyhow::Result<()> {
    let app = serve::start(global, &args.serve, Some(QUIET)).await?;
    let interrupted = app.lifecycle.soft.clone();
    let outcome = tokio::select! {
        outcome = bring_up(global, &app, &args) => outcome,
        () = interrupted.cancelled() => Err(Failure::new(Kind::Interrupted, "interrupted; the next `lifeboat up` goes on from here").into()),
    };
    match outcome {
        Ok(()) => serve::until_stopped(app).await,
        Err(error) => {
            app.stop().await;
            return Err(error);
        }
    }
    Ok(())
}

async fn bring_up(global: &GlobalArgs, app: &RunningApp, args: &UpArgs) -> anyhow::Result<()> {
    let config = global.config(&args.serve.settings)?;
    let api = ApiClient::new(app.base_url(), read_local_token(&config.data_dir)?)?;
    let wanted = wanted_rows(app, &api, args).await?;
    let served = match follow(&api, &wanted).await {
        Err(error) if wanted.created => {
            // A row that never served would only stand in the way of the next try; what was downloaded stays.
            for id in &wanted.ids {
                // Why the row failed is what there is to tell; that it could not be deleted is only untidy.
                if let Err(left) = api.delete(&format!("/api/servers/{id}")).await {
                    tracing::warn!(error = %left, server.id = id, "could not delete the row that never served");
                }
            }
            return Err(error);
        }
        outcome => outcome?,
    };
    let status = api.get("/api/status").await?;
    // Whoever started us may not listen to what we print; that is no reason to stop.
    match banner::print(api.base(), &served, status["keys_required"] == true, global.json) {
        Err(error) if !error.is::<std::io::Error>() => Err(error),
        _ => Ok(()),
    }
}

/// The rows to wait for.
#[derive(Debug)]
struct Wanted {
    ids: Vec<String>,
    /// Made by this command.
    created: bool,
    /// Named by the user: its failure is a failure of the command.
    named: bool,
}

async fn wanted_rows(app: &RunningApp, api: &ApiClient, args: &UpArgs) -> anyhow::Result<Wanted> {
    let rows = api.list("/api/servers").await?;
    let source = match &args.model {
        Some(source) => model::absolute(source),
        None if rows.is_empty() => {
            let suggestion = app.models.suggest().await;
            output::remark(format!("Model: {}: {}.", suggestion.source, suggestion.why));
            suggestion.source
        }
        None => {
            let ids: Vec<String> =
                rows.iter().filter(|row| row["desired_state"] != "stopped").map(|row| output::text(&row["id"])).collect();
            if ids.is_empty() {
                output::remark("Every server row is stopped: start one with `lifeboat server start`, or name a model.");
            }
            return Ok(Wanted { ids, created: false, named: false });
        }
    };
    let row = match rows.iter().find(|row| row["model"] == source.as_str()) {
        Some(row) if row["desired_state"] == "stopped" => {
            api.post(&format!("/api/servers/{}/start", output::text(&row["id"])), None).await?
        }
        Some(row) => row.clone(),
        None => {
            let row = api.post("/api/servers", Some(&Value::Object(new_row(args, &source)))).await?;
            return Ok(Wanted { ids: vec![output::text(&row["id"])], created: true, named: true });
        }
    };
    Ok(Wanted { ids: vec![output::text(&row["id"])], created: false, named: true })
}

fn new_row(args: &UpArgs, source: &str) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("model_name".into(), json!(args.name.clone().unwrap_or_else(|| naming::public_name(source))));
    row.insert("engine".into(), json!(args.engine));
    row.insert("model".into(), json!(source));
    for (field, value) in [("slots", args.slots), ("context", args.context)] {
        if let Some(Auto::Number(number)) = value {
            row.insert(field.into(), json!(number));
        }
    }
    row
}

/// Shows how the rows come up and returns once each has settled, with those that serve.
async fn follow(api: &ApiClient, wanted: &Wanted) -> anyhow::Result<Vec<Served>> {
    let mut meter = Meter::new();
    let mut served = Vec::new();
    for id in &wanted.ids {
        match settle(api, id, &mut meter).await? {
            Settled::Serves(row) => served.push(row),
            Settled::Failed(name, reason) if wanted.named => {
                return Err(Failure::new(Kind::Refused, format!("{name} cannot be served"))
                    .caused_by(reason)
                    .hint("`lifeboat doctor` checks this host; `lifeboat engine candidates` and `lifeboat model inspect` tell more")
                    .into());
            }
            Settled::Failed(name, reason) => output::remark(format!("{name} does not serve: {reason}")),
            Settled::Gone => {}
        }
    }
    Ok(served)
}

enum Settled {
    Serves(Served),
    Failed(String, String),
    Gone,
}

async fn settle(api: &ApiClient, id: &str, meter: &mut Meter) -> anyhow::Result<Settled> {
    loop {
        let row = match api.get(&format!("/api/servers/{id}")).await {
            Err(error) if error.kind() == Kind::NotFound => return Ok(Settled::Gone),
            row => row?,
        };
        let name = output::text(&row["model_name"]);
        match row["state"].as_str() {
            Some("ready" | "sleeping") => {
                meter.clear();
                let task = row["resolved"]["task"].clone();
                let task = if task.is_null() { Task::Chat } else { serde_json::from_value(task).context("a task that is not known")? };
                return Ok(Settled::Serves(Served { name, task }));
            }
            Some("failed") => {
                meter.clear();
                return Ok(Settled::Failed(name, row["state_reason"].as_str().unwrap_or("no reason is known").to_owned()));
            }
            Some("stopped") if row["desired_state"] == "stopped" => return Ok(Settled::Gone),
            state => meter.show(&shown(&name, state.unwrap_or_default(), &row["progress"])),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The row's own progress, or its state where it has none.
fn shown(name: &str, state: &str, progress: &Value) -> Progress {
    match serde_json::from_value::<Progress>(progress.clone()) {
        Ok(progress) if !progress.step.is_empty() => progress,
        _ => Progress { step: format!("{name}: {state}"), ..Progress::default() },
    }
}
