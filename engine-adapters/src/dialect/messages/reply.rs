//! A whole chat reply as a message.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::chat::{Chunk, End, Piece, Tokens, unreadable};
use super::super::{ApiError, ErrorCode};
use super::{Usage, stop_reason};

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking { thinking: &'a str, signature: &'static str },
    Text { text: &'a str },
    ToolUse { id: String, name: &'a str, input: &'a RawValue },
}

/// The message a chat reply becomes, named `id`, under the model's name as the client asked.
pub fn to_message(document: &[u8], id: &str, model: &str) -> Result<Vec<u8>, ApiError> {
    let reply: Chunk = serde_json::from_slice(document).map_err(|error| unreadable(&error))?;
    let mut tokens = Tokens::default();
    tokens.update(&reply);
    let none = || ApiError::new(ErrorCode::UpstreamFailed, "the engine's reply holds no message");
    let choice = reply.choices.first().ok_or_else(none)?;
    let message = choice.message.as_ref().ok_or_else(none)?;
    let content: Vec<_> = message.pieces().map(|piece| block(piece, id)).collect();
    let has_calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    let end = choice.end().unwrap_or(End::Stop);
    let (stop_reason, stop_sequence) = stop_reason(&end, has_calls);
    let message = Message { id, kind: "message", role: "assistant", model, content, stop_reason, stop_sequence, usage: Usage::of(tokens) };
    serde_json::to_vec(&message).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
}

fn block<'a>(piece: Piece<'a>, id: &str) -> Block<'a> {
    match piece {
        Piece::Reasoning(thinking) => Block::Thinking { thinking, signature: "" },
        Piece::Text(text) => Block::Text { text },
        Piece::Call { index, id: call, name, arguments } => Block::ToolUse {
            id: call.map_or_else(|| made_id(id, index), str::to_owned),
            name: name.unwrap_or_default(),
            // A call that was cut short has no input that could be read.
            input: serde_json::from_str(arguments).ok().filter(|input: &&RawValue| input.get().starts_with('{')).unwrap_or(empty()),
        },
    }
}

/// For engines that give their calls no id.
pub(super) fn made_id(message: &str, index: u64) -> String {
    format!("toolu_{}_{index}", message.trim_start_matches("msg_"))
}

fn empty() -> &'static RawValue {
    serde_json::from_str("{}").unwrap_or(RawValue::NULL)
}
