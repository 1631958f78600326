//! Streams recorded from engines beside what the same engine said without a stream, and streams that go wrong.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMIT: usize = 1 << 20;

fn whole(stream: &[u8], step: usize) -> Result<Vec<u8>, ApiError> {
    let mut aggregate = Aggregate::new(LIMIT);
    for chunk in stream.chunks(step) {
        aggregate.push(chunk)?;
    }
    aggregate.finish()
}

/// A recorded reply under its name.
macro_rules! recorded {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../tests/golden/b11549/streams/", $name, ".json")),
            include_bytes!(concat!("../../../tests/golden/b11549/streams/", $name, ".sse")).as_slice(),
        )
    };
}

/// Recorded from llama-server b11549 with temperature 0 and a fixed seed: without a stream, and with one.
const RECORDED: [(&str, &str, &[u8]); 9] = [
    recorded!("chat"),
    recorded!("chat_two"),
    recorded!("chat_stop"),
    recorded!("chat_schema"),
    recorded!("chat_logprobs"),
    recorded!("chat_reasoning"),
    recorded!("chat_tools"),
    recorded!("completion"),
    recorded!("completion_array"),
];

/// What differs from run to run becomes fixed text, so that the rest, order included, can be compared byte for byte.
fn masked(document: &[u8]) -> String {
    let text = std::str::from_utf8(document).unwrap();
    let (before, after) = text.split_once("],\"created\":").unwrap();
    let parsed: Value = serde_json::from_str(text).unwrap();
    let names: Vec<&str> = after.match_indices("\":").map(|(at, _)| after[..at].rsplit('"').next().unwrap()).collect();
    let calls = parsed["choices"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|choice| choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default());
    let before = calls.fold(before.to_owned(), |text, call| text.replace(call["id"].as_str().unwrap(), "ID"));
    format!("{before} {names:?} {}", parsed["usage"]["prompt_tokens"])
}

fn completion_tokens(document: &[u8]) -> u64 {
    serde_json::from_slice::<Value>(document).unwrap()["usage"]["completion_tokens"].as_u64().unwrap()
}

#[test]
fn a_recorded_stream_becomes_the_document_the_engine_gives_itself() {
    for (name, document, stream) in RECORDED {
        for step in [1, 7, 4096] {
            let whole = whole(stream, step).unwrap();
            assert_eq!(masked(&whole), masked(document.as_bytes()), "{name}");
            // The engine counts the first reply alone; those recorded are of the same length.
            let replies = if ["chat_two", "completion_array"].contains(&name) { 2 } else { 1 };
            assert_eq!(completion_tokens(&whole), replies * completion_tokens(document.as_bytes()), "{name}");
        }
    }
}

fn stream(events: &[Value]) -> Vec<u8> {
    let frames = events.iter().map(Value::to_string).chain(["[DONE]".to_owned()]);
    frames.flat_map(|data| ["data: ", &data, "\n\n"].concat().into_bytes()).collect()
}

fn delta(delta: Value) -> Value {
    let mut event = json!({"id": "c", "choices": [{"index": 0, "finish_reason": null}]});
    event["choices"][0]["delta"] = delta;
    event
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn document(events: &[Value]) -> Value {
    serde_json::from_slice(&whole(&stream(events), 11).unwrap()).unwrap()
}

#[test]
fn tool_calls_are_joined_by_index_whatever_order_their_pieces_come_in() {
    let reply = document(&[
        delta(json!({"role": "assistant", "content": null, "reasoning_content": "I "})),
        delta(json!({"reasoning_content": "think"})),
        delta(json!({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "two", "arguments": ""}}]})),
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "one", "arguments": "{\"x"}}]})),
        delta(
            json!({"tool_calls": [{"index": 1, "function": {"name": "two", "arguments": "{}"}}, {"index": 0, "function": {"arguments": "\":1}"}}]}),
        ),
        end("tool_calls"),
    ]);
    assert_eq!(
        reply["choices"][0],
        json!({
            "index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "", "reasoning_content": "I think", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "one", "arguments": "{\"x\":1}"}},
                {"id": "b", "type": "function", "function": {"name": "two", "arguments": "{}"}},
            ]},
        })
    );
}

#[test]
fn unknown_fields_are_kept_at_every_level_and_numbers_stay_as_they_are_written() {
    let text = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\",\"annotations\":[1.10]},\"stop_reason\":null}],\"service_tier\":\"x\"}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"extra\":1e3}]},\"finish_reason\":\"stop\",\"stop_reason\":7}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\ndata: [DONE]\n\n"
    );
    let bytes = whole(text.as_bytes(), 64).unwrap();
    let expected = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"a","annotations":[1.10],"tool_calls":[{"type":"function","function":{"name":"","arguments":""},"extra":1e3}]},"stop_reason":7}],"object":"chat.completion","usage":{"total_tokens":3},"service_tier":"x"}"#;
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[test]
fn an_error_in_the_stream_is_the_reply_with_the_status_it_names() {
    let torn = include_bytes!("../../../tests/golden/b11549/streams/chat_tools_torn.sse");
    let error = whole(torn, 9).unwrap_err();
    assert!(error.code == ErrorCode::UpstreamFailed && error.message.contains("peg-native"), "{error:?}");
    let refused = b"data: {\"error\":{\"code\":400,\"message\":\"no\",\"type\":\"invalid_request_error\"}}\n\n";
    assert_eq!(whole(refused, 5).unwrap_err().code, ErrorCode::InvalidRequest);
}

#[test]
fn a_stream_that_does_not_say_that_it_is_complete_is_no_reply() {
    let text = stream(&[delta(json!({"content": "a"})), end("stop")]);
    assert!(whole(&text, 64).is_ok());
    assert!(whole(&text[..text.len() - 16], 64).is_err(), "no end marker");
    assert!(whole(&stream(&[delta(json!({"content": "a"}))]), 64).is_err(), "no finish reason");
    assert!(whole(b"data: [DONE]\n\n", 64).is_err(), "nothing at all");
    assert!(whole(b"data: {]\n\n", 64).is_err(), "no JSON");
}

#[test]
fn a_reply_beyond_the_limit_is_given_up() {
    let piece = stream(&[delta(json!({"content": "x".repeat(1000)}))]);
    let piece = &piece[..piece.len() - 14];
    let mut aggregate = Aggregate::new(10_000);
    assert!((0..10).all(|_| aggregate.push(piece).is_ok()));
    assert_eq!(aggregate.push(piece).unwrap_err().code, ErrorCode::UpstreamFailed);
    let mut huge = Aggregate::new(usize::MAX);
    assert!(huge.push(format!("data: {}", "x".repeat(2 << 20)).as_bytes()).is_err(), "an event that could not be read");
}

proptest! {
    #[test]
    fn any_text_survives_any_cut(pieces in proptest::collection::vec(any::<String>(), 0..16), step in 1_usize..40) {
        let mut events: Vec<_> = pieces.iter().map(|piece| delta(json!({"content": piece}))).collect();
        events.push(end("stop"));
        let reply: Value = serde_json::from_slice(&whole(&stream(&events), step).unwrap()).unwrap();
        prop_assert_eq!(&reply["choices"][0]["message"]["content"], &Value::from(pieces.concat()));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256), step in 1_usize..40) {
        let _ = whole(&bytes, step);
        let _ = whole(&[b"data: {\"choices\":[{\"delta\":{", &bytes[..], b"}}]}\n\ndata: [DONE]\n\n"].concat(), step);
    }
}

#[test]
fn several_choices_use_what_all_of_them_use() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}});
    let end = |index| json!({"choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": "stop"}]});
    let stream = stream(&[end(0), usage.clone(), end(1), usage.clone(), end(2), usage]);
    let reply: Value = serde_json::from_slice(&whole(&stream, 7).unwrap()).unwrap();
    assert_eq!(reply["usage"], json!({"prompt_tokens": 9, "completion_tokens": 15, "total_tokens": 24}));
}
