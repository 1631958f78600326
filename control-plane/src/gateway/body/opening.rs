//! Puts back the event that opens an Anthropic stream where the engine leaves it out.
//!
//! llama-server (seen with b11549) sends `message_start` with the first token, and sends no first token whose bytes
//! are only a part of a character: an answer that begins with an emoji or, with many tokenizers, in Chinese comes
//! without its opening, and Anthropic's client libraries refuse such a stream. Nothing else of a stream is touched.

use bytes::Bytes;
use lifeboat_engines::dialect::Dialect;
use serde_json::json;

/// How such a stream begins instead.
const TOO_EARLY: &[u8] = b"event: content_block_";

/// The missing event, if this is the begin of a stream that lacks it. The token counts it must have are zero: the
/// engine tells them nowhere else.
pub(super) fn missing(dialect: Dialect, first: &[u8], request_id: &str, model: &str) -> Option<Bytes> {
    if dialect != Dialect::Anthropic || !first.starts_with(TOO_EARLY) {
        return None;
    }
    let event = json!({
        "type": "message_start",
        "message": {
            "id": format!("msg_{request_id}"), "type": "message", "role": "assistant", "content": [], "model": model,
            "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 0, "output_tokens": 0},
        },
    });
    Some(format!("event: message_start\ndata: {event}\n\n").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_anthropic_stream_without_its_opening_gets_one() {
        let late = b"event: content_block_start\ndata: {}\n\n";
        let opening = missing(Dialect::Anthropic, late, "7", "a \"b\"").unwrap();
        let text = std::str::from_utf8(&opening).unwrap();
        let event: serde_json::Value = serde_json::from_str(text.trim_end().rsplit("data: ").next().unwrap()).unwrap();
        assert_eq!((&event["message"]["id"], &event["message"]["model"]), (&json!("msg_7"), &json!("a \"b\"")));
        for (dialect, first) in [
            (Dialect::Anthropic, &b"event: message_start\ndata: {}\n\n"[..]),
            (Dialect::Anthropic, b"event: error\ndata: {}\n\n"),
            (Dialect::Anthropic, b""),
            (Dialect::OpenAi, late),
        ] {
            assert_eq!(missing(dialect, first, "7", "m"), None);
        }
    }
}
