//! Sleeping rows and company for those who wait.

use std::sync::Arc;
use std::time::Duration;

use lifeboat::config::GatewayConfig;
use lifeboat::registry::RowState;
use lifeboat_engines::spec::DesiredState;

use super::world::{endpoint, row, soon};
use super::{Engine, Step, World, chat, ending, token};
use crate::support::SseStream;

fn quick_heartbeat() -> GatewayConfig {
    GatewayConfig { heartbeat: Duration::from_millis(20), ..GatewayConfig::default() }
}

#[tokio::test]
async fn the_first_request_wakes_a_sleeping_row_and_all_are_served_by_it() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    let mut view = row("m", RowState::Sleeping, None);
    view.desired_state = DesiredState::OnDemand;
    world.registry.publish(view.clone());
    let calls: Vec<_> = (0..20).map(|_| world.spawn("/v1/chat/completions", &chat("m", false))).collect();
    soon(world.activator.woken()).await;
    world.until_waiting("m", 20).await;
    assert_eq!(view.demand.waiting(), 20);
    view.status.state = RowState::Ready;
    view.endpoint = Some(Arc::new(endpoint(engine.address, 2)));
    world.registry.publish(view.clone());
    for call in calls {
        assert_eq!(soon(call).await.unwrap().0, 200);
    }
    assert_eq!(view.demand.waiting(), 0);
    assert!(engine.most() <= 2);
    world.stop().await;
}

#[tokio::test]
async fn a_streaming_client_gets_comments_while_it_waits_and_then_its_stream() {
    let engine =
        Engine::start(|_| vec![Step::stream(), Step::Hold, Step::Piece(token("m", "x")), Step::Piece(ending("m")), Step::End]).await;
    let world = World::with(quick_heartbeat(), true).await;
    let mut view = row("m", RowState::Starting, None);
    world.registry.publish(view.clone());
    let reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap();
    assert_eq!((reply.status().as_u16(), &reply.headers()["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    assert_eq!(reply.headers()["x-accel-buffering"], "no");
    assert!(reply.headers().contains_key("x-request-id"));
    view.status.state = RowState::Ready;
    view.endpoint = Some(Arc::new(endpoint(engine.address, 1)));
    world.registry.publish(view);
    // Now it is the prompt that takes long.
    engine.until_received(1).await;
    engine.go();
    let text = soon(reply.text()).await.unwrap();
    assert!(text.starts_with(": waiting\n\n"), "{text}");
    assert_eq!(text.replace(": waiting\n\n", ""), [token("m", "x"), ending("m")].concat());
    let event = world.finished(1).await;
    assert_eq!((event.status, event.completion_tokens), (200, 2));
    world.stop().await;
}

#[tokio::test]
async fn a_failure_after_a_heartbeat_is_an_event_in_either_dialect() {
    for (path, name) in [("/v1/chat/completions", None), ("/v1/messages", Some("error"))] {
        let world = World::with(quick_heartbeat(), true).await;
        let mut view = row("m", RowState::Starting, None);
        world.registry.publish(view.clone());
        let mut stream = SseStream::new(soon(world.post(path).json(&chat("m", true)).send()).await.unwrap());
        view.status.state = RowState::Failed;
        view.status.state_reason = Some("no luck".into());
        world.registry.publish(view);
        let error = stream.next().await.unwrap().unwrap();
        assert_eq!(error.event.as_deref(), name);
        assert!(error.json()["error"]["message"].as_str().unwrap().contains("no luck"));
        assert!(stream.next().await.unwrap().is_none());
        assert!(stream.comments >= 1);
        let event = world.finished(1).await;
        assert_eq!((event.status, event.error.as_deref()), (200, Some("no_ready_row")), "200 is what was sent");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_document_behind_a_heartbeat_is_an_event_and_recorded_as_the_engines_failure() {
    let engine = Engine::start(|_| [vec![Step::Hold], Step::json(200, "{}")].concat()).await;
    let world = World::with(quick_heartbeat(), true).await;
    world.serve("m", &engine, 1);
    let mut stream = SseStream::new(soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap());
    engine.go();
    let error = stream.next().await.unwrap().unwrap().json();
    assert!(error["error"]["message"].as_str().unwrap().contains("did not answer with a stream"), "{error}");
    assert!(stream.next().await.unwrap().is_none());
    let event = world.finished(1).await;
    assert_eq!((event.status, event.error.as_deref()), (200, Some("upstream_failed")));
    world.stop().await;
}

#[tokio::test]
async fn a_request_that_is_ended_behind_a_heartbeat_is_recorded_with_the_status_it_got() {
    let engine = Engine::start(|_| vec![Step::Hold]).await;
    let world = World::with(quick_heartbeat(), true).await;
    world.serve("m", &engine, 1);
    let request = world.post("/v1/chat/completions").header("x-request-id", "ended").json(&chat("m", true));
    let mut stream = SseStream::new(soon(request.send()).await.unwrap());
    engine.until_received(1).await;
    assert!(world.active.cancel("ended"));
    let error = stream.next().await.unwrap().unwrap().json();
    assert_eq!(error["error"]["code"], "cancelled");
    let event = world.finished(1).await;
    assert_eq!((event.status, event.error.as_deref()), (200, Some("cancelled")));
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_between_heartbeats_frees_its_place() {
    let engine = Engine::start(|_| vec![Step::Hold]).await;
    let world = World::with(quick_heartbeat(), true).await;
    world.serve("m", &engine, 1);
    let reply = soon(world.post("/v1/chat/completions").json(&chat("m", true)).send()).await.unwrap();
    engine.until_received(1).await;
    drop(reply);
    engine.until_left(1).await;
    assert_eq!(world.finished(1).await.status, 499);
    world.stop().await;
}

#[tokio::test]
async fn a_request_during_an_unload_is_served_by_the_next_engine() {
    let (old, new) = (Engine::start(|_| vec![Step::Cut]).await, Engine::start(|_| Step::json(200, "{}")).await);
    let world = World::start().await;
    let mut view = row("m", RowState::Ready, Some(endpoint(old.address, 1)));
    view.desired_state = DesiredState::OnDemand;
    world.registry.publish(view.clone());
    assert!(view.endpoint.as_ref().unwrap().load.close_if_idle());
    let call = world.spawn("/v1/chat/completions", &chat("m", false));
    soon(world.activator.woken()).await;
    for state in [RowState::Draining, RowState::Sleeping, RowState::Starting] {
        view.status.state = state;
        view.endpoint = None;
        world.registry.publish(view.clone());
        assert_eq!(view.demand.waiting(), 1);
    }
    view.status.state = RowState::Ready;
    view.endpoint = Some(Arc::new(endpoint(new.address, 1)));
    world.registry.publish(view);
    assert_eq!(soon(call).await.unwrap().0, 200);
    assert!(old.received().is_empty());
    world.stop().await;
}
