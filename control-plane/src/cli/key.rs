//! `lifeboat key`: API keys.

use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

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
    /// List keys: name, scopes, limits, last use
    List,
    /// Change the name or the limits of a key; holds from its next request on
    Edit(EditArgs),
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
    /// What it may use.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Arguments of `edit`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// Id of the key, or its name where only one key has it
    pub key: String,
    /// New name
    #[arg(long)]
    pub name: Option<String>,
    /// What it may use.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// A limit on the command line.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// No limit.
    None,
    /// At most so many.
    Most(u32),
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse().map(Self::Most).map_err(|_| "it must be a whole number or `none`".to_owned())
    }
}

impl Bound {
    fn value(self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Most(number) => json!(number),
        }
    }
}

/// What a key may use, as options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Requests that may begin in a minute
    #[arg(long, value_name = "NUMBER|none")]
    pub requests_per_minute: Option<Bound>,
    /// Tokens in a minute: uncached ones of prompts, and those of replies
    #[arg(long, value_name = "NUMBER|none")]
    pub tokens_per_minute: Option<Bound>,
    /// Requests at once, waiting ones included
    #[arg(long, value_name = "NUMBER|none")]
    pub concurrent_requests: Option<Bound>,
    /// Highest priority it may ask for with `x-lifeboat-priority` [default for a new key: default]
    #[arg(long, value_name = "BAND", value_parser = ["bulk", "default", "interactive", "system"])]
    pub priority: Option<String>,
    /// Public name of a model it may use; give it again for more; `all` = all
    #[arg(long = "model", value_name = "NAME|all")]
    pub models: Vec<String>,
}

impl LimitArgs {
    /// The limits that were given, as the API takes them.
    fn into_json(self) -> Map<String, Value> {
        let models = match self.models.as_slice() {
            [] => None,
            [only] if only == "all" => Some(json!([])),
            names => Some(json!(names)),
        };
        let given = [
            ("requests_per_minute", self.requests_per_minute.map(Bound::value)),
            ("tokens_per_minute", self.tokens_per_minute.map(Bound::value)),
            ("concurrent_requests", self.concurrent_requests.map(Bound::value)),
            ("priority", self.priority.map(Value::String)),
            ("models", models),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
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
        KeyCommand::Create(args) => create(api, global.json, args).await,
        KeyCommand::List => list(api, global.json).await,
        KeyCommand::Edit(args) => edit(api, global.json, args).await,
        KeyCommand::Revoke(args) => revoke(api, global.json, &args.key).await,
    })
    .await
}

async fn create(api: &ApiClient, json: bool, args: CreateArgs) -> anyhow::Result<()> {
    let wanted = json!({"name": args.name, "scopes": args.scopes, "limits": args.limits.into_json()});
    let key = api.post("/api/keys", Some(&wanted)).await?;
    if json {
        return output::json(&key);
    }
    output::remark("Keep it now: it is not shown again.");
    if let Some(hint) = key["hint"].as_str() {
        output::remark(format!("Note: {hint}."));
    }
    output::line(output::text(&key["key"]))?;
    Ok(())
}

async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let keys = api.list("/api/keys").await?;
    if json {
        return output::json(&keys);
    }
    let cells = |key: &Value| {
        let mut cells = ["id", "name", "prefix", "scopes"].map(|field| output::text(&key[field])).to_vec();
        cells.push(limits(&key["limits"]));
        cells.extend(["created_at", "last_used_at", "revoked_at"].map(|field| output::text(&key[field])));
        cells
    };
    output::table(&["id", "name", "begins with", "scopes", "limits", "created", "last used", "revoked"], keys.iter().map(cells))?;
    Ok(())
}

/// The limits of a key in a few words.
fn limits(limits: &Value) -> String {
    let rates = [("requests_per_minute", "requests/min"), ("tokens_per_minute", "tokens/min"), ("concurrent_requests", "at once")];
    let mut words: Vec<String> =
        rates.iter().filter(|(field, _)| limits[field].is_number()).map(|(field, unit)| format!("{} {unit}", limits[field])).collect();
    if let Some(priority) = limits["priority"].as_str().filter(|priority| *priority != "default") {
        words.push(format!("priority {priority}"));
    }
    if limits["models"].as_array().is_some_and(|models| !models.is_empty()) {
        words.push(format!("only {}", output::text(&limits["models"])));
    }
    if words.is_empty() { output::NONE.to_owned() } else { words.join("; ") }
}

async fn edit(api: &ApiClient, json: bool, args: EditArgs) -> anyhow::Result<()> {
    let key = find(api, &args.key).await?;
    let mut change = Map::new();
    if let Some(name) = args.name {
        change.insert("name".to_owned(), Value::String(name));
    }
    let limits = args.limits.into_json();
    if !limits.is_empty() {
        change.insert("limits".to_owned(), Value::Object(limits));
    }
    if change.is_empty() {
        return Err(Failure::new(Kind::Usage, "nothing to change was given").hint("see `lifeboat key edit --help`").into());
    }
    let key = api.patch(&path_of(&key), &Value::Object(change)).await?;
    if json {
        return output::json(&key);
    }
    output::line(format!("{} {} changed", output::text(&key["name"]), output::text(&key["id"])))?;
    Ok(())
}

async fn revoke(api: &ApiClient, json: bool, wanted: &str) -> anyhow::Result<()> {
    let key = find(api, wanted).await?;
    let living = api.list("/api/keys").await?.iter().filter(|key| key["revoked_at"].is_null()).count();
    api.delete(&path_of(&key)).await?;
    if json {
        return output::json(&json!({"id": key["id"], "revoked": true}));
    }
    output::line(format!("{} is revoked", output::text(&key["name"])))?;
    if living == 1 {
        output::remark("It was the last key: from now on anybody on this machine may use and change the server.");
    }
    Ok(())
}

fn path_of(key: &Value) -> String {
    format!("/api/keys/{}", output::text(&key["id"]))
}

/// The living key with this id, or the only one with this name.
pub async fn find(api: &ApiClient, wanted: &str) -> anyhow::Result<Value> {
    let keys = api.list("/api/keys").await?;
    let living = || keys.iter().filter(|key| key["revoked_at"].is_null());
    let mut found: Vec<&Value> = living().filter(|key| key["id"] == wanted).collect();
    if found.is_empty() {
        found = living().filter(|key| key["name"] == wanted).collect();
    }
    match found.as_slice() {
        [key] => Ok((*key).clone()),
        [] => Err(Failure::new(Kind::NotFound, format!("there is no living key `{wanted}`"))
            .hint("`lifeboat key list` shows them all")
            .into()),
        _ => Err(Failure::new(Kind::Conflict, format!("{} keys are called `{wanted}`", found.len())).hint("name one by its id").into()),
    }
}
