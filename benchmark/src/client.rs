//! A client of OpenAI endpoints that measures: when the first token came, what was cached, what went wrong.
//!
//! Connections are pooled and have no delayed small packets. A streamed reply is read as it comes; only the frames of a
//! token are counted and only the last ones are looked into, so that the client costs little beside what it measures.

use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;
use tokio::time::Instant;

/// Environment variable with the key to send, where a server wants one.
const KEY_VARIABLE: &str = "LIFEBOAT_BENCH_KEY";
/// Idle connections are closed before an engine does it (5 s).
const IDLE: Duration = Duration::from_secs(4);
/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What came of one request.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// Seconds from the start to the first byte of the body.
    pub first_byte: f64,
    /// Seconds from the start to the first token.
    pub first_token: f64,
    /// Seconds from the start to the end.
    pub total: f64,
    /// The text.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of them found in a cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Seconds of reading and of decoding, where the engine tells.
    pub seconds: [f64; 2],
}

/// The client. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    pooled: Pooled<HttpConnector, Full<Bytes>>,
    key: Option<HeaderValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Frame {
    choices: Vec<Choice>,
    usage: Option<Usage>,
    timings: Option<Timings>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Delta,
    message: Delta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Timings {
    cache_n: u32,
    prompt_n: u32,
    predicted_n: u32,
    prompt_ms: f64,
    predicted_ms: f64,
}

impl Client {
    /// With the key of the environment, where there is one.
    pub fn new() -> anyhow::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pooled = Pooled::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector);
        let key = std::env::var(KEY_VARIABLE).ok().map(|key| HeaderValue::from_str(&format!("Bearer {key}")));
        Ok(Self { pooled, key: key.transpose().with_context(|| format!("{KEY_VARIABLE} is no header value"))? })
    }

    /// Sends a chat request and reads the reply to its end. `begun` is called at its first token.
    pub async fn chat(&self, base: &str, body: Vec<u8>, headers: &[(String, String)], begun: &(dyn Fn() + Sync)) -> anyhow::Result<Reply> {
        let uri: Uri = format!("{}/v1/chat/completions", base.trim_end_matches('/')).parse().context("no URL")?;
        let mut request = Request::builder().method(Method::POST).uri(uri).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).context("no request")?;
        tokio::time::timeout(TIMEOUT, self.exchange(request, begun)).await.context("no end of the reply in time")?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>, begun: &(dyn Fn() + Sync)) -> anyhow::Result<Reply> {
        let start = Instant::now();
        let response = self.pooled.request(request).await.context("no reply")?;
        let status = response.status();
        let streams = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let mut reply = Reply::default();
        let mut body = response.into_body();
        let mut held = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("the reply broke off")?.into_data() else { continue };
            if reply.first_byte == 0.0 {
                reply.first_byte = start.elapsed().as_secs_f64();
            }
            held.extend_from_slice(&data);
            if streams && status.is_success() {
                while let Some(end) = memchr::memchr(b'\n', &held) {
                    let line = held.split_to(end + 1);
                    let silent = reply.first_token == 0.0;
                    reply.take(&line, start)?;
                    if silent && reply.first_token > 0.0 {
                        begun();
                    }
                }
            }
        }
        reply.total = start.elapsed().as_secs_f64();
        if !status.is_success() {
            anyhow::bail!("status {status}: {}", String::from_utf8_lossy(&held[..held.len().min(200)]));
        }
        if !streams {
            reply.add(&serde_json::from_slice(&held).context("no JSON")?, reply.total)?;
        }
        Ok(reply)
    }
}

impl Reply {
    /// One line of a stream.
    fn take(&mut self, line: &[u8], start: Instant) -> anyhow::Result<()> {
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return Ok(());
        }
        let frame = serde_json::from_slice(data).with_context(|| format!("no JSON: {}", String::from_utf8_lossy(data)))?;
        self.add(&frame, start.elapsed().as_secs_f64())
    }

    fn add(&mut self, frame: &Frame, at: f64) -> anyhow::Result<()> {
        if let Some(error) = &frame.error {
            anyhow::bail!("the engine said {error}");
        }
        for choice in &frame.choices {
            for part in [&choice.delta, &choice.message] {
                for text in [&part.reasoning_content, &part.content].into_iter().flatten().filter(|text| !text.is_empty()) {
                    if self.first_token == 0.0 {
                        self.first_token = at;
                    }
                    self.text.push_str(text);
                    self.output_tokens += 1;
                }
            }
        }
        if let Some(timings) = &frame.timings {
            (self.prompt_tokens, self.cached_tokens) = (timings.cache_n + timings.prompt_n, timings.cache_n);
            self.output_tokens = timings.predicted_n;
            self.seconds = [timings.prompt_ms / 1e3, timings.predicted_ms / 1e3];
        }
        if let Some(usage) = &frame.usage {
            self.prompt_tokens = usage.prompt_tokens;
            self.output_tokens = usage.completion_tokens;
            if let Some(cached) = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens) {
                self.cached_tokens = cached;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_read_for_its_text_and_its_usage() {
        let mut reply = Reply::default();
        for line in [
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n",
            "\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a \"}}]}\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":7}}}\n",
            "data: [DONE]\n",
        ] {
            reply.take(line.as_bytes(), Instant::now()).unwrap();
        }
        assert_eq!((reply.text.as_str(), reply.prompt_tokens, reply.cached_tokens, reply.output_tokens), ("a b", 9, 7, 2));
        assert!(reply.take(b"data: {\"error\":{\"message\":\"broken\"}}\n", Instant::now()).is_err());
    }
}
