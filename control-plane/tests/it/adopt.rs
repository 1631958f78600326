//! A control plane that dies and returns: engines go on, or end, as their rows and their lease say.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{TestApp, alive, eventually};

async fn engine_of(app: &TestApp, id: &str) -> u32 {
    let row = app.wait_state(id, "ready").await;
    u32::try_from(row["pid"].as_u64().unwrap()).unwrap()
}

async fn serves(app: &TestApp) {
    let (status, reply) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
}

/// Runs a command line of the product while no server runs.
fn by_hand(app: &TestApp, arguments: &[&str]) {
    let output = app.command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn engines_outlive_a_killed_control_plane_and_are_adopted_without_a_reload() {
    let mut app = TestApp::start().await;
    let first = app.ready_sim_row("chat", &[]).await;
    let second = app.ready_sim_row("other", &["--spawn-grandchild"]).await;
    let before = [engine_of(&app, &first).await, engine_of(&app, &second).await];
    app.kill();
    assert!(before.iter().all(|engine| alive(*engine)));
    app.serve().await;
    assert_eq!([engine_of(&app, &first).await, engine_of(&app, &second).await], before);
    serves(&app).await;
    // Adopted engines are watched and stopped like started ones.
    app.act(&first, "stop").await;
    app.wait_state(&first, "stopped").await;
    assert!(!alive(before[0]));
}

#[tokio::test]
async fn an_engine_adopted_twice_still_serves_and_its_death_is_still_noticed() {
    let mut app = TestApp::start_with("[supervisor]\nrestart_backoff = 0.1\n").await;
    let id = app.ready_sim_row("chat", &[]).await;
    let engine = engine_of(&app, &id).await;
    for _ in 0..2 {
        app.kill();
        app.serve().await;
        assert_eq!(engine_of(&app, &id).await, engine);
    }
    crate::support::send_signal(engine, rustix::process::Signal::KILL);
    let other = |row: &serde_json::Value| row["state"] == "ready" && row["pid"].as_u64() != Some(u64::from(engine));
    app.wait_row(&id, "another engine is ready", Duration::from_secs(30), other).await;
    serves(&app).await;
}

#[tokio::test]
async fn an_engine_whose_row_was_edited_meanwhile_is_replaced() {
    let mut app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    let engine = engine_of(&app, &id).await;
    app.kill();
    by_hand(&app, &["server", "edit", &id, "--slots", "3"]);
    assert!(alive(engine), "an edit by hand does not touch the engine");
    app.serve().await;
    let row = app
        .wait_row(&id, "the new engine is ready", Duration::from_secs(30), |row| row["state"] == "ready" && row["resolved"]["slots"] == 3);
    assert_ne!(row.await["pid"].as_u64(), Some(u64::from(engine)));
    assert!(!alive(engine));
    serves(&app).await;
}

#[tokio::test]
async fn an_engine_whose_row_was_deleted_meanwhile_is_ended() {
    let mut app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &["--spawn-grandchild"]).await;
    let engine = engine_of(&app, &id).await;
    app.kill();
    by_hand(&app, &["server", "delete", &id]);
    app.serve().await;
    eventually("the engine nobody wants is gone", Duration::from_secs(30), async || {
        (!alive(engine) && app.processes().len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn engines_of_a_control_plane_that_does_not_return_end_themselves_after_the_lease() {
    let mut app = TestApp::start_with("[supervisor]\nlease = 2\n").await;
    let id = app.ready_sim_row("chat", &["--spawn-grandchild", "--ignore-sigterm"]).await;
    let engine = engine_of(&app, &id).await;
    app.kill();
    assert!(alive(engine));
    eventually("nothing is left", Duration::from_secs(30), async || app.processes().is_empty().then_some(())).await;
    app.serve().await;
    assert_ne!(engine_of(&app, &id).await, engine);
    serves(&app).await;
}

#[tokio::test]
async fn a_killed_control_plane_that_returns_within_the_lease_keeps_its_engines() {
    let mut app = TestApp::start_with("[supervisor]\nlease = 3\n").await;
    let id = app.ready_sim_row("chat", &[]).await;
    let engine = engine_of(&app, &id).await;
    app.kill();
    app.serve().await;
    assert_eq!(engine_of(&app, &id).await, engine);
    // Longer than the lease: the return must have renewed it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(engine_of(&app, &id).await, engine);
    serves(&app).await;
}
