//! Asks an engine how it is: one small GET on a connection of its own, or one token.
//!
//! Own connections, because a probe must not be answered by luck of a connection that still works, and must not take
//! one from the pool of the hot path.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use lifeboat_engines::spec::Task;
use tokio::net::TcpStream;

use crate::hop::VIA;
use crate::registry::Endpoint;

/// Longest answer read, bytes; a list of models is the longest there is.
const MAX_BODY: usize = 1 << 20;

/// Where to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Path before everything, without a trailing slash.
    pub prefix: String,
    /// `Bearer …`.
    pub authorization: Option<HeaderValue>,
    /// Tells a Lifeboat behind the address who asks.
    pub via: Option<HeaderValue>,
    /// Client for `https`; plain connections need none.
    pub https: Option<reqwest::Client>,
}

impl Target {
    /// The engine behind an endpoint that speaks plain HTTP.
    pub fn of(endpoint: &Arc<Endpoint>) -> Self {
        Self {
            scheme: endpoint.scheme.clone(),
            authority: endpoint.authority.clone(),
            prefix: endpoint.prefix.clone(),
            authorization: endpoint.authorization.clone(),
            via: None,
            https: None,
        }
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nobody there.
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    /// Not in time.
    #[error("no answer within {}", crate::host::clock::spoken(*.0))]
    Timeout(Duration),
    /// The connection broke, or what came was no HTTP.
    #[error("the answer broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request itself cannot be written.
    #[error("the address is not usable")]
    Address(#[source] http::Error),
}

/// GET.
pub async fn get(target: &Target, path: &str, within: Duration) -> Result<Answer, ProbeError> {
    exchange(target, Method::GET, path, Bytes::new(), within).await
}

/// POST of a JSON body.
pub async fn post(target: &Target, path: &str, body: Bytes, within: Duration) -> Result<Answer, ProbeError> {
    exchange(target, Method::POST, path, body, within).await
}

/// Asks for the smallest piece of real work; true if it came. What an engine does whose health answers while its
/// decoding is dead, is not this.
pub async fn one_token(target: &Target, task: Task, model: &str, within: Duration) -> Result<(), ProbeError> {
    let (path, body) = match task {
        Task::Chat => ("/v1/completions", serde_json::json!({ "model": model, "prompt": "a", "max_tokens": 1 })),
        Task::Embedding => ("/v1/embeddings", serde_json::json!({ "model": model, "input": "a" })),
        Task::Rerank => ("/v1/rerank", serde_json::json!({ "model": model, "query": "a", "documents": ["a"] })),
    };
    // A refusal is an answer too: something thought about it.
    post(target, path, Bytes::from(body.to_string()), within).await.map(|_| ())
}

async fn exchange(target: &Target, method: Method, path: &str, body: Bytes, within: Duration) -> Result<Answer, ProbeError> {
    let exchange = async {
        if target.scheme == Scheme::HTTPS { over_tls(target, method, path, body).await } else { plain(target, method, path, body).await }
    };
    tokio::time::timeout(within, exchange).await.unwrap_or(Err(ProbeError::Timeout(within)))
}

async fn plain(target: &Target, method: Method, path: &str, body: Bytes) -> Result<Answer, ProbeError> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", target.prefix))
        .header(header::HOST, target.authority.as_str())
        .header(header::CONNECTION, "close")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(authorization) = &target.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    if let Some(via) = &target.via {
        request = request.header(VIA, via);
    }
    let request = request.body(Full::new(body)).map_err(ProbeError::Address)?;
    let host = target.authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, target.authority.port_u16().unwrap_or(80))).await.map_err(ProbeError::Connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| ProbeError::Broken(error.into()))?;
    let answer = async move {
        let response = sender.send_request(request).await.map_err(|error| ProbeError::Broken(error.into()))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(ProbeError::Broken)?.to_bytes();
        Ok(Answer { status, body })
    };
    // The connection moves the bytes; how it ends afterwards is of no interest.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

async fn over_tls(target: &Target, method: Method, path: &str, body: Bytes) -> Result<Answer, ProbeError> {
    let Some(client) = &target.https else {
        return Err(ProbeError::Broken("no client for https".into()));
    };
    let mut request = client
        .request(method, format!("https://{}{}{path}", target.authority, target.prefix))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body);
    if let Some(authorization) = &target.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    if let Some(via) = &target.via {
        request = request.header(VIA, via);
    }
    let mut response = request.send().await.map_err(|error| ProbeError::Broken(error.into()))?;
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| ProbeError::Broken(error.into()))? {
        if body.len() + piece.len() > MAX_BODY {
            return Err(ProbeError::Broken("the answer is too long".into()));
        }
        body.extend_from_slice(&piece);
    }
    Ok(Answer { status, body: body.into() })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn target(port: u16) -> Target {
        Target {
            scheme: Scheme::HTTP,
            authority: format!("127.0.0.1:{port}").parse().unwrap(),
            prefix: "/base".into(),
            authorization: Some(HeaderValue::from_static("Bearer k")),
            via: None,
            https: None,
        }
    }

    /// Answers one connection with fixed bytes; gives back what was asked.
    async fn answering(reply: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        #[expect(clippy::disallowed_methods, reason = "a test's own little server")]
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 4096];
            let count = stream.read(&mut asked).await.unwrap();
            stream.write_all(reply.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&asked[..count]).into_owned()
        });
        (port, server)
    }

    #[tokio::test]
    async fn an_answer_of_any_framing_is_read_and_the_key_is_sent() {
        for reply in [
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nwait",
            "HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwait\r\n0\r\n\r\n",
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nwait",
        ] {
            let (port, server) = answering(reply).await;
            let answer = get(&target(port), "/health", SOON).await.unwrap();
            assert_eq!((answer.status, &answer.body[..]), (503, &b"wait"[..]), "{reply}");
            let asked = server.await.unwrap().to_lowercase();
            assert!(asked.starts_with("get /base/health http/1.1\r\n") && asked.contains("authorization: bearer k\r\n"), "{asked}");
        }
    }

    #[tokio::test]
    async fn nobody_there_nonsense_and_silence_are_told_apart() {
        let port = crate::host::ports::free_loopback_port().unwrap();
        assert!(matches!(get(&target(port), "/health", SOON).await, Err(ProbeError::Connect(_))));

        let (port, server) = answering("SSH-2.0-OpenSSH\r\n").await;
        assert!(matches!(get(&target(port), "/health", SOON).await, Err(ProbeError::Broken(_))));
        server.await.unwrap();

        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        assert!(matches!(get(&target(port), "/health", Duration::from_millis(50)).await, Err(ProbeError::Timeout(_))));
    }
}
