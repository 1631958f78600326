//! What the API shows of rows that run (on the simulated engine).

use std::time::Duration;

use lifeboat::app::Mode;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::Api;
use crate::support::{SseStream, eventually, sim_row};

const STEP: Duration = Duration::from_secs(30);

async fn serving() -> Api {
    let program = env!("CARGO_BIN_EXE_lifeboat").into();
    Api::start_as(Mode::Serve, |config| config.supervisor.guard_program = Some(program)).await
}

async fn until(api: &Api, path: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    eventually(what, STEP, || async {
        let row = api.get(path).await.body;
        condition(&row).then_some(row)
    })
    .await
}

#[tokio::test]
async fn a_row_runs_shows_its_process_its_log_and_its_numbers_and_leaves_nothing() {
    let api = serving().await;
    let unready = api.get("/ready").await;
    assert_eq!((unready.status, &unready.body["reason"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("there is no server row")));

    let events = api.request(Method::GET, "/api/events").header("accept", "text/event-stream").send().await.unwrap();
    let mut events = SseStream::new(events);
    let created = api.post("/api/servers", sim_row("chat", &[])).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let path = format!("/api/servers/{}", created.body["id"].as_str().unwrap());
    let row = until(&api, &path, "the row is ready", |row| row["state"] == "ready").await;
    assert_eq!((&row["resolved"]["slots"], &row["resolved"]["context"]), (&json!(2), &json!(4096)));
    assert!(row["endpoint"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{row}");
    let pid = u32::try_from(row["pid"].as_u64().unwrap()).unwrap();
    assert!(crate::support::alive(pid));
    loop {
        let event = events.next().await.unwrap().unwrap();
        if event.event.as_deref() == Some("server.changed") && event.json()["state"] == "ready" {
            assert_eq!(event.json()["id"], row["id"]);
            break;
        }
    }

    assert_eq!(api.get("/ready").await.body, json!({"ready": true, "servers": 1, "reason": null}));
    let status = api.get("/api/status").await.body;
    assert_eq!((&status["servers"], &status["supervising"]), (&json!({"ready": 1}), &json!(true)));
    assert!(status["resident_bytes"].as_u64().unwrap() > 1 << 20);

    let log = api.request(Method::GET, &format!("{path}/logs?lines=5")).send().await.unwrap();
    assert!(log.headers()["content-type"].to_str().unwrap().starts_with("text/plain"));
    let log = log.text().await.unwrap();
    assert!(!log.is_empty() && log.lines().count() <= 5, "{log}");

    let restarted = api.post(&format!("{path}/restart"), json!({})).await;
    assert_eq!(restarted.status, StatusCode::OK);
    let again = until(&api, &path, "another process is ready", |row| row["state"] == "ready" && row["pid"] != pid).await;
    let pid = u32::try_from(again["pid"].as_u64().unwrap()).unwrap();
    drop(events);
    api.stop().await;
    assert!(!crate::support::alive(pid), "an engine outlived the stop");
}

#[tokio::test]
async fn a_followed_log_brings_lines_as_they_come_over_a_restart_of_the_engine_and_ends_with_the_stop() {
    let api = serving().await;
    let created = api.post("/api/servers", sim_row("chat", &[])).await;
    let path = format!("/api/servers/{}", created.body["id"].as_str().unwrap());
    let first = until(&api, &path, "the row is ready", |row| row["state"] == "ready").await;
    let mut log = api.request(Method::GET, &format!("{path}/logs?lines=0&follow=true")).send().await.unwrap();
    api.post(&format!("{path}/restart"), json!({})).await;
    until(&api, &path, "another process is ready", |row| row["state"] == "ready" && row["pid"] != first["pid"]).await;
    let mut seen = String::new();
    while !seen.contains("engine started") {
        let chunk = tokio::time::timeout(STEP, log.chunk()).await.expect("a log line comes").unwrap().expect("the log goes on");
        seen.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(seen.lines().next().unwrap().contains("engine ended") || !seen.starts_with("engine"), "only new lines: {seen}");
    api.stop().await;
    while log.chunk().await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_start_loads_a_sleeping_row_and_a_delete_ends_its_engine() {
    let api = serving().await;
    let mut row = sim_row("lazy", &[]);
    row["desired_state"] = json!("on_demand");
    row["idle_seconds"] = json!(600);
    let created = api.post("/api/servers", row).await;
    let path = format!("/api/servers/{}", created.body["id"].as_str().unwrap());
    until(&api, &path, "the row sleeps", |row| row["state"] == "sleeping").await;
    assert_eq!(api.get("/ready").await.status, StatusCode::OK, "a sleeping row can serve");
    api.post(&format!("{path}/start"), json!({})).await;
    let row = until(&api, &path, "the row is ready", |row| row["state"] == "ready").await;
    assert_eq!(row["desired_state"], "on_demand");
    let pid = u32::try_from(row["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(api.call(Method::DELETE, &path, None).await.status, StatusCode::NO_CONTENT);
    eventually("the engine has ended", STEP, || async { (!crate::support::alive(pid)).then_some(()) }).await;
    api.stop().await;
}
