//! Which replies can be gone on with, by what request, and what the client then sees.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Aggregate, StreamReader};
use super::*;

const LIMIT: usize = 1 << 16;

fn chat_event(delta: &Value) -> Value {
    json!({"id": "first", "created": 1, "model": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn sent(events: &[Value]) -> Transcript {
    let mut transcript = Transcript::new(Generation::Chat, LIMIT);
    for event in events {
        transcript.event(event.to_string().as_bytes());
    }
    transcript
}

fn said(text: &str) -> Transcript {
    sent(&[chat_event(&json!({"role": "assistant", "content": null})), chat_event(&json!({"content": text}))])
}

fn resumed(body: &Value, sent: &Transcript) -> Option<Value> {
    resume(body.to_string().as_bytes(), sent).map(|body| serde_json::from_slice(&body).unwrap())
}

#[test]
fn a_conversation_goes_on_behind_what_was_sent() {
    let body = json!({"model": "m", "stream": true, "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(
        resumed(&body, &said("I \"am\"")).unwrap(),
        json!({
            "model": "m", "stream": true, "max_tokens": 9, "continue_final_message": true, "add_generation_prompt": false,
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I \"am\""}],
        })
    );
    assert_eq!(resumed(&body, &sent(&[])).unwrap(), body, "nothing was said yet: the same again");
    assert_eq!(resumed(&body, &sent(&[chat_event(&json!({"role": "assistant", "content": ""}))])).unwrap(), body);
}

#[test]
fn a_message_the_client_began_is_gone_on_with() {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "name": "x", "content": "I "}]});
    assert_eq!(
        resumed(&body, &said("am")).unwrap()["messages"],
        json!([{"role": "user", "content": "hi"}, {"role": "assistant", "name": "x", "content": "I am"}])
    );
    body["messages"][1]["content"] = json!([{"type": "text", "text": "I "}]);
    assert!(resumed(&body, &said("am")).is_none());
    body["messages"][1] = json!({"role": "assistant", "content": "", "tool_calls": []});
    assert!(resumed(&body, &said("am")).is_none());
}

#[test]
fn a_prompt_goes_on_behind_what_was_sent() {
    let mut transcript = Transcript::new(Generation::Text, LIMIT);
    for text in ["time", ", th"] {
        transcript.event(json!({"choices": [{"text": text, "index": 0, "finish_reason": null}]}).to_string().as_bytes());
    }
    let body = json!({"prompt": "Once upon a ", "n_predict": -1, "max_tokens": 5});
    assert_eq!(resumed(&body, &transcript).unwrap(), json!({"prompt": "Once upon a time, th", "n_predict": -1, "max_tokens": 3}));
    for prompt in [json!(["a"]), json!([1, 2]), Value::Null] {
        assert!(resumed(&json!({"prompt": prompt}), &transcript).is_none());
    }
}

#[test]
fn requests_that_want_more_than_text_are_not_resumed() {
    for extra in [
        json!({"n": 2}),
        json!({"logprobs": true}),
        json!({"logprobs": 0, "top_logprobs": 3}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"grammar": "root ::= x"}),
        json!({"json_schema": {}}),
        json!({"tool_choice": "required"}),
        json!({"tool_choice": {"type": "function"}}),
        json!({"max_tokens": 1}),
        json!({"messages": "x"}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert!(resumed(&body, &said("x")).is_none(), "{body}");
    }
    let plain = json!({
        "messages": [{"role": "user", "content": "hi"}], "n": 1, "logprobs": false, "top_logprobs": null, "grammar": "",
        "tools": [{}], "tool_choice": "auto", "response_format": {"type": "text"},
    });
    assert!(resumed(&plain, &said("x")).is_some());
}

#[test]
fn a_reply_with_more_than_text_in_it_is_not_resumed() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    for delta in [
        json!({"tool_calls": [{"index": 0}]}),
        json!({"reasoning_content": "Hm"}),
        json!({"content": "x", "reasoning": "Hm"}),
        json!({"refusal": "no"}),
        json!({"content": 7}),
    ] {
        assert!(resumed(&body, &sent(&[chat_event(&json!({"content": "a"})), chat_event(&delta)])).is_none(), "{delta}");
    }
    let empty = json!({"content": "b", "tool_calls": [], "reasoning_content": null, "reasoning": "", "refusal": null});
    assert_eq!(sent(&[chat_event(&json!({"content": "a"})), chat_event(&empty)]).text().unwrap(), "ab");
    let mut end = chat_event(&json!({}));
    end["choices"][0]["finish_reason"] = "stop".into();
    assert!(sent(&[chat_event(&json!({"content": "a"})), end]).text().is_none(), "it has ended");
}

#[test]
fn what_is_kept_is_bounded() {
    let mut transcript = Transcript::new(Generation::Chat, 100);
    for _ in 0..10 {
        transcript.event(chat_event(&json!({"content": "0123456789"})).to_string().as_bytes());
    }
    assert_eq!(transcript.text().unwrap().len(), 100);
    transcript.event(chat_event(&json!({"content": "x"})).to_string().as_bytes());
    assert!(transcript.text().is_none());
}

#[test]
fn a_recorded_stream_is_read_as_it_passes() {
    let stream = include_bytes!("../../../tests/golden/b11549/streams/chat_schema.sse");
    let mut reader = StreamReader::default();
    reader.keep_text(Generation::Chat, LIMIT);
    let cut = stream.len() - 1400;
    for chunk in stream[..cut].chunks(17) {
        reader.push(chunk);
    }
    let text = reader.transcript().unwrap().text().unwrap();
    assert!("{\n  \"name\": \"Alejà\",\n  \"age\": 25\n}".starts_with(&text) && text.len() > 20, "{text}");
}

#[test]
fn the_client_sees_one_reply() {
    let first = [
        chat_event(&json!({"role": "assistant", "content": null})),
        chat_event(&json!({"content": "One "})),
        chat_event(&json!({"content": "two "})),
    ];
    let transcript = sent(&first);
    let second = [
        json!({"id": "second", "created": 2, "model": "b", "choices": [{"index": 0, "delta": {"role": "assistant", "content": null}, "finish_reason": null}]}),
        json!({"id": "second", "created": 2, "model": "b", "choices": [{"index": 0, "delta": {"content": "three"}, "finish_reason": null}]}),
        json!({"id": "second", "created": 2, "model": "b", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json!({"id": "second", "created": 2, "model": "b", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}, "timings": {"cache_n": 4, "prompt_n": 8, "predicted_n": 1}}),
    ];
    let mut out: Vec<u8> = first.iter().flat_map(|event| format!("data: {event}\n\n").into_bytes()).collect();
    let mut stitch = Stitch::new(&transcript, "a");
    for event in second {
        stitch.push(format!("data: {event}\n\n").as_bytes(), &mut out);
    }
    stitch.push(b"data: [DONE]\n\n", &mut out);
    let mut aggregate = Aggregate::new(LIMIT);
    aggregate.push(&out).unwrap();
    let whole: Value = serde_json::from_slice(&aggregate.finish().unwrap()).unwrap();
    assert_eq!(
        whole,
        json!({
            "id": "first", "created": 1, "model": "a", "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "One two three"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
            "timings": {"cache_n": 4, "prompt_n": 6, "predicted_n": 3},
        })
    );
    assert_eq!(String::from_utf8(out).unwrap().matches("\"role\"").count(), 1, "one opening");
}

#[test]
fn errors_and_events_that_are_no_objects_pass_as_they_are() {
    let mut out = Vec::new();
    let mut stitch = Stitch::new(&said("x"), "m");
    stitch.push(b"data: null\n\n: ping\n\ndata: {\"error\":{\"message\":\"boom\"}}\n\n", &mut out);
    assert_eq!(out, b"data: {\"error\":{\"message\":\"boom\"}}\n\n");
}

proptest! {
    #[test]
    fn any_text_is_gathered_whatever_it_holds(pieces in proptest::collection::vec(any::<String>(), 0..12), step in 1_usize..50, spaced: bool) {
        let mut reader = StreamReader::default();
        reader.keep_text(Generation::Chat, usize::MAX);
        for piece in &pieces {
            let mut event = chat_event(&json!({"content": piece})).to_string();
            if spaced {
                event = event.replacen("\"content\":", "\"content\": ", 1);
            }
            for chunk in format!("data: {event}\n\n").as_bytes().chunks(step) {
                reader.push(chunk);
            }
        }
        prop_assert_eq!(reader.transcript().unwrap().text().unwrap(), pieces.concat());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        for generation in [Generation::Chat, Generation::Text] {
            let mut transcript = Transcript::new(generation, LIMIT);
            transcript.event(&bytes);
            transcript.event(&[b"{\"content\":\"", &bytes[..]].concat());
            let _ = resume(&bytes, &transcript);
            let _ = resume(&[b"{\"messages\":[", &bytes[..], b"]}"].concat(), &said("x"));
            Stitch::new(&transcript, "m").push(&[b"data: {\"choices\":[", &bytes[..], b"]}\n\n"].concat(), &mut Vec::new());
        }
    }
}
