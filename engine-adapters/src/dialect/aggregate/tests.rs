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
    format!("{before} {names:?} {} {}", parsed["usage"]["completion_tokens"], parsed["usage"]["prompt_tokens"])
}

#[test]
fn a_recorded_stream_becomes_the_document_the_engine_gives_itself() {
    for (name, document, stream) in RECORDED {
        for step in [1, 7, 4096] {
            assert_eq!(masked(&whole(stream, step).unwrap()), masked(document.as_bytes()), "{name}");
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
fn a_response_is_what_its_last_event_tells() {
    let events = |last: &str| {
        format!(
            "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{{}}}}\n\nevent: x\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"a\"}}\n\nevent: x\ndata: {last}\n\n"
        )
    };
    let whole_text = events(r#"{"type":"response.completed","response":{"id":"resp_1","output":[1.10]}}"#);
    assert_eq!(whole(whole_text.as_bytes(), 9).unwrap(), br#"{"id":"resp_1","output":[1.10]}"#);
    let failed = events(r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"boom"}}}"#);
    assert_eq!(whole(failed.as_bytes(), 9).unwrap_err().message, "boom");
    assert!(whole(&whole_text.as_bytes()[..100], 9).is_err());
    let recorded = whole(include_bytes!("../../../tests/golden/b11549/responses.sse"), 64).unwrap();
    let recorded: Value = serde_json::from_slice(&recorded).unwrap();
    let document: Value = serde_json::from_str(include_str!("../../../tests/golden/b11549/responses.json")).unwrap();
    assert_eq!(recorded["output"][0]["content"], document["output"][0]["content"]);
    assert_eq!(recorded["status"], document["status"]);
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
