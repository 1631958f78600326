//! Input items as the messages of a chat.
//!
//! What an assistant said in one turn comes as several items (reasoning, words, calls) and is one chat message.

use super::super::ApiError;
use super::super::chat::{Content, Message, Part, ToolCall, Url};
use super::super::node::{Members, Node};

const ITEMS: &str =
    "is not one of the items that this model's engine can be given here: `message`, `function_call`, `function_call_output`, `reasoning`";
const PARTS: &str =
    "is not one of the parts that this model's engine can be given here: `input_text`, `input_image`, `output_text`, `refusal`";

/// The whole conversation, instructions first.
pub(super) fn messages<'a>(body: &Members<'a>) -> Result<Vec<Message<'a>>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = body.text("instructions")?.filter(|text| !text.is_empty()) {
        messages.push(Message { role: "system", content: Content::Text(text), ..Message::default() });
    }
    let input = body.need("input")?;
    if input.is_text() {
        messages.push(Message { role: "user", content: Content::Text(input.text()?), ..Message::default() });
        return Ok(messages);
    }
    // Belongs to whatever the assistant says next.
    let mut reasoning: Option<String> = None;
    for item in input.list()? {
        let item = item.members()?;
        let kind = item.text("type")?;
        match kind.as_deref().unwrap_or("message") {
            "message" => message(&item, reasoning.take(), &mut messages)?,
            "function_call" => {
                let call = ToolCall::new(Some(item.need_text("call_id")?), item.need_text("name")?, item.need_text("arguments")?);
                assistants(&mut messages, reasoning.take()).tool_calls.push(call);
            }
            "function_call_output" => messages.push(output(&item)?),
            "reasoning" => reasoning = self::reasoning(&item)?.or(reasoning),
            _ => return Err(item.wrong("type", ITEMS)),
        }
    }
    Ok(messages)
}

/// The assistant's message that is being put together, or a new one. Reasoning opens a new turn.
fn assistants<'m, 'a>(messages: &'m mut Vec<Message<'a>>, reasoning: Option<String>) -> &'m mut Message<'a> {
    let goes_on = reasoning.is_none() && messages.last().is_some_and(|last| last.role == "assistant");
    if !goes_on {
        messages.push(Message { role: "assistant", reasoning_content: reasoning, ..Message::default() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn message<'a>(item: &Members<'a>, reasoning: Option<String>, messages: &mut Vec<Message<'a>>) -> Result<(), ApiError> {
    let content = content(&item.need("content")?)?;
    match item.need_text("role")?.as_ref() {
        "user" => messages.push(Message { role: "user", content, ..Message::default() }),
        // Calls that stand before words belong to a turn of their own.
        "assistant" => messages.push(Message { role: "assistant", content, reasoning_content: reasoning, ..Message::default() }),
        "system" | "developer" => system(content, messages),
        _ => return Err(item.wrong("role", "must be `user`, `assistant`, `system` or `developer`")),
    }
    Ok(())
}

/// Chat templates take one system message, at the beginning.
fn system<'a>(content: Content<'a>, messages: &mut Vec<Message<'a>>) {
    if let (Content::Text(text), [Message { role: "system", content: Content::Text(before), .. }]) = (&content, messages.as_mut_slice()) {
        *before = format!("{before}\n\n{text}").into();
        return;
    }
    messages.push(Message { role: "system", content, ..Message::default() });
}

fn content<'a>(node: &Node<'a>) -> Result<Content<'a>, ApiError> {
    if node.is_text() {
        return Ok(Content::Text(node.text()?));
    }
    let mut parts = Vec::new();
    for part in node.list()? {
        let part = part.members()?;
        parts.push(match part.need_text("type")?.as_ref() {
            "input_text" | "output_text" | "text" => Part::Text { text: part.need_text("text")? },
            "refusal" => Part::Text { text: part.need_text("refusal")? },
            "input_image" if part.get("image_url").is_none() => {
                return Err(part.wrong("image_url", "is missing: files are not kept here, so an image needs an address or a data URL"));
            }
            "input_image" => Part::image(Url::Address(part.need_text("image_url")?)),
            _ => return Err(part.wrong("type", PARTS)),
        });
    }
    Ok(Content::of(parts))
}

fn output<'a>(item: &Members<'a>) -> Result<Message<'a>, ApiError> {
    let content = content(&item.need("output")?)?;
    Ok(Message { role: "tool", content, tool_call_id: Some(item.need_text("call_id")?), ..Message::default() })
}

/// The words of a reasoning item, if it has any that can be read: the full ones, else the summary.
fn reasoning(item: &Members<'_>) -> Result<Option<String>, ApiError> {
    for list in ["content", "summary"] {
        let mut text = String::new();
        for part in item.list(list)? {
            text.push_str(&part.members()?.need_text("text")?);
        }
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}
