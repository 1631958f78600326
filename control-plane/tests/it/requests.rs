//! The request log, what is under way, and what keys used: against a real control plane with a simulated engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{STEP, SseStream, TestApp, eventually};

/// Few and quick tokens.
const QUICK: [&str; 6] = ["--tokens", "8", "--decode-us-per-token", "1000", "--prefill-us-per-char", "0"];
/// A reply that takes minutes.
const SLOW: [&str; 6] = ["--tokens", "4000", "--decode-us-per-token", "50000", "--prefill-us-per-char", "0"];
/// A prompt that takes minutes.
const DEEP: [&str; 6] = ["--tokens", "8", "--decode-us-per-token", "1000", "--prefill-us-per-char", "10000000"];

const SECRET: &str = "a prompt nobody may keep";

/// Sends a chat request with an id, in a task of its own.
fn send(app: &TestApp, id: &str, model: &str, stream: bool) -> tokio::task::JoinHandle<reqwest::Response> {
    let body = json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": SECRET}]});
    let mut request = app.client.post(app.url("/v1/chat/completions")).header("x-request-id", id).json(&body);
    if let Some(key) = &app.key {
        request = request.bearer_auth(key);
    }
    #[expect(clippy::disallowed_methods, reason = "the test awaits it")]
    tokio::spawn(async move { request.send().await.unwrap() })
}

async fn get(app: &TestApp, path: &str) -> Value {
    let (status, reply) = app.call(Method::GET, path, None).await;
    assert_eq!(status, StatusCode::OK, "{path}: {reply}");
    reply
}

/// Ids of a list, in its order.
async fn ids(app: &TestApp, query: &str) -> Vec<String> {
    let reply = get(app, &format!("/api/requests{query}")).await;
    reply["data"].as_array().unwrap().iter().map(|request| request["request_id"].as_str().unwrap().to_owned()).collect()
}

/// The request, once it is in this phase.
async fn in_phase(app: &TestApp, id: &str, phase: &str) -> Value {
    eventually(&format!("{id} is {phase}"), STEP, async || {
        let (status, request) = app.call(Method::GET, &format!("/api/requests/{id}"), None).await;
        (status == StatusCode::OK && request["phase"] == phase).then_some(request)
    })
    .await
}

async fn cancel(app: &TestApp, id: &str) -> StatusCode {
    app.call(Method::POST, &format!("/api/requests/{id}/cancel"), None).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_in_the_log_with_its_route_and_nothing_it_said_and_survives_a_restart() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    let row = app.ready_sim_row("chat", &QUICK).await;
    let reply = send(&app, "first", "chat", false).await.unwrap();
    let route = reply.headers()["x-lifeboat-route"].to_str().unwrap().to_owned();
    let used = reply.json::<Value>().await.unwrap()["usage"].clone();
    let cached = used["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    assert!(
        route.starts_with(&format!("row={row}; slot=0; reason=fastest")) && route.contains(&format!("; cached={cached}; queue_ms=")),
        "{route}"
    );

    let request = get(&app, "/api/requests/first").await;
    assert_eq!((&request["phase"], &request["status"], &request["error"]), (&json!("done"), &json!(200), &Value::Null));
    assert_eq!((&request["model"], &request["key"], &request["priority"]), (&json!("chat"), &json!("test"), &json!("default")));
    assert_eq!((&request["row"], &request["route"]["row"]), (&json!(row), &json!(row)));
    assert_eq!(request["prompt_tokens"], used["prompt_tokens"]);
    assert_eq!(request["completion_tokens"], used["completion_tokens"]);
    assert!(request["at"].as_str().unwrap().ends_with('Z'), "{request}");
    for time in ["queue_wait_ms", "first_byte_ms", "total_ms"] {
        assert!(request[time].as_f64().is_some_and(|milliseconds| milliseconds >= 0.0), "{time}: {request}");
    }
    assert_eq!(app.call(Method::GET, "/api/requests/nobody", None).await.0, StatusCode::NOT_FOUND);
    let key = app.key.clone().unwrap();
    app.stop();
    for name in ["lifeboat.db", "lifeboat.db-wal"] {
        let bytes = std::fs::read(app.data_dir().join(name)).unwrap_or_default();
        for text in [SECRET, &key] {
            assert!(!bytes.windows(text.len()).any(|window| window == text.as_bytes()), "{name} holds what nobody may keep");
        }
    }
    app.serve().await;
    assert_eq!(get(&app, "/api/requests/first").await, request);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_filtered_and_read_in_pages() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    let row = app.ready_sim_row("chat", &QUICK).await;
    app.ready_sim_row("code", &QUICK).await;
    for (id, model) in [("a-1", "chat"), ("a-2", "code"), ("b-3", "nobody"), ("a-4", "chat")] {
        send(&app, id, model, false).await.unwrap().bytes().await.unwrap();
    }
    let start = get(&app, "/api/requests/a-2").await["at"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("", vec!["a-4", "b-3", "a-2", "a-1"]),
        ("?model=chat", vec!["a-4", "a-1"]),
        ("?key=test&model=code", vec!["a-2"]),
        ("?key=other", vec![]),
        (&format!("?row={row}"), vec!["a-4", "a-1"]),
        ("?status=4xx", vec!["b-3"]),
        ("?status=200&limit=1", vec!["a-4"]),
        ("?error=model_not_found", vec!["b-3"]),
        ("?request_id=a-", vec!["a-4", "a-2", "a-1"]),
        ("?min_total_ms=600000", vec![]),
        ("?session=00000000", vec![]),
        (&format!("?from={start}"), vec!["a-4", "b-3", "a-2"]),
        (&format!("?to={start}"), vec!["a-1"]),
        ("?state=active", vec![]),
    ] {
        assert_eq!(ids(&app, query).await, expected, "{query}");
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&app, &format!("/api/requests?limit=3{cursor}")).await;
        seen.extend(page["data"].as_array().unwrap().iter().map(|request| request["request_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ["a-4", "b-3", "a-2", "a-1"]);
    for (query, field) in [("status=many", "status"), ("from=yesterday", "from"), ("cursor=x", "cursor"), ("colour=red", "colour")] {
        let (status, reply) = app.call(Method::GET, &format!("/api/requests?{query}"), None).await;
        assert_eq!((status, reply["error"]["field"].as_str().unwrap_or("")), (StatusCode::BAD_REQUEST, field), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_under_way_is_listed_and_ended_by_an_event_in_the_clients_dialect() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    let row = app.ready_sim_row("chat", &SLOW).await;
    for (path, id) in [("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic/id")] {
        let body = json!({"model": "chat", "stream": true, "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]});
        let request = app.client.post(app.url(path)).header("x-request-id", id).bearer_auth(app.key.as_ref().unwrap());
        let mut stream = SseStream::new(request.json(&body).send().await.unwrap());
        stream.next().await.unwrap().unwrap();
        let encoded = id.replace('/', "%2F");
        let request = in_phase(&app, &encoded, "decoding").await;
        assert_eq!((&request["row"], &request["key"], &request["streamed"]), (&json!(row), &json!("test"), &json!(true)));
        assert_eq!((&request["status"], &request["prompt_tokens"]), (&Value::Null, &Value::Null));
        assert!(request["pieces"].as_u64().unwrap() >= 1 && request["phase_ms"].is_number(), "{request}");
        assert_eq!(ids(&app, "?state=active&model=chat").await, [id]);
        assert!(ids(&app, "?state=active&key=other").await.is_empty());

        assert_eq!(cancel(&app, &encoded).await, StatusCode::ACCEPTED);
        let last = stream.collect().await.pop().unwrap();
        let error = last.json()["error"].clone();
        assert_eq!(error["code"], "cancelled", "{last:?}");
        assert_eq!(last.event.as_deref(), (id != "openai").then_some("error"));
        let ended = in_phase(&app, &encoded, "done").await;
        assert_eq!((&ended["status"], &ended["error"]), (&json!(200), &json!("cancelled")));
        assert_eq!(cancel(&app, &encoded).await, StatusCode::NOT_FOUND, "it has ended");
    }
    app.wait_row(&row, "its slots are free", STEP, |row| row["slots_in_use"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_or_computes_its_prompt_is_ended_with_a_status_no_client_tries_again() {
    let app = TestApp::start().await;
    let row = app.ready_sim_row("deep", &DEEP).await;
    let running: Vec<_> = ["one", "two"].iter().map(|id| send(&app, id, "deep", false)).collect();
    for id in ["one", "two"] {
        in_phase(&app, id, "prefill").await;
    }
    let waiting = send(&app, "three", "deep", true);
    let queued = in_phase(&app, "three", "queued").await;
    assert_eq!((&queued["row"], &queued["priority"]), (&Value::Null, &json!("default")));
    for (id, request) in ["three", "two", "one"].iter().zip(std::iter::once(waiting).chain(running.into_iter().rev())) {
        assert_eq!(cancel(&app, id).await, StatusCode::ACCEPTED);
        let reply = request.await.unwrap();
        assert_eq!(reply.status(), StatusCode::GONE);
        assert_eq!(reply.json::<Value>().await.unwrap()["error"]["code"], "cancelled");
        let ended = in_phase(&app, id, "done").await;
        assert_eq!((&ended["status"], &ended["error"]), (&json!(410), &json!("cancelled")));
    }
    app.wait_row(&row, "its slots are free", STEP, |row| row["slots_in_use"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keys_used_is_summed_by_day_and_model_and_shown_by_rest_and_command_line() {
    let mut app = TestApp::start().await;
    app.create_key().await;
    app.ready_sim_row("chat", &QUICK).await;
    let mut tokens = 0;
    for _ in 0..3 {
        let reply = send(&app, "x", "chat", false).await.unwrap().json::<Value>().await.unwrap();
        tokens += reply["usage"]["completion_tokens"].as_u64().unwrap();
    }
    send(&app, "y", "nobody", false).await.unwrap();
    let usage = get(&app, "/api/usage").await;
    let sums = usage["data"].as_array().unwrap();
    assert_eq!(sums.len(), 2, "{usage}");
    assert_eq!((&sums[0]["model"], &sums[0]["requests"], &sums[0]["errors"]), (&Value::Null, &json!(1), &json!(1)));
    assert_eq!((&sums[1]["model"], &sums[1]["requests"], &sums[1]["errors"]), (&json!("chat"), &json!(3), &json!(0)));
    assert_eq!((&sums[1]["key"], &sums[1]["completion_tokens"]), (&json!("test"), &json!(tokens)));
    let day = sums[1]["day"].as_str().unwrap();
    let (first, second) = (get(&app, "/api/usage?limit=1").await, "/api/usage?limit=1&cursor=");
    let cursor = first["next_cursor"].as_str().unwrap();
    assert_eq!(get(&app, &format!("{second}{cursor}")).await["data"][0], sums[1]);
    for (query, count) in
        [(format!("from={day}&to={day}"), 2), ("to=2020-01-01".into(), 0), ("model=chat".into(), 1), ("key=none".into(), 0)]
    {
        assert_eq!(get(&app, &format!("/api/usage?{query}")).await["data"].as_array().unwrap().len(), count, "{query}");
    }
    assert_eq!(app.call(Method::GET, "/api/usage?from=monday", None).await.0, StatusCode::BAD_REQUEST);

    let lifeboat = |arguments: &[&str]| {
        let output = app.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = lifeboat(&["usage", "--key", "test", "--model", "chat"]);
    assert!(table.lines().count() == 2 && table.contains(day) && table.contains(" test "), "{table}");
    let table = lifeboat(&["requests", "--status", "4xx"]);
    assert!(table.lines().count() == 2 && table.contains("model_not_found"), "{table}");
    assert_eq!(lifeboat(&["requests", "--active"]), "none\n");
    let unknown = app.command(&["requests", "--cancel", "nobody"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(4));
}

/// A collector that keeps what it is sent; it is busy for the first batch.
async fn collector() -> (String, Arc<Mutex<Vec<Value>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&kept);
    let busy = Arc::new(AtomicBool::new(true));
    let take = axum::routing::post(async move |axum::Json(document): axum::Json<Value>| {
        if busy.swap(false, Ordering::SeqCst) {
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        shared.lock().push(document);
        StatusCode::OK
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = axum::Router::new().route("/v1/traces", take);
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, kept)
}

#[tokio::test]
async fn finished_requests_reach_a_collector_in_the_clients_trace_and_what_it_does_not_take_is_counted() {
    let (url, kept) = collector().await;
    let app = TestApp::start_with(&format!("[telemetry]\notlp_endpoint = \"{url}\"\n")).await;
    app.ready_sim_row("chat", &[]).await;
    let (status, _) = app.chat("chat", "one that is lost", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    eventually("a batch the collector refuses is counted", STEP, async || {
        let text = app.client.get(app.url("/metrics")).send().await.ok()?.text().await.ok()?;
        text.contains("lifeboat_traces_lost_total 1").then_some(())
    })
    .await;
    let body = json!({"model": "chat", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4});
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let reply = app.client.post(app.url("/v1/chat/completions")).header("traceparent", trace).json(&body).send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::OK);
    let document = eventually("the collector has the next one", STEP, async || kept.lock().first().cloned()).await;
    let spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat chat", "queue", "upstream"], "{document:#}");
    assert!(spans.iter().all(|span| span["traceId"] == "0af7651916cd43dd8448eb211c80319c"), "{document:#}");
    assert_eq!(spans[0]["parentSpanId"], "b7ad6b7169203331");
    assert!(!document.to_string().contains("secret"), "{document:#}");
}
