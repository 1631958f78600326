//! Engines that lack their client's dialect, and replies that are put together from a stream.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use lifeboat::registry::{Dialects, RowState};
use lifeboat_engines::spec::EngineKind;
use serde_json::{Value, json};

use super::world::{endpoint, row, soon};
use super::{Engine, Received, Step, World, ending, token};

/// A whole reply to a chat.
const WHOLE: &str = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"hello"}}],"model":"up","usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":5}}}"#;

/// The same, streamed.
fn streamed(model: &str) -> Vec<Step> {
    vec![Step::stream(), Step::Piece(token(model, "hel")), Step::Piece(token(model, "lo")), Step::Piece(ending(model)), Step::End]
}

/// An engine that has chat completions, embeddings and vLLM's tokenizer.
fn plain(received: &Received) -> Vec<Step> {
    let body: Value = serde_json::from_slice(&received.body).unwrap_or_default();
    match (received.target(), body["stream"] == true) {
        ("/v1/chat/completions", true) => streamed("up"),
        ("/v1/chat/completions", false) => Step::json(200, WHOLE),
        ("/v1/completions", _) => Step::json(200, r#"{"choices":[{"text":"raw","index":0,"finish_reason":"length"}],"model":"up"}"#),
        ("/v1/embeddings", _) => {
            Step::json(200, r#"{"data":[{"embedding":[0.10,2],"index":0}],"usage":{"prompt_tokens":3,"total_tokens":3}}"#)
        }
        ("/tokenize", _) => Step::json(200, r#"{"count":12,"max_model_len":99,"tokens":[]}"#),
        _ => Step::json(404, r#"{"detail":"Not Found"}"#),
    }
}

fn of_kind(kind: EngineKind, engine: &Engine) -> lifeboat::registry::RowView {
    let mut reached = endpoint(engine.address, 2);
    reached.dialects = Dialects::of(kind);
    row("chat", RowState::Ready, Some(reached))
}

fn sent(engine: &Engine, index: usize) -> Value {
    serde_json::from_slice(&engine.received()[index].body).unwrap()
}

async fn events(world: &World, path: &str, body: &Value) -> (StatusCode, String, String) {
    let reply = soon(world.post(path).json(body).send()).await.unwrap();
    let content_type = reply.headers()["content-type"].to_str().unwrap().to_owned();
    (reply.status(), content_type, soon(reply.text()).await.unwrap())
}

#[tokio::test]
async fn messages_are_put_through_a_chat_once_the_engine_has_said_that_it_lacks_them() {
    let engine = Engine::start(plain).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::External, &engine));
    let body = json!({"model": "chat", "max_tokens": 9, "system": "S", "messages": [{"role": "user", "content": "hi"}]});
    let (status, reply) = world.call("/v1/messages", &body).await;
    assert_eq!(
        (status, &reply["type"], &reply["model"], &reply["stop_reason"]),
        (200, &json!("message"), &json!("chat"), &json!("end_turn"))
    );
    assert_eq!(reply["content"], json!([{"type": "text", "text": "hello"}]));
    assert_eq!(reply["usage"]["input_tokens"], 2);
    assert_eq!(engine.received().iter().map(Received::target).collect::<Vec<_>>(), ["/v1/messages", "/v1/chat/completions"]);
    assert_eq!(sent(&engine, 1)["messages"][0], json!({"role": "system", "content": "S"}));

    let mut streaming = body.clone();
    streaming["stream"] = true.into();
    let (status, content_type, text) = events(&world, "/v1/messages", &streaming).await;
    assert_eq!((status.as_u16(), content_type.as_str()), (200, "text/event-stream"));
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(engine.received().len(), 3, "it is not asked again");
    let event = world.finished(2).await;
    assert_eq!((event.status, event.prompt_tokens, event.cached_tokens, event.completion_tokens), (200, 7, 5, 2));
    world.stop().await;
}

#[tokio::test]
async fn an_engine_that_also_lacks_the_model_is_not_remembered_as_lacking_messages() {
    let engine = Engine::start(|_| Step::json(404, r#"{"error":{"message":"no such model","code":404}}"#)).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::External, &engine));
    let body = json!({"model": "chat", "messages": [{"role": "user", "content": "hi"}]});
    for count in [2, 4] {
        let (status, reply) = world.call("/v1/messages", &body).await;
        assert_eq!((status, &reply["error"]["message"]), (404, &json!("no such model")));
        assert_eq!(engine.received().len(), count);
    }
    world.stop().await;
}

#[tokio::test]
async fn tokens_are_counted_by_another_way_or_not_at_all() {
    let body = json!({"model": "chat", "messages": [{"role": "user", "content": "hi"}]});
    let world = World::start().await;
    let able = Engine::start(plain).await;
    world.registry.publish(of_kind(EngineKind::External, &able));
    assert_eq!(world.call("/v1/messages/count_tokens", &body).await, (200, json!({"input_tokens": 12})));
    world.stop().await;
    // No `/tokenize`, and that of an older llama-server, which takes a text and knows no conversation.
    for (tokenize_status, tokenized) in [(404, "{}"), (200, r#"{"tokens":[]}"#)] {
        let world = World::start().await;
        let unable = Engine::start(move |request| match request.target() {
            "/tokenize" => Step::json(tokenize_status, tokenized),
            _ => Step::json(404, "{}"),
        })
        .await;
        world.registry.publish(of_kind(EngineKind::External, &unable));
        let (status, reply) = world.call("/v1/messages/count_tokens", &body).await;
        assert!(status == 501 && reply["error"]["message"].as_str().unwrap().contains("cannot count"), "{status} {reply}");
        world.stop().await;
    }
}

#[tokio::test]
async fn responses_are_put_through_a_chat_where_the_engine_lacks_them() {
    let engine = Engine::start(plain).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::External, &engine));
    let (status, reply) = world.call("/v1/responses", &json!({"model": "chat", "input": "hi"})).await;
    assert_eq!((status, &reply["object"], &reply["status"]), (200, &json!("response"), &json!("completed")));
    assert_eq!(reply["output"][0]["content"][0]["text"], "hello");
    let (_, _, text) = events(&world, "/v1/responses", &json!({"model": "chat", "input": "hi", "stream": true})).await;
    assert!(text.starts_with("event: response.created\n") && text.contains("event: response.completed\n"), "{text}");
    let (status, reply) = world.call("/v1/responses", &json!({"model": "chat", "input": "hi", "previous_response_id": "r"})).await;
    assert_eq!((status, &reply["error"]["param"]), (400, &json!("previous_response_id")));
    world.stop().await;
}

#[tokio::test]
async fn a_reply_that_is_not_to_be_streamed_is_put_together_from_a_stream() {
    let engine = Engine::start(|received| if received.target() == "/v1/embeddings" { Step::json(200, "{}") } else { streamed("up") }).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::LlamaCpp, &engine));
    for body in [json!({"model": "chat", "messages": []}), json!({"model": "chat", "messages": [], "stream": false})] {
        let reply = soon(world.post("/v1/chat/completions").json(&body).send()).await.unwrap();
        assert_eq!(reply.headers()["content-type"], "application/json; charset=utf-8");
        let reply: Value = soon(reply.json()).await.unwrap();
        assert_eq!(reply["choices"], json!([{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "hello"}}]));
        assert_eq!(
            (&reply["model"], &reply["object"], &reply["usage"]["completion_tokens"]),
            (&json!("chat"), &json!("chat.completion"), &json!(2))
        );
    }
    for index in [0, 1] {
        assert_eq!(
            (&sent(&engine, index)["stream"], &sent(&engine, index)["stream_options"]),
            (&json!(true), &json!({"include_usage": true}))
        );
    }
    let event = world.finished(2).await;
    assert_eq!((event.status, event.prompt_tokens, event.completion_tokens), (200, 7, 2));
    // Messages never reach such an engine by their own path, which forgets the slot.
    let (_, reply) = world.call("/v1/messages", &json!({"model": "chat", "messages": []})).await;
    assert_eq!(reply["content"][0]["text"], "hello");
    assert_eq!(engine.received()[2].target(), "/v1/chat/completions");
    // Nor do responses, of which it ignores half.
    let body = json!({"model": "chat", "input": "hi", "text": {"format": {"type": "json_object"}}});
    assert_eq!(world.call("/v1/responses", &body).await.1["object"], "response");
    assert_eq!(
        (engine.received()[3].target(), &sent(&engine, 3)["response_format"]),
        ("/v1/chat/completions", &json!({"type": "json_object"}))
    );
    // Probabilities and vectors are asked for as they are.
    events(&world, "/v1/chat/completions", &json!({"model": "chat", "messages": [], "logprobs": true})).await;
    world.call("/v1/embeddings", &json!({"model": "chat", "input": "x"})).await;
    assert!(sent(&engine, 4).get("stream").is_none() && sent(&engine, 5).get("stream").is_none());
    world.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_before_it_was_put_together_is_tried_again_elsewhere() {
    let attempts = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&attempts);
    let script = move |_: &Received| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            return vec![Step::stream(), Step::Piece(token("up", "half")), Step::Cut];
        }
        streamed("up")
    };
    let script = std::sync::Arc::new(script);
    let (one, two) = (std::sync::Arc::clone(&script), script);
    let engines = [Engine::start(move |received| one(received)).await, Engine::start(move |received| two(received)).await];
    let world = World::start().await;
    for engine in &engines {
        world.registry.publish(of_kind(EngineKind::LlamaCpp, engine));
    }
    let (status, reply) = world.call("/v1/chat/completions", &json!({"model": "chat", "messages": []})).await;
    assert_eq!((status, &reply["choices"][0]["message"]["content"]), (200, &json!("hello")));
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    world.stop().await;
}

#[tokio::test]
async fn an_error_in_the_middle_of_a_stream_becomes_the_status_it_names() {
    let said = "data: {\"error\":{\"code\":400,\"message\":\"Context size has been exceeded.\",\"type\":\"server_error\"}}\n\n";
    let engine = Engine::start(move |_| vec![Step::stream(), Step::Piece(token("up", "x")), Step::Piece(said.to_owned()), Step::End]).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::LlamaCpp, &engine));
    let (status, reply) = world.call("/v1/chat/completions", &json!({"model": "chat", "messages": []})).await;
    assert_eq!((status, &reply["error"]["code"]), (400, &json!("context_length_exceeded")));
    let body = json!({"model": "chat", "messages": [], "stream": true});
    let (_, _, text) = events(&world, "/v1/messages", &body).await;
    assert!(text.contains("event: error\n") && !text.contains("message_stop"), "{text}");
    world.stop().await;
}

#[tokio::test]
async fn a_translated_stream_that_breaks_off_ends_with_its_dialects_error() {
    let engine = Engine::start(|_| vec![Step::stream(), Step::Piece(token("up", "half")), Step::Cut]).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::LlamaCpp, &engine));
    let messages = json!({"model": "chat", "stream": true, "messages": [{"role": "user", "content": "x"}]});
    for (path, body, end) in [("/v1/messages", &messages, "event: error\n"), ("/api/chat", &messages, "{\"error\":\"the engine broke off")]
    {
        let (_, _, text) = events(&world, path, body).await;
        assert!(text.contains("half") && text.contains(end), "{path}: {text}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_stream_along_though_it_asked_for_none() {
    let engine = Engine::start(|_| vec![Step::stream(), Step::Piece(token("up", "x")), Step::Hold]).await;
    let world = World::start().await;
    let view = of_kind(EngineKind::LlamaCpp, &engine);
    world.registry.publish(view);
    let asking = world.post("/v1/chat/completions").json(&json!({"model": "chat", "messages": []})).send();
    let asking = tokio::spawn(asking);
    engine.until_received(1).await;
    asking.abort();
    engine.until_left(1).await;
    world.stop().await;
}

#[tokio::test]
async fn ollamas_clients_are_served_in_their_own_words() {
    let engine = Engine::start(plain).await;
    let world = World::start().await;
    world.registry.publish(of_kind(EngineKind::External, &engine));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let (status, content_type, text) = events(&world, "/api/chat", &json!({"model": "chat:latest", "messages": messages})).await;
    assert_eq!((status.as_u16(), content_type.as_str()), (200, "application/x-ndjson"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect::<Vec<_>>(), ["hel", "lo", ""]);
    assert_eq!((&lines[2]["done"], &lines[2]["eval_count"], &lines[2]["model"]), (&json!(true), &json!(2), &json!("chat")));
    let (_, reply) = world.call("/api/generate", &json!({"model": "chat", "prompt": "hi", "stream": false})).await;
    assert_eq!((&reply["response"], &reply["prompt_eval_count"]), (&json!("hello"), &json!(7)));
    let (_, reply) = world.call("/api/generate", &json!({"model": "chat", "prompt": "hi", "raw": true, "stream": false})).await;
    assert_eq!((&reply["response"], &reply["done_reason"]), (&json!("raw"), &json!("length")));
    let (_, reply) = world.call("/api/generate", &json!({"model": "chat", "keep_alive": 0})).await;
    assert_eq!(reply["done_reason"], "load");
    let (_, reply) = world.call("/api/embed", &json!({"model": "chat", "input": ["a"]})).await;
    assert_eq!((&reply["embeddings"], &reply["prompt_eval_count"]), (&json!([[0.1, 2]]), &json!(3)));
    let (_, reply) = world.call("/api/embeddings", &json!({"model": "chat", "prompt": "a"})).await;
    assert_eq!(reply, json!({"embedding": [0.1, 2]}));
    let (_, shown) = world.call("/api/show", &json!({"model": "chat"})).await;
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    for path in ["/api/tags", "/api/ps"] {
        let listed: Value = soon(world.client.get(format!("{}{path}", world.base)).send()).await.unwrap().json().await.unwrap();
        assert_eq!(listed["models"][0]["name"], "chat", "{path}");
    }
    for (path, body, status) in [
        ("/api/chat", json!({"model": "nobody", "messages": messages}), 404),
        ("/api/chat", json!({"model": "chat", "messages": messages, "think": "deep"}), 400),
        ("/api/show", json!({"model": "nobody"}), 404),
    ] {
        let (answered, reply) = world.call(path, &body).await;
        assert!(answered == status && reply["error"].is_string(), "{path}: {reply}");
    }
    world.stop().await;
}

#[tokio::test]
async fn tools_are_refused_where_the_engine_would_drop_them() {
    let engine = Engine::start(|_| streamed("up")).await;
    let world = World::start().await;
    let mut row = of_kind(EngineKind::LlamaCpp, &engine);
    let endpoint = std::sync::Arc::get_mut(row.endpoint.as_mut().unwrap()).unwrap();
    endpoint.dialects.takes_tools = false;
    world.registry.publish(row);
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": "chat", "messages": [], "tools": tool})),
        ("/v1/responses", json!({"model": "chat", "input": "hi", "tools": [{"type": "function", "name": "f"}]})),
        ("/v1/messages", json!({"model": "chat", "max_tokens": 5, "messages": [], "tools": [{"name": "f", "input_schema": {}}]})),
    ] {
        let (status, reply) = world.call(path, &body).await;
        assert!(status == 400 && reply["error"]["message"].as_str().unwrap().contains("template takes no tools"), "{path}: {reply}");
    }
    assert_eq!(world.call("/v1/chat/completions", &json!({"model": "chat", "messages": [], "tools": [ ]})).await.0, 200);
    let (_, shown) = world.call("/api/show", &json!({"model": "chat"})).await;
    assert_eq!(shown["capabilities"], json!(["completion"]));
    world.stop().await;
}
