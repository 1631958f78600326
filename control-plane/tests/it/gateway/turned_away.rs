//! Whoever is turned away for now is told when to come back, whatever the reason and the dialect. That nothing is left out
//! is tested where refusals become replies; here each is met as clients meet it. Limits of keys are in `limits`.

use std::time::Duration;

use lifeboat::config::GatewayConfig;
use lifeboat::registry::RowState;
use serde_json::{Value, json};

use super::world::{row, soon};
use super::{Engine, Step, World, chat};

/// One way to ask in each dialect, with the status of what is 503 in OpenAI's.
const WAYS: [(&str, u16); 4] = [("/v1/chat/completions", 503), ("/v1/responses", 503), ("/v1/messages", 529), ("/api/chat", 503)];

/// Asks in every dialect and checks that each refusal has this status (503 = "overloaded" as the dialect has it), this code
/// and a wait in these milliseconds. Refused requests change nothing.
async fn all_are_told(world: &World, body: &Value, (status, code): (u16, &str), wait: std::ops::RangeInclusive<u64>) {
    for (path, overloaded) in WAYS {
        let mut body = body.clone();
        body["input"] = body["messages"].clone();
        let reply = soon(world.post(path).json(&body).send()).await.unwrap();
        assert_eq!(reply.status().as_u16(), if status == 503 { overloaded } else { status }, "{path} {code}");
        let number = |name: &str| {
            let value = reply.headers().get(name).unwrap_or_else(|| panic!("{path} {code}: no {name} in {:?}", reply.headers()));
            value.to_str().unwrap().parse::<u64>().unwrap()
        };
        let (seconds, milliseconds) = (number("retry-after"), number("retry-after-ms"));
        assert!(wait.contains(&milliseconds) && seconds == milliseconds.div_ceil(1000), "{path} {code}: {seconds} s, {milliseconds} ms");
        let error = soon(reply.json::<Value>()).await.unwrap();
        // Ollama's errors are words alone.
        if path != "/api/chat" {
            assert_eq!(error["error"]["code"], code, "{path}: {error}");
        }
    }
}

fn limits(change: impl FnOnce(&mut GatewayConfig)) -> GatewayConfig {
    // No second try: what the engine says is what the client gets.
    let mut limits = GatewayConfig { retries: 0, ..GatewayConfig::default() };
    change(&mut limits);
    limits
}

#[tokio::test]
async fn a_full_line_and_a_wait_for_a_slot_that_was_too_long() {
    let engine = Engine::start(|_| [vec![Step::Hold], Step::json(200, "{}")].concat()).await;
    for (queue_per_slot, told) in [(0, (429, "queue_full")), (9, (503, "queue_timeout"))] {
        let world = World::with(
            limits(|limits| {
                limits.queue_per_slot = queue_per_slot;
                limits.queue_wait = Duration::from_millis(50);
            }),
            true,
        )
        .await;
        world.serve("m", &engine, 1);
        let before = engine.received().len();
        let running = world.spawn("/v1/chat/completions", &chat("m", false));
        engine.until_received(before + 1).await;
        all_are_told(&world, &chat("m", false), told, 800..=1200).await;
        running.abort();
        world.stop().await;
    }
}

#[tokio::test]
async fn a_wait_that_is_predicted_to_be_too_long() {
    let took = Duration::from_millis(1500);
    let engine = Engine::start(move |_| [vec![Step::Pause(took)], Step::json(200, "{}")].concat()).await;
    let world = World::with(limits(|limits| limits.queue_wait = Duration::from_millis(100)), true).await;
    world.serve("m", &engine, 1);
    assert_eq!(world.call("/v1/chat/completions", &chat("m", false)).await.0, 200);
    let running = world.spawn("/v1/chat/completions", &chat("m", false));
    engine.until_received(2).await;
    let began = tokio::time::Instant::now();
    all_are_told(&world, &chat("m", false), (429, "queue_full"), 1200..=2400).await;
    assert!(began.elapsed() < took, "at once, and not after a wait: {:?}", began.elapsed());
    assert_eq!(soon(running).await.unwrap().0, 200);
    world.stop().await;
}

#[tokio::test]
async fn no_room_for_a_body() {
    let engine = Engine::start(|_| [vec![Step::Hold], Step::json(200, "{}")].concat()).await;
    let world = World::with(limits(|limits| limits.max_held_bytes = 100_000), true).await;
    world.serve("m", &engine, 1);
    let mut large = chat("m", false);
    large["padding"] = "x".repeat(70_000).into();
    let running = world.spawn("/v1/chat/completions", &large);
    engine.until_received(1).await;
    all_are_told(&world, &large, (503, "overloaded"), 800..=1200).await;
    engine.go();
    assert_eq!(soon(running).await.unwrap().0, 200);
    world.stop().await;
}

#[tokio::test]
async fn no_row_that_serves_and_none_that_comes_in_time() {
    for state in [RowState::Failed, RowState::Stopped, RowState::Starting] {
        let world = World::with(limits(|limits| limits.cold_start_wait = Duration::from_millis(50)), true).await;
        world.registry.publish(row("m", state, None));
        all_are_told(&world, &chat("m", false), (503, "no_ready_row"), 48_000..=72_000).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn an_engine_that_refuses_for_now_with_and_without_its_own_word() {
    let error = json!({"error": {"message": "later", "code": 503}}).to_string();
    for (status, word, told, wait) in [
        (429, None, (429, "rate_limited"), 800..=1200),
        (429, Some("7"), (429, "rate_limited"), 7000..=7000),
        (503, None, (503, "no_ready_row"), 800..=1200),
        (503, Some("90"), (503, "no_ready_row"), 90_000..=90_000),
        (503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), (503, "no_ready_row"), 800..=1200),
        (529, None, (503, "no_ready_row"), 800..=1200),
    ] {
        let word = word.map(|word| format!("Retry-After: {word}\r\n")).unwrap_or_default();
        let reply =
            format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{word}Content-Length: {}\r\n\r\n{error}", error.len());
        let engine = Engine::start(move |_| vec![Step::Send(reply.clone().into_bytes())]).await;
        let world = World::with(limits(|_| ()), true).await;
        // A refusal is no failure of the row for the next one: each is asked afresh.
        world.serve("m", &engine, 1);
        all_are_told(&world, &chat("m", false), told, wait).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn an_engine_that_is_stopped_before_its_reply() {
    let engine = Engine::start(|_| vec![Step::Hold]).await;
    let world = World::with(limits(|_| ()), true).await;
    for (path, overloaded) in [("/v1/chat/completions", 503), ("/v1/messages", 529)] {
        let view = world.serve("m", &engine, 1);
        let before = engine.received().len();
        let request = world.post(path).json(&chat("m", false));
        let running = tokio::spawn(request.send());
        engine.until_received(before + 1).await;
        view.endpoint.as_ref().unwrap().ended.cancel();
        let reply = soon(running).await.unwrap().unwrap();
        assert_eq!(reply.status(), overloaded);
        let milliseconds: u64 = reply.headers()["retry-after-ms"].to_str().unwrap().parse().unwrap();
        assert!((4000..=6000).contains(&milliseconds), "{milliseconds}");
        assert!(reply.headers().contains_key("retry-after"));
        world.registry.remove(view.id);
    }
    world.stop().await;
}
