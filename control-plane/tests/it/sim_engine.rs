//! The simulated engine as a process of its own: what other tests rely on.

use std::process::Stdio;
use std::time::Duration;

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Served, SseStream, client, command, eventually, free_port, send_signal};

const KEY: &str = "secret";

struct Engine {
    process: Served,
    base: String,
    client: reqwest::Client,
}

impl Engine {
    /// Started, not yet ready.
    fn start(flags: &[&str]) -> Self {
        let port = free_port();
        let mut command = command(env!("CARGO_BIN_EXE_lifeboat"));
        command.args(["sim-engine", "--port", &port.to_string()]).args(flags).env("LIFEBOAT_SIM_API_KEY", KEY).stderr(Stdio::null());
        Self { process: Served::start(&mut command).unwrap(), base: format!("http://127.0.0.1:{port}"), client: client() }
    }

    async fn ready(flags: &[&str]) -> Self {
        let engine = Self::start(flags);
        eventually("the engine is ready", Duration::from_secs(20), || async { (engine.health().await == Some(200)).then_some(()) }).await;
        engine
    }

    async fn health(&self) -> Option<u16> {
        self.client.get(format!("{}/health", self.base)).send().await.ok().map(|reply| reply.status().as_u16())
    }

    async fn get(&self, path: &str) -> String {
        let request = self.client.get(format!("{}{path}", self.base)).bearer_auth(KEY);
        request.send().await.unwrap().text().await.unwrap()
    }

    async fn send(&self, path: &str, body: Value) -> Result<reqwest::Response, reqwest::Error> {
        self.client.post(format!("{}{path}", self.base)).bearer_auth(KEY).json(&body).send().await
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let reply = self.send(path, body).await.unwrap();
        (reply.status(), reply.json().await.unwrap())
    }
}

fn chat(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

fn streamed(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "stream": true})
}

#[tokio::test]
async fn every_path_answers_503_while_it_loads_and_wants_the_key_afterwards() {
    let engine = Engine::start(&["--load-ms", "1500"]);
    eventually("it listens", Duration::from_secs(10), || async { (engine.health().await == Some(503)).then_some(()) }).await;
    let (status, body) = engine.post("/v1/chat/completions", chat("hi")).await;
    assert_eq!((status.as_u16(), &body["error"]["message"]), (503, &json!("Loading model")));
    eventually("it is ready", Duration::from_secs(10), || async { (engine.health().await == Some(200)).then_some(()) }).await;
    let refused = engine.client.get(format!("{}/v1/models", engine.base)).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 401);
    assert!(engine.get("/v1/models").await.contains("\"owned_by\":\"llamacpp\""));
}

#[tokio::test]
async fn a_stream_and_a_whole_reply_say_the_same() {
    let engine = Engine::ready(&["--decode-us-per-token", "100", "--tokens", "12"]).await;
    let (_, whole) = engine.post("/v1/chat/completions", chat("hello")).await;
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!((text.len(), &whole["choices"][0]["finish_reason"]), (48, &json!("stop")));
    let events = SseStream::new(engine.send("/v1/chat/completions", streamed("hello")).await.unwrap()).collect().await;
    assert_eq!(events.last().unwrap().data, "[DONE]");
    let pieces =
        events[..events.len() - 1].iter().map(|event| event.json()["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned());
    assert_eq!(pieces.collect::<String>(), text);
}

#[tokio::test]
async fn the_other_endpoints_answer_in_their_shapes() {
    let engine = Engine::ready(&["--decode-us-per-token", "100", "--tokens", "4"]).await;
    let message = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(engine.post("/v1/messages", message.clone()).await.1["stop_reason"], "max_tokens");
    assert_eq!(engine.post("/v1/messages/count_tokens", message).await.1["input_tokens"], 13);
    assert_eq!(engine.post("/v1/responses", json!({"input": "hi"})).await.1["status"], "completed");
    assert_eq!(engine.post("/v1/completions", json!({"prompt": "hi"})).await.1["object"], "text_completion");
    assert_eq!(engine.post("/completion", json!({"prompt": "hi"})).await.1["tokens_predicted"], 4);
    assert_eq!(engine.post("/tokenize", json!({"content": "12345"})).await.1["tokens"].as_array().unwrap().len(), 2);
    let embedded = engine.post("/v1/embeddings", json!({"input": ["a", "b"]})).await.1;
    assert_eq!(embedded["data"][1]["embedding"].as_array().unwrap().len(), 64);
    let ranked = engine.post("/v1/rerank", json!({"query": "red", "documents": ["blue", "red"]})).await.1;
    assert_eq!(ranked["results"][1]["relevance_score"], 1.0);
    assert!(engine.get("/metrics").await.contains("\nllamacpp:tokens_predicted_total "));
    assert_eq!(engine.post("/nothing", json!({})).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_forced_tool_is_called_and_an_engine_that_only_knows_chats_has_no_other_endpoints() {
    let engine = Engine::ready(&["--chat-only", "--decode-us-per-token", "100"]).await;
    let parameters = json!({"type": "object", "properties": {"town": {"enum": ["Oslo", "Rome"]}}, "required": ["town"]});
    let mut body = chat("the weather?");
    body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    body["tool_choice"] = json!("required");
    let (_, whole) = engine.post("/v1/chat/completions", body.clone()).await;
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"town\":\"Oslo\"}"}));
    body["max_tokens"] = json!(1);
    let (_, cut) = engine.post("/v1/chat/completions", body.clone()).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    body["messages"].as_array_mut().unwrap().extend([choice["message"].clone(), json!({"role": "tool", "content": "snow"})]);
    let (_, answer) = engine.post("/v1/chat/completions", body).await;
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses"] {
        assert_eq!(engine.post(path, chat("hi")).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_refused_as_llama_server_does() {
    let engine = Engine::ready(&["--context", "64"]).await;
    let (status, body) = engine.post("/v1/chat/completions", chat(&"x".repeat(400))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!((&body["error"]["type"], &body["error"]["n_ctx"]), (&json!("exceed_context_size_error"), &json!(64)));
}

#[tokio::test]
async fn a_client_that_goes_frees_its_slot_streaming_or_not() {
    let engine = Engine::ready(&["--slots", "1", "--tokens", "100000", "--context", "200000"]).await;
    for body in [streamed("hi"), chat("hi")] {
        let request = tokio::time::timeout(Duration::from_millis(300), engine.send("/v1/chat/completions", body));
        if let Ok(reply) = request.await {
            drop(reply);
        }
        eventually("the slot is free", Duration::from_secs(2), || async {
            engine.get("/slots").await.contains("\"is_processing\":false").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_slot_is_taken_as_asked_and_keeps_its_conversation() {
    let engine = Engine::ready(&["--slots", "3", "--decode-us-per-token", "100", "--tokens", "4"]).await;
    let ask = |text: &str, slot: i64| json!({"messages": [{"role": "user", "content": text}], "id_slot": slot});
    let long = "a long story ".repeat(40);
    engine.post("/v1/chat/completions", ask(&long, 4)).await;
    engine.post("/v1/chat/completions", ask(&"another one ".repeat(40), 2)).await;
    let (_, again) = engine.post("/v1/chat/completions", ask(&long, 1)).await;
    let timings = &again["timings"];
    assert!(timings["cache_n"].as_u64().unwrap() > 100 && timings["prompt_n"].as_u64().unwrap() < 12, "4 is slot 1 of 3: {timings}");
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], timings["cache_n"]);
}

#[tokio::test]
async fn how_much_of_a_prompt_is_read_is_told_where_asked_for() {
    let engine = Engine::ready(&["--context", "40000", "--prefill-us-per-char", "1", "--tokens", "2"]).await;
    let mut body = streamed(&"x".repeat(20_000));
    body["return_progress"] = json!(true);
    let events = SseStream::new(engine.send("/v1/chat/completions", body).await.unwrap()).collect().await;
    let told: Vec<Value> = events[..events.len() - 1].iter().map(|event| event.json()["prompt_progress"].clone()).collect();
    let read: Vec<u64> = told.iter().filter_map(|progress| progress["processed"].as_u64()).collect();
    assert!(read.len() >= 4 && read.is_sorted() && read[0] == 0, "{read:?}");
    assert_eq!(read.last(), told[0]["total"].as_u64().as_ref());
}

#[tokio::test]
async fn a_shared_pool_counts_under_the_names_of_vllm() {
    let engine =
        Engine::ready(&["--cache", "shared-pool", "--pool-tokens", "16000", "--decode-us-per-token", "100", "--tokens", "2"]).await;
    let long = "what everybody asks ".repeat(40);
    for number in 0..2 {
        let body = json!({"messages": [{"role": "user", "content": format!("{long}{number}")}]});
        let (_, reply) = engine.post("/v1/chat/completions", body).await;
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(cached > 150, number == 1, "{cached}");
    }
    let metrics = engine.get("/metrics").await;
    for name in
        ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_hits_total", "prefix_cache_queries_total"]
    {
        assert!(metrics.contains(&format!("\nvllm:{name}{{")), "{name}: {metrics}");
    }
    assert!(metrics.contains("num_gpu_blocks=\"1000\""), "{metrics}");
    assert!(engine.get("/slots").await.contains("not_found_error"));
}

#[tokio::test]
async fn one_process_can_be_several_engines() {
    let client = client();
    let is_ready = async |port: u16| {
        let reply = client.get(format!("http://127.0.0.1:{port}/health")).send().await;
        reply.is_ok_and(|reply| reply.status() == StatusCode::OK)
    };
    // Nobody keeps ports free that follow each other: where another test has one of them, the next three are tried.
    for _ in 0..5 {
        let port = free_port();
        let mut command = command(env!("CARGO_BIN_EXE_lifeboat"));
        command.args(["sim-engine", "--port", &port.to_string(), "--instances", "3"]).stderr(Stdio::null());
        let mut process = Served::start(&mut command).unwrap();
        let all = eventually("all are ready, or the process has ended", Duration::from_secs(20), || {
            let ended = process.ended().is_some();
            let is_ready = &is_ready;
            async move {
                let all = is_ready(port).await && is_ready(port + 1).await && is_ready(port + 2).await;
                (all || ended).then_some(all)
            }
        });
        if all.await {
            return;
        }
    }
    panic!("three engines never came up");
}

#[tokio::test]
async fn the_head_of_a_stream_comes_early_where_it_is_to() {
    let engine = Engine::ready(&["--context", "40000", "--prefill-us-per-char", "100", "--tokens", "2", "--early-head"]).await;
    let began = tokio::time::Instant::now();
    let reply = engine.send("/v1/chat/completions", streamed(&"x".repeat(10_000))).await.unwrap();
    let head = began.elapsed();
    let events = SseStream::new(reply).collect().await;
    assert!(head < Duration::from_millis(500) && began.elapsed() > Duration::from_millis(900), "{head:?} of {:?}", began.elapsed());
    assert_eq!(events.last().unwrap().data, "[DONE]");
    let failed = engine.send("/v1/chat/completions", json!({"messages": [], "stream": true, "sim_fault": "error"})).await.unwrap();
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn requests_beyond_the_slots_are_counted_as_deferred() {
    let engine = Engine::ready(&["--slots", "1", "--tokens", "100000", "--context", "200000"]).await;
    let first = engine.send("/v1/chat/completions", streamed("one")).await.unwrap();
    let second = engine.send("/v1/chat/completions", streamed("two"));
    let counted = eventually("one is deferred", Duration::from_secs(5), || async {
        engine.get("/metrics").await.contains("llamacpp:requests_deferred 1\n").then_some(())
    });
    tokio::select! {
        _ = second => panic!("the second request was answered though the only slot is taken"),
        () = counted => {}
    }
    drop(first);
}

#[tokio::test]
async fn a_crash_takes_the_process_in_the_middle_of_a_stream() {
    let mut engine = Engine::ready(&["--crash-after", "1"]).await;
    assert_eq!(engine.post("/v1/chat/completions", chat("fine")).await.0, StatusCode::OK);
    let mut stream = SseStream::new(engine.send("/v1/chat/completions", streamed("boom")).await.unwrap());
    while let Ok(Some(event)) = stream.next().await {
        assert_ne!(event.data, "[DONE]");
    }
    let status = engine.process.wait_at_most(Duration::from_secs(5)).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(6));
}

#[tokio::test]
async fn an_aborted_stream_has_no_end_and_leaves_the_engine_serving() {
    let engine = Engine::ready(&[]).await;
    let mut body = streamed("hi");
    body["sim_fault"] = json!("abort");
    let mut stream = SseStream::new(engine.send("/v1/chat/completions", body).await.unwrap());
    let broke = loop {
        match stream.next().await {
            Ok(Some(event)) => assert_ne!(event.data, "[DONE]"),
            Ok(None) => break false,
            Err(_broken) => break true,
        }
    };
    assert!(broke, "a clean end hides the abort");
    assert_eq!(engine.post("/v1/chat/completions", chat("fine")).await.0, StatusCode::OK);
    assert_eq!(engine.post("/v1/chat/completions", chat("[[sim:error]]")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_hang_stops_decoding_and_reports_while_health_stays_ok() {
    let engine = Engine::ready(&[]).await;
    let hung = tokio::time::timeout(Duration::from_secs(1), engine.send("/v1/chat/completions", chat("[[sim:hang@0]]")));
    assert!(hung.await.is_err());
    assert_eq!(engine.health().await, Some(200));
    let slots = engine.client.get(format!("{}/slots", engine.base)).bearer_auth(KEY).timeout(Duration::from_millis(500));
    assert!(slots.send().await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn one_sigterm_ends_an_idle_engine_and_a_second_one_a_busy_one() {
    let mut idle = Engine::ready(&[]).await;
    send_signal(idle.process.pid(), Signal::TERM);
    assert_eq!(idle.process.wait_at_most(Duration::from_secs(5)).unwrap().code(), Some(0));

    let mut busy = Engine::ready(&["--tokens", "100000", "--context", "200000"]).await;
    let mut stream = SseStream::new(busy.send("/v1/chat/completions", streamed("hi")).await.unwrap());
    assert!(stream.next().await.unwrap().is_some());
    send_signal(busy.process.pid(), Signal::TERM);
    assert_eq!(busy.process.wait_at_most(Duration::from_secs(1)), None);
    send_signal(busy.process.pid(), Signal::TERM);
    assert_eq!(busy.process.wait_at_most(Duration::from_secs(5)).unwrap().code(), Some(1));
}
