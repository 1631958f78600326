//! One `lifeboat serve` as its users run it: a child process with its own data directory and port.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::http::{SseStream, client};
use super::process::{Served, command, eventually, free_port, processes_naming, send_signal};

/// Longest wait for the control plane to listen.
const START: Duration = Duration::from_secs(30);
/// Longest wait for a row to get somewhere, where a test does not say.
pub const STEP: Duration = Duration::from_secs(30);
/// Longest wait for a clean stop: the drain, the engines' own end, and room for a busy machine.
const STOP: Duration = Duration::from_secs(60);

/// A real control plane under test. Its drop stops it and asserts that no process of it is left.
#[derive(Debug)]
pub struct TestApp {
    root: Root,
    port: u16,
    environment: BTreeMap<String, String>,
    served: Option<Served>,
    /// The client of this test.
    pub client: reqwest::Client,
    /// The API key of [`TestApp::call`] and what is built on it.
    pub key: Option<String>,
}

/// An engine the app under test does not own.
#[derive(Debug)]
pub struct Outside {
    process: Served,
    port: u16,
}

impl Outside {
    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Where an app lives.
#[derive(Debug)]
enum Root {
    Fresh(TempDir),
    Kept(PathBuf),
}

impl TestApp {
    /// Starts one with default settings in a fresh directory.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts one with settings (the text of `lifeboat.toml`) in a fresh directory.
    pub async fn start_with(settings: &str) -> Self {
        let mut app = Self::prepare(settings);
        app.serve().await;
        app
    }

    /// A fresh data directory with settings, with nothing running yet.
    pub fn prepare(settings: &str) -> Self {
        Self::prepare_in(Root::Fresh(TempDir::with_prefix("lifeboat-it-").unwrap()), settings)
    }

    /// A data directory under the build's own folder that later runs find again: for what is slow to download.
    pub fn prepare_kept(name: &str, settings: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        Self::prepare_in(Root::Kept(root), settings)
    }

    fn prepare_in(root: Root, settings: &str) -> Self {
        let inherited = std::env::vars().filter(|(name, _)| !name.starts_with("LIFEBOAT_") && !name.starts_with("HF_"));
        let mut app = Self { root, port: free_port(), environment: inherited.collect(), served: None, client: client(), key: None };
        app.set("LIFEBOAT_LOG", "info");
        std::fs::create_dir_all(app.data_dir()).unwrap();
        std::fs::write(app.data_dir().join("lifeboat.toml"), settings).unwrap();
        app
    }

    /// Sets an environment variable of all that is started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    /// Starts (again) and waits until it listens.
    pub async fn serve(&mut self) {
        let out = File::options().create(true).append(true).open(self.log_file()).unwrap();
        self.serve_with_log(out).await;
    }

    /// The same, with its output in a file of the caller's.
    pub async fn serve_with_log(&mut self, out: File) {
        assert!(self.served.is_none(), "it runs already");
        let log = self.log_file();
        let mut command = self.command(&["serve"]);
        command.stdout(out.try_clone().unwrap()).stderr(out);
        self.served = Some(Served::start(&mut command).unwrap());
        let health = self.url("/health");
        let client = self.client.clone();
        let served = self.served.as_mut().unwrap();
        eventually("the control plane listens", START, || {
            let ended = served.ended();
            let (client, health, log) = (client.clone(), health.clone(), log.clone());
            async move {
                if let Some(status) = ended {
                    panic!("serve ended with {status}:\n{}", std::fs::read_to_string(log).unwrap_or_default());
                }
                client.get(health).send().await.ok().filter(|reply| reply.status() == StatusCode::OK).map(|_| ())
            }
        })
        .await;
    }

    /// The binary under test with this app's environment, data directory and address.
    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = command(env!("CARGO_BIN_EXE_lifeboat"));
        command
            .args(arguments)
            .env_clear()
            .envs(&self.environment)
            .env("LIFEBOAT_DATA_DIR", self.data_dir())
            .env("LIFEBOAT_LISTEN", self.authority());
        command
    }

    /// Where it keeps everything.
    pub fn data_dir(&self) -> PathBuf {
        self.scratch().join("data")
    }

    /// Scratch room around the data directory, kept or removed with it.
    pub fn scratch(&self) -> &Path {
        match &self.root {
            Root::Fresh(folder) => folder.path(),
            Root::Kept(folder) => folder,
        }
    }

    /// What the control plane printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.scratch().join("serve.log")
    }

    /// `127.0.0.1:<port>`.
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.authority())
    }

    /// The control plane's own process id.
    pub fn pid(&self) -> u32 {
        self.served.as_ref().expect("it does not run").pid()
    }

    /// Kills the control plane as a power cut of that one process would. Its engines stay.
    pub fn kill(&mut self) {
        self.served.take().expect("it does not run").kill();
    }

    /// SIGTERM, then the end. Panics if it takes too long.
    pub fn stop(&mut self) -> ExitStatus {
        self.end_with(Some(Signal::TERM))
    }

    /// The end after this signal, if any; one may have been sent before.
    pub fn end_with(&mut self, signal: Option<Signal>) -> ExitStatus {
        let mut served = self.served.take().expect("it does not run");
        if let Some(signal) = signal {
            send_signal(served.pid(), signal);
        }
        let status = served.wait_at_most(STOP);
        status.unwrap_or_else(|| panic!("no end within {STOP:?}:\n{}", self.log()))
    }

    /// A simulated engine of somebody else: its drop ends it.
    pub async fn start_sim_engine(&self, flags: &[&str]) -> Outside {
        let port = free_port();
        let mut command = command(env!("CARGO_BIN_EXE_lifeboat"));
        command.args(["sim-engine", "--port", &port.to_string()]).args(flags).env_clear().stderr(Stdio::null());
        let outside = Outside { process: Served::start(&mut command).unwrap(), port };
        let health = format!("{}/health", outside.url());
        eventually("the outside engine is ready", START, async || {
            self.client.get(&health).send().await.ok().filter(|reply| reply.status() == StatusCode::OK).map(|_| ())
        })
        .await;
        outside
    }

    /// Every living process of this app (control plane included) with its command line.
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_naming(self.scratch())
    }

    /// Living engine processes of this app: simulated ones and Python-hosted ones.
    pub fn engines(&self) -> Vec<u32> {
        let is_engine = |line: &str| !line.contains("engine-guard") && (line.contains(" sim-engine ") || line.contains("--port"));
        self.processes().into_iter().filter(|(_, line)| is_engine(line)).map(|(pid, _)| pid).collect()
    }

    /// One REST call; the body is `null` where the reply has none or is not JSON.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = self.client.request(method, self.url(path));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let reply = request.send().await.unwrap();
        let status = reply.status();
        let bytes = reply.bytes().await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Creates a key that may do everything; all further calls carry it.
    pub async fn create_key(&mut self) -> String {
        let wanted = json!({"name": "test", "scopes": ["inference", "admin"]});
        let (status, reply) = self.call(Method::POST, "/api/keys", Some(&wanted)).await;
        assert_eq!(status, StatusCode::CREATED, "{reply}");
        let key = reply["key"].as_str().expect("a new key is shown").to_owned();
        self.key = Some(key.clone());
        key
    }

    /// Creates a row and returns its id.
    pub async fn create_row(&self, row: &Value) -> String {
        let (status, reply) = self.call(Method::POST, "/api/servers", Some(row)).await;
        assert_eq!(status, StatusCode::CREATED, "{reply}");
        reply["id"].as_str().expect("a row has an id").to_owned()
    }

    /// Creates a row of the simulated engine with 2 slots of 4096 tokens.
    pub async fn create_sim_row(&self, name: &str, flags: &[&str]) -> String {
        self.create_row(&sim_row(name, flags)).await
    }

    /// A sim row that is ready to serve.
    pub async fn ready_sim_row(&self, name: &str, flags: &[&str]) -> String {
        let id = self.create_sim_row(name, flags).await;
        self.wait_state(&id, "ready").await;
        id
    }

    /// The row as the API shows it.
    pub async fn row(&self, id: &str) -> Value {
        let (status, row) = self.call(Method::GET, &format!("/api/servers/{id}"), None).await;
        assert_eq!(status, StatusCode::OK, "{row}");
        row
    }

    /// Changes some fields of a row.
    pub async fn edit_row(&self, id: &str, change: &Value) -> Value {
        let (status, row) = self.call(Method::PATCH, &format!("/api/servers/{id}"), Some(change)).await;
        assert_eq!(status, StatusCode::OK, "{row}");
        row
    }

    /// `start`, `stop` or `restart`.
    pub async fn act(&self, id: &str, action: &str) {
        let (status, reply) = self.call(Method::POST, &format!("/api/servers/{id}/{action}"), None).await;
        assert!(status.is_success(), "{action}: {status} {reply}");
    }

    /// Waits until the row is as `condition` wants, and returns it.
    pub async fn wait_row(&self, id: &str, what: &str, within: Duration, condition: impl Fn(&Value) -> bool) -> Value {
        let last = std::cell::RefCell::new(Value::Null);
        let found = tokio::time::timeout(
            within,
            eventually(what, within * 2, || async {
                let row = self.row(id).await;
                let found = condition(&row);
                last.replace(row.clone());
                found.then_some(row)
            }),
        );
        let Ok(row) = found.await else {
            panic!("not within {within:?}: {what}; the row is {:#}\nserve:\n{}", last.into_inner(), self.log());
        };
        row
    }

    /// Waits for a state.
    pub async fn wait_state(&self, id: &str, state: &str) -> Value {
        self.wait_row(id, &format!("the row is {state}"), STEP, |row| row["state"] == state).await
    }

    /// One chat request, not streamed. `more` is merged into the body.
    pub async fn chat(&self, model: &str, text: &str, more: Value) -> (StatusCode, Value) {
        self.call(Method::POST, "/v1/chat/completions", Some(&chat_body(model, text, more))).await
    }

    /// One streamed chat request whose headers have arrived.
    pub async fn chat_stream(&self, model: &str, text: &str, more: Value) -> (StatusCode, SseStream) {
        let mut body = chat_body(model, text, more);
        body["stream"] = json!(true);
        let reply = self.client.post(self.url("/v1/chat/completions")).json(&body).send().await.unwrap();
        (reply.status(), SseStream::new(reply))
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        let mut problem = None;
        if let Some(mut served) = self.served.take() {
            send_signal(served.pid(), Signal::TERM);
            match served.wait_at_most(STOP) {
                Some(status) if status.success() => {}
                Some(status) => problem = Some(format!("serve ended with {status}")),
                None => problem = Some(format!("no end within {STOP:?} after SIGTERM")),
            }
        }
        let left = processes_naming(self.scratch());
        for (pid, _) in &left {
            send_signal(*pid, Signal::KILL);
        }
        if !left.is_empty() {
            problem = Some(format!("processes left behind: {left:?}"));
        }
        // A second panic would abort the whole test binary and hide the first.
        if let Some(problem) = problem
            && !std::thread::panicking()
        {
            panic!("{problem}\nserve:\n{}", self.log());
        }
    }
}

/// The row of a simulated engine with 2 slots of 4096 tokens.
pub fn sim_row(name: &str, flags: &[&str]) -> Value {
    json!({
        "model_name": name, "engine": "sim", "model": "sim", "slots": 2, "context": 4096,
        "desired_state": "running", "extra_args": flags,
    })
}

fn chat_body(model: &str, text: &str, more: Value) -> Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": text}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}
