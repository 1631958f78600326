//! Slots, lines, room and the time they take.

use std::time::Duration;

use lifeboat::config::GatewayConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::world::soon;
use super::{Engine, Step, World, chat, token};
use crate::support::SseStream;

fn holding() -> Vec<Step> {
    [vec![Step::Hold], Step::json(200, "{}")].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_at_once_never_exceed_the_slots_and_all_are_served() {
    let engines = [Engine::start(|_| Step::json(200, "{}")).await, Engine::start(|_| Step::json(200, "{}")).await];
    let world = World::start().await;
    world.serve("m", &engines[0], 3);
    world.serve("m", &engines[1], 2);
    let calls: Vec<_> = (0..200).map(|_| world.spawn("/v1/chat/completions", &chat("m", false))).collect();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().0, 200);
    }
    assert!(engines[0].most() <= 3 && engines[1].most() <= 2, "{} {}", engines[0].most(), engines[1].most());
    assert_eq!(engines[0].received().len() + engines[1].received().len(), 200);
    world.stop().await;
}

#[tokio::test]
async fn a_full_line_is_told_when_to_come_back() {
    let engine = Engine::start(|_| holding()).await;
    let world = World::with(GatewayConfig { queue_per_slot: 1, ..GatewayConfig::default() }, true).await;
    world.serve("m", &engine, 1);
    let running = world.spawn("/v1/chat/completions", &chat("m", false));
    engine.until_received(1).await;
    let waiting = world.spawn("/v1/chat/completions", &chat("m", false));
    world.until_waiting("m", 1).await;
    let reply = soon(world.post("/v1/chat/completions").json(&chat("m", false)).send()).await.unwrap();
    assert_eq!(reply.status(), 429);
    let header = |name: &str| reply.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
    assert!(header("retry-after") >= 1 && header("retry-after-ms") >= 800);
    let (status, error) = (429, reply.json::<serde_json::Value>().await.unwrap());
    assert_eq!((status, &error["error"]["code"]), (429, &json!("queue_full")));
    engine.go();
    assert_eq!((soon(running).await.unwrap().0, soon(waiting).await.unwrap().0), (200, 200));
    world.stop().await;
}

#[tokio::test]
async fn a_wait_for_a_slot_ends_at_its_deadline_in_both_dialects() {
    let engine = Engine::start(|_| holding()).await;
    let world = World::with(GatewayConfig { queue_wait: Duration::from_millis(80), ..GatewayConfig::default() }, true).await;
    world.serve("m", &engine, 1);
    let running = world.spawn("/v1/chat/completions", &chat("m", false));
    engine.until_received(1).await;
    let (status, error) = world.call("/v1/chat/completions", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["code"]), (503, &json!("queue_timeout")));
    let (status, error) = world.call("/v1/messages", &chat("m", false)).await;
    assert_eq!((status, &error["error"]["type"]), (529, &json!("overloaded_error")));
    engine.go();
    soon(running).await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_its_stream_frees_slot_and_engine_within_a_second() {
    let engine = Engine::start(|_| vec![Step::stream(), Step::Piece(token("m", "x")), Step::Hold]).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let mut stream = SseStream::new(soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap());
    stream.next().await.unwrap();
    assert_eq!(world.taken(), 1);
    let left = Instant::now();
    drop(stream);
    engine.until_left(1).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    assert_eq!(world.finished(1).await.status, 499);
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_reply_or_in_the_line_frees_its_place() {
    let engine = Engine::start(|_| holding()).await;
    let world = World::start().await;
    let view = world.serve("m", &engine, 1);
    let running = world.spawn("/v1/chat/completions", &chat("m", false));
    engine.until_received(1).await;
    let waiting = world.spawn("/v1/chat/completions", &chat("m", false));
    world.until_waiting("m", 1).await;
    let left = Instant::now();
    waiting.abort();
    world.until_waiting("m", 0).await;
    running.abort();
    engine.until_left(1).await;
    assert_eq!(world.finished(2).await.status, 499);
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    assert_eq!(engine.received().len(), 1, "the one in the line never reached the engine");
    // The names of rows that are gone do not stay in the metrics for ever.
    world.registry.remove(view.id);
    soon(async {
        while world.metrics.encode().unwrap().contains("lifeboat_queue_length{model=\"m\"}") {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_in_both_dialects_and_the_answer_is_read() {
    let world = World::with(GatewayConfig { max_body_bytes: 100_000, ..GatewayConfig::default() }, true).await;
    let body = json!({ "model": "m", "prompt": "x".repeat(3_000_000) });
    let (status, error) = world.call("/v1/completions", &body).await;
    assert_eq!((status, &error["error"]["code"]), (413, &json!("body_too_large")));
    let (status, error) = world.call("/v1/messages", &body).await;
    assert_eq!((status, &error["error"]["type"]), (413, &json!("request_too_large")));
    world.stop().await;
}

#[tokio::test]
async fn bodies_are_bounded_all_together() {
    let engine = Engine::start(|_| holding()).await;
    let world = World::with(GatewayConfig { max_held_bytes: 100_000, ..GatewayConfig::default() }, true).await;
    world.serve("m", &engine, 1);
    let large = json!({ "model": "m", "prompt": "x".repeat(70_000) });
    let running = world.spawn("/v1/completions", &large);
    engine.until_received(1).await;
    let reply = soon(world.post("/v1/completions").json(&large).send()).await.unwrap();
    assert_eq!(reply.status(), 503);
    assert!(reply.headers().contains_key("retry-after"));
    let (status, error) = world.call("/v1/messages", &large).await;
    assert_eq!((status, &error["error"]["type"]), (529, &json!("overloaded_error")));
    engine.go();
    assert_eq!(soon(running).await.unwrap().0, 200);
    assert_eq!(world.call("/v1/completions", &large).await.0, 200);
    assert!(world.metrics.encode().unwrap().contains("lifeboat_held_request_bytes 0\n"));
    world.stop().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_holds_nothing() {
    let world = World::start().await;
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{\"mod").await.unwrap();
    soon(async {
        while !world.metrics.encode().unwrap().contains("lifeboat_held_request_bytes 5\n") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(stream);
    world.finished(1).await;
    assert!(world.metrics.encode().unwrap().contains("lifeboat_held_request_bytes 0\n"));
    world.stop().await;
}

#[tokio::test]
async fn light_calls_pass_a_full_row() {
    let engine =
        Engine::start(|request| if request.target() == "/tokenize" { Step::json(200, "{\"tokens\":[1]}") } else { holding() }).await;
    let world = World::start().await;
    world.serve("m", &engine, 1);
    let running = world.spawn("/v1/chat/completions", &chat("m", false));
    engine.until_received(1).await;
    assert_eq!(world.call("/v1/tokenize", &json!({ "content": "x" })).await.0, 200);
    engine.go();
    soon(running).await.unwrap();
    world.stop().await;
}
