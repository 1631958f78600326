//! The official `openai` and `anthropic` packages for Python and for Node and `ollama` for Python, pinned, against the real
//! engine; keys, limits, tools and clients that leave against the simulated one.
//!
//! The packages are installed once beside the build's own files; what they do is in `tests/sdk/*.py` and `tests/sdk/node/*.mjs`,
//! which can also be run by hand against any server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value;

use crate::real_engine::{CONTEXT, real};
use crate::support::{STEP, TestApp, command};

/// A folder with what `pins` names installed by `install`; made anew when the pins change.
fn installed(name: &str, pins: &Path, install: impl FnOnce(&Path)) -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap();
    let wanted = fs::read_to_string(pins).unwrap();
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let done = home.join("installed.txt");
    if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
        if home.exists() {
            fs::remove_dir_all(&home).unwrap();
        }
        install(&home);
        fs::write(done, wanted).unwrap();
    }
    home
}

/// The interpreter of an environment with the pinned packages.
fn python() -> PathBuf {
    let pins = scripts().join("requirements.txt");
    let home = installed("it-sdk", &pins, |home| {
        run(command("python3").args(["-m", "venv"]).arg(home));
        run(command(home.join("bin/python")).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&pins));
    });
    home.join("bin/python")
}

/// A copy of `tests/sdk/node` with its packages.
fn node_scripts() -> PathBuf {
    let source = scripts().join("node");
    let home = installed("it-sdk-node", &source.join("package-lock.json"), |home| {
        fs::create_dir_all(home).unwrap();
        for file in ["package.json", "package-lock.json", ".npmrc"] {
            fs::copy(source.join(file), home.join(file)).unwrap();
        }
        run(command("npm").arg("ci").current_dir(home));
    });
    for script in fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()) {
        if script.extension().is_some_and(|extension| extension == "mjs") {
            fs::copy(&script, home.join(script.file_name().unwrap())).unwrap();
        }
    }
    home
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk")
}

/// Runs to the end; panics with what it printed if it fails.
fn run(command: &mut std::process::Command) {
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {}\n{printed}", output.status);
}

/// Runs a script against a server. With a key it tries a wrong one too.
async fn check(app: &TestApp, script: &str, model: &str, context: u32) {
    let mut arguments = vec![app.url(""), model.to_owned(), context.to_string()];
    arguments.extend(app.key.clone());
    run_script(script, &arguments).await;
}

async fn run_script(script: &str, arguments: &[String]) {
    let (name, arguments) = (script.to_owned(), arguments.to_vec());
    tokio::task::spawn_blocking(move || {
        let for_node = Path::new(&name).extension().is_some_and(|extension| extension == "mjs");
        let (interpreter, folder) = if for_node { ("node".into(), node_scripts()) } else { (python(), scripts()) };
        run(command(interpreter).env("PYTHONDONTWRITEBYTECODE", "1").arg(folder.join(name)).args(arguments));
    })
    .await
    .unwrap();
}

async fn check_against_the_real_engine(script: &str) {
    let model = "owner/chat model";
    let real = real(model).await;
    check(&real.app, script, model, CONTEXT).await;
    let free = |row: &Value| row["state"] == "ready" && row["restarts"] == 0 && row["slots_in_use"] == 0;
    real.app.wait_row(&real.id, "the engine is as before", STEP, free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_works_unchanged() {
    check_against_the_real_engine("openai_package.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_anthropic_package_works_unchanged() {
    check_against_the_real_engine("anthropic_package.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ollama_package_works_unchanged() {
    check_against_the_real_engine("ollama_package.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_packages_for_node_work_unchanged() {
    for script in ["openai_package.mjs", "anthropic_package.mjs"] {
        check_against_the_real_engine(script).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_packages_work_with_a_key_and_are_told_of_a_wrong_one() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    app.ready_sim_row("chat", &["--tokens", "24", "--decode-us-per-token", "2000", "--prefill-us-per-char", "0"]).await;
    for script in ["openai_package.py", "anthropic_package.py", "ollama_package.py", "openai_package.mjs", "anthropic_package.mjs"] {
        check(&app, script, "chat", 4096).await;
    }
}

/// An engine that only knows chat completions: messages and responses, and their tools, are Lifeboat's own doing.
#[tokio::test(flavor = "multi_thread")]
async fn the_packages_call_tools_whole_and_streamed_in_every_dialect() {
    let mut app = TestApp::start().await;
    let key = app.create_key().await;
    app.ready_sim_row("chat", &["--chat-only", "--decode-us-per-token", "2000", "--prefill-us-per-char", "0"]).await;
    for script in ["openai_tools.py", "anthropic_tools.py", "openai_tools.mjs", "anthropic_tools.mjs"] {
        run_script(script, &[app.url(""), "chat".to_owned(), key.clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_packages_see_limits_and_refusals_as_such_and_free_their_slot_when_they_leave() {
    let mut app = TestApp::start().await;
    let admin = app.create_key().await;
    app.ready_sim_row("slow", &["--chat-only", "--tokens", "4000", "--decode-us-per-token", "50000", "--prefill-us-per-char", "0"]).await;
    let wanted = serde_json::json!({"name": "one", "limits": {"concurrent_requests": 1}});
    let (_, key) = app.call(reqwest::Method::POST, "/api/keys", Some(&wanted)).await;
    for script in ["openai_limits.py", "anthropic_limits.py", "openai_limits.mjs", "anthropic_limits.mjs"] {
        run_script(script, &[app.url(""), "slow".to_owned(), key["key"].as_str().unwrap().to_owned(), admin.clone()]).await;
    }
}
