//! Requests by table; replies whole and in lines, which have to say the same.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Dialect, ErrorCode, Flavor, FromChat};
use super::*;

fn upstream(endpoint: Endpoint, body: &Value) -> Upstream {
    to_upstream(endpoint, body.to_string().as_bytes(), Flavor::LlamaCpp).unwrap()
}

fn chat(endpoint: Endpoint, body: &Value) -> Value {
    match upstream(endpoint, body) {
        Upstream::Chat(body) => serde_json::from_slice(&body).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_chat_keeps_its_meaning() {
    let body = json!({
        "model": "m", "keep_alive": "5m", "think": true, "format": {"z": 1, "a": 2},
        "options": {"num_ctx": 9, "num_predict": 50, "temperature": 0.5, "top_k": 3, "seed": 1, "stop": ["x"], "num_gpu": 1},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is this?", "images": ["/9j/4AAQ", "iVBORw0KGgo="]},
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": [2]}}}]},
            {"role": "tool", "content": "one", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    });
    assert_eq!(
        chat(Endpoint::Chat, &body),
        json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50, "temperature": 0.5, "top_k": 3,
            "seed": 1, "stop": ["x"], "chat_template_kwargs": {"enable_thinking": true},
            "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"z": 1, "a": 2}, "strict": true}},
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQ"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ]},
                {"role": "assistant", "content": "", "reasoning_content": "Hm",
                 "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\":[2],\"z\":1}"}}]},
                {"role": "tool", "content": "one", "tool_call_id": "f"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        })
    );
}

#[test]
fn a_prompt_becomes_a_conversation_and_a_raw_one_stays_a_prompt() {
    let body = json!({"model": "m", "system": "S", "prompt": "P", "stream": false, "format": "json", "options": {"num_predict": -1}, "think": "low"});
    assert_eq!(
        chat(Endpoint::Generate, &body),
        json!({
            "model": "m", "stream": false, "response_format": {"type": "json_object"}, "reasoning_effort": "low",
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "P"}],
        })
    );
    let raw = upstream(Endpoint::Generate, &json!({"model": "m", "prompt": "P", "raw": true, "options": {"seed": 1}}));
    let Upstream::Text(raw) = raw else { panic!("{raw:?}") };
    let raw: Value = serde_json::from_slice(&raw).unwrap();
    assert_eq!(raw, json!({"model": "m", "prompt": "P", "seed": 1, "stream": true, "stream_options": {"include_usage": true}}));
    assert_eq!(upstream(Endpoint::Generate, &json!({"model": "m"})), Upstream::Load);
    assert_eq!(upstream(Endpoint::Chat, &json!({"model": "m", "messages": []})), Upstream::Load);
}

#[test]
fn what_cannot_be_said_is_refused_by_the_path_of_its_field() {
    for (endpoint, body, param) in [
        (Endpoint::Chat, json!({"messages": [{"role": "robot"}]}), "messages.0.role"),
        (Endpoint::Chat, json!({"messages": [{"role": "user", "content": 1}]}), "messages.0.content"),
        (Endpoint::Chat, json!({"messages": [{"role": "user"}], "tools": [{}]}), "tools.0.function"),
        (Endpoint::Chat, json!({"messages": [{"role": "user"}], "format": "xml"}), "format"),
        (Endpoint::Chat, json!({"messages": [{"role": "user"}], "think": "deep"}), "think"),
        (Endpoint::Generate, json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (Endpoint::Generate, json!({"prompt": "x", "stream": "no"}), "stream"),
    ] {
        let error = to_upstream(endpoint, body.to_string().as_bytes(), Flavor::Other).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::InvalidRequest, Some(param)), "{body}");
        let told: Value = serde_json::from_slice(&error.body(Dialect::Ollama)).unwrap();
        assert!(told["error"].as_str().unwrap().starts_with(&format!("`{param}` ")));
    }
}

fn head(endpoint: Endpoint) -> Head {
    Head { endpoint, model: "asked".into(), created_at: "2026-12-01T00:00:00Z".into() }
}

fn object(endpoint: Endpoint, document: &[u8]) -> Value {
    serde_json::from_slice(&to_object(document, &head(endpoint)).unwrap()).unwrap()
}

#[test]
fn a_whole_reply_becomes_one_object() {
    let document = br#"{"choices":[{"finish_reason":"tool_calls","message":{"content":"I look.","reasoning_content":"Hm","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"x\":1}"}},{"function":{"name":"g","arguments":"{\"x\""}}]}}],"usage":{"prompt_tokens":9,"completion_tokens":4},"timings":{"prompt_n":5,"cache_n":4,"prompt_ms":2.5,"predicted_n":4,"predicted_ms":40}}"#;
    assert_eq!(
        object(Endpoint::Chat, document),
        json!({
            "model": "asked", "created_at": "2026-12-01T00:00:00Z", "done": true, "done_reason": "stop",
            "message": {"role": "assistant", "content": "I look.", "thinking": "Hm", "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "g", "arguments": {}}},
            ]},
            "total_duration": 42_500_000, "load_duration": 0, "prompt_eval_count": 9, "prompt_eval_duration": 2_500_000,
            "eval_count": 4, "eval_duration": 40_000_000,
        })
    );
    let generated = object(Endpoint::Generate, br#"{"choices":[{"text":"x","finish_reason":"length"}]}"#);
    assert_eq!((&generated["response"], &generated["done_reason"], generated.get("message")), (&json!("x"), &json!("length"), None));
    let loaded: Value = serde_json::from_slice(&head(Endpoint::Generate).loaded()).unwrap();
    assert_eq!((&loaded["response"], &loaded["done"], &loaded["done_reason"]), (&json!(""), &json!(true), &json!("load")));
}

/// Reads lines as a client does.
fn fold(endpoint: Endpoint, stream: &[u8], step: usize) -> Value {
    let mut translation = FromChat::ollama(head(endpoint), 1 << 20);
    let mut out = Vec::new();
    for chunk in stream.chunks(step) {
        translation.push(chunk, &mut out);
    }
    translation.close(&mut out);
    assert!(translation.is_finished());
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, before) = lines.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false) && last["done"] == true);
    let mut whole = last.clone();
    for name in ["content", "thinking", "tool_calls", "response"] {
        let place = |line: &Value| if endpoint == Endpoint::Chat { line["message"][name].clone() } else { line[name].clone() };
        let pieces: Vec<Value> = before.iter().map(place).filter(|piece| !piece.is_null()).collect();
        let joined = if name == "tool_calls" {
            Value::from(pieces.iter().flat_map(|calls| calls.as_array().unwrap().clone()).collect::<Vec<_>>())
        } else {
            pieces.iter().map(|piece| piece.as_str().unwrap()).collect::<Vec<_>>().concat().into()
        };
        if joined != json!("") && joined != json!([]) {
            let target = if endpoint == Endpoint::Chat { &mut whole["message"] } else { &mut whole };
            target[name] = joined;
        }
    }
    whole
}

fn recorded(name: &str, kind: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/b11549/streams/{name}.{kind}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn recorded_streams_say_in_lines_what_the_same_reply_says_as_a_whole() {
    for (endpoint, name) in [
        (Endpoint::Chat, "chat"),
        (Endpoint::Chat, "chat_reasoning"),
        (Endpoint::Chat, "chat_tools"),
        (Endpoint::Generate, "chat_stop"),
        (Endpoint::Generate, "completion"),
    ] {
        for step in [1, 13, 100_000] {
            let mut streamed = fold(endpoint, &recorded(name, "sse"), step);
            let mut whole = object(endpoint, &recorded(name, "json"));
            for reply in [&mut streamed, &mut whole] {
                for time in ["total_duration", "prompt_eval_duration", "eval_duration"] {
                    assert!(reply[time].take().as_u64().unwrap() > 0);
                }
            }
            assert_eq!(streamed, whole, "{name}");
        }
    }
}

#[test]
fn a_failed_stream_ends_with_its_error() {
    let mut translation = FromChat::ollama(head(Endpoint::Chat), 1 << 20);
    let mut out = Vec::new();
    translation.push(&recorded("chat_tools_torn", "sse"), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("peg-native format\"}\n") && !text.contains("\"done\":true"), "{text}");
}

#[test]
fn embeddings_keep_their_numbers_as_they_are_written() {
    let request = embed::to_openai(embed::Endpoint::Embed, br#"{"model":"m","input":["a","b"],"truncate":true}"#).unwrap();
    assert_eq!(request, br#"{"model":"m","input":["a","b"]}"#);
    let request = embed::to_openai(embed::Endpoint::Embeddings, br#"{"model":"m","prompt":"a"}"#).unwrap();
    assert_eq!(request, br#"{"model":"m","input":"a"}"#);
    assert_eq!(embed::to_openai(embed::Endpoint::Embed, b"{}").unwrap_err().param.as_deref(), Some("input"));
    let reply =
        br#"{"object":"list","usage":{"prompt_tokens":5},"data":[{"embedding":[0.10,-1e-9],"index":0},{"embedding":[2],"index":1}]}"#;
    let answer = embed::from_openai(embed::Endpoint::Embed, reply, "asked").unwrap();
    assert_eq!(
        String::from_utf8(answer).unwrap(),
        r#"{"model":"asked","embeddings":[[0.10,-1e-9],[2]],"total_duration":0,"load_duration":0,"prompt_eval_count":5}"#
    );
    assert_eq!(embed::from_openai(embed::Endpoint::Embeddings, reply, "asked").unwrap(), br#"{"embedding":[0.10,-1e-9]}"#);
    assert!(embed::from_openai(embed::Endpoint::Embeddings, br#"{"data":[]}"#, "asked").is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        for endpoint in [Endpoint::Chat, Endpoint::Generate] {
            let _ = to_upstream(endpoint, &bytes, Flavor::LlamaCpp);
            let _ = to_upstream(endpoint, &[b"{\"messages\":[", &bytes[..], b"]}"].concat(), Flavor::Other);
            let _ = to_object(&bytes, &head(endpoint));
            let stream = [b"data: {\"choices\":[{\"delta\":{", &bytes[..], b"}}]}\n\ndata: [DONE]\n\n"].concat();
            FromChat::ollama(head(endpoint), 100).push(&stream, &mut Vec::new());
        }
        let _ = embed::from_openai(embed::Endpoint::Embed, &bytes, "m");
    }
}
