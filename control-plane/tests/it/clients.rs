//! Clients that do not behave like a library: half-closed connections, HTTP/1.0, bodies in chunks or of the largest size, readers
//! that dawdle.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{STEP, TestApp, bare_request, half_closing_request, sim_row};

fn chat(stream: bool) -> String {
    json!({"model": "chat", "messages": [{"role": "user", "content": "hello"}], "stream": stream}).to_string()
}

#[tokio::test]
async fn a_client_that_closes_its_sending_half_is_answered_or_let_go_but_never_left_hanging() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    let models = half_closing_request(&app.authority(), "GET", "/v1/models", "").await;
    assert!(models.is_empty() || models.starts_with("HTTP/1.1 200"), "{models}");
    let reply = half_closing_request(&app.authority(), "POST", "/v1/chat/completions", &chat(true)).await;
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

#[tokio::test]
async fn an_old_client_gets_bodies_that_end_with_the_connection_and_no_chunks() {
    let app = TestApp::start().await;
    app.ready_sim_row("chat", &[]).await;
    for (stream, end) in [(true, "data: [DONE]\n\n"), (false, "}")] {
        let body = chat(stream);
        let length = body.len();
        let request = format!("POST /v1/chat/completions HTTP/1.0\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n{body}", app.authority());
        let reply = bare_request(&app.authority(), &[request.as_bytes()]).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
        assert!(body.starts_with(if stream { "data: {" } else { "{" }) && body.ends_with(end), "{body}");
    }
}

#[tokio::test]
async fn a_body_may_come_in_chunks_of_any_size() {
    let app = TestApp::start().await;
    app.ready_sim_row("chat", &[]).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        app.authority()
    );
    let chunks: Vec<u8> = chat(false).bytes().flat_map(|byte| [b"1\r\n", &[byte][..], b"\r\n"].concat()).collect();
    let reply = bare_request(&app.authority(), &[head.as_bytes(), &chunks, b"0\r\n\r\n"]).await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("chat.completion"), "{reply}");
    let reply = bare_request(&app.authority(), &[head.as_bytes(), b"zz\r\n"]).await;
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    let both = head.replace("transfer-encoding", "content-length: 5\r\ntransfer-encoding");
    let reply = bare_request(&app.authority(), &[both.as_bytes(), &chunks, b"0\r\n\r\n"]).await;
    assert!(reply.starts_with("HTTP/1.1 400") || reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test]
async fn a_body_just_within_the_limit_is_served_and_streams_beside_it_are_whole() {
    let app = TestApp::start().await;
    app.ready_sim_row("chat", &["--tokens", "400", "--decode-us-per-token", "5000"]).await;
    let (status, beside) = app.chat_stream("chat", "beside", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    // What is no prompt: 100 MiB of that would not fit any context.
    let of = |size: usize| {
        let frame =
            json!({"model": "chat", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}], "user": ""}).to_string().len();
        json!({"max_tokens": 1, "user": "x".repeat(size - frame)})
    };
    let (status, reply) = app.chat("chat", "hello", of(100 << 20)).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    let (status, reply) = app.chat("chat", "hello", of((100 << 20) + 1)).await;
    assert_eq!((status, &reply["error"]["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("body_too_large")));
    assert_eq!(beside.collect().await.last().unwrap().data, "[DONE]");
}
