//! Engines that fail before, at and after the first byte.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lifeboat::config::GatewayConfig;
use lifeboat::registry::{RowState, RowView};
use serde_json::json;
use std::sync::Arc;

use super::world::{endpoint, soon};
use super::{Engine, Received, Step, World, chat, ending, token};
use crate::support::{SseStream, free_port};

#[tokio::test]
async fn an_engine_that_dies_before_its_first_byte_is_replaced_by_another_row() {
    for death in [
        vec![Step::Cut],
        vec![Step::stream(), Step::Piece(": ping\n\n".into()), Step::Cut],
        Step::json(503, r#"{"error":{"message":"Loading model"}}"#),
    ] {
        let dying = Engine::start(move |_| death.clone()).await;
        let living = Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Piece(ending("m")), Step::End]).await;
        let world = World::start().await;
        world.serve("m", &dying, 1);
        world.serve("m", &living, 1);
        for count in 1..=2 {
            let reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap();
            assert_eq!(reply.status(), 200);
            assert_eq!(reply.text().await.unwrap(), [token("m", "x"), ending("m")].concat());
            world.finished(count).await;
        }
        assert_eq!(dying.received().len(), 1, "the first one went to the dying engine, the second to where the first was answered");
        assert_eq!(world.finished(2).await.retries + world.events().await[1].retries, 1);
        world.stop().await;
    }
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_is_replaced_or_reported() {
    let living = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::with(GatewayConfig { retry_notice: Duration::from_millis(50), ..GatewayConfig::default() }, true).await;
    let nobody = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    let dead = super::world::row("m", RowState::Ready, Some(endpoint(nobody, 1)));
    world.registry.publish(dead.clone());
    let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["code"]), (502, &json!("upstream_failed")));
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    world.serve("m", &living, 1);
    for _ in 0..4 {
        assert_eq!(world.call("/v1/chat/completions", &chat("m", false)).await.0, 200);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_pool_whose_requests_all_fail_is_not_flooded_with_retries() {
    let engines = [Engine::start(|_| vec![Step::Cut]).await, Engine::start(|_| vec![Step::Cut]).await];
    let limits = GatewayConfig { retry_share: 0.2, retry_floor: 2, retry_notice: Duration::from_millis(50), ..GatewayConfig::default() };
    let world = World::with(limits, true).await;
    for engine in &engines {
        world.serve("m", engine, 1);
    }
    for count in 1..=10 {
        let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
        assert_eq!((status, &error["error"]["code"]), (502, &json!("upstream_failed")));
        world.finished(count).await;
    }
    let events = world.events().await;
    let retries: u32 = events.iter().map(|event| event.retries).sum();
    let refused = events.iter().filter(|event| event.route.as_ref().is_some_and(|route| route.retry_refused)).count();
    // Two in stock, a fifth of ten, and one a second for as long as this took.
    assert!((2..10).contains(&retries), "{retries} retries");
    assert!(refused >= 1, "none was refused");
    let metrics = world.metrics.encode().unwrap();
    assert!(metrics.contains(&format!("lifeboat_retries_refused_total{{model=\"m\"}} {refused}\n")), "{metrics}");
    world.stop().await;
}

#[tokio::test]
async fn a_request_waits_for_its_engine_to_be_started_again() {
    let dying = Engine::start(|_| vec![Step::Cut]).await;
    let restarted = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    let mut view = world.serve("m", &dying, 1);
    let call = world.spawn("/v1/chat/completions", &chat("m", false));
    dying.until_received(1).await;
    view.status.state = RowState::Starting;
    view.endpoint = None;
    world.registry.publish(view.clone());
    world.until_waiting("m", 1).await;
    view.status.state = RowState::Ready;
    view.endpoint = Some(Arc::new(endpoint(restarted.address, 1)));
    world.registry.publish(view);
    assert_eq!(soon(call).await.unwrap().0, 200);
    world.stop().await;
}

#[tokio::test]
async fn an_engine_is_not_tried_for_ever() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let failing = move |_: &Received| {
        counted.fetch_add(1, Ordering::SeqCst);
        Step::json(502, "{}")
    };
    let engines: Vec<Engine> = futures_util::future::join_all((0..5).map(|_| Engine::start(failing.clone()))).await;
    let world = World::start().await;
    for engine in &engines {
        world.serve("m", engine, 1);
    }
    assert_eq!(world.call("/v1/chat/completions", &chat("m", false)).await.0, 502);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    world.stop().await;
}

#[tokio::test]
async fn a_reused_connection_that_turns_out_dead_is_replaced_at_once() {
    // The second request on a connection is read and answered by a close, as when an idle timeout strikes just then.
    let engine = Engine::start(|request| if request.earlier == 0 { Step::json(200, "{}") } else { vec![Step::Cut] }).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    for _ in 0..3 {
        assert_eq!(world.call("/v1/chat/completions", &chat("m", false)).await.0, 200);
    }
    assert_eq!(world.finished(3).await.retries, 0);
    world.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_and_never_looks_whole() {
    // The connection breaks, or the engine closes in order but without an ending, in a frame or after one.
    let breaks = [vec![Step::Cut], vec![Step::End], vec![Step::Piece("data: {\"cho".into()), Step::Cut]];
    for tail in breaks {
        let script = [vec![Step::stream(), Step::Piece(token("m", "x"))], tail].concat();
        let engine = Engine::start(move |_| script.clone()).await;
        let world = World::start().await;
        world.serve("m", &engine, 1);
        let text = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap().text().await.unwrap();
        let last = text.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
        let error: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(error["error"]["code"], "upstream_failed", "{text}");
        assert!(!text.contains("[DONE]"));
        let event = world.finished(1).await;
        assert_eq!((event.status, event.error.as_deref(), event.retries), (200, Some("upstream_failed"), 0));
        world.stop().await;
    }
}

#[tokio::test]
async fn an_anthropic_stream_breaks_off_in_its_own_dialect() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n";
    let broken = Engine::start(move |_| vec![Step::stream(), Step::Piece(start.into()), Step::Cut]).await;
    let failing = Engine::start(move |_| {
        vec![
            Step::stream(),
            Step::Piece(start.into()),
            Step::Piece("data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}\n\n".into()),
            Step::End,
        ]
    })
    .await;
    for (engine, message) in [(&broken, "broke off"), (&failing, "boom")] {
        let world = World::start().await;
        world.serve("m", engine, 1);
        let reply = soon(world.post("/v1/messages").json(&chat("m", true)).send()).await.unwrap();
        let events = SseStream::new(reply).collect().await;
        let last = events.last().unwrap();
        assert_eq!(last.event.as_deref(), Some("error"));
        assert_eq!(last.json()["error"]["type"], "api_error");
        assert!(last.json()["error"]["message"].as_str().unwrap().contains(message), "{last:?}");
        world.finished(1).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_stream_whose_engine_is_ended_gets_an_error_and_lets_go_of_the_engine() {
    let engine = Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]).await;
    let world = World::start().await;
    let view = world.serve("m", &engine, 1);
    let mut stream = SseStream::new(soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap());
    stream.next().await.unwrap();
    // Its row was deleted, so nobody can go on.
    world.registry.remove(view.id);
    view.endpoint.as_ref().unwrap().load.close();
    view.endpoint.as_ref().unwrap().ended.cancel();
    let error = stream.next().await.unwrap().unwrap();
    assert_eq!(error.json()["error"]["code"], "no_ready_row");
    assert!(stream.next().await.unwrap().is_none());
    engine.until_left(1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_goes_on_from_another_row_as_if_nothing_had_been() {
    let dying = Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "Once ")), Step::Cut]).await;
    let living = Engine::start(|_| {
        let rest = ["upon ", "a time"].map(|text| Step::Piece(token("m", text).replace("\"id\":\"", "\"id\":\"other-")));
        let mut steps = vec![Step::stream()];
        steps.extend(rest);
        steps.extend([Step::Piece(ending("m")), Step::End]);
        steps
    })
    .await;
    let world = World::start().await;
    world.serve("m", &dying, 1);
    world.serve("m", &living, 1);
    let mut stream = SseStream::new(soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap());
    let (mut text, mut ids, mut done) = (String::new(), std::collections::HashSet::new(), false);
    while let Some(event) = stream.next().await.unwrap() {
        if event.data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk = event.json();
        assert!(chunk.get("error").is_none(), "{chunk}");
        text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        ids.insert(chunk["id"].to_string());
    }
    assert_eq!((text.as_str(), done, ids.len()), ("Once upon a time", true, 1), "{ids:?}");
    let asked: serde_json::Value = serde_json::from_slice(&living.received()[0].body).unwrap();
    let last = asked["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["role"], &last["content"]), (&json!("assistant"), &json!("Once ")));
    let ended = world.finished(1).await;
    assert_eq!((ended.status, ended.route.unwrap().resumed), (200, 1));
    assert_eq!(world.taken(), 0);
    world.stop().await;
}

#[tokio::test]
async fn a_whole_reply_that_is_cut_short_is_tried_again_and_then_a_502() {
    let torn = Engine::start(|_| {
        vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{\"half".to_vec()), Step::Cut]
    })
    .await;
    let world = World::with(GatewayConfig { retry_notice: Duration::from_millis(50), ..GatewayConfig::default() }, true).await;
    world.serve("m", &torn, 1);
    let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["code"]), (502, &json!("upstream_failed")));
    let whole = Engine::start(|_| Step::json(200, "{}")).await;
    world.serve("m", &whole, 1);
    for _ in 0..2 {
        assert_eq!(world.call("/v1/chat/completions", &chat("m", false)).await.0, 200);
    }
    world.stop().await;
}

#[tokio::test]
async fn silence_is_ended_before_and_after_the_first_byte() {
    let limits =
        GatewayConfig { first_byte: Duration::from_millis(60), between_chunks: Duration::from_millis(60), ..GatewayConfig::default() };
    let mute = Engine::start(|_| vec![Step::Hold]).await;
    let stuck = Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]).await;
    for (engine, status) in [(&mute, 504), (&stuck, 200)] {
        let world = World::with(limits.clone(), true).await;
        world.serve("m", engine, 1);
        let reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap();
        assert_eq!(reply.status(), status);
        let text = soon(reply.text()).await.unwrap();
        assert!(text.contains(if status == 504 { "upstream_timeout" } else { "\"code\":\"upstream_timeout\"" }), "{text}");
        engine.until_left(1).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_context_overflow_keeps_its_numbers_in_both_dialects() {
    let body = r#"{"error":{"code":400,"message":"request (4531 tokens) exceeds the available context size (512 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":4531,"n_ctx":512}}"#;
    let engine = Engine::start(move |_| Step::json(400, body)).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let (status, error) = world.call("/v1/chat/completions", &chat("m", true)).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!((&error["error"]["n_prompt_tokens"], &error["error"]["n_ctx"]), (&json!(4531), &json!(512)));
    let (status, error) = world.call("/v1/messages", &chat("m", false)).await;
    assert_eq!((status, &error["type"], &error["error"]["type"]), (400, &json!("error"), &json!("invalid_request_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("4531"), "{error}");
    assert_eq!(engine.received().len(), 2, "what the client did wrong is not tried again");
    world.stop().await;
}

#[tokio::test]
async fn a_row_that_failed_says_why() {
    let world = World::start().await;
    let mut view: RowView = super::world::row("m", RowState::Failed, None);
    view.status.state_reason = Some("weights 8.1 GB > 7.4 GB free".into());
    world.registry.publish(view);
    let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["code"]), (503, &json!("no_ready_row")));
    assert!(error["error"]["message"].as_str().unwrap().contains("7.4 GB free"));
    world.stop().await;
}

#[tokio::test]
async fn a_refusal_whose_words_break_off_is_still_that_refusal_and_asked_for_once() {
    let cut = b"HTTP/1.1 413 X\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{\"error\"".to_vec();
    let engine = Engine::start(move |_| vec![Step::Send(cut.clone()), Step::Cut]).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["code"]), (413, &json!("body_too_large")), "{error}");
    assert_eq!(engine.received().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn what_is_not_http_is_told_as_that_and_asked_for_once() {
    let engine = Engine::start(|_| vec![Step::Send(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), Step::Hold]).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let (status, error) = world.call("/v1/messages", &chat("m", false)).await;
    assert_eq!((status, error["error"]["message"].as_str().unwrap().contains("`url`")), (502, true), "{error}");
    assert_eq!(engine.received().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_reply_that_takes_longer_than_any_may_is_told_as_that_and_not_as_silence() {
    let limits = GatewayConfig { total: Duration::from_millis(300), ..GatewayConfig::default() };
    for script in [vec![Step::Hold], vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]] {
        let engine = Engine::start(move |_| script.clone()).await;
        let world = World::with(limits.clone(), true).await;
        world.serve("m", &engine, 1);
        let reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap().text().await.unwrap();
        assert!(reply.contains("took longer than"), "{reply}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_slow_reader_cannot_make_a_reply_outlast_its_limit_or_its_cancellation() {
    // More than all buffers on the way hold: whenever the reply is looked at, more of it is here.
    let flood = || {
        let pieces = std::iter::repeat_n(Step::Piece(token("m", &"x".repeat(64 << 10))), 1000);
        std::iter::once(Step::stream()).chain(pieces).chain([Step::Hold]).collect()
    };
    for limit in [Duration::from_millis(300), Duration::from_secs(3600)] {
        let engine = Engine::start(move |_| flood()).await;
        let world = World::with(GatewayConfig { total: limit, ..GatewayConfig::default() }, true).await;
        world.serve("m", &engine, 1);
        let mut reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap();
        let mut read = 0;
        let ended = async {
            loop {
                match reply.chunk().await {
                    Ok(Some(piece)) => read += piece.len(),
                    Ok(None) | Err(_) => return,
                }
                if limit.as_secs() > 1 {
                    world.active.list().iter().for_each(|active| _ = world.active.cancel(&active.request_id));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(ended).await;
        assert!(read < 32 << 20, "{read} bytes came through");
        world.stop().await;
    }
}
