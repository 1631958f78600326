//! The second engine's stream as the rest of the first one's: one id, one opening, one count of tokens.

use serde_json::value::RawValue;

use super::super::raw::{Fields, Object, is_null, raw};
use super::super::sse::SseReader;
use super::Transcript;

/// Rewrites what comes from the second engine.
#[derive(Debug)]
pub struct Stitch {
    events: SseReader,
    id: Option<Box<RawValue>>,
    created: Option<Box<RawValue>>,
    model: Box<RawValue>,
    /// Tokens the first engine sent, which the second one counts as its prompt.
    sent: u64,
}

impl Stitch {
    /// For a reply of which the client has `sent`, under the name of the model it asked for.
    pub fn new(sent: &Transcript, model: &str) -> Self {
        let first: Fields<'_> = serde_json::from_slice(sent.first()).unwrap_or_default();
        Self {
            events: SseReader::default(),
            id: first.get("id").map(ToOwned::to_owned),
            created: first.get("created").map(ToOwned::to_owned),
            model: raw(model),
            sent: sent.pieces(),
        }
    }

    /// Takes the next bytes and appends the events that are to be sent on.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let Self { events, id, created, model, sent } = self;
        events.push(chunk, |data| {
            let event = match serde_json::from_slice::<Fields<'_>>(data) {
                Ok(fields) if opens_only(&fields) => return,
                Ok(fields) => {
                    rewritten(&fields, [("id", id.as_deref()), ("created", created.as_deref()), ("model", Some(&**model))], *sent)
                }
                Err(_) if data == b"null" => return,
                Err(_) => data.to_vec(),
            };
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&event);
            out.extend_from_slice(b"\n\n");
        });
    }
}

/// The client has had the opening already.
fn opens_only(event: &Fields<'_>) -> bool {
    let choices: Vec<Fields<'_>> = event.get("choices").and_then(|choices| serde_json::from_str(choices.get()).ok()).unwrap_or_default();
    let [choice] = choices.as_slice() else { return false };
    let delta: Option<Fields<'_>> = choice.get("delta").and_then(|delta| serde_json::from_str(delta.get()).ok());
    let Some(delta) = delta.filter(|delta| delta.get("role").is_some()) else { return false };
    let silent = |value: &RawValue| is_null(value) || value.get() == "\"\"" || value.get() == "[]";
    choice.get("finish_reason").is_none() && delta.iter().all(|(name, value)| name == "role" || silent(value))
}

fn rewritten(event: &Fields<'_>, fixed: [(&str, Option<&RawValue>); 3], sent: u64) -> Vec<u8> {
    let mut object = Object::default();
    for (name, value) in event.iter() {
        match (fixed.iter().find(|(fixed, _)| *fixed == name), name) {
            (Some((_, Some(ours))), _) => object.set(name, ours),
            (_, "usage") => object.set(name, &counted(value, sent, "prompt_tokens", "completion_tokens")),
            (_, "timings") => object.set(name, &counted(value, sent, "prompt_n", "predicted_n")),
            _ => object.set(name, value),
        }
    }
    object.into_bytes()
}

/// Tokens that were sent belong to the reply and not to the prompt.
fn counted(value: &RawValue, sent: u64, prompt: &str, completion: &str) -> Box<RawValue> {
    let Ok(fields) = serde_json::from_str::<Fields<'_>>(value.get()) else { return value.to_owned() };
    let mut object = Object::default();
    for (name, value) in fields.iter() {
        match value.get().parse::<u64>() {
            Ok(count) if name == completion => object.set(name, &raw(&count.saturating_add(sent))),
            Ok(count) if name == prompt => object.set(name, &raw(&count.saturating_sub(sent))),
            _ => object.set(name, value),
        }
    }
    raw(&object)
}
