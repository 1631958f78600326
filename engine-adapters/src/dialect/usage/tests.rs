//! Replies of all dialects, whole and streamed.

use proptest::prelude::*;

use super::*;

fn counts(usage: Option<Usage>) -> (u64, u64, u64) {
    let usage = usage.unwrap();
    (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
}

const CHAT: &str = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"\"usage\":{\"prompt_tokens\":1}"}}],"model":"m","usage":{"completion_tokens":7,"prompt_tokens":30,"total_tokens":37,"prompt_tokens_details":{"cached_tokens":12}},"timings":{"cache_n":12,"prompt_n":18,"prompt_ms":20.5,"predicted_n":7,"predicted_ms":100}}"#;

#[test]
fn bodies_of_all_endpoints_are_read() {
    assert_eq!(counts(from_body(CHAT.as_bytes())), (30, 12, 7));
    assert_eq!(from_body(CHAT.as_bytes()).unwrap().prompt_ms, Some(20.5));
    let messages = br#"{"type":"message","usage":{"cache_read_input_tokens":12,"input_tokens":18,"output_tokens":7}}"#;
    assert_eq!(counts(from_body(messages)), (30, 12, 7));
    let responses = br#"{"object":"response","usage":{"input_tokens":30,"output_tokens":7,"total_tokens":37,"input_tokens_details":{"cached_tokens":12}}}"#;
    assert_eq!(counts(from_body(responses)), (30, 12, 7));
    let embeddings = br#"{"object":"list","usage":{"prompt_tokens":5,"total_tokens":5},"data":[]}"#;
    assert_eq!(counts(from_body(embeddings)), (5, 0, 0));
    assert_eq!(from_body(br#"{"usage":null}"#), None);
    assert_eq!(from_body(b"nonsense"), None);
}

#[test]
fn odd_numbers_are_ignored_and_not_believed() {
    let body = br#"{"usage":{"prompt_tokens":-5,"completion_tokens":1.5,"total_tokens":null}}"#;
    assert_eq!(counts(from_body(body)), (0, 0, 0));
}

#[test]
fn large_bodies_are_read_from_their_ends() {
    let vectors = "0.123456,".repeat(200_000);
    let embeddings = format!(r#"{{"usage":{{"prompt_tokens":5,"total_tokens":5}},"data":[{vectors}0]}}"#);
    let chat = CHAT.replace("\"model\":\"m\"", &format!("\"x\":[{vectors}0]"));
    for (body, expected) in [(embeddings, (5, 0, 0)), (chat, (30, 12, 7))] {
        let mut reader = BodyReader::default();
        for chunk in body.as_bytes().chunks(8192) {
            reader.push(chunk);
            assert!(reader.head.len() + reader.tail.len() <= HEAD_BYTES + 3 * TAIL_BYTES);
        }
        assert_eq!(counts(reader.usage()), expected);
    }
    let mut middling = BodyReader::default();
    middling.push(CHAT.replace("\"model\":\"m\"", &format!("\"x\":\"{}\"", "y".repeat(100_000))).as_bytes());
    assert_eq!(counts(middling.usage()), (30, 12, 7));
}

fn follow(text: &str) -> StreamReader {
    let mut reader = StreamReader::default();
    for chunk in text.as_bytes().chunks(7) {
        reader.push(chunk);
    }
    reader
}

#[test]
fn a_chat_stream_is_followed_to_its_end() {
    let start = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}]}\n\n";
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"hi \\\"usage\\\":{\"},\"finish_reason\":null}]}\n\n";
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":1,\"prompt_n\":2,\"predicted_n\":3}}\n\ndata: [DONE]\n\n";
    assert_eq!(follow(start).outputs(), 0);
    let middle = follow(&[start, token].concat());
    assert!(middle.outputs() == 1 && !middle.is_finished() && middle.usage().is_none());
    assert_eq!(follow(&[start, token, token, token].concat()).outputs(), 3);
    let whole = follow(&[start, token, end].concat());
    assert!(whole.is_finished() && whole.error().is_none());
    assert_eq!(counts(whole.usage()), (3, 1, 3));
}

#[test]
fn spaces_between_name_and_value_make_no_difference() {
    let start =
        "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}, \"finish_reason\": null}], \"usage\": null}\n\n";
    let end = "data: {\"choices\": [{\"delta\": {\"content\": \"x\"}, \"finish_reason\": \"stop\"}], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 1, \"total_tokens\": 4}}\n\n";
    let opening = follow(start);
    assert!(opening.outputs() == 0 && !opening.is_finished() && opening.usage().is_none());
    let whole = follow(&[start, end].concat());
    assert!(whole.outputs() > 0 && whole.is_finished());
    assert_eq!(counts(whole.usage()), (3, 0, 1));
}

#[test]
fn an_anthropic_stream_gathers_its_usage_from_two_events() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":18,\"cache_read_input_tokens\":12,\"output_tokens\":0}}}\n\n";
    let block =
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    let delta =
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n";
    let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_eq!(follow(&[start, block].concat()).outputs(), 0);
    let whole = follow(&[start, block, delta, end].concat());
    assert!(whole.outputs() > 0 && whole.is_finished());
    assert_eq!(counts(whole.usage()), (30, 12, 7));
}

#[test]
fn a_responses_stream_ends_with_its_usage() {
    let whole = follow(
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":7,\"total_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":12}}}}\n\n",
    );
    assert!(whole.outputs() > 0 && whole.is_finished());
    assert_eq!(counts(whole.usage()), (30, 12, 7));
}

#[test]
fn an_error_in_the_stream_is_told_and_a_null_one_is_not() {
    let failed = follow("data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n");
    assert_eq!(failed.error().unwrap().message, "boom");
    assert!(!failed.is_finished());
    assert!(follow("data: {\"error\":null,\"choices\":[]}\n\n").error().is_none());
}

#[test]
fn a_stream_that_is_cut_off_is_not_finished() {
    assert!(!follow("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\ndata: [DO").is_finished());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let mut stream = StreamReader::default();
        stream.push(&bytes);
        stream.push(&[b"data: {\"usage\":{", &bytes[..], b"}}\n\n"].concat());
        let mut body = BodyReader::default();
        body.push(&bytes);
        let _ = body.usage();
    }
}

#[test]
fn several_choices_of_a_stream_use_at_least_what_was_seen_of_them() {
    let mut reader = StreamReader::default();
    for index in 0..2 {
        reader.push(
            format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":null}}}}]}}\n\n").as_bytes(),
        );
        for _ in 0..5 {
            reader.push(
                format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"a\"}},\"finish_reason\":null}}]}}\n\n")
                    .as_bytes(),
            );
        }
        reader.push(format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n").as_bytes());
        reader.push(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}\n\n");
    }
    let usage = reader.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (9, 9), "nine or ten");
}
