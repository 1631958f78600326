//! Rows that load on the first request and unload when idle: one engine however many ask, no request lost.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{STEP, TestApp, eventually, sim_row};

/// Set to a number of seconds for the long run of the race (the acceptance run uses 120).
const RACE_SECONDS: &str = "IT_RACE_SECONDS";

fn on_demand(name: &str, flags: &[&str], idle_seconds: u32) -> Value {
    let mut row = sim_row(name, flags);
    row["desired_state"] = json!("on_demand");
    row["idle_seconds"] = json!(idle_seconds);
    row
}

#[tokio::test]
async fn fifty_requests_for_one_cold_row_start_one_engine() {
    let app = TestApp::start().await;
    let id = app.create_row(&on_demand("chat", &["--load-ms", "800", "--decode-us-per-token", "500"], 60)).await;
    app.wait_state(&id, "sleeping").await;
    assert!(app.engines().is_empty(), "nothing runs before the first request");
    let texts: Vec<String> = (0..50).map(|number| format!("request {number}")).collect();
    let requests = join_all(texts.iter().map(|text| app.chat("chat", text, json!({"max_tokens": 4}))));
    let mut seen = std::collections::BTreeSet::new();
    let watch = async {
        loop {
            seen.extend(app.engines());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let replies = tokio::select! {
        replies = requests => replies,
        () = watch => unreachable!("the watch has no end"),
    };
    for (status, reply) in replies {
        assert_eq!(status, StatusCode::OK, "{reply}");
    }
    seen.extend(app.engines());
    assert_eq!(seen.len(), 1, "one engine for all: {seen:?}");
    assert_eq!(app.row(&id).await["restarts"], 0);
}

#[tokio::test]
async fn an_idle_row_unloads_and_the_next_request_wakes_it() {
    let app = TestApp::start().await;
    let id = app.create_row(&on_demand("chat", &[], 1)).await;
    for _ in 0..2 {
        let (status, reply) = app.chat("chat", "hello", json!({})).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
        app.wait_state(&id, "sleeping").await;
        assert_eq!(app.engines(), Vec::<u32>::new());
    }
}

#[tokio::test]
async fn a_row_with_a_reply_under_way_is_not_idle_however_long_it_takes() {
    let app = TestApp::start().await;
    let id = app.create_row(&on_demand("chat", &["--tokens", "40", "--decode-us-per-token", "100000"], 1)).await;
    let (status, stream) = app.chat_stream("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let events = stream.collect().await;
    assert_eq!(events.last().unwrap().data, "[DONE]");
    app.wait_state(&id, "sleeping").await;
}

#[tokio::test]
async fn a_request_that_comes_during_the_unload_is_served() {
    let app = TestApp::start_with("[supervisor]\nkill_after = 1\n").await;
    // An engine that ignores SIGTERM makes the unload take its full second.
    let id = app.create_row(&on_demand("chat", &["--ignore-sigterm"], 1)).await;
    let (status, _) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    eventually("the unload has begun", STEP, async || {
        let state = app.row(&id).await["state"].clone();
        (state == "draining" || state == "sleeping").then_some(())
    })
    .await;
    let (status, reply) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
}

#[tokio::test]
async fn a_streaming_client_gets_heartbeats_while_its_model_loads() {
    let app = TestApp::start_with("[gateway]\nheartbeat = 0.3\n").await;
    app.create_row(&on_demand("chat", &["--load-ms", "2000"], 60)).await;
    let (status, mut stream) = app.chat_stream("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let first = stream.next().await.unwrap().unwrap();
    assert!(stream.comments >= 2, "{} heartbeats before {}", stream.comments, first.data);
    assert_eq!(stream.collect().await.last().unwrap().data, "[DONE]");
}

#[tokio::test]
async fn an_idle_unload_raced_by_requests_loses_none_of_them() {
    let seconds = std::env::var(RACE_SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(8);
    let app = TestApp::start_with("[supervisor]\nkill_after = 1\n").await;
    let id = app.create_row(&on_demand("chat", &["--tokens", "2", "--decode-us-per-token", "500"], 1)).await;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut sent = 0_u32;
    let mut loads = std::collections::BTreeSet::new();
    // Pauses around the moment of the unload (one idle second and up to a second until the reconciler looks), in an
    // order that meets every part of it. A run that met no unload yet goes on, within reason.
    for pause in (0..).map(|step| Duration::from_millis(1050 + step * 370 % 1000)) {
        let over = Instant::now().saturating_duration_since(end);
        if over > Duration::ZERO && loads.len() > 1 || over > STEP {
            break;
        }
        let pair = [app.chat("chat", "one", json!({})), app.chat("chat", "two", json!({}))];
        let replies = tokio::time::timeout(Duration::from_secs(30), join_all(pair)).await.expect("a request hangs");
        for (status, reply) in replies {
            assert_eq!(status, StatusCode::OK, "after {sent} requests: {reply}\n{}", app.log());
            sent += 1;
        }
        loads.extend(app.row(&id).await["pid"].as_u64());
        tokio::time::sleep(pause).await;
    }
    println!("{sent} requests over {} loads in {seconds} s", loads.len());
    assert!(loads.len() > 1, "the race met no unload");
}

/// Room for two rows of 100 MiB and what the simulated engine takes beside, not for three.
const ROOM_FOR_TWO: &str = "[supervisor]\nmemory_limit_bytes = 280000000\n[gateway]\ncold_start_wait = 15\n";

fn takes_100_mib(name: &str, more: &[&str]) -> Value {
    on_demand(name, &[&["--memory-mib", "100"], more].concat(), 3600)
}

#[tokio::test]
async fn a_sleeping_row_that_finds_no_memory_gets_it_from_the_one_idle_longest() {
    let app = TestApp::start_with(ROOM_FOR_TWO).await;
    let (old, fresh, cold) = (
        app.create_row(&takes_100_mib("old", &[])).await,
        app.create_row(&takes_100_mib("fresh", &[])).await,
        app.create_row(&takes_100_mib("cold", &[])).await,
    );
    // The same load cost for both that are up, so the idle time decides.
    for name in ["old", "fresh", "cold", "old"] {
        let (status, reply) = app.chat(name, "hello", json!({})).await;
        assert_eq!(status, StatusCode::OK, "{name}: {reply}\n{}", app.log());
        assert!(app.engines().len() <= 2, "{name}");
    }
    // "cold" put "old" to sleep, and "old" in turn "fresh".
    app.wait_state(&old, "ready").await;
    app.wait_state(&fresh, "sleeping").await;
    app.wait_state(&cold, "ready").await;
    assert!(app.log().contains("making room for another row"));
}

#[tokio::test]
async fn a_busy_row_is_never_put_to_sleep_and_whoever_needs_its_memory_waits_for_it() {
    let app = TestApp::start_with("[supervisor]\nmemory_limit_bytes = 150000000\n").await;
    let busy = app.create_row(&takes_100_mib("busy", &["--tokens", "60", "--decode-us-per-token", "50000"])).await;
    let cold = app.create_row(&takes_100_mib("cold", &[])).await;
    let (status, stream) = app.chat_stream("busy", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let waiting = app.chat("cold", "hello", json!({}));
    let looking = async {
        let reason = eventually("the cold row waits", STEP, async || {
            let reason = app.row(&cold).await["state_reason"].as_str().unwrap_or_default().to_owned();
            reason.starts_with("waiting for memory that on-demand rows hold: ").then_some(reason)
        })
        .await;
        assert!(reason.contains("> ") && reason.contains("supervisor.memory_limit_bytes"), "{reason}");
        assert_eq!(app.row(&busy).await["state"], "ready");
        stream.collect().await
    };
    let ((status, reply), events) = tokio::join!(waiting, looking);
    assert_eq!(events.last().unwrap().data, "[DONE]", "the busy row finished its reply");
    assert_eq!(status, StatusCode::OK, "{reply}");
    app.wait_state(&busy, "sleeping").await;
}

#[tokio::test]
async fn a_row_that_no_sleep_of_others_makes_room_for_fails_at_once_with_the_sum() {
    let app = TestApp::start_with("[supervisor]\nmemory_limit_bytes = 150000000\n").await;
    let mut running = sim_row("runs", &["--memory-mib", "100"]);
    running["desired_state"] = json!("running");
    let runs = app.create_row(&running).await;
    app.wait_state(&runs, "ready").await;
    let cold = app.create_row(&takes_100_mib("cold", &[])).await;
    let (status, reply) = app.chat("cold", "hello", json!({})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{reply}");
    let reason = app.row(&cold).await["state_reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("weights 105 MB + ") && reason.contains("fits with a smaller --memory-mib"), "{reason}");
    assert_eq!(app.row(&runs).await["state"], "ready");
}

#[tokio::test]
async fn a_row_that_waits_for_memory_goes_back_to_sleep_when_nobody_wants_it_any_more() {
    let app = TestApp::start_with("[supervisor]\nmemory_limit_bytes = 150000000\n[gateway]\ncold_start_wait = 1\n").await;
    let busy = app.create_row(&takes_100_mib("busy", &["--tokens", "400", "--decode-us-per-token", "50000"])).await;
    let cold = app.create_row(&takes_100_mib("cold", &[])).await;
    let (status, stream) = app.chat_stream("busy", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let (status, reply) = app.chat("cold", "hello", json!({})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{reply}");
    app.wait_state(&cold, "sleeping").await;
    assert_eq!(app.row(&busy).await["state"], "ready");
    drop(stream);
}
