//! The official `openai` and `anthropic` Python packages, pinned, against the real engine; keys against the simulated one.
//!
//! The packages are installed once into a virtual environment beside the build's own files; what they do is in
//! `tests/sdk/*.py`, which can also be run by hand against any server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value;

use crate::real_engine::{CONTEXT, real};
use crate::support::{STEP, TestApp, command};

/// The interpreter of an environment with the pinned packages; made anew when the pins change.
fn python() -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap();
    let scripts = scripts();
    let wanted = fs::read_to_string(scripts.join("requirements.txt")).unwrap();
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("it-sdk");
    let (python, done) = (home.join("bin/python"), home.join("installed.txt"));
    if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
        if home.exists() {
            fs::remove_dir_all(&home).unwrap();
        }
        run(command("python3").args(["-m", "venv"]).arg(&home));
        run(command(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(scripts.join("requirements.txt")));
        fs::write(done, wanted).unwrap();
    }
    python
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
    let python = tokio::task::spawn_blocking(python).await.unwrap();
    let mut command = command(python);
    command.arg(scripts().join(script)).args(arguments);
    tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
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
async fn both_packages_work_with_a_key_and_are_told_of_a_wrong_one() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    app.ready_sim_row("chat", &["--tokens", "24", "--decode-us-per-token", "2000", "--prefill-us-per-char", "0"]).await;
    for script in ["openai_package.py", "anthropic_package.py"] {
        check(&app, script, "chat", 4096).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_sees_a_limit_as_such_and_waits_as_it_is_told() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    app.ready_sim_row("slow", &["--tokens", "4000", "--decode-us-per-token", "50000", "--prefill-us-per-char", "0"]).await;
    let wanted = serde_json::json!({"name": "one", "limits": {"concurrent_requests": 1}});
    let (_, key) = app.call(reqwest::Method::POST, "/api/keys", Some(&wanted)).await;
    run_script("limited_key.py", &[app.url(""), "slow".to_owned(), key["key"].as_str().unwrap().to_owned()]).await;
}
