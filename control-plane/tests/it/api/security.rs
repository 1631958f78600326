//! Host, Origin, limits of connections and of what is sent.

use reqwest::header::{HOST, ORIGIN};
use reqwest::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Api, Reply};

const ROUTES: [(Method, &str); 8] = [
    (Method::GET, "/"),
    (Method::GET, "/health"),
    (Method::GET, "/ready"),
    (Method::GET, "/metrics"),
    (Method::GET, "/openapi.json"),
    (Method::GET, "/api/servers"),
    (Method::GET, "/v1/models"),
    (Method::POST, "/v1/chat/completions"),
];

#[tokio::test]
async fn a_rebound_host_name_is_refused_on_every_route() {
    let api = Api::start().await;
    for (method, path) in ROUTES {
        let reply = Reply::of(api.request(method.clone(), path).header(HOST, "evil.example")).await;
        assert_eq!(reply.status, StatusCode::MISDIRECTED_REQUEST, "{method} {path}");
        assert!(reply.body["error"]["message"].as_str().unwrap().contains("evil.example"), "{path}: {}", reply.body);
    }
    api.stop().await;
}

#[tokio::test]
async fn a_strange_web_page_is_refused_on_every_route_and_our_own_is_not() {
    let api = Api::start().await;
    for (method, path) in ROUTES {
        let refused = Reply::of(api.request(method.clone(), path).header(ORIGIN, "https://evil.example")).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{method} {path}");
        let own = Reply::of(api.request(method.clone(), path).header(ORIGIN, &api.base)).await;
        assert_ne!(own.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    api.stop().await;
}

#[tokio::test]
async fn an_allowed_origin_gets_its_cors_headers_and_nobody_else_does() {
    let api = Api::start_with(|config| config.security.allowed_origins = vec!["https://chat.example".into()]).await;
    let preflight = api
        .request(Method::OPTIONS, "/v1/chat/completions")
        .header(ORIGIN, "https://chat.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let preflight = Reply::of(preflight).await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (StatusCode::OK, "https://chat.example"));
    assert!(preflight.header("access-control-allow-headers").contains("authorization"));
    let plain = Reply::of(api.request(Method::GET, "/health").header(ORIGIN, "https://chat.example")).await;
    assert_eq!(plain.header("access-control-allow-origin"), "https://chat.example");
    let other = Reply::of(api.request(Method::GET, "/health").header(ORIGIN, "https://evil.example")).await;
    assert_eq!((other.status, other.header("access-control-allow-origin")), (StatusCode::FORBIDDEN, ""));
    api.stop().await;
}

#[tokio::test]
async fn heads_that_are_too_large_or_too_slow_end_their_connection() {
    let api = Api::start_with(|config| {
        config.http.max_head_bytes = 8 << 10;
        config.http.max_headers = 16;
        config.http.head_timeout = std::time::Duration::from_millis(300);
    })
    .await;
    let authority = api.base.trim_start_matches("http://").to_owned();
    let large = format!("GET /health HTTP/1.1\r\nhost: {authority}\r\nx-large: {}\r\n\r\n", "x".repeat(16 << 10));
    let many = format!("GET /health HTTP/1.1\r\nhost: {authority}\r\n{}\r\n", "x-many: 1\r\n".repeat(40));
    let slow = format!("GET /health HTTP/1.1\r\nhost: {authority}\r\nx-slow: ");
    for (head, status) in [(large, "431"), (many, "431"), (slow, "")] {
        let mut stream = tokio::net::TcpStream::connect(&authority).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_to_end(&mut reply)).await;
        ended.expect("the connection ends").ok();
        let line = String::from_utf8_lossy(&reply).lines().next().unwrap_or_default().to_owned();
        assert!(line.contains(status) && !line.contains("200"), "{line:?} instead of {status:?}");
    }
    assert_eq!(api.get("/health").await.status, StatusCode::OK);
    api.stop().await;
}

#[tokio::test]
async fn a_full_house_makes_the_next_connection_wait_instead_of_failing() {
    let api = Api::start_with(|config| config.http.max_connections = 8).await;
    let authority = api.base.trim_start_matches("http://").to_owned();
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = tokio::net::TcpStream::connect(&authority).await.unwrap();
        stream.write_all(format!("GET /health HTTP/1.1\r\nhost: {authority}\r\n\r\n").as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        held.push(stream);
    }
    let mut ninth = Box::pin(api.get("/health"));
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), ninth.as_mut()).await.is_err(), "all places are taken");
    held.pop();
    assert_eq!(ninth.await.status, StatusCode::OK);
    drop(held);
    api.stop().await;
}
