//! Requests by table; replies whole and streamed, which have to say the same.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{ApiError, ErrorCode, Flavor, FromChat};
use super::*;

fn chat(body: &Value) -> Value {
    serde_json::from_slice(&to_chat(body.to_string().as_bytes(), Flavor::LlamaCpp).unwrap()).unwrap()
}

fn refused(body: &Value) -> ApiError {
    to_chat(body.to_string().as_bytes(), Flavor::LlamaCpp).unwrap_err()
}

fn with_messages(messages: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 9});
    body["messages"] = messages;
    body
}

#[test]
fn settings_become_their_counterparts_and_the_rest_is_left_out() {
    let body = json!({
        "model": "m", "max_tokens": 100, "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["a", "b"],
        "metadata": {"user_id": "u"}, "system": "Be brief.", "service_tier": "auto", "seed": 7, "betas": ["x"],
        "thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "max"},
        "messages": [{"role": "user", "content": "hi"}],
    });
    assert_eq!(
        chat(&body),
        json!({
            "model": "m", "max_tokens": 100, "stream": true, "stream_options": {"include_usage": true}, "timings_per_token": true,
            "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop": ["a", "b"], "user": "u", "seed": 7,
            "thinking_budget_tokens": 2048, "chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "high",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        })
    );
    let other: Value = serde_json::from_slice(&to_chat(body.to_string().as_bytes(), Flavor::Other).unwrap()).unwrap();
    for own in ["timings_per_token", "thinking_budget_tokens", "chat_template_kwargs"] {
        assert!(other.get(own).is_none(), "{own} is llama-server's own");
    }
}

#[test]
fn a_conversation_with_tools_images_and_thinking_keeps_its_meaning_and_its_order() {
    let body = json!({
        "model": "m", "max_tokens": 9,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: v=1; cch=a5145;"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Let me", "signature": ""}, {"type": "redacted_thinking", "data": "zz"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"z": 1.10, "a": [1, 2]}},
                {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "And?"},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "no such file"},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]},
                {"type": "tool_result", "tool_use_id": "t4", "is_error": true},
            ]},
            {"role": "assistant", "content": "So"},
        ],
    });
    let text = String::from_utf8(to_chat(body.to_string().as_bytes(), Flavor::LlamaCpp).unwrap()).unwrap();
    assert!(text.contains(r#""arguments":"{\"a\":[1,2],\"z\":1.1}""#), "as the client wrote it: {text}");
    let chat: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "x-anthropic-billing-header: v=1; cch=fffff;\nYou help."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                {"type": "text", "text": "T\n\nD"},
            ]},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Let me", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{\"a\":[1,2],\"z\":1.1}"}},
                {"id": "t2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "t1", "content": "A\nB"},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: no such file"},
            {"role": "user", "content": "And?"},
            {"role": "tool", "tool_call_id": "t3", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            {"role": "tool", "tool_call_id": "t4", "content": "Error"},
            {"role": "assistant", "content": "So"},
        ])
    );
}

#[test]
fn schemas_keep_the_order_of_their_properties() {
    let body = br#"{"messages":[],"tools":[{"name":"t","description":"d","input_schema":{"type":"object","properties":{"z":{},"a":{}}}}],"output_config":{"format":{"type":"json_schema","schema":{"z":1,"a":2}}}}"#;
    let chat = String::from_utf8(to_chat(body, Flavor::Other).unwrap()).unwrap();
    assert!(
        chat.contains(
            r#"[{"type":"function","function":{"name":"t","description":"d","parameters":{"type":"object","properties":{"z":{},"a":{}}}}}]"#
        ),
        "{chat}"
    );
    assert!(
        chat.contains(r#""response_format":{"type":"json_schema","json_schema":{"name":"reply","schema":{"z":1,"a":2},"strict":true}}"#),
        "{chat}"
    );
}

#[test]
fn a_tool_choice_is_said_in_the_engines_words() {
    let tools = json!([{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}, "type": "custom"}]);
    let with = |choice: Value, flavor| -> Value {
        let body = json!({"messages": [], "tools": tools, "tool_choice": choice});
        serde_json::from_slice(&to_chat(body.to_string().as_bytes(), flavor).unwrap()).unwrap()
    };
    for (choice, word) in [("auto", "auto"), ("any", "required"), ("none", "none")] {
        assert_eq!(with(json!({"type": choice}), Flavor::LlamaCpp)["tool_choice"], word);
    }
    let named = with(json!({"type": "tool", "name": "b", "disable_parallel_tool_use": true}), Flavor::LlamaCpp);
    assert_eq!((&named["tool_choice"], &named["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    assert_eq!(named["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect::<Vec<_>>(), ["b"]);
    let named = with(json!({"type": "tool", "name": "b"}), Flavor::Other);
    assert_eq!(named["tool_choice"], json!({"type": "function", "function": {"name": "b"}}));
    assert_eq!(named["tools"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_said_is_refused_by_the_path_of_its_field() {
    let table = [
        (json!({"max_tokens": 1}), "messages"),
        (json!({"messages": "x"}), "messages"),
        (with_messages(json!([{"role": "robot", "content": "x"}])), "messages.0.role"),
        (with_messages(json!([{"role": "user"}])), "messages.0.content"),
        (with_messages(json!([{"role": "user", "content": [{"type": "video"}]}])), "messages.0.content.0.type"),
        (with_messages(json!([{"role": "user", "content": [{"type": "text", "text": 1}]}])), "messages.0.content.0.text"),
        (
            with_messages(json!([{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": ""}}]}])),
            "messages.0.content.0.source.type",
        ),
        (
            with_messages(json!([{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}])),
            "messages.0.content.0.source.type",
        ),
        (with_messages(json!([{"role": "user", "content": [{"type": "tool_result"}]}])), "messages.0.content.0.tool_use_id"),
        (with_messages(json!([{"role": "assistant", "content": [{"type": "server_tool_use"}]}])), "messages.0.content.0.type"),
        (
            with_messages(json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "n", "input": "x"}]}])),
            "messages.0.content.0.input",
        ),
        (json!({"messages": [], "system": [{"type": "image"}]}), "system.0.type"),
        (json!({"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools.0.type"),
        (json!({"messages": [], "tools": [{"name": "x"}]}), "tools.0.input_schema"),
        (json!({"messages": [], "tool_choice": {"type": "tool", "name": "x"}}), "tool_choice.name"),
        (json!({"messages": [], "tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"messages": [], "thinking": {"type": "deep"}}), "thinking.type"),
        (json!({"messages": [], "mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"messages": [], "stream": "yes"}), "stream"),
    ];
    for (body, param) in table {
        let error = refused(&body);
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::InvalidRequest, Some(param)), "{body}");
        assert!(error.message.starts_with(&format!("`{param}` ")), "{}", error.message);
    }
    assert_eq!(to_chat(b"[]", Flavor::Other).unwrap_err().code, ErrorCode::InvalidJson);
}

fn message(document: &Value) -> Value {
    serde_json::from_slice(&to_message(document.to_string().as_bytes(), "msg_1", "asked").unwrap()).unwrap()
}

#[test]
fn a_whole_reply_becomes_a_message() {
    let document = json!({
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": {
            "role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "look", "arguments": "{\"at\": 1}"}},
                {"type": "function", "function": {"name": "look", "arguments": "{\"at\": "}},
            ],
        }}],
        "model": "theirs", "usage": {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}},
    });
    assert_eq!(
        message(&document),
        json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "asked", "stop_reason": "tool_use", "stop_sequence": null,
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
                {"type": "tool_use", "id": "toolu_1_1", "name": "look", "input": {}},
            ],
            "usage": {"input_tokens": 18, "cache_read_input_tokens": 12, "cache_creation_input_tokens": 0, "output_tokens": 7},
        })
    );
}

#[test]
fn every_end_has_its_reason() {
    for (choice, reason, sequence) in [
        (json!({"finish_reason": "stop"}), "end_turn", Value::Null),
        (json!({"finish_reason": "stop", "stop_reason": 151_645}), "end_turn", Value::Null),
        (json!({"finish_reason": "stop", "stop_reason": "END"}), "stop_sequence", json!("END")),
        (json!({"finish_reason": "length"}), "max_tokens", Value::Null),
        (json!({"finish_reason": "content_filter"}), "refusal", Value::Null),
        (json!({}), "end_turn", Value::Null),
    ] {
        let mut choice = choice;
        choice["message"] = json!({"content": "x"});
        let reply = message(&json!({"choices": [choice]}));
        assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!(reason), &sequence));
    }
    for (finish, reason) in [("stop", "tool_use"), ("length", "max_tokens")] {
        let call =
            json!({"choices": [{"finish_reason": finish, "message": {"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}}]});
        assert_eq!(message(&call)["stop_reason"], reason);
    }
    assert_eq!(to_message(b"{\"choices\":[]}", "i", "m").unwrap_err().code, ErrorCode::UpstreamFailed);
}

fn frames(events: &[Value]) -> Vec<u8> {
    let frames = events.iter().map(Value::to_string).chain(["[DONE]".to_owned()]);
    frames.flat_map(|data| ["data: ", &data, "\n\n"].concat().into_bytes()).collect()
}

fn translate(stream: &[u8], step: usize) -> (FromChat, String) {
    let mut translation = FromChat::messages("msg_1".into(), "asked".into());
    let mut out = Vec::new();
    for chunk in stream.chunks(step) {
        translation.push(chunk, &mut out);
    }
    translation.close(&mut out);
    (translation, String::from_utf8(out).unwrap())
}

/// Reads events as a client does; panics where one is out of place.
fn fold(events: &str) -> Value {
    let mut message = Value::Null;
    let mut open: Option<(usize, String)> = None;
    let mut over = false;
    for frame in events.split_terminator("\n\n") {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let event: Value = serde_json::from_str(data).unwrap();
        assert!(event["type"] == name && !over, "{frame}");
        let index = event["index"].as_u64().map(|index| usize::try_from(index).unwrap());
        match name {
            "message_start" => {
                assert!(message.is_null());
                message = event["message"].clone();
            }
            "content_block_start" => {
                assert!(open.is_none() && index == Some(message["content"].as_array().unwrap().len()), "{frame}");
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                open = Some((index.unwrap(), String::new()));
            }
            "content_block_delta" => {
                let (at, json) = open.as_mut().unwrap();
                assert_eq!(index, Some(*at));
                let (block, delta) = (&mut message["content"][*at], &event["delta"]);
                let (kind, field) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    "input_json_delta" => {
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                block[field] = (block[field].as_str().unwrap().to_owned() + delta[field].as_str().unwrap()).into();
            }
            "content_block_stop" => {
                let (at, json) = open.take().unwrap();
                assert_eq!(index, Some(at));
                if !json.is_empty() {
                    message["content"][at]["input"] = serde_json::from_str(&json).unwrap();
                }
            }
            "message_delta" => {
                assert!(open.is_none());
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => over = true,
            other => panic!("{other}"),
        }
    }
    assert!(over);
    message
}

fn recorded(name: &str, kind: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/b11549/streams/{name}.{kind}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn a_recorded_stream_says_what_the_same_reply_says_as_a_whole() {
    for name in ["chat", "chat_stop", "chat_schema", "chat_reasoning", "chat_tools"] {
        for step in [1, 13, 100_000] {
            let (translation, events) = translate(&recorded(name, "sse"), step);
            assert!(translation.is_finished() && translation.error().is_none());
            let mut streamed = fold(&events);
            let mut whole: Value = serde_json::from_slice(&to_message(&recorded(name, "json"), "msg_1", "asked").unwrap()).unwrap();
            for message in [&mut streamed, &mut whole] {
                // New with each request.
                message["usage"] = message["usage"]["output_tokens"].clone();
                for block in message["content"].as_array_mut().unwrap().iter_mut().filter(|block| block["type"] == "tool_use") {
                    assert!(block["id"].take().as_str().unwrap().len() > 5);
                }
            }
            assert_eq!(streamed, whole, "{name}");
        }
    }
}

#[test]
fn a_message_opens_with_its_first_piece_and_the_tokens_known_by_then() {
    let opening = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": null}}]});
    let mut translation = FromChat::messages("msg_1".into(), "asked".into());
    let mut out = Vec::new();
    translation.push(b"data: null\n\n: ping\n\n", &mut out);
    translation.push(format!("data: {opening}\n\n").as_bytes(), &mut out);
    assert!(out.is_empty());
    let first = json!({"choices": [{"index": 0, "delta": {"content": "x"}}], "timings": {"cache_n": 4, "prompt_n": 6, "predicted_n": 1}});
    translation.push(format!("data: {first}\n\n").as_bytes(), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("event: message_start\n"), "{text}");
    assert!(
        text.contains(r#""usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0}"#),
        "{text}"
    );
    assert_eq!((translation.usage().prompt_tokens, translation.usage().cached_tokens), (10, 4));
}

#[test]
fn an_empty_reply_is_a_message_without_blocks() {
    let (_, events) = translate(&frames(&[json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})]), 64);
    assert_eq!((&fold(&events)["content"], &fold(&events)["stop_reason"]), (&json!([]), &json!("end_turn")));
}

#[test]
fn a_call_waits_for_its_name_and_mixed_calls_are_an_error() {
    let call = |call: Value| json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]});
    let late = [
        call(json!({"index": 0, "id": "a"})),
        call(json!({"index": 0, "function": {"arguments": "{\"x\""}})),
        call(json!({"index": 0, "function": {"name": "f", "arguments": ":1"}})),
        call(json!({"index": 0, "function": {"arguments": "}"}})),
        end,
    ];
    let (_, events) = translate(&frames(&late), 64);
    assert_eq!(fold(&events)["content"], json!([{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]));
    let mixed = [
        call(json!({"index": 0, "function": {"name": "f", "arguments": "{"}})),
        call(json!({"index": 1, "function": {"name": "g", "arguments": "{}"}})),
        call(json!({"index": 0, "function": {"arguments": ""}})),
        call(json!({"index": 0, "function": {"arguments": "}"}})),
    ];
    let (translation, events) = translate(&frames(&mixed), 64);
    assert!(translation.error().is_some() && events.ends_with("}\n\n"));
    assert!(events.contains("event: error\n") && !events.contains("message_stop"), "{events}");
}

#[test]
fn a_failed_or_cut_stream_never_looks_whole() {
    let (translation, events) = translate(&recorded("chat_tools_torn", "sse"), 50);
    assert!(translation.error().unwrap().message.contains("peg-native"));
    assert!(events.contains("event: error\n") && !events.contains("message_stop"));
    let piece = json!({"choices": [{"index": 0, "delta": {"content": "x"}}]});
    let (translation, events) = translate(format!("data: {piece}\n\n").as_bytes(), 50);
    assert!(!translation.is_finished() && translation.error().is_none() && !events.contains("message_stop"), "the gateway says why");
    let (translation, _) = translate(format!("data: {piece}\n\ndata: [DONE]\n\n").as_bytes(), 50);
    assert!(translation.error().is_some());
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let (translation, _) = translate(format!("data: {end}\n\n").as_bytes(), 50);
    assert!(translation.is_finished(), "a stream without end marker, but with its reason, is whole");
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(any::<String>().prop_filter("an empty piece says nothing", |text| !text.is_empty()), 0..4)
}

proptest! {
    #[test]
    fn streamed_and_whole_replies_say_the_same(reasoning in texts(), content in texts(), calls in proptest::collection::vec(texts(), 0..3), step in 1_usize..60) {
        let mut deltas: Vec<Value> = reasoning.iter().map(|text| json!({"reasoning_content": text})).collect();
        deltas.extend(content.iter().map(|text| json!({"content": text})));
        let mut whole_calls = Vec::new();
        for (index, pieces) in calls.iter().enumerate() {
            let arguments = json!({"x": pieces.concat()}).to_string();
            deltas.push(json!({"tool_calls": [{"index": index, "id": format!("c{index}"), "function": {"name": "f", "arguments": ""}}]}));
            deltas.extend(arguments.chars().map(|piece| json!({"tool_calls": [{"index": index, "function": {"arguments": piece.to_string()}}]})));
            whole_calls.push(json!({"id": format!("c{index}"), "function": {"name": "f", "arguments": arguments}}));
        }
        let mut events: Vec<Value> = deltas.into_iter().map(|delta| json!({"choices": [{"index": 0, "delta": delta}]})).collect();
        events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        let whole = message(&json!({"choices": [{"finish_reason": "stop", "message": {
            "content": content.concat(), "reasoning_content": reasoning.concat(), "tool_calls": whole_calls,
        }}]}));
        prop_assert_eq!(fold(&translate(&frames(&events), step).1), whole);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256), step in 1_usize..40) {
        let _ = to_chat(&bytes, Flavor::LlamaCpp);
        let _ = to_chat(&[b"{\"messages\":[", &bytes[..], b"]}"].concat(), Flavor::Other);
        let _ = to_message(&bytes, "i", "m");
        let _ = translate(&[b"data: {\"choices\":[{\"delta\":{", &bytes[..], b"}}]}\n\ndata: [DONE]\n\n"].concat(), step);
    }
}
