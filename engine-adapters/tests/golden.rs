//! The readers against replies recorded from a real engine (llama.cpp b11549 with `SmolLM2`-135M).

use lifeboat_engines::EngineAdapter;
use lifeboat_engines::dialect::{ApiError, BodyReader, ErrorCode, StreamReader, Usage};
use lifeboat_engines::llama_cpp::LlamaCpp;
use lifeboat_engines::spec::Health;

fn recorded(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(format!("{}/tests/golden/b11549/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_default();
    assert!(!bytes.is_empty(), "{name} is missing or empty");
    bytes
}

fn counts(usage: Option<Usage>) -> (u64, u64) {
    usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)).unwrap_or_default()
}

#[test]
fn whole_replies_of_all_endpoints_tell_their_usage() {
    for (name, expected) in [("chat.json", (33, 4)), ("messages.json", (33, 4)), ("responses.json", (33, 4)), ("completions.json", (3, 4))]
    {
        let mut reader = BodyReader::default();
        reader.push(&recorded(name));
        assert_eq!(counts(reader.usage()), expected, "{name}");
    }
}

#[test]
fn streams_of_all_endpoints_tell_their_usage_their_first_output_and_their_end() {
    for (name, expected) in [
        ("chat.sse", (33, 4)),
        ("chat_usage.sse", (33, 4)),
        ("messages.sse", (33, 4)),
        ("responses.sse", (33, 4)),
        ("completions.sse", (3, 4)),
    ] {
        let bytes = recorded(name);
        let mut reader = StreamReader::default();
        assert_eq!(reader.outputs(), 0);
        for chunk in bytes.chunks(11) {
            reader.push(chunk);
        }
        assert!(reader.outputs() > 0 && reader.is_finished() && reader.error().is_none(), "{name}");
        assert_eq!(counts(reader.usage()), expected, "{name}");
        let mut cut = StreamReader::default();
        cut.push(&bytes[..bytes.len() / 3]);
        assert!(!cut.is_finished(), "{name} is not finished after a third");
    }
}

#[test]
fn errors_get_stable_codes() {
    for (name, status, code) in [
        ("error_context.json", 400, ErrorCode::ContextLengthExceeded),
        ("error_key.json", 401, ErrorCode::UpstreamFailed),
        ("error_request.json", 400, ErrorCode::InvalidRequest),
        ("error_json.json", 400, ErrorCode::InvalidRequest),
        ("error_unsupported.json", 501, ErrorCode::UnsupportedEndpoint),
        ("error_pooling.json", 400, ErrorCode::InvalidRequest),
        ("error_path.json", 404, ErrorCode::UnsupportedEndpoint),
        ("loading.json", 503, ErrorCode::NoReadyRow),
    ] {
        assert_eq!(ApiError::from_engine(status, &recorded(name)).code, code, "{name}");
    }
    let long = ApiError::from_engine(400, &recorded("error_context.json"));
    assert_eq!((long.prompt_tokens, long.context), (Some(931), Some(512)));
}

#[test]
fn a_loading_engine_is_loading_and_its_log_tells_how_far() {
    assert_eq!(LlamaCpp.read_health(503, &recorded("loading.json")), Health::Loading);
    let log = String::from_utf8(recorded("load.log")).expect("the log is text");
    let steps: Vec<f32> = log.lines().filter_map(|line| LlamaCpp.read_load_progress(line)).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&1.0), "{steps:?}");
}
