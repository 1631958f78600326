//! Clients of the tests: plain HTTP, server-sent events, and one that closes half of its connection.

use std::sync::Once;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for any one piece of a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client without proxies and certificates: everything is on loopback.
pub fn client() -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
    reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(Duration::from_secs(120)).build().unwrap()
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// The `event:` line, where there is one.
    pub event: Option<String>,
    /// The `data:` lines, joined.
    pub data: String,
}

impl SseEvent {
    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.data))
    }
}

/// A reply read event by event. Dropping it closes the connection.
#[derive(Debug)]
pub struct SseStream {
    response: reqwest::Response,
    buffer: BytesMut,
    /// Comment lines seen so far (heartbeats).
    pub comments: usize,
}

impl SseStream {
    /// Wraps a reply whose headers have arrived.
    pub fn new(response: reqwest::Response) -> Self {
        Self { response, buffer: BytesMut::new(), comments: 0 }
    }

    /// The next event; `Ok(None)` at a clean end, `Err` where the connection broke.
    pub async fn next(&mut self) -> Result<Option<SseEvent>, reqwest::Error> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block = self.buffer.split_to(end + 2);
                let mut event = SseEvent::default();
                let mut lines = Vec::new();
                for line in std::str::from_utf8(&block).unwrap().lines() {
                    if let Some(data) = line.strip_prefix("data:") {
                        lines.push(data.strip_prefix(' ').unwrap_or(data));
                    } else if let Some(name) = line.strip_prefix("event:") {
                        event.event = Some(name.trim().to_owned());
                    } else if line.starts_with(':') {
                        self.comments += 1;
                    }
                }
                if !lines.is_empty() {
                    event.data = lines.join("\n");
                    return Ok(Some(event));
                }
            }
            match tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("a stream went silent")? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    /// All events to the end; panics if the connection breaks.
    pub async fn collect(mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await.expect("the stream broke") {
            events.push(event);
        }
        events
    }
}

/// Sends one request over a bare connection, closes the sending half at once, and returns all that comes back.
///
/// Some clients do that (`nc -N`, scripts); a server must answer them all the same or close, never hang.
pub async fn half_closing_request(authority: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(authority).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    all_of(&mut stream).await
}

/// Sends bytes as they are over a connection of their own, and returns all that comes back until it is closed.
pub async fn bare_request(authority: &str, parts: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(authority).await.unwrap();
    for part in parts {
        stream.write_all(part).await.unwrap();
    }
    all_of(&mut stream).await
}

async fn all_of(stream: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply)).await.expect("no end of the reply").unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}
