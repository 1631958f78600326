//! The prompt of a request as the pieces that decide what an engine can reuse, in order and in one form.
//!
//! Two requests whose pieces begin alike make prompts that begin alike. So what cannot change a prompt is left out (sampling,
//! `stream`, marks for a cache), the order of a message's fields does not matter, and the stamp that a coding agent puts
//! into its system text anew for every request is masked. Text stays as it was written, escapes and all: a client writes it
//! the same way each time. Nothing is copied but what a tool call says.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Peek;

/// Takes the pieces of a prompt.
pub trait PromptSink {
    /// The next bytes.
    fn piece(&mut self, bytes: &[u8]);
    /// A message ends here.
    fn end_message(&mut self);
}

/// Keeps pieces apart that stand in different fields.
const FIELD: &[u8] = b"\x1e";
/// The mark by which a coding agent's billing stamp begins in a system text.
const STAMP_TEXT: &str = "x-anthropic-billing-header:";
/// The stamp itself; the characters behind it change with every request.
const STAMP: &str = "cch=";
/// How many of them.
const STAMP_CHARACTERS: usize = 5;
/// A field that marks where a provider is to cache, and moves from turn to turn.
const CACHE_MARK: &str = "cache_control";

/// Hands all pieces of a prompt over. Parts that are not what they should be are handed over as they stand: whether they can
/// be used is the engine's to say.
pub fn pieces(body: &[u8], peek: &Peek, sink: &mut impl PromptSink) {
    let text = |span: &Option<std::ops::Range<usize>>| span.clone().and_then(|span| std::str::from_utf8(body.get(span)?).ok());
    let parts = &peek.prompt;
    if let Some(tools) = text(&parts.tools) {
        sink.piece(canonical(tools).as_bytes());
        sink.end_message();
    }
    if let Some(system) = text(&parts.system) {
        sink.piece(b"\"system\"");
        content(system, sink);
        sink.end_message();
    }
    for list in [text(&parts.messages), text(&parts.input)].into_iter().flatten() {
        if list.starts_with('[') {
            let mut deserializer = serde_json::Deserializer::from_str(list);
            // The body is known to be JSON; what is no list of messages simply ends the walk.
            let _ends_early = deserializer.deserialize_seq(Messages(sink));
        } else {
            content(list, sink);
            sink.end_message();
        }
    }
    if let Some(prompt) = text(&parts.prompt) {
        content(prompt, sink);
        sink.end_message();
    }
}

/// How many prompts an array asks for at once; 1 where it is one prompt (text, or a list of token numbers).
pub fn prompts(body: &[u8], span: Option<&std::ops::Range<usize>>) -> u32 {
    let Some(raw) = span.and_then(|span| std::str::from_utf8(body.get(span.clone())?).ok()) else { return 1 };
    if !raw.starts_with('[') {
        return 1;
    }
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw) else { return 1 };
    let is_number = |item: &&RawValue| item.get().bytes().next().is_some_and(|first| first == b'-' || first.is_ascii_digit());
    if items.first().is_some_and(is_number) { 1 } else { u32::try_from(items.len()).unwrap_or(u32::MAX).max(1) }
}

struct Messages<'s, S>(&'s mut S);

impl<'de, S: PromptSink> Visitor<'de> for Messages<'_, S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Message(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

struct Message<'s, S>(&'s mut S);

impl<'de, S: PromptSink> DeserializeSeed<'de> for Message<'_, S> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: PromptSink> Visitor<'de> for Message<'_, S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<(), E> {
        self.0.piece(text.as_bytes());
        self.0.end_message();
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.piece(text.as_bytes());
        self.0.end_message();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut role, mut text) = (None, None);
        let mut others: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            let value = map.next_value::<&RawValue>()?;
            match key.as_ref() {
                "role" => role = Some(value),
                "content" => text = Some(value),
                CACHE_MARK => {}
                _ => others.push((key, value)),
            }
        }
        let sink = self.0;
        sink.piece(role.map_or(&b""[..], |role| role.get().as_bytes()));
        others.sort_by(|one, two| one.0.cmp(&two.0));
        for (key, value) in others {
            sink.piece(FIELD);
            sink.piece(key.as_bytes());
            sink.piece(canonical(value.get()).as_bytes());
        }
        sink.piece(FIELD);
        if let Some(text) = text {
            content(text.get(), sink);
        }
        sink.end_message();
        Ok(())
    }
}

/// A key, borrowed where it has no escapes (`Cow` alone would always be copied).
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The content of a message: a text, or a list of parts.
fn content(raw: &str, sink: &mut impl PromptSink) {
    if let Some(inner) = inner_text(raw) {
        return masked(inner, sink);
    }
    let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(raw) else { return sink.piece(canonical(raw).as_bytes()) };
    for part in parts {
        match plain_text(part.get()) {
            Some(text) => masked(inner_text(text).unwrap_or(text), sink),
            None => sink.piece(canonical(part.get()).as_bytes()),
        }
        sink.piece(FIELD);
    }
}

/// The text of a part that is nothing but text, as it was written.
fn plain_text(part: &str) -> Option<&str> {
    serde_json::Deserializer::from_str(part).deserialize_map(TextPart).ok().flatten()
}

struct TextPart;

impl<'de> Visitor<'de> for TextPart {
    type Value = Option<&'de str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a part of a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut text, mut plain) = (None, true);
        while let Some(Key(key)) = map.next_key()? {
            let value = map.next_value::<&RawValue>()?;
            match key.as_ref() {
                "text" => text = Some(value.get()),
                "type" | CACHE_MARK => {}
                _ => plain = false,
            }
        }
        Ok(text.filter(|_| plain))
    }
}

fn inner_text(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// A text with the stamp of a coding agent left out.
fn masked(text: &str, sink: &mut impl PromptSink) {
    let Some(at) = text.starts_with(STAMP_TEXT).then(|| text.find(STAMP)).flatten() else { return sink.piece(text.as_bytes()) };
    let (before, stamped) = text.split_at(at + STAMP.len());
    sink.piece(before.as_bytes());
    let after = stamped.char_indices().nth(STAMP_CHARACTERS).map_or("", |(at, _)| stamped.split_at(at).1);
    sink.piece(after.as_bytes());
}

/// A value in one form: fields in order, no spaces, no marks for a cache.
fn canonical(raw: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(raw) else { return raw.to_owned() };
    drop_marks(&mut value);
    value.to_string()
}

fn drop_marks(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove(CACHE_MARK);
            fields.values_mut().for_each(drop_marks);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_marks),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::peek;

    #[derive(Default)]
    struct Collected {
        text: String,
        ends: Vec<usize>,
    }

    impl PromptSink for Collected {
        fn piece(&mut self, bytes: &[u8]) {
            self.text.push_str(&String::from_utf8_lossy(bytes));
        }

        fn end_message(&mut self) {
            self.ends.push(self.text.len());
        }
    }

    fn collect(body: &str) -> Collected {
        let mut collected = Collected::default();
        pieces(body.as_bytes(), &peek(body.as_bytes()).unwrap(), &mut collected);
        collected
    }

    #[test]
    fn what_cannot_change_the_prompt_does_not_change_the_pieces() {
        let one = r#"{"messages":[{"role":"user","content":"hi"}],"temperature":0}"#;
        let two = r#"{"stream":true,"messages":[ {"content":"hi", "role":"user"} ],"model":"x"}"#;
        assert_eq!(collect(one).text, collect(two).text);
        let marked = r#"{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#;
        let plain = r#"{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"cache_control":{"type":"ephemeral"},"text":"a","type":"text"}]}]}"#;
        assert_eq!(collect(marked).text, collect(plain).text);
    }

    #[test]
    fn the_next_turn_begins_with_the_last_one_and_its_ends_are_there() {
        let first = collect(r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a\n\"b\""}]}"#);
        let second = collect(
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a\n\"b\""},{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}"#,
        );
        assert!(second.text.starts_with(&first.text));
        assert_eq!(&second.ends[..2], first.ends);
        assert_eq!(second.ends.len(), 4);
    }

    #[test]
    fn a_different_image_tool_or_role_is_a_different_prompt() {
        let base = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:1"}}]}]}"#;
        assert_ne!(collect(base).text, collect(&base.replace("data:1", "data:2")).text);
        assert_ne!(collect(base).text, collect(&base.replace("user", "system")).text);
        let tools = r#"{"tools":[{"name":"a"}],"messages":[]}"#;
        assert_ne!(collect(tools).text, collect(&tools.replace("\"a\"", "\"b\"")).text);
    }

    #[test]
    fn the_stamp_of_a_coding_agent_is_masked_and_nothing_else() {
        let body = |stamp: &str| {
            format!(
                r#"{{"system":[{{"type":"text","text":"x-anthropic-billing-header: v=1; cch={stamp}; more"}}],"messages":[{{"role":"user","content":"cch={stamp}"}}]}}"#
            )
        };
        let (one, two) = (collect(&body("ab12c")), collect(&body("zz99z")));
        assert_eq!(one.text[..one.ends[0]], two.text[..two.ends[0]]);
        assert_ne!(one.text, two.text);
        // Cut off in the middle of it, nothing breaks.
        collect(r#"{"system":"x-anthropic-billing-header: cch=é","messages":[]}"#);
    }

    #[test]
    fn prompts_of_every_shape_are_walked() {
        for body in [
            r#"{"prompt":"text"}"#,
            r#"{"prompt":["a","b"]}"#,
            r#"{"prompt":[1,2,3]}"#,
            r#"{"input":"text","instructions":"i"}"#,
            r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call_output","output":"x"}]}"#,
            r#"{"messages":["odd",1,null,{"role":1}]}"#,
            r#"{"messages":{"not":"a list"}}"#,
        ] {
            assert!(!collect(body).text.is_empty(), "{body}");
        }
        let count = |body: &str| prompts(body.as_bytes(), peek(body.as_bytes()).unwrap().prompt.prompt.as_ref());
        assert_eq!(
            [count(r#"{"prompt":["a","b"]}"#), count(r#"{"prompt":[1,2]}"#), count(r#"{"prompt":[[1],[2],[3]]}"#), count("{}")],
            [2, 1, 3, 1]
        );
    }
}
