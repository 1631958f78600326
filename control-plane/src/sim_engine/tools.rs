//! What a chat request forces the reply to be: the call of a tool, or JSON of a schema.
//!
//! llama-server does this with a grammar; here the reply is written from the schema alone, the same for the same request,
//! so that the tool paths of clients can be tried without a model: `tool_choice` `required` calls the first tool, a named
//! one that tool, and a `response_format` is answered with an object. A conversation that ends with a tool's result is
//! answered with plain words, and so is everything else.
//!
//! A piece is a token. It must never take longer than the request is large: references of a schema are followed to a depth.

use serde_json::{Map, Value};

use super::request::Body;
use super::text::BYTES_PER_TOKEN;

/// How deep a schema is followed; what lies below is `null`.
const DEPTH: usize = 16;
/// Nodes of a value at most: a schema may refer to itself more than once at each depth.
const NODES: usize = 1000;

/// A reply whose text is known before it begins.
#[derive(Debug)]
pub struct Script {
    /// The tool that is called; `None` = the text is the answer itself.
    pub call: Option<String>,
    pieces: std::vec::IntoIter<String>,
}

impl Script {
    /// The script of a chat request, if it forces one.
    pub fn of(body: &Body) -> Option<Self> {
        if body.ends_with_tool_result() {
            return None;
        }
        if let Some(function) = called(body) {
            let name = function["name"].as_str().unwrap_or_default().to_owned();
            return Some(Self::new(Some(name), &function["parameters"]));
        }
        match &body.response_format["type"] {
            Value::String(kind) if kind == "json_object" => Some(Self::new(None, &body.response_format["schema"])),
            Value::String(kind) if kind == "json_schema" => Some(Self::new(None, &body.response_format["json_schema"]["schema"])),
            _ => None,
        }
    }

    fn new(call: Option<String>, schema: &Value) -> Self {
        let value = match schema {
            Value::Object(_) => Builder { root: schema, left: NODES }.value(schema, DEPTH),
            _ => Value::Object(Map::new()),
        };
        Self { call, pieces: pieces(&value.to_string()).into_iter() }
    }

    /// Tokens that are left of it.
    pub fn tokens(&self) -> u32 {
        u32::try_from(self.pieces.len()).unwrap_or(u32::MAX)
    }

    /// The next token.
    pub fn next_piece(&mut self) -> Option<String> {
        self.pieces.next()
    }
}

/// The function that `tool_choice` forces.
fn called(body: &Body) -> Option<&Value> {
    let mut functions = body.tools.as_array()?.iter().map(|tool| &tool["function"]);
    match &body.tool_choice {
        Value::String(word) if word == "required" => functions.next(),
        Value::Object(choice) => {
            let name = choice.get("function")?.get("name")?;
            functions.find(|function| function["name"] == *name)
        }
        _ => None,
    }
}

/// Text as tokens, cut between characters.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for character in text.chars() {
        match pieces.last_mut() {
            Some(last) if last.len() < BYTES_PER_TOKEN => last.push(character),
            _ => pieces.push(character.to_string()),
        }
    }
    pieces
}

/// Makes the plainest value of a schema.
struct Builder<'a> {
    root: &'a Value,
    left: usize,
}

impl Builder<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        self.left = self.left.saturating_sub(1);
        if depth == 0 || self.left == 0 {
            return Value::Null;
        }
        if let Some(only) = schema.get("const").or_else(|| schema["enum"].get(0)) {
            return only.clone();
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|path| self.root.pointer(path.strip_prefix('#')?)) {
            let target = target.clone();
            return self.value(&target, depth - 1);
        }
        if let Some(first) = ["anyOf", "oneOf", "allOf"].iter().find_map(|list| schema[*list].get(0)) {
            return self.value(first, depth - 1);
        }
        let kind = schema["type"].as_str().or_else(|| schema["type"].get(0)?.as_str());
        match kind {
            Some("string") => "x".into(),
            Some("integer" | "number") => 1.into(),
            Some("boolean") => true.into(),
            Some("array") => Value::Array(Vec::new()),
            Some("null") => Value::Null,
            _ => {
                let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
                let names = required.iter().filter_map(Value::as_str);
                Value::Object(names.map(|name| (name.to_owned(), self.value(&schema["properties"][name], depth - 1))).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn script(body: &Value) -> Option<(Option<String>, String)> {
        let body: Body = serde_json::from_value(body.clone()).unwrap();
        let mut script = Script::of(&body)?;
        let tokens = script.tokens();
        let pieces: Vec<String> = std::iter::from_fn(|| script.next_piece()).collect();
        assert_eq!(tokens as usize, pieces.len());
        Some((script.call.clone(), pieces.concat()))
    }

    #[test]
    fn a_call_comes_where_one_is_forced_and_nowhere_else() {
        let request = |choice: &Value, last: &str| {
            json!({
                "messages": [{"role": "user", "content": "hi"}, {"role": last, "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "one"}}, {"type": "function", "function": {"name": "two"}}],
                "tool_choice": choice,
            })
        };
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (choice, last, expected) in [
            (json!("required"), "user", Some("one")),
            (named("two"), "user", Some("two")),
            (named("three"), "user", None),
            (json!("auto"), "user", None),
            (json!("none"), "user", None),
            (Value::Null, "user", None),
            (json!("required"), "tool", None),
            (named("two"), "tool", None),
        ] {
            let expected = expected.map(|name| (Some(name.to_owned()), "{}".to_owned()));
            assert_eq!(script(&request(&choice, last)), expected, "{choice} {last}");
        }
        let mut without = request(&json!("required"), "user");
        without["tools"] = json!([]);
        assert_eq!(script(&without), None);
    }

    #[test]
    fn a_value_is_built_from_what_its_schema_requires() {
        let table = [
            (json!({}), json!({})),
            (json!(null), json!({})),
            (json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({})),
            (
                json!({
                    "type": "object",
                    "properties": {
                        "town": {"type": "string", "enum": ["Ålesund \"north\"", "Rome"]}, "text": {"type": "string"}, "days": {"type": "integer"},
                        "share": {"type": "number"}, "now": {"type": "boolean"}, "list": {"type": "array"}, "left": {"type": "string"},
                        "deep": {"type": "object", "properties": {"one": {"const": 7}}, "required": ["one"]},
                        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "many": {"type": ["boolean", "null"]},
                        "elsewhere": {"$ref": "#/$defs/unit"},
                    },
                    "$defs": {"unit": {"enum": ["C", "F"]}},
                    "required": ["town", "text", "days", "share", "now", "list", "deep", "either", "many", "elsewhere", "unknown"],
                }),
                json!({
                    "town": "Ålesund \"north\"", "text": "x", "days": 1, "share": 1, "now": true, "list": [], "deep": {"one": 7}, "either": 1,
                    "many": true, "elsewhere": "C", "unknown": {},
                }),
            ),
        ];
        for (schema, expected) in table {
            for format in [
                json!({"type": "json_object", "schema": schema}),
                json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
            ] {
                let (call, text) = script(&json!({"messages": [], "response_format": format})).unwrap();
                assert_eq!((call, serde_json::from_str::<Value>(&text).unwrap()), (None, expected.clone()));
            }
        }
        assert_eq!(script(&json!({"messages": [], "response_format": {"type": "text"}})), None);
    }

    #[test]
    fn a_schema_that_refers_to_itself_has_an_end() {
        let node = json!({"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}, "required": ["l", "r"]});
        let (_, text) = script(&json!({"messages": [], "response_format": {"type": "json_object", "schema": node}})).unwrap();
        assert!(text.len() < 20 * NODES, "{} bytes", text.len());
    }
}
