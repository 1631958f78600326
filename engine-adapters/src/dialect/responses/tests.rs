//! Requests by table; replies whole and streamed, which have to say the same.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{ErrorCode, Flavor, FromChat};
use super::*;

const LIMIT: usize = 1 << 20;

fn chat(body: &Value, flavor: Flavor) -> Value {
    serde_json::from_slice(&to_chat(body.to_string().as_bytes(), flavor).unwrap()).unwrap()
}

#[test]
fn settings_become_their_counterparts() {
    let body = json!({
        "model": "m", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 50, "stream": true, "temperature": 0.5,
        "top_p": 0.9, "parallel_tool_calls": false, "reasoning": {"effort": "low", "summary": "auto"}, "store": true, "include": ["x"],
        "metadata": {"a": "b"}, "truncation": "auto", "previous_response_id": null, "background": false, "top_logprobs": 0,
        "text": {"format": {"type": "json_schema", "name": "n", "strict": true, "schema": {"z": 1, "a": 2}}, "verbosity": "low"},
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": true}, {"type": "function", "name": "g"}],
        "tool_choice": {"type": "function", "name": "g"},
    });
    assert_eq!(
        chat(&body, Flavor::Other),
        json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50, "temperature": 0.5, "top_p": 0.9,
            "parallel_tool_calls": false, "reasoning_effort": "low",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"z": 1, "a": 2}, "strict": true}},
            "tools": [
                {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": true}},
                {"type": "function", "function": {"name": "g"}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        })
    );
    let llama = chat(&body, Flavor::LlamaCpp);
    assert_eq!((&llama["tool_choice"], &llama["tools"].as_array().unwrap().len()), (&json!("required"), &1));
    for (format, expected) in [(json!({"type": "text"}), Value::Null), (json!({"type": "json_object"}), json!({"type": "json_object"}))] {
        assert_eq!(chat(&json!({"input": "x", "text": {"format": format}}), Flavor::Other)["response_format"], expected);
    }
}

#[test]
fn items_of_one_turn_become_one_message() {
    let body = json!({
        "instructions": "A",
        "input": [
            {"role": "developer", "content": "B"},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\":1}", "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "zz"},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ],
    });
    let call =
        |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    assert_eq!(
        chat(&body, Flavor::Other)["messages"],
        json!([
            {"role": "system", "content": "A\n\nB"},
            {"role": "user", "content": [
                {"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ]},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Hm", "tool_calls": [call("c1", "f", "{}"), call("c2", "g", "{\"x\":1}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "assistant", "content": "", "tool_calls": [call("c3", "f", "{}")]},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "No."},
        ])
    );
}

#[test]
fn what_cannot_be_said_is_refused_by_the_path_of_its_field() {
    let table = [
        (json!({}), "input"),
        (json!({"input": 1}), "input"),
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "prompt": {"id": "p"}}), "prompt"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "top_logprobs": 2}), "top_logprobs"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools.0.type"),
        (json!({"input": "x", "tools": [{"type": "function"}]}), "tools.0.name"),
        (json!({"input": "x", "tool_choice": "some"}), "tool_choice"),
        (json!({"input": "x", "tool_choice": {"type": "function", "name": "f"}}), "tool_choice.name"),
        (json!({"input": "x", "tool_choice": {"type": "allowed_tools"}}), "tool_choice.type"),
        (json!({"input": "x", "text": {"format": {"type": "grammar"}}}), "text.format.type"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input.0.type"),
        (json!({"input": [{"role": "robot", "content": "x"}]}), "input.0.role"),
        (json!({"input": [{"role": "user"}]}), "input.0.content"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}), "input.0.content.0.type"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}), "input.0.content.0.image_url"),
        (json!({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}), "input.0.call_id"),
        (json!({"input": [{"type": "function_call_output", "call_id": "c"}]}), "input.0.output"),
    ];
    for (body, param) in table {
        let error = to_chat(body.to_string().as_bytes(), Flavor::LlamaCpp).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::InvalidRequest, Some(param)), "{body}");
        assert!(error.message.starts_with(&format!("`{param}` ")), "{}", error.message);
    }
}

fn head() -> Head {
    Head::new(
        "resp_1".into(),
        7,
        "asked".into(),
        br#"{"model":"x","tools":[{"type":"function","name":"f"}],"temperature":1.0,"input":"hi"}"#,
    )
}

fn response(document: &[u8]) -> Value {
    serde_json::from_slice(&to_response(document, &head()).unwrap()).unwrap()
}

#[test]
fn a_whole_reply_becomes_a_response() {
    let document = json!({
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": {
            "role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
            "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "f", "arguments": "{\"at\": 1}"}}],
        }}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}, "completion_tokens_details": {"reasoning_tokens": 3}},
    });
    assert_eq!(
        response(document.to_string().as_bytes()),
        json!({
            "id": "resp_1", "object": "response", "created_at": 7, "status": "completed", "error": null, "incomplete_details": null,
            "model": "asked", "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
            "previous_response_id": null, "reasoning": null, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
            "tools": [{"type": "function", "name": "f"}], "top_p": null, "truncation": "disabled", "user": null, "service_tier": null,
            "store": false, "background": false,
            "output": [
                {"id": "rs_1_0", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "status": "completed"},
                {"id": "msg_1_1", "type": "message", "role": "assistant", "status": "completed",
                 "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
                {"id": "fc_1_2", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"at\": 1}", "status": "completed"},
            ],
            "usage": {
                "input_tokens": 30, "input_tokens_details": {"cached_tokens": 12}, "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 37,
            },
        })
    );
    let cut = response(br#"{"choices":[{"finish_reason":"length","message":{"content":"x"}}]}"#);
    assert_eq!((&cut["status"], &cut["incomplete_details"]), (&json!("incomplete"), &json!({"reason": "max_output_tokens"})));
    assert_eq!(cut["output"][0]["status"], "incomplete");
    assert!(to_response(b"[]", &head()).is_err());
}

fn translate(stream: &[u8], step: usize) -> (FromChat, String) {
    let mut translation = FromChat::responses(head(), LIMIT);
    let mut out = Vec::new();
    for chunk in stream.chunks(step) {
        translation.push(chunk, &mut out);
    }
    translation.close(&mut out);
    (translation, String::from_utf8(out).unwrap())
}

fn events(text: &str) -> Vec<Value> {
    let frames = text.split_terminator("\n\n").map(|frame| frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap());
    let events: Vec<Value> = frames
        .map(|(name, data)| {
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["type"], name);
            event
        })
        .collect();
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == number), "numbered from zero without a gap");
    events
}

/// Checks that every item is announced, told and told whole in order; gives the response of the last event.
fn fold(text: &str) -> Value {
    let events = events(text);
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!((&first["type"], &first["response"]["status"]), (&json!("response.created"), &json!("in_progress")));
    assert_eq!(events[1]["type"], "response.in_progress");
    let mut output: Vec<Value> = Vec::new();
    let mut open: Option<(Value, String)> = None;
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().unwrap();
        assert_eq!(event["output_index"], output.len(), "{event}");
        match kind {
            "response.output_item.added" => {
                assert!(open.is_none() && event["item"]["status"] == "in_progress");
                open = Some((event["item"].clone(), String::new()));
            }
            "response.output_item.done" => {
                let (item, text) = open.take().unwrap();
                let whole = &event["item"];
                assert_eq!((&item["id"], &item["type"]), (&whole["id"], &whole["type"]));
                let said = whole["arguments"].as_str().or(whole["content"][0]["text"].as_str());
                assert_eq!(said, Some(text.as_str()));
                output.push(whole.clone());
            }
            _ => {
                let (item, text) = open.as_mut().unwrap();
                assert_eq!(event["item_id"], item["id"]);
                if let Some(delta) = event["delta"].as_str() {
                    text.push_str(delta);
                }
                if kind.ends_with("text.done") || kind.ends_with("arguments.done") {
                    assert_eq!(event["text"].as_str().or(event["arguments"].as_str()), Some(text.as_str()));
                }
            }
        }
    }
    assert_eq!(last["response"]["output"], Value::from(output));
    assert!(matches!(last["type"].as_str().unwrap(), "response.completed" | "response.incomplete"));
    assert_eq!(last["type"].as_str().unwrap().strip_prefix("response."), last["response"]["status"].as_str());
    last["response"].clone()
}

fn recorded(name: &str, kind: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/b11549/streams/{name}.{kind}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn a_recorded_stream_says_what_the_same_reply_says_as_a_whole() {
    for name in ["chat", "chat_stop", "chat_schema", "chat_reasoning", "chat_tools"] {
        for step in [1, 13, 100_000] {
            let (translation, text) = translate(&recorded(name, "sse"), step);
            assert!(translation.is_finished() && translation.error().is_none());
            let mut streamed = fold(&text);
            let mut whole = response(&recorded(name, "json"));
            for response in [&mut streamed, &mut whole] {
                // New with each request.
                response["usage"] = response["usage"]["output_tokens"].clone();
                for item in response["output"].as_array_mut().unwrap() {
                    item["call_id"].take();
                }
            }
            assert_eq!(streamed, whole, "{name}");
        }
    }
}

#[test]
fn a_failed_stream_ends_with_a_failed_response() {
    let (translation, text) = translate(&recorded("chat_tools_torn", "sse"), 50);
    let events = events(&text);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert!(last["response"]["error"]["message"].as_str().unwrap().contains("peg-native") && translation.error().is_some());
    let mut cut = FromChat::responses(head(), LIMIT);
    let mut out = Vec::new();
    cut.fail(&ApiError::new(ErrorCode::UpstreamFailed, "gone"), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("event: response.created\n") && text.contains("event: response.failed\n") && text.contains("\"gone\""),
        "{text}"
    );
    let mut small = FromChat::responses(head(), 3);
    small.push(b"data: {\"choices\":[{\"delta\":{\"content\":\"four\"}}]}\n\n", &mut Vec::new());
    assert!(small.error().is_some(), "more text than is kept");
}

proptest! {
    #[test]
    fn streamed_and_whole_replies_say_the_same(
        reasoning in ".{0,20}", content in proptest::collection::vec(".{1,8}", 0..4), calls in proptest::collection::vec("[a-z{}\"]{0,9}", 0..3), step in 1_usize..60,
    ) {
        let mut deltas = vec![json!({"role": "assistant", "content": null, "reasoning_content": reasoning})];
        deltas.extend(content.iter().map(|text| json!({"content": text})));
        let mut whole_calls = Vec::new();
        for (index, arguments) in calls.iter().enumerate() {
            deltas.push(json!({"tool_calls": [{"index": index, "id": format!("c{index}"), "function": {"name": "f", "arguments": ""}}]}));
            deltas.extend(arguments.chars().map(|piece| json!({"tool_calls": [{"index": index, "function": {"arguments": piece.to_string()}}]})));
            whole_calls.push(json!({"id": format!("c{index}"), "function": {"name": "f", "arguments": arguments}}));
        }
        let mut stream = deltas.into_iter().map(|delta| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))).collect::<Vec<_>>().concat();
        stream.push_str("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
        let whole = json!({"choices": [{"finish_reason": "stop", "message": {
            "content": content.concat(), "reasoning_content": reasoning, "tool_calls": whole_calls,
        }}]});
        prop_assert_eq!(fold(&translate(stream.as_bytes(), step).1), response(whole.to_string().as_bytes()));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256), step in 1_usize..40) {
        let _ = to_chat(&bytes, Flavor::LlamaCpp);
        let _ = to_chat(&[b"{\"input\":[", &bytes[..], b"]}"].concat(), Flavor::Other);
        let _ = to_response(&bytes, &Head::new(String::new(), 0, String::new(), &bytes));
        let _ = translate(&[b"data: {\"choices\":[{\"delta\":{", &bytes[..], b"}}]}\n\ndata: [DONE]\n\n"].concat(), step);
    }
}
