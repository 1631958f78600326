//! Clients that do not behave like a library: half-closed connections, readers that dawdle, requests cut short.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{STEP, TestApp, half_closing_request, sim_row};

#[tokio::test]
async fn a_client_that_closes_its_sending_half_is_answered_or_let_go_but_never_left_hanging() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    let models = half_closing_request(&app.authority(), "GET", "/v1/models", "").await;
    assert!(models.is_empty() || models.starts_with("HTTP/1.1 200"), "{models}");
    let body = json!({"model": "chat", "messages": [{"role": "user", "content": "hello"}], "stream": true}).to_string();
    let reply = half_closing_request(&app.authority(), "POST", "/v1/chat/completions", &body).await;
    assert!(reply.is_empty() || reply.contains("[DONE]"), "{reply}");
    app.wait_row(&id, "the slot is free", STEP, |row| row["slots_in_use"] == 0).await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_holds_its_own_slot_and_nobody_elses() {
    let app = TestApp::start().await;
    let mut row = sim_row("chat", &["--tokens", "100000", "--decode-us-per-token", "20"]);
    row["context"] = json!(200_000);
    let id = app.create_row(&row).await;
    app.wait_state(&id, "ready").await;
    let (status, slow) = app.chat_stream("chat", "slow", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    for _ in 0..10 {
        let (status, reply) = app.chat("chat", "quick", json!({"max_tokens": 20})).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
    }
    assert_eq!(app.row(&id).await["slots_in_use"], 1);
    drop(slow);
    app.wait_row(&id, "the slot is free", Duration::from_secs(2), |row: &Value| row["slots_in_use"] == 0).await;
}
