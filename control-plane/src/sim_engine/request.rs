//! What a request body asks for: the prompt as the engine would see it, and the few settings that matter here.

use serde::Deserialize;
use serde_json::Value;

use super::replies::Dialect;

/// The fields of all dialects that the simulation reads; everything else is ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Body {
    /// Echoed in the reply.
    pub model: Option<String>,
    /// Whether to stream.
    pub stream: Option<bool>,
    /// `include_usage`.
    pub stream_options: Option<StreamOptions>,
    /// Chat and messages.
    pub messages: Option<Vec<Message>>,
    /// Messages: the system prompt.
    pub system: Option<Value>,
    /// Responses: the system prompt.
    pub instructions: Option<Value>,
    /// Completions.
    pub prompt: Option<Value>,
    /// Responses and embeddings.
    pub input: Option<Value>,
    /// Embeddings and tokenize, by llama-server's own name.
    pub content: Option<Value>,
    /// Longest answer, by its OpenAI and Anthropic name.
    pub max_tokens: Option<i64>,
    /// The newer name in chat.
    pub max_completion_tokens: Option<i64>,
    /// The name in responses.
    pub max_output_tokens: Option<i64>,
    /// llama-server's own name.
    pub n_predict: Option<i64>,
    /// The slot the caller wants; negative = any.
    pub id_slot: Option<i64>,
    /// Whether to tell how much of the prompt is read.
    pub return_progress: Option<bool>,
    /// Whether the slot's memory may be used. Default true.
    pub cache_prompt: Option<bool>,
    /// A fault (`crash@0`).
    pub sim_fault: Option<String>,
    /// Rerank.
    pub query: Option<String>,
    /// Rerank.
    pub documents: Option<Vec<Value>>,
    /// Chat: what may be called; in other dialects a part of the prompt only.
    pub tools: Value,
    /// Chat: what has to be called.
    pub tool_choice: Value,
    /// Chat: what the answer has to be.
    pub response_format: Value,
}

/// `stream_options` of OpenAI.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// A last chunk with the usage is wanted.
    pub include_usage: bool,
}

/// One message of a conversation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Message {
    role: String,
    content: Value,
    tool_calls: Value,
}

impl Body {
    /// The prompt after the chat template; `Err` names what is missing.
    pub fn prompt(&self, dialect: Dialect) -> Result<String, String> {
        let mut prompt = String::new();
        if self.tools.as_array().is_some_and(|tools| !tools.is_empty()) {
            turn(&mut prompt, "tools", &Value::String(self.tools.to_string()));
        }
        match dialect {
            Dialect::Chat | Dialect::Messages => {
                let messages = self.messages.as_ref().ok_or("'messages' is required")?;
                if let Some(system) = &self.system {
                    turn(&mut prompt, "system", system);
                }
                for message in messages {
                    turn(&mut prompt, &message.role, &message.content);
                    if !message.tool_calls.is_null() {
                        turn(&mut prompt, "calls", &Value::String(message.tool_calls.to_string()));
                    }
                }
                prompt.push_str(ASSISTANT);
            }
            Dialect::Responses => {
                if let Some(instructions) = &self.instructions {
                    turn(&mut prompt, "system", instructions);
                }
                match self.input.as_ref().ok_or("'input' is required")? {
                    Value::Array(items) => {
                        for item in items {
                            turn(&mut prompt, item["role"].as_str().unwrap_or("user"), &item["content"]);
                        }
                    }
                    other => turn(&mut prompt, "user", other),
                }
                prompt.push_str(ASSISTANT);
            }
            Dialect::Completion | Dialect::Native => match self.prompt.as_ref().ok_or("\"prompt\" is missing")? {
                Value::Array(parts) if parts.len() > 1 && parts.iter().all(Value::is_string) => {
                    return Err("the simulated engine takes one prompt at a time".to_owned());
                }
                prompt_value => text_of(prompt_value, &mut prompt),
            },
        }
        Ok(prompt)
    }

    /// Longest answer the caller wants; `None` = it does not say.
    pub fn max_tokens(&self) -> Option<u32> {
        let asked = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens, self.n_predict];
        asked.into_iter().flatten().find_map(|count| u32::try_from(count).ok())
    }

    /// The last message is what a tool gave.
    pub fn ends_with_tool_result(&self) -> bool {
        self.messages.as_ref().and_then(|messages| messages.last()).is_some_and(|last| last.role == "tool")
    }

    /// The inputs of an embedding request.
    pub fn inputs(&self) -> Result<Vec<String>, String> {
        let text = |value: &Value| {
            let mut text = String::new();
            text_of(value, &mut text);
            text
        };
        match self.input.as_ref().or(self.content.as_ref()).ok_or("\"input\" or \"content\" must be provided")? {
            Value::Array(items) if items.iter().any(|item| !item.is_number()) => Ok(items.iter().map(text).collect()),
            other => Ok(vec![text(other)]),
        }
    }
}

/// How the template begins an answer.
const ASSISTANT: &str = "<|im_start|>assistant\n";

fn turn(prompt: &mut String, role: &str, content: &Value) {
    prompt.push_str("<|im_start|>");
    prompt.push_str(role);
    prompt.push('\n');
    text_of(content, prompt);
    prompt.push_str("<|im_end|>\n");
}

/// The text of a content value: a string, or the text parts of a list; anything else as its JSON.
fn text_of(value: &Value, into: &mut String) {
    match value {
        Value::Null => {}
        Value::String(text) => into.push_str(text),
        Value::Array(parts) => parts.iter().for_each(|part| text_of(part, into)),
        Value::Object(part) => match part.get("text").or_else(|| part.get("content")) {
            Some(text) => text_of(text, into),
            None => into.push_str(&value.to_string()),
        },
        other => into.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(dialect: Dialect, body: &str) -> Result<String, String> {
        serde_json::from_str::<Body>(body).unwrap().prompt(dialect)
    }

    #[test]
    fn every_dialect_becomes_one_prompt() {
        let hi = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        let with_system = format!("<|im_start|>system\nbe kind<|im_end|>\n{hi}");
        for (dialect, body, expected) in [
            (Dialect::Chat, r#"{"messages":[{"role":"user","content":"hi"}]}"#, hi),
            (Dialect::Chat, r#"{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}]}"#, hi),
            (
                Dialect::Messages,
                r#"{"system":[{"type":"text","text":"be kind"}],"messages":[{"role":"user","content":"hi"}]}"#,
                &with_system,
            ),
            (
                Dialect::Responses,
                r#"{"instructions":"be kind","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}"#,
                &with_system,
            ),
            (Dialect::Responses, r#"{"input":"hi"}"#, hi),
            (Dialect::Completion, r#"{"prompt":"hi"}"#, "hi"),
            (Dialect::Native, r#"{"prompt":["hi"]}"#, "hi"),
        ] {
            assert_eq!(prompt(dialect, body).as_deref(), Ok(expected), "{body}");
        }
    }

    #[test]
    fn a_request_without_its_prompt_is_refused_by_name() {
        assert!(prompt(Dialect::Chat, "{}").unwrap_err().contains("messages"));
        assert!(prompt(Dialect::Completion, "{}").unwrap_err().contains("prompt"));
        assert!(prompt(Dialect::Completion, r#"{"prompt":["a","b"]}"#).unwrap_err().contains("one prompt"));
        assert!(prompt(Dialect::Responses, "{}").unwrap_err().contains("input"));
    }

    #[test]
    fn the_answer_length_is_read_by_any_of_its_names_and_minus_one_means_unsaid() {
        for (body, expected) in [
            (r#"{"max_tokens":3}"#, Some(3)),
            (r#"{"max_completion_tokens":4}"#, Some(4)),
            (r#"{"max_output_tokens":5}"#, Some(5)),
            (r#"{"n_predict":-1}"#, None),
            ("{}", None),
        ] {
            assert_eq!(serde_json::from_str::<Body>(body).unwrap().max_tokens(), expected, "{body}");
        }
    }

    #[test]
    fn inputs_to_embed_may_be_one_text_several_or_tokens() {
        for (body, count) in
            [(r#"{"input":"a"}"#, 1), (r#"{"input":["a","b"]}"#, 2), (r#"{"input":[1,2,3]}"#, 1), (r#"{"content":"a"}"#, 1)]
        {
            assert_eq!(serde_json::from_str::<Body>(body).unwrap().inputs().unwrap().len(), count, "{body}");
        }
    }
}
