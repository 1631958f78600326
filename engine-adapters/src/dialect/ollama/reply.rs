//! A whole reply of an engine as the one object of an answer that is not streamed.

use super::super::ApiError;
use super::super::ErrorCode;
use super::super::chat::{Chunk, End, Piece, Tokens, unreadable};
use super::{Call, Head, Said};

/// The object a chat or text completion becomes.
pub fn to_object(document: &[u8], head: &Head) -> Result<Vec<u8>, ApiError> {
    let reply: Chunk = serde_json::from_slice(document).map_err(|error| unreadable(&error))?;
    let mut tokens = Tokens::default();
    tokens.update(&reply);
    let none = || ApiError::new(ErrorCode::UpstreamFailed, "the engine's reply holds no message");
    let choice = reply.choices.first().ok_or_else(none)?;
    let mut said = Said::default();
    for piece in choice.pieces() {
        match piece {
            Piece::Reasoning(text) => said.thinking = text,
            Piece::Text(text) => said.content = text,
            Piece::Call { name, arguments, .. } => said.calls.push(Call { name: name.unwrap_or_default(), arguments }),
        }
    }
    Ok(head.done(&said, &choice.end().unwrap_or(End::Stop), tokens, reply.timings).into_bytes())
}
