//! Engines that die, hang and never come up: each ends in its documented state and nothing is lost.

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{STEP, SseStream, TestApp, send_signal, sim_row};

/// A stream whose engine dies ends there; going on with it is another test's matter.
const NO_RESUME: &str = "[gateway]\nresumes = 0\n";

/// Settings that make a death show within seconds.
const QUICK: &str = "
[supervisor]
restart_backoff = 0.1
probe_every = 0.2
hang_after = 2
decode_stall = 2
load_stall = 2
kill_after = 1
drain = 5
";

fn pid(row: &Value) -> u32 {
    row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("no pid: {row:#}"))
}

/// Waits for another engine than `old` that is ready.
async fn replaced(app: &TestApp, id: &str, old: u32) -> Value {
    let other = |row: &Value| row["state"] == "ready" && row["pid"].as_u64().is_some_and(|pid| pid != u64::from(old));
    app.wait_row(id, "another engine is ready", STEP, other).await
}

async fn serves(app: &TestApp, model: &str) {
    let (status, reply) = app.chat(model, "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
}

/// Reads a stream to its end; whether it ended as an OpenAI stream does, and its last event.
async fn read_out(mut stream: SseStream) -> (bool, Option<String>) {
    let mut last = None;
    while let Ok(Some(event)) = stream.next().await {
        last = Some(event.data);
    }
    (last.as_deref() == Some("[DONE]"), last)
}

#[tokio::test]
async fn an_engine_killed_while_idle_is_started_again() {
    let app = TestApp::start_with(QUICK).await;
    let id = app.ready_sim_row("chat", &[]).await;
    let old = pid(&app.row(&id).await);
    assert!(send_signal(old, Signal::KILL));
    let row = replaced(&app, &id, old).await;
    assert_eq!(row["restarts"], 1);
    serves(&app, "chat").await;
}

#[tokio::test]
async fn an_engine_killed_in_a_stream_ends_that_stream_as_failed_and_is_started_again() {
    let app = TestApp::start_with(&format!("{QUICK}{NO_RESUME}")).await;
    let id = app.ready_sim_row("chat", &["--tokens", "100000", "--decode-us-per-token", "20000"]).await;
    let old = pid(&app.row(&id).await);
    let (status, mut stream) = app.chat_stream("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    for _ in 0..3 {
        assert!(stream.next().await.unwrap().is_some());
    }
    assert!(send_signal(old, Signal::KILL));
    let (complete, last) = tokio::time::timeout(STEP, read_out(stream)).await.expect("the stream hangs");
    assert!(!complete, "a broken stream must not look complete");
    assert!(last.is_some_and(|last| last.contains("\"error\"")), "the client is told");
    replaced(&app, &id, old).await;
    let (status, _) = app.chat("chat", "hello", json!({"max_tokens": 2})).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn an_engine_stopped_by_a_signal_is_replaced_though_its_process_lives() {
    let app = TestApp::start_with(QUICK).await;
    let id = app.ready_sim_row("chat", &[]).await;
    let old = pid(&app.row(&id).await);
    assert!(send_signal(old, Signal::STOP));
    replaced(&app, &id, old).await;
    serves(&app, "chat").await;
}

#[tokio::test]
async fn exit_code_zero_is_also_a_death() {
    let app = TestApp::start_with(&format!("{QUICK}{NO_RESUME}")).await;
    let id = app.ready_sim_row("chat", &[]).await;
    let old = pid(&app.row(&id).await);
    let (status, stream) = app.chat_stream("chat", "bye", json!({"sim_fault": "exit-zero"})).await;
    assert_eq!(status, StatusCode::OK);
    let (complete, _) = tokio::time::timeout(STEP, read_out(stream)).await.expect("the stream hangs");
    assert!(!complete);
    assert_eq!(replaced(&app, &id, old).await["restarts"], 1);
    serves(&app, "chat").await;
}

#[tokio::test]
async fn an_engine_whose_health_answers_while_its_decoding_is_dead_is_replaced() {
    let app = TestApp::start_with(&format!("{QUICK}{NO_RESUME}")).await;
    let id = app.ready_sim_row("chat", &[]).await;
    let old = pid(&app.row(&id).await);
    let (status, stream) = app.chat_stream("chat", "hello", json!({"sim_fault": "hang@2"})).await;
    assert_eq!(status, StatusCode::OK);
    let (complete, _) = tokio::time::timeout(STEP, read_out(stream)).await.expect("the stream hangs with the engine");
    assert!(!complete);
    replaced(&app, &id, old).await;
    serves(&app, "chat").await;
}

#[tokio::test]
async fn a_crash_loop_cools_down_whatever_clients_ask_and_a_restart_by_hand_ends_the_rest() {
    let settings = format!("{QUICK}restart_limit = 2\ncool_down = 600\n[gateway]\ncold_start_wait = 1\n");
    let app = TestApp::start_with(&settings).await;
    let id = app.create_sim_row("chat", &["--crash-at-start"]).await;
    let resting = |row: &Value| row["state"] == "failed" && row["state_reason"].as_str().is_some_and(|reason| reason.contains("10 min"));
    let row = app.wait_row(&id, "it has failed for good", STEP, resting).await;
    let reason = row["state_reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("--crash-at-start"), "the reason names the cause: {reason}");
    let restarts = row["restarts"].clone();
    for _ in 0..10 {
        let (status, body) = app.chat("chat", "hello", json!({})).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    }
    let row = app.row(&id).await;
    assert_eq!((&row["state"], &row["restarts"]), (&json!("failed"), &restarts), "requests do not shorten the rest");
    app.edit_row(&id, &json!({"extra_args": []})).await;
    app.act(&id, "restart").await;
    app.wait_state(&id, "ready").await;
    serves(&app, "chat").await;
}

#[tokio::test]
async fn a_load_that_makes_no_progress_fails_with_the_engines_last_lines() {
    let app = TestApp::start_with(&format!("{QUICK}restart_limit = 1\n")).await;
    let id = app.create_sim_row("chat", &["--stall-load", "--load-ms", "100"]).await;
    let row = app.wait_row(&id, "the load has failed", STEP, |row| row["state"] == "failed").await;
    assert!(row["state_reason"].as_str().unwrap().contains("50%"), "{row:#}");
}

#[tokio::test]
async fn a_slow_load_that_makes_progress_is_waited_for() {
    let app = TestApp::start_with(QUICK).await;
    // Twice the stall limit in all, with a line of log every 200 ms.
    let id = app.create_sim_row("chat", &["--load-ms", "4000"]).await;
    let row = app.wait_state(&id, "ready").await;
    assert_eq!(row["restarts"], 0);
}

#[tokio::test]
async fn a_request_whose_engine_dies_before_the_first_byte_is_served_by_another_row() {
    let app = TestApp::start_with(QUICK).await;
    let doomed = app.ready_sim_row("chat", &["--crash-after", "0"]).await;
    let old = pid(&app.row(&doomed).await);
    app.ready_sim_row("chat", &[]).await;
    for _ in 0..4 {
        serves(&app, "chat").await;
    }
    replaced(&app, &doomed, old).await;
}

#[tokio::test]
async fn a_request_to_a_row_that_failed_says_so_at_once() {
    let app = TestApp::start_with(&format!("{QUICK}restart_limit = 1\ncool_down = 600\n")).await;
    let mut row = sim_row("chat", &["--crash-at-start"]);
    row["desired_state"] = json!("on_demand");
    let id = app.create_row(&row).await;
    let (status, body) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    app.wait_state(&id, "failed").await;
    let (status, _) = app.call(Method::GET, "/ready", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}
