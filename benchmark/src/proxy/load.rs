//! The requests of `proxy`: so many on so many connections, and streams at the same time.

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Options;
use crate::client::{Client, Reply};

/// Sends requests.
pub struct Load {
    client: Client,
    whole: Vec<u8>,
    streamed: Vec<u8>,
}

/// What came of some.
#[derive(Debug, Default)]
pub struct Seen {
    /// Seconds to each first byte of a body.
    pub first_bytes: Vec<f64>,
    /// Tokens received.
    pub tokens: u64,
    /// Seconds for all.
    pub seconds: f64,
    /// Requests that failed.
    pub errors: usize,
    /// The first of them.
    pub first_error: Option<String>,
}

impl Seen {
    fn add(&mut self, reply: anyhow::Result<Reply>) {
        match reply {
            Ok(reply) => {
                self.first_bytes.push(reply.first_byte);
                self.tokens += u64::from(reply.output_tokens);
            }
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

impl Load {
    /// With the bodies prepared.
    pub fn new(client: Client, options: &Options) -> Self {
        let body = |tokens: u32, stream: bool| {
            let prompt = "one word more ".repeat(options.prompt_bytes.div_ceil(14));
            let messages = json!([{"role": "user", "content": prompt}]);
            json!({"model": options.model, "messages": messages, "max_tokens": tokens, "stream": stream}).to_string().into_bytes()
        };
        Self { client, whole: body(1, false), streamed: body(options.tokens, true) }
    }

    /// So many requests, one after another on each of so many connections.
    pub async fn requests(&self, base: &str, count: usize, connections: usize) -> Seen {
        let began = Instant::now();
        let mut workers = JoinSet::new();
        for worker in 0..connections {
            let mine = count / connections + usize::from(worker < count % connections);
            let (client, body, base) = (self.client.clone(), self.whole.clone(), base.to_owned());
            workers.spawn(async move {
                let mut replies = Vec::with_capacity(mine);
                for _ in 0..mine {
                    replies.push(client.chat(&base, body.clone(), &[], &|| {}).await);
                }
                replies
            });
        }
        let mut seen = Seen::default();
        while let Some(Ok(replies)) = workers.join_next().await {
            for reply in replies {
                seen.add(reply);
            }
        }
        seen.seconds = began.elapsed().as_secs_f64();
        seen
    }

    /// So many streams at the same time, that often.
    pub async fn streams(&self, base: &str, count: usize, waves: usize) -> Seen {
        let began = Instant::now();
        let mut seen = Seen::default();
        for _ in 0..waves {
            let mut streams = JoinSet::new();
            for _ in 0..count {
                let (client, body, base) = (self.client.clone(), self.streamed.clone(), base.to_owned());
                streams.spawn(async move { client.chat(&base, body, &[], &|| {}).await });
            }
            while let Some(Ok(reply)) = streams.join_next().await {
                seen.add(reply);
            }
        }
        seen.seconds = began.elapsed().as_secs_f64();
        seen
    }
}
