//! `lifeboat chat`: a conversation in the terminal, streamed.
//!
//! A client of `/v1/chat/completions` like any other. Where the input is not a terminal, every line is one
//! message and the end of the input ends the conversation, so that it can be scripted.

use std::io::{self, BufRead, IsTerminal};

use bytes::BytesMut;
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::output;
use super::reach::running;
use super::settings::GlobalArgs;

/// Longest line of a streamed reply.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Model to talk to [default: the first one that is listed]
    pub model: Option<String>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Longest reply, in tokens
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// 0 = always the likeliest token
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f64>,
}

/// Talks until the input ends, `/exit`, or Ctrl-C at the prompt.
pub async fn run(global: &GlobalArgs, args: ChatArgs) -> anyhow::Result<()> {
    let api = running(global).await?;
    let model = match args.model.clone() {
        Some(model) => model,
        None => first_model(&api).await?,
    };
    let interactive = io::stdin().is_terminal();
    if interactive {
        output::remark(format!("Talking to {model}. /exit or Ctrl-D ends, Ctrl-C stops a reply."));
    }
    let mut messages: Vec<Value> = args.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    let mut lines = input_lines();
    loop {
        if interactive {
            output::piece("> ")?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let Some(line) = line else { return Ok(()) };
        match line.trim() {
            "" => continue,
            "/exit" => return Ok(()),
            text => messages.push(json!({"role": "user", "content": text})),
        }
        let mut body = json!({"model": model, "messages": messages, "stream": true});
        if let Some(limit) = args.max_tokens {
            body["max_tokens"] = json!(limit);
        }
        if let Some(temperature) = args.temperature {
            body["temperature"] = json!(temperature);
        }
        match reply(&api, &body, global.json).await {
            Ok(text) => messages.push(json!({"role": "assistant", "content": text})),
            // A conversation outlives one failed reply; a script wants to know at once.
            Err(error) if interactive && !error.is::<io::Error>() => {
                messages.pop();
                output::remark(format!("error: {error:#}"));
            }
            Err(error) => return Err(error),
        }
    }
}

async fn first_model(api: &ApiClient) -> anyhow::Result<String> {
    let reply = api.get("/v1/models").await?;
    reply["data"][0]["id"].as_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(Kind::NotFound, "there is no model to talk to")
            .hint("create one with `lifeboat up` or `lifeboat server create`")
            .into()
    })
}

/// Lines of the input, read on a thread of their own: a blocking read cannot be cancelled.
fn input_lines() -> mpsc::Receiver<String> {
    let (tx, rx) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if tx.blocking_send(line).is_err() {
                return;
            }
        }
    });
    rx
}

/// Streams one reply to the output and gives its text. Ctrl-C ends the reply, and the upstream call with it.
async fn reply(api: &ApiClient, body: &Value, json: bool) -> anyhow::Result<String> {
    let mut response = tokio::select! {
        response = api.open(Method::POST, "/v1/chat/completions", Some(body)) => response?,
        _ = tokio::signal::ctrl_c() => return Ok(String::new()),
    };
    let mut events = EventReader::default();
    let mut text = String::new();
    'stream: loop {
        let chunk = tokio::select! {
            chunk = response.chunk() => chunk.map_err(|error| Failure::new(Kind::Failed, "the reply broke off").caused_by(error))?,
            _ = tokio::signal::ctrl_c() => break,
        };
        let Some(chunk) = chunk else { break };
        for event in events.push(&chunk)? {
            if event == "[DONE]" {
                break 'stream;
            }
            let event: Value = serde_json::from_str(&event)
                .map_err(|error| Failure::new(Kind::Failed, "the reply holds an event that is not JSON").caused_by(error))?;
            if let Some(message) = event["error"]["message"].as_str() {
                return Err(Failure::new(Kind::Failed, message).into());
            }
            let piece = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            text.push_str(piece);
            if !json {
                output::piece(piece)?;
            }
        }
    }
    if json {
        output::line(json!({"role": "assistant", "content": text}).to_string())?;
    } else {
        output::line("")?;
    }
    Ok(text)
}

/// Cuts a byte stream into the `data:` of server-sent events. One line of data an event, as `/v1` sends it.
#[derive(Debug, Default)]
struct EventReader {
    buffer: BytesMut,
}

impl EventReader {
    /// The events that are complete now.
    fn push(&mut self, chunk: &[u8]) -> Result<Vec<String>, Failure> {
        self.buffer.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line = self.buffer.split_to(end + 1);
            if let Some(data) = line.strip_prefix(b"data:") {
                events.push(String::from_utf8_lossy(data).trim().to_owned());
            }
        }
        if self.buffer.len() > MAX_EVENT_BYTES {
            return Err(Failure::new(Kind::Failed, format!("a line of the reply is longer than {MAX_EVENT_BYTES} bytes")));
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_the_bytes_are_cut() {
        let stream = b": waiting\n\ndata: {\"a\":\"\xc3\xa4\"}\r\n\r\ndata: [DONE]\n\n";
        for size in 1..stream.len() {
            let mut reader = EventReader::default();
            let events: Vec<String> = stream.chunks(size).flat_map(|chunk| reader.push(chunk).unwrap()).collect();
            assert_eq!(events, ["{\"a\":\"ä\"}", "[DONE]"], "cut every {size} bytes");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_instead_of_filling_memory() {
        let mut reader = EventReader::default();
        assert!(reader.push(&vec![b'x'; MAX_EVENT_BYTES]).is_ok());
        assert!(reader.push(b"x").is_err());
    }
}
