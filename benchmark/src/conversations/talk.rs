//! One conversation: message, answer, pause.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::plan::Plan;
use super::route::Router;
use crate::client::{Client, Reply};

/// One message and what came of it.
#[derive(Debug)]
pub struct Turn {
    /// Which of its conversation, from 0.
    pub number: usize,
    /// Seconds from the time it was meant to be sent to the time it was.
    pub late: f64,
    /// The reply, or what went wrong.
    pub reply: Result<Reply, String>,
}

impl Turn {
    /// Seconds from the intended time to the first token.
    pub fn first_token(&self) -> Option<f64> {
        self.reply.as_ref().ok().map(|reply| self.late + reply.first_token)
    }
}

/// Holds a conversation. It ends early if a request fails: what follows would be another conversation.
pub async fn hold(client: Client, router: Arc<Router>, plan: Plan, began: Instant) -> Vec<Turn> {
    let mut turns = Vec::new();
    let mut messages: Vec<Value> = Vec::new();
    if !plan.system.is_empty() {
        messages.push(json!({"role": "system", "content": plan.system}));
    }
    let headers: Vec<_> = plan.session_header.iter().map(|name| (name.clone(), plan.session.clone())).collect();
    let mut due = began + Duration::from_secs_f64(plan.begins);
    for (number, (text, pause)) in plan.messages.iter().enumerate() {
        due += Duration::from_secs_f64(*pause);
        tokio::time::sleep_until(due).await;
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({
            "model": plan.model, "messages": messages, "max_tokens": plan.answer_tokens, "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let reply = router.send(&client, &body, &plan.session, plan.answer_tokens, &headers, due).await;
        let (late, reply) = match reply {
            Ok((late, reply)) => (late, Ok(reply)),
            Err(error) => (0.0, Err(format!("{error:#}"))),
        };
        let failed = reply.is_err();
        if let Ok(reply) = &reply {
            messages.push(json!({"role": "assistant", "content": reply.text}));
        }
        turns.push(Turn { number, late, reply });
        if failed {
            break;
        }
        due = Instant::now();
    }
    turns
}
