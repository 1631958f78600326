//! Replies in llama-server's shapes (recorded from b11549): whole ones and stream frames, per dialect.
//!
//! The frame of a word is put together from two prepared halves: it is all that is written hundreds of times a
//! second for each of hundreds of streams.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use super::slots::Usage;
use super::tools::Script;

/// The shape of request and reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/completion`, llama-server's own.
    Native,
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The engine had said all.
    Stop,
    /// The caller's limit, or the context.
    Length,
}

impl Finish {
    const fn openai(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }

    const fn anthropic(self) -> &'static str {
        match self {
            Self::Stop => "end_turn",
            Self::Length => "max_tokens",
        }
    }
}

/// One reply being written.
#[derive(Debug)]
pub struct Reply {
    dialect: Dialect,
    id: String,
    model: String,
    created: i64,
    include_usage: bool,
    /// How it will end, should nothing go wrong.
    pub finish: Finish,
    script: Option<Script>,
    word: (String, String),
}

/// Stands where the word goes in a prepared frame; no word or model name has it.
const MARK: &str = "\u{1}WORD\u{1}";

impl Reply {
    /// A reply with its frames prepared; its text is that of the script, where there is one (chat only).
    pub fn new(dialect: Dialect, id: &str, model: &str, created: i64, include_usage: bool, finish: Finish, script: Option<Script>) -> Self {
        let mut reply = Self {
            dialect,
            id: id.to_owned(),
            model: model.to_owned(),
            created,
            include_usage,
            finish,
            script,
            word: (String::new(), String::new()),
        };
        let frame = reply.word_frame();
        let mark = json!(MARK).to_string();
        let mark = mark.trim_matches('"');
        if let Some((before, after)) = frame.split_once(mark) {
            reply.word = (before.to_owned(), after.to_owned());
        }
        reply
    }

    fn word_frame(&self) -> String {
        match self.dialect {
            Dialect::Chat if self.called().is_some() => {
                data(&self.chat_chunk(&json!({"tool_calls": [{"index": 0, "function": {"arguments": MARK}}]}), None))
            }
            Dialect::Chat => data(&self.chat_chunk(&json!({ "content": MARK }), None)),
            Dialect::Completion => data(&self.completion_chunk(MARK, None)),
            Dialect::Native => data(&json!({"index": 0, "content": MARK, "tokens": [], "stop": false, "id_slot": -1})),
            Dialect::Messages => event(&json!({
                "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": MARK},
            })),
            Dialect::Responses => event(&json!({
                "type": "response.output_text.delta", "item_id": self.item_id(), "output_index": 0, "content_index": 0, "delta": MARK,
            })),
        }
    }

    /// The tool that is called.
    fn called(&self) -> Option<&str> {
        self.script.as_ref()?.call.as_deref()
    }

    /// What is said where the engine says `word`: the next piece of the script, if there is one.
    pub fn said(&mut self, word: &'static str) -> Cow<'static, str> {
        self.script.as_mut().and_then(Script::next_piece).map_or(Cow::Borrowed(word), Cow::Owned)
    }

    /// The frame of one word. Words need no escaping, pieces of a script do.
    pub fn word(&self, word: &str, into: &mut Vec<u8>) {
        into.extend_from_slice(self.word.0.as_bytes());
        if self.script.is_some() {
            let quoted = json!(word).to_string();
            into.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
        } else {
            into.extend_from_slice(word.as_bytes());
        }
        into.extend_from_slice(self.word.1.as_bytes());
    }

    /// The frames before the first word.
    pub fn begin(&self, usage: &Usage) -> String {
        match self.dialect {
            Dialect::Chat => {
                let mut delta = json!({"role": "assistant", "content": null});
                if let Some(name) = self.called() {
                    let mut call = self.call(name, "");
                    call["index"] = json!(0);
                    delta["tool_calls"] = json!([call]);
                }
                data(&self.chat_chunk(&delta, None))
            }
            Dialect::Completion | Dialect::Native => String::new(),
            Dialect::Messages => {
                event(&json!({"type": "message_start", "message": {
                    "id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model,
                    "stop_reason": null, "stop_sequence": null, "usage": messages_usage(usage),
                }})) + &event(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}))
            }
            Dialect::Responses => {
                let response = json!({"id": self.id, "object": "response", "status": "in_progress"});
                event(&json!({"type": "response.created", "response": response}))
                    + &event(&json!({"type": "response.in_progress", "response": response}))
                    + &event(&json!({"type": "response.output_item.added", "output_index": 0, "item": {
                        "id": self.item_id(), "type": "message", "role": "assistant", "status": "in_progress", "content": [],
                    }}))
                    + &event(&json!({
                        "type": "response.content_part.added", "item_id": self.item_id(), "output_index": 0, "content_index": 0,
                        "part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
                    }))
            }
        }
    }

    /// The frame that tells how much of the prompt is read; in the dialects that are not llama-server's own there is none.
    pub fn progress(&self, usage: &Usage) -> String {
        let progress = json!({
            "total": usage.prompt_tokens, "cache": usage.cached_tokens, "processed": usage.read_tokens,
            "time_ms": usage.prompt_micros / 1000,
        });
        let mut chunk = match self.dialect {
            Dialect::Chat => self.chat_chunk(&json!({"role": "assistant", "content": null}), None),
            Dialect::Completion => self.completion_chunk("", None),
            Dialect::Native => json!({"index": 0, "content": "", "tokens": [], "stop": false, "id_slot": -1}),
            Dialect::Messages | Dialect::Responses => return String::new(),
        };
        chunk["prompt_progress"] = progress;
        data(&chunk)
    }

    /// The frames after the last word.
    pub fn end(&self, text: &str, usage: &Usage) -> String {
        match self.dialect {
            Dialect::Chat => {
                let mut last = self.chat_chunk(&json!({}), Some(self.finish));
                last["timings"] = timings(usage);
                let mut frames = data(&last);
                if self.include_usage {
                    let mut chunk = self.chat_chunk(&json!({}), None);
                    chunk["choices"] = json!([]);
                    chunk["usage"] = openai_usage(usage);
                    chunk["timings"] = timings(usage);
                    frames += &data(&chunk);
                }
                frames + DONE
            }
            Dialect::Completion => {
                let mut last = self.completion_chunk("", Some(self.finish));
                last["usage"] = openai_usage(usage);
                last["timings"] = timings(usage);
                data(&last) + DONE
            }
            Dialect::Native => data(&self.native("", usage)),
            Dialect::Messages => {
                event(&json!({"type": "content_block_stop", "index": 0}))
                    + &event(&json!({
                        "type": "message_delta", "delta": {"stop_reason": self.finish.anthropic(), "stop_sequence": null},
                        "usage": {"output_tokens": usage.completion_tokens},
                    }))
                    + &event(&json!({"type": "message_stop"}))
            }
            Dialect::Responses => {
                event(&json!({
                    "type": "response.output_text.done", "item_id": self.item_id(), "output_index": 0, "content_index": 0, "text": text,
                })) + &event(&json!({
                    "type": "response.content_part.done", "item_id": self.item_id(), "output_index": 0, "content_index": 0,
                    "part": {"type": "output_text", "text": text, "annotations": [], "logprobs": []},
                })) + &event(&json!({"type": "response.output_item.done", "output_index": 0, "item": self.response_item(text)}))
                    + &event(&json!({"type": "response.completed", "response": self.response(text, usage)}))
            }
        }
    }

    /// The whole reply, for a client that does not stream.
    pub fn whole(&self, text: &str, usage: &Usage) -> Value {
        match self.dialect {
            Dialect::Chat => json!({
                "choices": [{"finish_reason": self.chat_finish(self.finish), "index": 0, "message": self.message(text)}],
                "created": self.created, "model": self.model, "system_fingerprint": FINGERPRINT, "object": "chat.completion",
                "usage": openai_usage(usage), "id": self.id, "timings": timings(usage),
            }),
            Dialect::Completion => json!({
                "choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": self.finish.openai()}],
                "created": self.created, "model": self.model, "system_fingerprint": FINGERPRINT, "object": "text_completion",
                "usage": openai_usage(usage), "id": self.id, "timings": timings(usage),
            }),
            Dialect::Native => self.native(text, usage),
            Dialect::Messages => json!({
                "id": self.id, "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "model": self.model,
                "stop_reason": self.finish.anthropic(), "stop_sequence": null, "usage": messages_usage(usage),
            }),
            Dialect::Responses => self.response(text, usage),
        }
    }

    fn message(&self, text: &str) -> Value {
        match self.called() {
            Some(name) => json!({"role": "assistant", "content": null, "tool_calls": [self.call(name, text)]}),
            None => json!({"role": "assistant", "content": text}),
        }
    }

    fn call(&self, name: &str, arguments: &str) -> Value {
        let id = self.id.replace("chatcmpl-", "call_");
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    fn chat_finish(&self, finish: Finish) -> &'static str {
        if finish == Finish::Stop && self.called().is_some() { "tool_calls" } else { finish.openai() }
    }

    fn chat_chunk(&self, delta: &Value, finish: Option<Finish>) -> Value {
        json!({
            "choices": [{"finish_reason": finish.map(|finish| self.chat_finish(finish)), "index": 0, "delta": delta}],
            "created": self.created, "id": self.id, "model": self.model, "system_fingerprint": FINGERPRINT,
            "object": "chat.completion.chunk",
        })
    }

    fn completion_chunk(&self, text: &str, finish: Option<Finish>) -> Value {
        json!({
            "choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": finish.map(Finish::openai)}],
            "created": self.created, "model": self.model, "system_fingerprint": FINGERPRINT, "object": "text_completion", "id": self.id,
        })
    }

    fn native(&self, text: &str, usage: &Usage) -> Value {
        json!({
            "index": 0, "content": text, "tokens": [], "id_slot": usage.slot, "stop": true, "model": self.model,
            "tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.prompt_tokens + usage.completion_tokens, "truncated": false,
            "stop_type": if self.finish == Finish::Stop { "eos" } else { "limit" }, "stopping_word": "", "timings": timings(usage),
        })
    }

    fn item_id(&self) -> String {
        self.id.replace("resp_", "msg_")
    }

    fn response_item(&self, text: &str) -> Value {
        json!({
            "id": self.item_id(), "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        })
    }

    fn response(&self, text: &str, usage: &Usage) -> Value {
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "completed_at": self.created, "model": self.model,
            "status": "completed", "output": [self.response_item(text)],
            "usage": {
                "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            },
        })
    }
}

/// What llama-server calls itself in replies.
const FINGERPRINT: &str = "sim-engine";
/// How OpenAI streams end.
const DONE: &str = "data: [DONE]\n\n";

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A frame with an event name, which is the value's `type`.
fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}

fn openai_usage(usage: &Usage) -> Value {
    json!({
        "completion_tokens": usage.completion_tokens, "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn messages_usage(usage: &Usage) -> Value {
    json!({
        "cache_read_input_tokens": usage.cached_tokens, "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

fn timings(usage: &Usage) -> Value {
    let read = usage.prompt_tokens - usage.cached_tokens;
    let (prompt_ms, predicted_ms) = (usage.prompt_micros as f64 / 1e3, usage.predicted_micros as f64 / 1e3);
    let rate = |tokens: u32, ms: f64| if ms > 0.0 { f64::from(tokens) / ms * 1e3 } else { 0.0 };
    let each = |tokens: u32, ms: f64| if tokens > 0 { ms / f64::from(tokens) } else { 0.0 };
    json!({
        "cache_n": usage.cached_tokens, "prompt_n": read, "prompt_ms": prompt_ms, "prompt_per_token_ms": each(read, prompt_ms),
        "prompt_per_second": rate(read, prompt_ms), "predicted_n": usage.completion_tokens, "predicted_ms": predicted_ms,
        "predicted_per_token_ms": each(usage.completion_tokens, predicted_ms),
        "predicted_per_second": rate(usage.completion_tokens, predicted_ms),
    })
}

/// The rubbish of the fault `wrong-bytes`: no JSON, no UTF-8, no frame.
pub fn garbage() -> Bytes {
    Bytes::from_static(b"data: \xff\xfe{\"choices\":[}\x00\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        slot: 1,
        prompt_tokens: 10,
        cached_tokens: 4,
        read_tokens: 10,
        completion_tokens: 2,
        prompt_micros: 3000,
        predicted_micros: 4000,
    };

    /// The JSON of each frame of a stream of one word.
    fn frames(dialect: Dialect, include_usage: bool) -> Vec<String> {
        let reply = Reply::new(dialect, "resp_1", "a \"b\"/é", 5, include_usage, Finish::Length, None);
        let mut text = reply.begin(&USAGE).into_bytes();
        reply.word(" oar", &mut text);
        text.extend_from_slice(reply.end(" oar", &USAGE).as_bytes());
        let text = String::from_utf8(text).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    #[test]
    fn every_frame_is_json_and_openai_streams_end_with_done() {
        for (dialect, done) in [
            (Dialect::Chat, true),
            (Dialect::Completion, true),
            (Dialect::Native, false),
            (Dialect::Messages, false),
            (Dialect::Responses, false),
        ] {
            let mut frames = frames(dialect, true);
            assert_eq!(frames.last().is_some_and(|last| last == "[DONE]"), done, "{dialect:?}");
            if done {
                frames.pop();
            }
            for frame in &frames {
                serde_json::from_str::<Value>(frame).unwrap();
            }
            assert_eq!(frames.iter().filter(|frame| frame.contains("\" oar\"")).count().min(1), 1, "{dialect:?}: {frames:?}");
        }
    }

    #[test]
    fn a_call_is_named_first_and_told_in_pieces_that_make_json() {
        let body = json!({
            "tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"enum": ["\"é\"\n"]}}, "required": ["a"]}}}],
            "tool_choice": "required",
        });
        let script = Script::of(&serde_json::from_value(body).unwrap()).unwrap();
        let tokens = script.tokens();
        let mut reply = Reply::new(Dialect::Chat, "chatcmpl-1", "m", 5, true, Finish::Stop, Some(script));
        let (mut text, mut frames) = (String::new(), reply.begin(&USAGE).into_bytes());
        for _ in 0..tokens {
            let said = reply.said(" oar");
            reply.word(&said, &mut frames);
            text.push_str(&said);
        }
        frames.extend_from_slice(reply.end(&text, &USAGE).as_bytes());
        let frames = String::from_utf8(frames).unwrap();
        let frames: Vec<Value> =
            frames.split_terminator("\n\n").filter_map(|frame| serde_json::from_str(&frame["data: ".len()..]).ok()).collect();
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}});
        assert_eq!(frames[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        let told = |frame: &Value| frame["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned);
        assert_eq!(frames.iter().filter_map(told).collect::<String>(), text);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"a": "\"é\"\n"}));
        assert!(tokens > 2 && frames.len() == tokens as usize + 3, "{frames:?}");
        assert_eq!(
            (&frames[frames.len() - 2]["choices"][0]["finish_reason"], &frames[1]["choices"][0]["finish_reason"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let whole = reply.whole(&text, &USAGE);
        let choice = &whole["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({"name": "f", "arguments": text}));
    }

    #[test]
    fn the_usage_chunk_comes_only_when_asked_for() {
        let with = frames(Dialect::Chat, true);
        assert_eq!(with.len(), frames(Dialect::Chat, false).len() + 1);
        let usage: Value = serde_json::from_str(&with[with.len() - 2]).unwrap();
        assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!(usage["choices"], json!([]));
    }

    #[test]
    fn anthropic_counts_input_without_what_was_cached() {
        let whole = Reply::new(Dialect::Messages, "m", "m", 5, false, Finish::Stop, None).whole("x", &USAGE);
        assert_eq!(whole["usage"], json!({"cache_read_input_tokens": 4, "input_tokens": 6, "output_tokens": 2}));
        assert_eq!(whole["stop_reason"], "end_turn");
    }

    #[test]
    fn timings_carry_rates() {
        let timings = timings(&USAGE);
        assert_eq!((timings["prompt_n"].as_u64(), timings["prompt_per_second"].as_f64()), (Some(6), Some(2000.0)));
        assert_eq!(timings["predicted_per_token_ms"].as_f64(), Some(2.0));
    }
}
