//! Where a request goes: to one address, or to an engine that a strategy in this process chooses.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::Context;
use lifeboat::sim_engine::chat_prompt;
use lifeboat::sim_engine::model::Text;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::{Client, Reply};
use crate::strategy::{Dispatch, Outcome, Question, Strategy};

/// Sends requests.
pub struct Router {
    engines: Vec<String>,
    choice: Option<Mutex<Choice>>,
    began: Instant,
}

struct Choice {
    strategy: Box<dyn Strategy<Text>>,
    waiting: HashMap<u64, oneshot::Sender<Dispatch>>,
    next: u64,
}

impl Choice {
    /// Wakes those whose time has come.
    fn hand_over(&mut self, sent: Vec<Dispatch>) {
        for dispatch in sent {
            if let Some(waiting) = self.waiting.remove(&dispatch.id) {
                // Nobody gives up in a benchmark.
                let _gone = waiting.send(dispatch);
            }
        }
    }
}

impl Router {
    /// To one address.
    pub fn one(base: &str) -> Self {
        Self { engines: vec![base.to_owned()], choice: None, began: Instant::now() }
    }

    /// To engines, as the strategy says.
    pub fn with(engines: Vec<String>, strategy: Box<dyn Strategy<Text>>) -> Self {
        let choice = Choice { strategy, waiting: HashMap::new(), next: 0 };
        Self { engines, choice: Some(Mutex::new(choice)), began: Instant::now() }
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Sends a request that was due at `due`; the seconds it was late, waiting here included, and the reply.
    pub async fn send(
        &self,
        client: &Client,
        body: &Value,
        session: &str,
        output: u32,
        headers: &[(String, String)],
        due: Instant,
    ) -> anyhow::Result<(f64, Reply)> {
        let Some(choice) = &self.choice else {
            let base = self.engines.first().context("no engine")?;
            let late = due.elapsed().as_secs_f64();
            return Ok((late, client.chat(base, body.to_string().into_bytes(), headers, &|| {}).await?));
        };
        let prompt = Text::new(chat_prompt(body.to_string().as_bytes()).context("no prompt")?);
        let mut hasher = DefaultHasher::new();
        session.hash(&mut hasher);
        let session = hasher.finish();
        let (sender, turn) = oneshot::channel();
        {
            let mut choice = choice.lock();
            choice.next += 1;
            let id = choice.next;
            choice.waiting.insert(id, sender);
            let mut sent = Vec::new();
            let question = Question { id, prompt: &prompt, parts: &[], session, output };
            choice.strategy.arrive(&question, self.now(), &mut sent);
            choice.hand_over(sent);
        }
        let Dispatch { id, row, slot } = turn.await.context("the strategy forgot a request")?;
        let mut body = body.clone();
        if let Some(slot) = slot {
            body["id_slot"] = json!(slot);
        }
        let base = self.engines.get(row).context("no such engine")?;
        let late = due.elapsed().as_secs_f64();
        let begun = || choice.lock().strategy.first_token(id, self.now());
        let reply = client.chat(base, body.to_string().into_bytes(), headers, &begun).await;
        let mut choice = choice.lock();
        let outcome =
            reply.as_ref().map_or(Outcome { prompt: 0, cached: 0, output: 0, prefill_seconds: 0.0, decode_seconds: 0.0 }, |reply| {
                Outcome {
                    prompt: reply.prompt_tokens,
                    cached: reply.cached_tokens,
                    output: reply.output_tokens,
                    prefill_seconds: reply.seconds[0],
                    decode_seconds: reply.seconds[1],
                }
            });
        let mut sent = Vec::new();
        choice.strategy.done(id, &outcome, self.now(), &mut sent);
        choice.hand_over(sent);
        drop(choice);
        Ok((late, reply?))
    }
}
