//! The end of the control plane: nothing is left behind, running replies may finish, one directory has one master.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{STEP, Served, TestApp, eventually, send_signal};

#[tokio::test]
async fn a_stop_leaves_nothing_not_even_grandchildren_and_stubborn_engines() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut app = TestApp::start_with("[supervisor]\nkill_after = 1\n").await;
        app.ready_sim_row("quiet", &[]).await;
        app.ready_sim_row("parent", &["--spawn-grandchild"]).await;
        app.ready_sim_row("stubborn", &["--ignore-sigterm", "--spawn-grandchild"]).await;
        assert!(app.processes().iter().filter(|(_, line)| line.contains("--grandchild")).count() >= 2);
        let status = app.end_with(Some(signal));
        assert!(status.success(), "{status}");
        assert_eq!(app.processes(), []);
    }
}

#[tokio::test]
async fn a_pipe_or_a_device_as_a_model_is_refused_and_keeps_nothing_from_its_end() {
    let mut app = TestApp::start().await;
    let pipe = app.scratch().join("pipe.gguf");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    for path in [pipe.to_str().unwrap(), "/dev/zero", "/proc/self/mem"] {
        let route = format!("/api/models/inspect?source={path}");
        let inspected = app.call(Method::GET, &route, None);
        let (status, reply) = tokio::time::timeout(STEP, inspected).await.expect("nothing waits for a pipe");
        assert_eq!((status, &reply["error"]["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("not_a_model")), "{path}: {reply}");
    }
    let id = app.create_row(&json!({"model_name": "chat", "engine": "llama_cpp", "model": pipe})).await;
    app.wait_row(&id, "the row says why it cannot serve", STEP, |row| row["state"] == "failed").await;
    let start = Instant::now();
    assert!(app.stop().success());
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_log_that_cannot_be_written_ends_neither_requests_nor_the_stop() {
    let mut app = TestApp::prepare("");
    app.serve_with_log(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap()).await;
    app.ready_sim_row("chat", &[]).await;
    let (status, reply) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert!(app.stop().success());
    assert_eq!(app.processes(), []);
}

#[tokio::test]
async fn a_stop_in_the_middle_of_a_load_leaves_nothing() {
    let mut app = TestApp::start().await;
    let id = app.create_sim_row("chat", &["--load-ms", "600000", "--spawn-grandchild"]).await;
    app.wait_state(&id, "starting").await;
    app.stop();
    assert_eq!(app.processes(), []);
}

#[tokio::test]
async fn a_reply_that_fits_the_drain_is_finished_and_new_requests_are_refused() {
    let mut app = TestApp::start_with("[supervisor]\ndrain = 20\n").await;
    app.ready_sim_row("chat", &["--tokens", "40", "--decode-us-per-token", "50000"]).await;
    let (status, mut stream) = app.chat_stream("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    assert!(stream.next().await.unwrap().is_some());
    send_signal(app.pid(), Signal::TERM);
    let late =
        eventually("new requests are refused", Duration::from_secs(2), async || match app.client.get(app.url("/v1/models")).send().await {
            Ok(reply) if reply.status().is_success() => None,
            Ok(_) | Err(_) => Some(()),
        });
    late.await;
    let events = stream.collect().await;
    assert_eq!(events.last().unwrap().data, "[DONE]");
    assert!(app.stop().success());
    assert_eq!(app.processes(), []);
}

#[tokio::test]
async fn a_reply_that_does_not_fit_is_cut_at_the_deadline_and_a_second_signal_does_not_wait_for_it() {
    for (drain, second_signal) in [("2", false), ("600", true)] {
        let mut app = TestApp::start_with(&format!("[supervisor]\ndrain = {drain}\nkill_after = 1\n")).await;
        app.ready_sim_row("chat", &["--tokens", "1000000", "--decode-us-per-token", "50000"]).await;
        let (_, mut stream) = app.chat_stream("chat", "hello", json!({})).await;
        assert!(stream.next().await.unwrap().is_some());
        let start = Instant::now();
        send_signal(app.pid(), Signal::TERM);
        if second_signal {
            let refused = async || app.client.get(app.url("/health")).send().await.is_err().then_some(());
            eventually("the stop has begun", STEP, refused).await;
        }
        app.end_with(second_signal.then_some(Signal::TERM));
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(app.processes(), []);
    }
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused_and_the_first_goes_on() {
    let app = TestApp::start().await;
    let id = app.ready_sim_row("chat", &[]).await;
    let mut command = app.command(&["serve", "--listen", "127.0.0.1:0"]);
    let errors = app.scratch().join("second.log");
    command.stdout(std::process::Stdio::null()).stderr(std::fs::File::create(&errors).unwrap());
    let mut second = Served::start(&mut command).unwrap();
    let status = second.wait_at_most(STEP).expect("the second server runs");
    assert!(!status.success());
    let said = std::fs::read_to_string(errors).unwrap();
    assert!(said.contains(app.data_dir().to_str().unwrap()), "it names the directory: {said}");
    assert_eq!(app.row(&id).await["state"], "ready");
    let (status, _) = app.chat("chat", "hello", json!({})).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn after_a_clean_stop_everything_comes_back_as_it_was() {
    let mut app = TestApp::start().await;
    let running = app.ready_sim_row("chat", &[]).await;
    let stopped = app.ready_sim_row("other", &[]).await;
    app.act(&stopped, "stop").await;
    app.wait_state(&stopped, "stopped").await;
    app.stop();
    app.serve().await;
    app.wait_state(&running, "ready").await;
    assert_eq!(app.row(&stopped).await["state"], "stopped");
}
