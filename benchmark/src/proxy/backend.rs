//! The smallest engine there can be: it answers every POST at once, so that what is measured is the proxy.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::report;

/// An engine that answers at once.
#[derive(Debug, Args)]
pub struct Options {
    /// Loopback port; 0 = any free one, which is told.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Bytes of an answer that is not streamed.
    #[arg(long, default_value_t = 512)]
    bytes: usize,
    /// Tokens of a stream, unless the request asks for fewer.
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// Microseconds between two tokens. With 0 they come as fast as they are read, many in one piece.
    #[arg(long, default_value_t = 1000)]
    token_us: u64,
    /// Model name to show.
    #[arg(long, default_value = "sim")]
    model: String,
}

/// What a request asks for, as far as it matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ask {
    stream: bool,
    max_tokens: Option<u32>,
}

type Body = BoxBody<Bytes, Infallible>;

/// What is answered, prepared.
struct Answers {
    whole: Bytes,
    models: Bytes,
    token: Bytes,
    end: Bytes,
    tokens: u32,
    interval: Duration,
}

/// Runs it until it is killed.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> anyhow::Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], options.port));
    let listener = TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))?;
    report::line(&format!("listening on http://{}", listener.local_addr().context("no address")?));
    // For the life of the process: every connection shares them.
    let answers: &'static Answers = Box::leak(Box::new(Answers::new(options)));
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.context("could not accept a connection")?;
        stream.set_nodelay(true).context("could not set up a connection")?;
        while connections.try_join_next().is_some() {}
        let service = hyper::service::service_fn(|request| answers.answer(request));
        connections
            .spawn(hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service));
    }
}

impl Answers {
    fn new(options: &Options) -> Self {
        let model = &options.model;
        let text = "x".repeat(options.bytes.saturating_sub(300));
        let whole = format!(
            r#"{{"id":"c","object":"chat.completion","created":1,"model":"{model}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101}}}}"#
        );
        let token = format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" oar\"}},\"finish_reason\":null}}]}}\n\n"
        );
        let end = format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\ndata: [DONE]\n\n"
        );
        let models = format!(r#"{{"object":"list","data":[{{"id":"{model}","object":"model","owned_by":"bench"}}]}}"#);
        Self {
            whole: whole.into(),
            models: models.into(),
            token: token.into(),
            end: end.into(),
            tokens: options.tokens,
            interval: Duration::from_micros(options.token_us),
        }
    }

    async fn answer(&'static self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        if request.method() == Method::GET {
            let health = matches!(request.uri().path(), "/health" | "/v1/models" | "/get_model_info" | "/get_server_info");
            let mut response = Response::new(Full::new(self.models.clone()).boxed());
            if !health {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            return Ok(typed(response, "application/json"));
        }
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let ask: Ask = serde_json::from_slice(&body).unwrap_or_default();
        if !ask.stream {
            return Ok(typed(Response::new(Full::new(self.whole.clone()).boxed()), "application/json"));
        }
        let left = ask.max_tokens.unwrap_or(self.tokens).min(self.tokens);
        Ok(typed(Response::new(BodyExt::boxed(StreamBody::new(self.stream(left)))), "text/event-stream"))
    }

    /// One frame a token, then the end.
    fn stream(&'static self, tokens: u32) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Sync {
        futures_util::stream::unfold(Some(tokens), move |left| async move {
            let left = left?;
            if left == 0 {
                return Some((Ok(Frame::data(self.end.clone())), None));
            }
            if left < self.tokens && !self.interval.is_zero() {
                tokio::time::sleep(self.interval).await;
            }
            Some((Ok(Frame::data(self.token.clone())), Some(left - 1)))
        })
    }
}

fn typed(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
