//! The few fields of a request body that Lifeboat needs, read without building a tree, and the one splice.
//!
//! Bodies are forwarded byte for byte; `model` is the only value that is replaced, in place. So the reader
//! gives the byte span of that value, and a body in which an owned field is there twice is refused: the engine
//! might take the other one.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{ApiError, ErrorCode};

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of the body by itself")]
pub struct Peek {
    /// The model's name, and where its JSON string (quotes included) stands in the body.
    pub model: Option<(String, Range<usize>)>,
    /// A streamed reply is wanted.
    pub stream: bool,
    /// Replies wanted, where the body says.
    pub n: Option<u32>,
    /// Most tokens of the reply (`max_completion_tokens`, `max_tokens` or `max_output_tokens`), where the body says.
    pub max_tokens: Option<u64>,
    /// `stream_options.include_usage` is set.
    pub include_usage: bool,
    /// Where the value of `stream` stands, if it is there.
    pub stream_at: Option<Range<usize>>,
    /// Where the value of `stream_options` stands, if it is there.
    pub stream_options_at: Option<Range<usize>>,
    /// Probabilities of tokens are wanted (`logprobs` or llama-server's `n_probs`).
    pub wants_probabilities: bool,
    /// Where the prompt stands, for those parts of it that the body has.
    pub prompt: PromptSpans,
    /// What names the conversation, where the body says (`prompt_cache_key`, `previous_response_id`, `conversation`,
    /// Anthropic's `metadata.user_id`), the strongest of them.
    pub session: Option<String>,
    /// `user`: who asks, which is not which conversation.
    pub user: Option<String>,
    /// Where the value of `id_slot` stands, if the client sent one.
    pub id_slot: Option<Range<usize>>,
    /// Where a new field can be inserted: right behind the opening brace.
    pub insert_at: usize,
    /// The object has no field at all (an inserted one then takes no comma).
    pub is_empty: bool,
}

/// The parts of a body that make the prompt, as places in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptSpans {
    /// `tools`.
    pub tools: Option<Range<usize>>,
    /// `system` (Anthropic) or `instructions` (responses).
    pub system: Option<Range<usize>>,
    /// `messages`.
    pub messages: Option<Range<usize>>,
    /// `prompt` (completions).
    pub prompt: Option<Range<usize>>,
    /// `input` (responses, embeddings).
    pub input: Option<Range<usize>>,
}

/// Why a body cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeekError {
    /// Not JSON, or not an object.
    #[error("the body is not a JSON object: {0}")]
    NotAnObject(String),
    /// An owned field is there twice.
    #[error("the field `{0}` is there twice")]
    Duplicate(&'static str),
    /// An owned field has the wrong type.
    #[error("the field `{field}` must be {wanted}")]
    WrongType {
        /// Which.
        field: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
}

impl From<PeekError> for ApiError {
    fn from(error: PeekError) -> Self {
        let message = error.to_string();
        match error {
            PeekError::NotAnObject(_) => Self::new(ErrorCode::InvalidJson, message),
            PeekError::Duplicate(field) | PeekError::WrongType { field, .. } => {
                Self::new(ErrorCode::InvalidRequest, message).with_param(field)
            }
        }
    }
}

/// Fields that are read. The rest of the body is checked to be JSON and skipped.
const FIELDS: [&str; 21] = [
    "model",
    "stream",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "stream_options",
    "tools",
    "system",
    "instructions",
    "messages",
    "prompt",
    "input",
    "prompt_cache_key",
    "previous_response_id",
    "conversation",
    "metadata",
    "user",
    "id_slot",
    "logprobs",
    "n_probs",
];
/// Of those, the ones whose value Lifeboat acts on: there twice, the engine might take the other one.
const OWNED: usize = 7;
/// Longest name of a conversation that is taken for one, bytes.
const SESSION_BYTES: usize = 256;

/// Reads the owned fields. Takes time proportional to the body and memory for the owned fields only.
pub fn peek(body: &[u8]) -> Result<Peek, PeekError> {
    let text = std::str::from_utf8(body).map_err(|error| PeekError::NotAnObject(error.to_string()))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let not_an_object = |error: serde_json::Error| PeekError::NotAnObject(error.to_string());
    let found = deserializer.deserialize_map(FieldsVisitor).map_err(not_an_object)?;
    deserializer.end().map_err(not_an_object)?;
    if let Some(field) = found.duplicate {
        return Err(PeekError::Duplicate(field));
    }
    let [
        model,
        stream,
        n,
        max_tokens,
        max_completion_tokens,
        max_output_tokens,
        stream_options,
        tools,
        system,
        instructions,
        messages,
        prompt,
        input,
        cache_key,
        previous,
        conversation,
        metadata,
        user,
        id_slot,
        logprobs,
        n_probs,
    ] = found.values;
    let present = |raw: Option<&RawValue>| raw.and_then(|raw| span(body, raw));
    let place = |raw: Option<&RawValue>| raw.filter(|raw| !is_null(raw)).and_then(|raw| span(body, raw));
    let whole = |raw: Option<&RawValue>| raw.and_then(|raw| raw.get().parse::<u64>().ok());
    Ok(Peek {
        model: model.filter(|raw| !is_null(raw)).map(|raw| read_model(body, raw)).transpose()?,
        stream: read_stream(stream)?,
        n: whole(n).and_then(|n| u32::try_from(n).ok()),
        max_tokens: whole(max_completion_tokens).or(whole(max_tokens)).or(whole(max_output_tokens)),
        include_usage: stream_options.is_some_and(wants_usage),
        stream_at: present(stream),
        stream_options_at: present(stream_options),
        wants_probabilities: [logprobs, n_probs].into_iter().flatten().any(|raw| !matches!(raw.get(), "null" | "false" | "0")),
        prompt: PromptSpans {
            tools: place(tools),
            system: place(system).or(place(instructions)),
            messages: place(messages),
            prompt: place(prompt),
            input: place(input),
        },
        session: name_in(cache_key, "id").or(name_in(previous, "id")).or(name_in(conversation, "id")).or(name_in(metadata, "user_id")),
        user: name_in(user, "id"),
        id_slot: place(id_slot),
        insert_at: body.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1),
        is_empty: found.is_empty,
    })
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// Where a value borrowed from the body stands in it: the distance of the two addresses.
fn span(body: &[u8], raw: &RawValue) -> Option<Range<usize>> {
    let start = raw.get().as_ptr().addr().wrapping_sub(body.as_ptr().addr());
    let span = start..start.saturating_add(raw.get().len());
    (body.get(span.clone()).is_some_and(|bytes| std::ptr::eq(bytes, raw.get().as_bytes()))).then_some(span)
}

fn read_model(body: &[u8], raw: &RawValue) -> Result<(String, Range<usize>), PeekError> {
    let wrong = PeekError::WrongType { field: "model", wanted: "a string" };
    let name = serde_json::from_str::<String>(raw.get()).map_err(|_| wrong.clone())?;
    Ok((name, span(body, raw).ok_or(wrong)?))
}

/// A name that a client gave: a string, or the string `field` of an object. One that is too long is none.
fn name_in(raw: Option<&RawValue>, field: &str) -> Option<String> {
    let raw = raw?.get();
    let name = if raw.starts_with('{') {
        serde_json::from_str::<serde_json::Value>(raw).ok()?.get(field)?.as_str()?.to_owned()
    } else {
        serde_json::from_str::<String>(raw).ok()?
    };
    (!name.is_empty() && name.len() <= SESSION_BYTES).then_some(name)
}

fn read_stream(raw: Option<&RawValue>) -> Result<bool, PeekError> {
    match raw.map(RawValue::get) {
        Some("true") => Ok(true),
        None | Some("false" | "null") => Ok(false),
        Some(_) => Err(PeekError::WrongType { field: "stream", wanted: "true or false" }),
    }
}

fn wants_usage(raw: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Options {
        #[serde(default)]
        include_usage: bool,
    }
    serde_json::from_str::<Options>(raw.get()).is_ok_and(|options| options.include_usage)
}

#[derive(Default)]
struct Found<'a> {
    values: [Option<&'a RawValue>; FIELDS.len()],
    duplicate: Option<&'static str>,
    is_empty: bool,
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Found<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found<'de>, A::Error> {
        let mut found = Found { is_empty: true, ..Found::default() };
        while let Some(Key(key)) = map.next_key()? {
            found.is_empty = false;
            let Some(index) = FIELDS.iter().position(|field| *field == key) else {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            };
            let value = map.next_value::<&RawValue>()?;
            let (Some(place), Some(field)) = (found.values.get_mut(index), FIELDS.get(index)) else { continue };
            if place.replace(value).is_some() && (index < OWNED || *field == "id_slot") {
                found.duplicate = Some(*field);
            }
        }
        Ok(found)
    }
}

/// A key, borrowed where it has no escapes (`Cow` alone would always be copied).
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The body with another model name. `span` comes from [`peek`] over the same body.
pub fn splice_model(body: &[u8], span: &Range<usize>, name: &str) -> Vec<u8> {
    let quoted = serde_json::Value::from(name).to_string();
    let (before, after) = (body.get(..span.start).unwrap_or(body), body.get(span.end..).unwrap_or_default());
    [before, quoted.as_bytes(), after].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn model(body: &str) -> Option<String> {
        peek(body.as_bytes()).unwrap().model.map(|(name, _)| name)
    }

    #[test]
    fn owned_fields_are_read_and_the_rest_is_skipped() {
        let body = br#" {"messages":[{"role":"user","content":"\"model\":\"x\""}],"model" : "a\/b\u00e9" ,"stream":true,"n":2,"max_tokens":5,"stream_options":{"include_usage":true}} "#;
        let peek = peek(body).unwrap();
        let (name, span) = peek.model.clone().unwrap();
        assert_eq!(name, "a/bé");
        assert_eq!(&body[span], br#""a\/b\u00e9""#);
        assert_eq!((peek.stream, peek.n, peek.max_tokens, peek.include_usage), (true, Some(2), Some(5), true));
        assert_eq!((peek.insert_at, peek.is_empty), (2, false));
        assert_eq!(&body[peek.stream_at.unwrap()], b"true");
        assert_eq!(&body[peek.stream_options_at.unwrap()], br#"{"include_usage":true}"#);
    }

    #[test]
    fn probabilities_are_wanted_only_where_they_are_asked_for() {
        for (body, wanted) in [
            (r#"{"logprobs":true}"#, true),
            (r#"{"logprobs":3}"#, true),
            (r#"{"n_probs":1}"#, true),
            (r#"{"logprobs":false,"n_probs":0}"#, false),
            (r#"{"logprobs":null}"#, false),
            ("{}", false),
        ] {
            assert_eq!(peek(body.as_bytes()).unwrap().wants_probabilities, wanted, "{body}");
        }
    }

    #[test]
    fn a_nested_model_is_not_the_model() {
        assert_eq!(model(r#"{"metadata":{"model":"x"}}"#), None);
        assert_eq!(model(r#"{"model":null}"#), None);
        assert_eq!(model("{}"), None);
        assert!(peek(b"{ }").unwrap().is_empty);
    }

    #[test]
    fn an_escaped_key_is_the_same_key() {
        assert_eq!(model(r#"{"\u006dodel":"x"}"#).as_deref(), Some("x"));
        assert_eq!(peek(br#"{"model":"a","\u006dodel":"b"}"#), Err(PeekError::Duplicate("model")));
    }

    #[test]
    fn duplicates_and_wrong_types_are_refused_by_name() {
        assert_eq!(peek(br#"{"model":"a","model":"a"}"#), Err(PeekError::Duplicate("model")));
        assert_eq!(peek(br#"{"stream":true,"stream":false}"#), Err(PeekError::Duplicate("stream")));
        assert!(matches!(peek(br#"{"model":1}"#), Err(PeekError::WrongType { field: "model", .. })));
        assert!(matches!(peek(br#"{"stream":"yes"}"#), Err(PeekError::WrongType { field: "stream", .. })));
    }

    #[test]
    fn numbers_the_engine_may_understand_otherwise_are_left_to_it() {
        for body in [r#"{"max_tokens":-1}"#, r#"{"max_tokens":"5"}"#, r#"{"max_tokens":1.5}"#, r#"{"n":99999999999}"#] {
            let peek = peek(body.as_bytes()).unwrap();
            assert_eq!((peek.max_tokens, peek.n), (None, None), "{body}");
        }
        assert_eq!(peek(br#"{"max_tokens":5,"max_completion_tokens":7}"#).unwrap().max_tokens, Some(7));
    }

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        for body in ["", "[]", "1", "\"x\"", "{", "{\"a\"}", "{} x", "{\"a\":1,}", "null", "{\"a\":\"\u{1}\"}"] {
            assert!(matches!(peek(body.as_bytes()), Err(PeekError::NotAnObject(_))), "{body:?}");
        }
        assert!(peek(b"{\"a\":\"\xff\"}").is_err(), "not UTF-8");
    }

    #[test]
    fn deep_nesting_in_skipped_fields_does_not_exhaust_the_stack() {
        let deep = format!("{{\"x\":{}{},\"model\":\"m\"}}", "[".repeat(2_000_000), "]".repeat(2_000_000));
        // Read or refused, but answered.
        assert!(peek(deep.as_bytes()).map_or(true, |peek| peek.model.is_some()));
    }

    #[test]
    fn a_splice_changes_the_model_and_nothing_else() {
        let body = "{\"a\":[1, 2.50],\n \"model\":\"old\", \"ж\":\"x\"}".as_bytes();
        let span = peek(body).unwrap().model.unwrap().1;
        let out = splice_model(body, &span, "new \"name\"");
        assert_eq!(out, "{\"a\":[1, 2.50],\n \"model\":\"new \\\"name\\\"\", \"ж\":\"x\"}".as_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = peek(&bytes);
            let _ = peek(&[b"{\"model\":", &bytes[..], b"}"].concat());
        }

        #[test]
        fn any_name_is_found_and_replaced(name in any::<String>(), other in any::<String>(), text in any::<String>(), pretty: bool) {
            let value = json!({"messages": [text], "model": name, "stream": true, "z": {"model": "inner"}});
            let body = if pretty { serde_json::to_vec_pretty(&value).unwrap() } else { serde_json::to_vec(&value).unwrap() };
            let peek = peek(&body).unwrap();
            let (found, span) = peek.model.unwrap();
            prop_assert_eq!(&found, &name);
            prop_assert_eq!(splice_model(&body, &span, &name).len(), body.len());
            let changed: Value = serde_json::from_slice(&splice_model(&body, &span, &other)).unwrap();
            let mut expected = value;
            expected["model"] = other.into();
            prop_assert_eq!(changed, expected);
        }
    }
}
