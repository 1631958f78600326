//! One path for create, edit, start, stop and delete: what each changes, and what it leaves alone.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{STEP, TestApp, alive, eventually};

fn pid(row: &Value) -> u64 {
    row["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {row:#}"))
}

#[tokio::test]
async fn a_new_row_is_served_at_generation_one_and_shows_what_auto_became() {
    let app = TestApp::start().await;
    let id = app.create_row(&json!({"model_name": "chat", "engine": "sim", "model": "sim"})).await;
    let row = app.wait_state(&id, "ready").await;
    assert_eq!((&row["generation"], &row["desired_state"], &row["slots"]), (&json!(1), &json!("running"), &Value::Null));
    assert_eq!(row["resolved"]["slots"], 4);
    assert!(!row["resolved"]["arithmetic"].as_array().unwrap().is_empty());
    assert!(row["endpoint"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let (status, models) = app.call(Method::GET, "/v1/models", None).await;
    assert_eq!((status, &models["data"][0]["id"]), (StatusCode::OK, &json!("chat")));
    assert_eq!(app.call(Method::GET, "/ready", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_edit_restarts_that_row_alone() {
    let app = TestApp::start().await;
    let edited = app.ready_sim_row("chat", &[]).await;
    let other = app.ready_sim_row("other", &[]).await;
    let (before, untouched) = (pid(&app.row(&edited).await), pid(&app.row(&other).await));
    let row = app.edit_row(&edited, &json!({"slots": 3})).await;
    assert_eq!(row["generation"], 2);
    let changed = |row: &Value| row["state"] == "ready" && row["resolved"]["slots"] == 3;
    let row = app.wait_row(&edited, "the edit is in force", STEP, changed).await;
    assert_ne!(pid(&row), before);
    assert_eq!(row["restarts"], 0, "an edit is not a death");
    assert_eq!(pid(&app.row(&other).await), untouched);
    assert!(!alive(u32::try_from(before).unwrap()));
}

#[tokio::test]
async fn an_edit_lets_running_replies_finish() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &["--tokens", "40", "--decode-us-per-token", "50000"]).await;
    let (_, mut stream) = app.chat_stream("chat", "hello", json!({})).await;
    assert!(stream.next().await.unwrap().is_some());
    app.edit_row(&id, &json!({"slots": 3})).await;
    // A request that comes meanwhile waits for the new engine.
    let (status, reply) = app.chat("chat", "meanwhile", json!({"max_tokens": 1})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert_eq!(stream.collect().await.last().unwrap().data, "[DONE]");
    app.wait_row(&id, "the edit is in force", STEP, |row| row["state"] == "ready" && row["resolved"]["slots"] == 3).await;
}

#[tokio::test]
async fn a_change_of_names_alone_does_not_touch_the_engine() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    let before = pid(&app.row(&id).await);
    app.edit_row(&id, &json!({"aliases": ["größe/ä: b", "second"]})).await;
    let (status, reply) = eventually("the alias answers", STEP, async || {
        let (status, reply) = app.chat("größe/ä: b", "hello", json!({})).await;
        (status == StatusCode::OK).then_some((status, reply))
    })
    .await;
    assert_eq!((status, &reply["model"]), (StatusCode::OK, &json!("größe/ä: b")), "a name is echoed as it was asked");
    assert_eq!(pid(&app.row(&id).await), before);
}

#[tokio::test]
async fn stop_start_and_restart_do_what_they_say() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    app.act(&id, "stop").await;
    let row = app.wait_state(&id, "stopped").await;
    assert_eq!((&row["desired_state"], &row["pid"]), (&json!("stopped"), &Value::Null));
    assert_eq!(app.engines(), Vec::<u32>::new());
    let (status, _) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    app.act(&id, "start").await;
    let first = pid(&app.wait_state(&id, "ready").await);
    app.act(&id, "restart").await;
    let other = |row: &Value| row["state"] == "ready" && row["pid"].as_u64() != Some(first);
    app.wait_row(&id, "it was restarted", STEP, other).await;
    // Asked again for what is already so, nothing changes.
    let before = pid(&app.row(&id).await);
    app.act(&id, "start").await;
    app.act(&id, "start").await;
    // Once a later row is up, the reconciler has been round.
    app.ready_sim_row("later", &[]).await;
    assert_eq!(pid(&app.row(&id).await), before);
}

#[tokio::test]
async fn a_deleted_row_takes_its_engine_and_its_name_with_it() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &["--spawn-grandchild"]).await;
    let (status, _) = app.call(Method::DELETE, &format!("/api/servers/{id}"), None).await;
    assert!(status.is_success(), "{status}");
    eventually("only the control plane is left", STEP, async || (app.processes().len() == 1).then_some(())).await;
    assert_eq!(app.call(Method::GET, &format!("/api/servers/{id}"), None).await.0, StatusCode::NOT_FOUND);
    let (status, body) = app.chat("chat", "hello", json!({})).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")), "{body}");
}

#[tokio::test]
async fn a_row_that_cannot_be_is_refused_with_its_field_and_changes_nothing() {
    let app = TestApp::start().await;
    for bad in [
        json!({"model_name": "", "engine": "sim", "model": "sim"}),
        json!({"model_name": "x", "engine": "sim", "model": "sim", "slots": 0}),
        json!({"model_name": "x", "engine": "sim", "model": "sim", "extra_args": ["--rm", "-rf"]}),
        json!({"model_name": "x", "engine": "nothing"}),
        json!({"model_name": "x", "engine": "external"}),
        json!({"model_name": "x", "engine": "sim", "model": "sim", "surprise": 1}),
    ] {
        let (status, reply) = app.call(Method::POST, "/api/servers", Some(&bad)).await;
        assert!(status.is_client_error(), "{bad}: {status} {reply}");
        assert!(reply["error"]["message"].is_string(), "{bad}: {reply}");
    }
    let (_, rows) = app.call(Method::GET, "/api/servers", None).await;
    assert!(!rows.to_string().contains("model_name"), "{rows}");
}

#[tokio::test]
async fn an_external_row_to_a_server_of_web_pages_says_that_it_is_none_of_models() {
    let app = TestApp::start().await;
    let pages = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", pages.local_addr().unwrap());
    // As Python's http.server answers: a page for every GET, and no POST at all.
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move {
        loop {
            let (mut stream, _) = pages.accept().await.unwrap();
            let mut head = [0; 4];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut head).await.unwrap();
            let status = if &head == b"POST" { "501 Unsupported method" } else { "404 File not found" };
            let reply = format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>");
            tokio::io::AsyncWriteExt::write_all(&mut stream, reply.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            // The client closes once it has read the reply.
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        }
    });
    let id = app.create_row(&json!({"model_name": "mine", "engine": "external", "url": url, "slots": 1})).await;
    let row = app.wait_state(&id, "failed").await;
    assert!(row["state_reason"].as_str().unwrap().contains("not as OpenAI's API does"), "{row}");
    serving.abort_all();
}

#[tokio::test]
async fn an_external_row_that_leads_back_to_lifeboat_is_refused_straight_or_around_another() {
    let (app, other) = tokio::join!(TestApp::start(), TestApp::start());
    let external = |name: &str, url: String| json!({"model_name": name, "engine": "external", "url": url, "slots": 1});
    let id = app.create_row(&external("mine", app.url(""))).await;
    let row = app.wait_state(&id, "failed").await;
    assert!(row["state_reason"].as_str().unwrap().contains("this Lifeboat itself answers there"), "{row}");
    let (status, refused) = app.chat("mine", "hello", json!({})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused["error"]["message"].as_str().unwrap().contains("this Lifeboat itself answers there"), "{refused}");

    // Each of two is a server of models to the other, until a request comes back.
    let ids = (app.create_row(&external("chat", other.url(""))).await, other.create_row(&external("chat", app.url(""))).await);
    tokio::join!(app.wait_state(&ids.0, "ready"), other.wait_state(&ids.1, "ready"));
    let (status, refused) = app.chat("chat", "hello", json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::LOOP_DETECTED, &json!("request_loop")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("leads to itself"), "{refused}");
}

#[tokio::test]
async fn a_server_that_queues_by_itself_is_sent_what_it_takes_at_once() {
    let app = TestApp::start_with("[supervisor]\nprobe_every = 0.2\n").await;
    // The row says eight, the engine takes two.
    let outside =
        app.start_sim_engine(&["--model", "theirs", "--cache", "shared-pool", "--slots", "2", "--decode-us-per-token", "20000"]).await;
    let id = app.create_row(&json!({"model_name": "mine", "engine": "external", "url": outside.url(), "slots": 8})).await;
    app.wait_state(&id, "ready").await;
    let talking = futures_util::future::join_all((0..16).map(|_| app.chat("mine", "hello", json!({"max_tokens": 80}))));
    let learned = eventually("a queue inside the engine lowers the limit to what it runs", Duration::from_secs(20), async || {
        let (_, pool) = app.call(Method::GET, "/api/pools/mine", None).await;
        let load = pool["rows"][0]["load"].clone();
        (load["limit"].as_u64()? <= 3 && load["engine_waiting"].as_u64()? <= 1).then_some(load)
    });
    let (replies, learned) = tokio::join!(talking, learned);
    assert!(replies.iter().all(|(status, _)| *status == StatusCode::OK), "{replies:?}");
    assert!(learned["in_flight"].as_u64().unwrap() <= 8, "{learned}");
}

#[tokio::test]
async fn an_external_engine_is_probed_and_served_and_never_ended() {
    let mut app = TestApp::start().await;
    let outside = app.start_sim_engine(&["--model", "theirs"]).await;
    let row = json!({"model_name": "mine", "engine": "external", "url": outside.url(), "slots": 4});
    let id = app.create_row(&row).await;
    app.wait_state(&id, "ready").await;
    let (status, reply) = app.chat("mine", "hello", json!({})).await;
    assert_eq!((status, &reply["model"]), (StatusCode::OK, &json!("mine")), "{reply}");
    app.act(&id, "stop").await;
    app.wait_state(&id, "stopped").await;
    app.stop();
    assert!(alive(outside.pid()));
}
