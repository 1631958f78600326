//! What reaches the engine and what comes back.

use std::sync::Arc;

use serde_json::{Value, json};

use super::world::{endpoint, row, soon};
use super::{Engine, Step, World, chat, ending, token};
use crate::support::SseStream;
use lifeboat::config::GatewayConfig;
use lifeboat::registry::RowState;

/// Odd spacing, escapes, number forms and key order: none of it may change.
const BODY: &str = "{\n  \"temperature\": 0.70, \"model\" : \"chat\",\t\"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 \\/ \\\"model\\\":\\\"x\\\"\"}], \"seed\":1e3 }\n";
const REPLY: &str = r#"{"choices":[{"message":{"content":"hello"}}],"model":"chat","usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":5}}}"#;

#[tokio::test]
async fn a_body_and_its_reply_pass_byte_for_byte() {
    let engine = Engine::start(|_| Step::json(200, REPLY)).await;
    let world = World::start().await;
    let view = world.serve("chat", &engine, 2);
    let request = world
        .post("/v1/chat/completions?x=1")
        .header("content-type", "application/json")
        .header("authorization", "Bearer client-secret")
        .header("x-api-key", "client-secret")
        .header("cookie", "a=b")
        .header("x-conversation-id", "c")
        .header("x-mine", "kept")
        .header("x-request-id", "my-id-1")
        .body(BODY);
    let reply = soon(request.send()).await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["x-request-id"], "my-id-1");
    assert_eq!(reply.headers()["x-lifeboat-row"], view.id.to_string());
    assert_eq!(reply.headers()["content-type"], "application/json; charset=utf-8");
    assert!(!reply.headers().contains_key("server"));
    assert_eq!(reply.text().await.unwrap(), REPLY);

    let received = &engine.received()[0];
    assert_eq!(received.body, BODY.as_bytes());
    assert_eq!(received.target(), "/v1/chat/completions?x=1");
    assert_eq!(received.header("authorization"), Some("Bearer engine-key"));
    assert_eq!(received.header("host"), Some(engine.address.to_string().as_str()));
    assert_eq!(received.header("x-mine"), Some("kept"));
    for hidden in ["x-api-key", "cookie", "x-conversation-id"] {
        assert_eq!(received.header(hidden), None, "{hidden}");
    }
    let event = world.finished(1).await;
    assert_eq!((event.status, event.row, event.model.as_deref()), (200, Some(view.id), Some("chat")));
    assert_eq!((event.prompt_tokens, event.cached_tokens, event.completion_tokens), (7, 5, 2));
    assert_eq!(event.request_id, "my-id-1");
    world.stop().await;
}

#[tokio::test]
async fn the_tokens_of_a_document_too_large_to_be_held_back_are_read_on_its_way() {
    let vectors = "0.125,".repeat(100_000);
    let document =
        format!(r#"{{"object":"list","data":[{{"embedding":[{vectors}0]}}],"usage":{{"prompt_tokens":7,"total_tokens":7}},"model":"m"}}"#);
    let sent = document.clone();
    let engine = Engine::start(move |_| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let pieces = sent.as_bytes().chunks(10_000).map(|piece| Step::Piece(String::from_utf8(piece.to_vec()).unwrap()));
        [vec![Step::Send(head)], pieces.collect(), vec![Step::End]].concat()
    })
    .await;
    let world = World::with(GatewayConfig { reply_buffer_bytes: 20_000, ..GatewayConfig::default() }, true).await;
    world.serve("m", &engine, 1);
    let reply = soon(world.post("/v1/embeddings").json(&json!({ "model": "m", "input": "x" })).send()).await.unwrap();
    assert_eq!(soon(reply.text()).await.unwrap(), document);
    let event = world.finished(1).await;
    assert_eq!((event.status, event.prompt_tokens, event.completion_tokens), (200, 7, 0));
    world.stop().await;
}

#[tokio::test]
async fn every_route_reaches_the_engine_under_its_own_path() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    world.serve("m", &engine, 2);
    let table = [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions", "/v1/completions"),
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v1/rerank", "/v1/rerank"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/messages", "/v1/messages"),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/audio/speech", "/v1/audio/speech"),
        ("/tokenize", "/tokenize"),
        ("/v1/tokenize", "/tokenize"),
        ("/detokenize", "/detokenize"),
    ];
    for (index, (path, upstream)) in table.into_iter().enumerate() {
        assert_eq!(world.call(path, &json!({ "model": "m" })).await.0, 200, "{path}");
        assert_eq!(engine.received()[index].target(), upstream);
    }
    // llama.cpp's own route names no model where there is but one.
    assert_eq!(world.call("/tokenize", &json!({ "content": "x" })).await.0, 200);
    world.stop().await;
}

#[tokio::test]
async fn the_model_is_spliced_only_where_the_engine_wants_another_name() {
    let engine = Engine::start(|_| Step::json(200, r#"{"model": "up/stream","x":1}"#)).await;
    let world = World::start().await;
    let mut wants = endpoint(engine.address, 2);
    wants.upstream_model = Some("up/stream".into());
    world.registry.publish(row("chat", RowState::Ready, Some(wants)));
    let reply = soon(world.post("/v1/chat/completions").body(BODY).send()).await.unwrap();
    // And the name asked for comes back, nothing else changed.
    assert_eq!(reply.text().await.unwrap(), r#"{"model": "chat","x":1}"#);
    let expected = BODY.replace("\"model\" : \"chat\"", "\"model\" : \"up/stream\"");
    assert_eq!(String::from_utf8(engine.received()[0].body.clone()).unwrap(), expected);
    world.stop().await;
}

#[tokio::test]
async fn names_of_every_script_work_in_bodies_and_in_paths() {
    let engine = Engine::start(|_| Step::json(200, r#"{"model":"other"}"#)).await;
    let world = World::start().await;
    let names = ["org/model:Q4_K_M", "with space", "模型/é", "per%cent", "quo\"te", "a//b", "x?y#z"];
    for name in names {
        world.serve(name, &engine, 1);
        let (status, reply) = world.call("/v1/completions", &json!({ "model": name })).await;
        assert_eq!((status, &reply["model"]), (200, &json!(name)));
        let mut url = reqwest::Url::parse(&world.base).unwrap();
        // As clients do: one escaped segment, or the name's own slashes.
        url.path_segments_mut().unwrap().extend(["v1", "models", name]);
        let escaped = soon(world.client.get(url.clone()).send()).await.unwrap().json::<Value>().await.unwrap();
        assert_eq!(escaped["id"], name);
        let plain = url.as_str().replace("%2F", "/");
        let plain = soon(world.client.get(plain).send()).await.unwrap().json::<Value>().await.unwrap();
        assert_eq!(plain["id"], name);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_stream_passes_untouched_where_the_names_agree() {
    let engine = Engine::start(|_| {
        let (first, last) = (token("chat", "he"), token("chat", "llo"));
        // Cut in the middle of a frame on purpose.
        let (before, after) = last.split_at(20);
        vec![
            Step::stream(),
            Step::Piece(first),
            Step::Piece(before.into()),
            Step::Piece(after.into()),
            Step::Piece(ending("chat")),
            Step::End,
        ]
    })
    .await;
    let world = World::start().await;
    world.serve("chat", &engine, 1);
    let reply = soon(world.post("/v1/chat/completions").json(&chat("chat", true)).send()).await.unwrap();
    assert_eq!(reply.headers()["content-type"], "text/event-stream");
    assert_eq!(reply.headers()["cache-control"], "no-cache");
    assert_eq!(reply.headers()["x-accel-buffering"], "no");
    assert_eq!(reply.text().await.unwrap(), [token("chat", "he"), token("chat", "llo"), ending("chat")].concat());
    let event = world.finished(1).await;
    assert_eq!((event.status, event.completion_tokens, event.cached_tokens, event.error), (200, 2, 5, None));
    assert!(event.first_byte.is_some() && event.streamed);
    let metrics = world.metrics.encode().unwrap();
    assert!(metrics.contains("lifeboat_requests_total{model=\"chat\",endpoint=\"/v1/chat/completions\",status=\"200\"} 1"), "{metrics}");
    world.stop().await;
}

#[tokio::test]
async fn an_anthropic_stream_that_lacks_its_opening_gets_one() {
    // What llama-server sends where the first token is a part of a character.
    let sent = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let engine = Engine::start(move |_| vec![Step::stream(), Step::Piece(sent.into()), Step::End]).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let text = soon(world.post("/v1/messages").json(&chat("m", true)).send()).await.unwrap().text().await.unwrap();
    let rest = text.strip_prefix("event: message_start\ndata: ").unwrap_or_else(|| panic!("{text}"));
    let (opening, rest) = rest.split_once("\n\n").unwrap();
    assert_eq!(serde_json::from_str::<Value>(opening).unwrap()["message"]["model"], "m");
    assert_eq!(rest, sent);
    assert_eq!(world.finished(1).await.error, None);
    world.stop().await;
}

#[tokio::test]
async fn an_alias_comes_back_as_asked_in_every_frame() {
    let engine = Engine::start(|_| {
        let all = [token("/models/x.gguf", "a"), token("/models/x.gguf", "b"), ending("/models/x.gguf")].concat();
        let pieces = all.as_bytes().chunks(33).map(|piece| Step::Piece(String::from_utf8(piece.to_vec()).unwrap()));
        std::iter::once(Step::stream()).chain(pieces).chain([Step::End]).collect()
    })
    .await;
    let world = World::start().await;
    let mut view = row("chat", RowState::Ready, Some(endpoint(engine.address, 1)));
    view.aliases = vec!["nick \"name\"".into()];
    world.registry.publish(view);
    let reply = soon(world.post("/v1/chat/completions").json(&chat("nick \"name\"", true)).send()).await.unwrap();
    let text = reply.text().await.unwrap();
    assert!(!text.contains("/models/x.gguf"), "{text}");
    let events: Vec<_> = text.split("\n\n").filter_map(|frame| frame.strip_prefix("data: {")).collect();
    assert_eq!(events.len(), 3);
    for event in events {
        assert_eq!(serde_json::from_str::<Value>(&format!("{{{event}")).unwrap()["model"], "nick \"name\"");
    }
    // Metrics count it under the row's public name.
    assert_eq!(world.finished(1).await.model.as_deref(), Some("chat"));
    world.stop().await;
}

#[tokio::test]
async fn a_form_is_forwarded_as_it_is_and_its_model_read() {
    let engine = Engine::start(|_| Step::json(200, r#"{"text":"hi"}"#)).await;
    let world = World::start().await;
    world.serve("asr", &engine, 1);
    let form = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\0\u{1}\r\n\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nasr\r\n--B--\r\n";
    let request = world.post("/v1/audio/transcriptions").header("content-type", "multipart/form-data; boundary=B").body(form);
    assert_eq!(soon(request.send()).await.unwrap().status(), 200);
    assert_eq!(engine.received()[0].body, form.as_bytes());
    assert_eq!(engine.received()[0].header("content-type"), Some("multipart/form-data; boundary=B"));
    world.stop().await;
}

#[tokio::test]
async fn requests_spread_over_the_rows_of_a_model_by_their_share_of_slots() {
    let engines = [
        Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]).await,
        Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]).await,
    ];
    let world = World::start().await;
    world.serve("m", &engines[0], 4);
    world.serve("m", &engines[1], 2);
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut stream = SseStream::new(soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap());
        stream.next().await.unwrap();
        open.push(stream);
    }
    assert_eq!((engines[0].received().len(), engines[1].received().len()), (4, 2));
    assert_eq!(world.taken(), 6);
    drop(open);
    world.stop().await;
}

#[tokio::test]
async fn connections_to_an_engine_are_reused() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    for _ in 0..5 {
        world.call("/v1/completions", &json!({ "model": "m" })).await;
    }
    assert_eq!(engine.connections(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let body = Arc::new(json!({ "model": "m", "prompt": "word ".repeat(700_000) }));
    assert_eq!(world.call("/v1/completions", &body).await.0, 200);
    assert_eq!(engine.received()[0].body, serde_json::to_vec(&*body).unwrap());
    world.stop().await;
}
