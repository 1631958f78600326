//! The listener against clients that mean harm, or do it: they stop reading, never finish sending, hold connections.

use std::time::Duration;

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use crate::support::{TestApp, eventually, send_signal};

const SOON: Duration = Duration::from_secs(15);

fn head(app: &TestApp, path: &str, length: u64) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n", app.authority())
}

async fn send(app: &TestApp, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(app.authority()).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

/// All that comes until the connection ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    // A connection that is broken off has said all it will.
    _ = timeout(SOON, stream.read_to_end(&mut reply)).await.expect("the connection stays open");
    String::from_utf8_lossy(&reply).into_owned()
}

/// What comes until `words` do.
async fn until(stream: &mut TcpStream, words: &str) -> String {
    let mut reply = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&reply).contains(words) {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.unwrap();
            assert!(read > 0, "ended without {words:?}: {}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&piece[..read]);
        }
    };
    timeout(SOON, reading).await.unwrap_or_else(|_| panic!("no {words:?}"));
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn a_client_that_stops_reading_loses_its_slot() {
    let app = TestApp::start_with("[http]\nwrite_stall = 1\n").await;
    let mut row = crate::support::sim_row("chat", &["--tokens", "1000000", "--decode-us-per-token", "1"]);
    row["slots"] = json!(1);
    row["context"] = json!(2_000_000);
    let id = app.create_row(&row).await;
    app.wait_state(&id, "ready").await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut deaf = socket.connect(app.authority().parse().unwrap()).await.unwrap();
    let body = json!({"model": "chat", "stream": true, "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let request = head(&app, "/v1/chat/completions", body.len() as u64) + &body;
    deaf.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    deaf.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let gone = eventually("the request of the deaf client ends", SOON, async || {
        let (_, active) = app.call(reqwest::Method::GET, "/api/requests?state=active", None).await;
        active["data"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    gone.await;
    let (status, _) = app.chat("chat", "hello", json!({"max_tokens": 1})).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_does_not_come_whole_in_time_is_given_up_on_every_route() {
    let app = TestApp::start_with("[http]\nbody_timeout = 1\n").await;
    for (path, code) in [("/v1/chat/completions", "http.body_timeout"), ("/api/servers", "body_timeout")] {
        let reply = rest(&mut send(&app, &(head(&app, path, 100) + "{")).await).await;
        assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains(code), "{path}: {reply}");
    }
}

#[tokio::test]
async fn a_body_announced_too_large_is_refused_at_once_on_every_route() {
    let app = TestApp::start().await;
    for path in ["/v1/chat/completions", "/api/servers"] {
        let began = Instant::now();
        let mut stream = send(&app, &(head(&app, path, 99_999_999_999) + "{}}")).await;
        let reply = until(&mut stream, "body_too_large").await;
        assert!(reply.starts_with("HTTP/1.1 413 "), "{path}: {reply}");
        assert!(began.elapsed() < Duration::from_secs(3), "{path}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_half_sent_body_does_not_delay_a_stop() {
    let mut app = TestApp::start().await;
    let mut halves = Vec::new();
    for path in ["/v1/chat/completions", "/api/servers"] {
        halves.push(send(&app, &(head(&app, path, 100) + "{")).await);
    }
    // Later connections are served, so those are being read.
    app.call(reqwest::Method::GET, "/api/status", None).await;
    let began = Instant::now();
    send_signal(app.pid(), Signal::TERM);
    assert!(app.end_with(None).success());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for half in &mut halves {
        let reply = rest(half).await;
        assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
    }
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused_by_the_byte() {
    let app = TestApp::start_with("[http]\nmax_head_bytes = 16384\n").await;
    for (padding, path, expected) in [(15_000, "/health", "200"), (20_000, "/health", "431"), (20_000, "/v1/models", "431")] {
        let padding = "x".repeat(padding);
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-padding: {padding}\r\n\r\n", app.authority());
        let reply = rest(&mut send(&app, &head).await).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {expected} ")), "{path}: {reply}");
        assert!(expected == "200" || reply.contains("16384 bytes"), "{reply}");
    }
}

#[tokio::test]
async fn half_open_connections_never_keep_a_probe_out_and_end_soon() {
    let app = TestApp::start_with("[http]\nmax_connections = 16\nfirst_head_timeout = 3\n").await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(send(&app, "GET /health HTTP/1.1\r\n").await);
        let probe = format!("GET /health HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", app.authority());
        let began = Instant::now();
        let reply = rest(&mut send(&app, &probe).await).await;
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    for stream in &mut slow {
        rest(stream).await;
    }
}
