//! A whole chat reply as a response.

use super::super::chat::{Chunk, End, Piece, Tokens, unreadable};
use super::super::{ApiError, ErrorCode};
use super::{Head, Item, State};

/// The response a chat reply becomes.
pub fn to_response(document: &[u8], head: &Head) -> Result<Vec<u8>, ApiError> {
    let reply: Chunk = serde_json::from_slice(document).map_err(|error| unreadable(&error))?;
    let mut tokens = Tokens::default();
    tokens.update(&reply);
    let none = || ApiError::new(ErrorCode::UpstreamFailed, "the engine's reply holds no message");
    let choice = reply.choices.first().ok_or_else(none)?;
    let message = choice.message.as_ref().ok_or_else(none)?;
    let end = choice.end().unwrap_or(End::Stop);
    let items: Vec<_> = message.pieces().map(item).collect();
    // A reply that was cut was cut in its last item.
    let cut = if matches!(end, End::Length | End::Filter) { items.len().checked_sub(1) } else { None };
    let status = |place| if cut == Some(place) { "incomplete" } else { "completed" };
    let output: Vec<_> = items.iter().enumerate().map(|(place, item)| item.object(head, place, status(place))).collect();
    Ok(head.object(State::Ended(&end), &output, Some(tokens)).into_bytes())
}

fn item(piece: Piece<'_>) -> Item {
    match piece {
        Piece::Reasoning(text) => Item::Reasoning(text.to_owned()),
        Piece::Text(text) => Item::Message(text.to_owned()),
        Piece::Call { index, id, name, arguments } => {
            Item::Call { index, id: id.map(str::to_owned), name: name.unwrap_or_default().to_owned(), arguments: arguments.to_owned() }
        }
    }
}
