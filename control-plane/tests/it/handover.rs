//! SIGUSR1: the control plane ends and its engines stay, for an upgrade that reloads no model.

use std::time::Duration;

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{TestApp, alive, eventually, send_signal};

#[tokio::test]
async fn a_handover_finishes_replies_and_leaves_the_engines_to_the_next_control_plane() {
    let mut app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &["--decode-us-per-token", "50000", "--tokens", "30"]).await;
    let engine = app.row(&id).await["pid"].clone();
    let (status, reply) = app.chat_stream("chat", "tell me a story", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let control_plane = app.pid();
    send_signal(control_plane, Signal::USR1);
    let events = reply.collect().await;
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"), "the reply that ran was finished");
    eventually("the control plane has ended", Duration::from_secs(30), || async { (!alive(control_plane)).then_some(()) }).await;
    assert!(alive(u32::try_from(engine.as_u64().unwrap()).unwrap()), "the engine stays");

    app.kill();
    app.serve().await;
    let row = app.wait_state(&id, "ready").await;
    assert_eq!((&row["pid"], &row["restarts"]), (&engine, &json!(0)), "the same engine, not reloaded");
    assert_eq!(app.chat("chat", "and on", json!({})).await.0, StatusCode::OK);
}
