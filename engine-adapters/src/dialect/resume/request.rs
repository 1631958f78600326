//! The request by which another engine goes on.

use serde_json::value::RawValue;

use super::super::raw::{Fields, Object, raw, string};
use super::{Generation, Transcript};

/// Fields that shape the text beyond what its beginning shows, with the values under which they do not.
const MUST_BE: [(&str, &[&str]); 13] = [
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("logprobs", &["false", "0"]),
    ("top_logprobs", &["0"]),
    ("n_probs", &["0"]),
    ("grammar", &["\"\""]),
    ("json_schema", &[]),
    ("guided_json", &[]),
    ("structured_outputs", &[]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
    ("audio", &[]),
    ("tool_choice", &["\"auto\"", "\"none\""]),
];

/// Bounds on the reply's tokens.
const BOUNDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "n_predict"];

/// The body that makes an engine go on where `sent` ends; `None` where this cannot be the same reply. `body` is what the
/// first engine was asked. Only engines that continue an assistant's message may get it.
pub fn resume(body: &[u8], sent: &Transcript) -> Option<Vec<u8>> {
    let text = sent.text()?;
    let fields: Fields<'_> = serde_json::from_slice(body).ok()?;
    let fits = MUST_BE.iter().all(|(name, values)| fields.get(name).is_none_or(|value| values.contains(&value.get())));
    if !fits || !is_plain(fields.get("response_format")) {
        return None;
    }
    if text.is_empty() {
        return Some(body.to_vec());
    }
    let mut request = Object::default();
    for (name, value) in fields.iter() {
        request.set(name, value);
    }
    match sent.generation() {
        Generation::Chat => {
            request.set("messages", &raw(&messages(fields.get("messages")?, &text)?));
            request.set("continue_final_message", RawValue::TRUE);
            request.set("add_generation_prompt", RawValue::FALSE);
        }
        Generation::Text => {
            let prompt = string(fields.get("prompt")?)?;
            request.set("prompt", &raw(&format!("{prompt}{text}")));
        }
    }
    for name in BOUNDS {
        let Some(value) = fields.get(name) else { continue };
        // Below zero means without a bound.
        if let Ok(bound) = value.get().parse::<u64>() {
            let left = bound.saturating_sub(sent.pieces());
            if left == 0 {
                return None;
            }
            request.set(name, &raw(&left));
        }
    }
    Some(request.into_bytes())
}

fn is_plain(format: Option<&RawValue>) -> bool {
    format.is_none_or(|format| {
        let kind = serde_json::from_str::<Fields<'_>>(format.get()).ok().and_then(|fields| string(fields.get("type")?));
        kind.is_some_and(|kind| kind == "text")
    })
}

/// The conversation with the text at its end: in the assistant's message that is there already, or in one of its own.
fn messages(given: &RawValue, text: &str) -> Option<Vec<Box<RawValue>>> {
    let mut messages: Vec<Box<RawValue>> = serde_json::from_str(given.get()).ok()?;
    let last: Fields<'_> = messages.last().and_then(|last| serde_json::from_str(last.get()).ok())?;
    if last.get("role").and_then(string).is_none_or(|role| role != "assistant") {
        let mut message = Object::default();
        message.put("role", "assistant");
        message.put("content", text);
        messages.push(raw(&message));
        return Some(messages);
    }
    if last.get("tool_calls").is_some() {
        return None;
    }
    let begun = last.get("content").map_or(Some("".into()), string)?;
    let mut message = Object::default();
    for (name, value) in last.iter() {
        message.set(name, value);
    }
    message.set("content", &raw(&format!("{begun}{text}")));
    let message = raw(&message);
    messages.pop();
    messages.push(message);
    Some(messages)
}
