//! The blocks of a Messages conversation as the messages of a chat.
//!
//! One turn of the user may hold results of tools and words of its own; as chat messages the results come first, for
//! they must stand right behind the calls they answer.

use std::borrow::Cow;

use super::super::ApiError;
use super::super::chat::{Content, Message, Part, ToolCall, Url};
use super::super::node::{Members, Node};
use super::stamp;

/// What may stand in a list of blocks, for the message that refuses another.
const USERS: &str =
    "is not one of the blocks that this model's engine can be given here: `text`, `image`, `document` (as text), `tool_result`";
const ASSISTANTS: &str =
    "is not one of the blocks an assistant's message may have here: `text`, `thinking`, `redacted_thinking`, `tool_use`";

/// The system prompt, if it says anything.
pub(super) fn system<'a>(node: &Node<'a>) -> Result<Option<Message<'a>>, ApiError> {
    let text = if node.is_text() {
        stamp::mask(node.text()?)
    } else {
        let mut texts = Vec::new();
        for block in node.list()? {
            let block = block.members()?;
            match block.need_text("type")?.as_ref() {
                "text" => texts.push(stamp::mask(block.need_text("text")?)),
                _ => return Err(block.wrong("type", "must be `text`")),
            }
        }
        join(texts)
    };
    Ok((!text.is_empty()).then(|| Message { role: "system", content: Content::Text(text), ..Message::default() }))
}

fn join(mut texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
    texts.retain(|text| !text.is_empty());
    match texts.as_mut_slice() {
        [text] => std::mem::take(text),
        texts => texts.join("\n").into(),
    }
}

/// One turn, as one or several chat messages.
pub(super) fn turn<'a>(node: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ApiError> {
    let turn = node.members()?;
    let role = turn.need_text("role")?;
    let content = turn.need("content")?;
    match role.as_ref() {
        "user" => user(&content, messages),
        "assistant" => assistant(&content, messages),
        "system" => {
            messages.extend(system(&content)?);
            Ok(())
        }
        _ => Err(turn.wrong("role", "must be `user`, `assistant` or `system`")),
    }
}

fn user<'a>(content: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ApiError> {
    if content.is_text() {
        messages.push(Message { role: "user", content: Content::Text(content.text()?), ..Message::default() });
        return Ok(());
    }
    let mut parts = Vec::new();
    let before = messages.len();
    for block in content.list()? {
        let block = block.members()?;
        match block.need_text("type")?.as_ref() {
            "tool_result" => messages.push(tool_result(&block)?),
            kind => parts.extend(part(&block, kind)?),
        }
    }
    if !parts.is_empty() || messages.len() == before {
        messages.push(Message { role: "user", content: Content::of(parts), ..Message::default() });
    }
    Ok(())
}

/// A block of a user's, or of a tool's result. Empty texts say nothing.
fn part<'a>(block: &Members<'a>, kind: &str) -> Result<Option<Part<'a>>, ApiError> {
    match kind {
        "text" => {
            let text = block.need_text("text")?;
            Ok((!text.is_empty()).then_some(Part::Text { text }))
        }
        "image" => image(block).map(Some),
        "document" => document(block).map(Some),
        _ => Err(block.wrong("type", USERS)),
    }
}

fn image<'a>(block: &Members<'a>) -> Result<Part<'a>, ApiError> {
    let source = block.need("source")?.members()?;
    match source.need_text("type")?.as_ref() {
        "base64" => Ok(Part::image(Url::Data { media_type: source.need_text("media_type")?, base64: source.need_text("data")? })),
        "url" => Ok(Part::image(Url::Address(source.need_text("url")?))),
        _ => Err(source.wrong("type", "must be `base64` or `url`; files are not kept here")),
    }
}

fn document<'a>(block: &Members<'a>) -> Result<Part<'a>, ApiError> {
    let source = block.need("source")?.members()?;
    let text = match source.need_text("type")?.as_ref() {
        "text" => source.need_text("data")?,
        "content" => match source.need("content")? {
            content if content.is_text() => content.text()?,
            content => {
                let blocks = content.list()?.into_iter().map(|block| block.members()?.need_text("text")).collect::<Result<Vec<_>, _>>()?;
                join(blocks)
            }
        },
        _ => return Err(source.wrong("type", "must be `text` or `content`: this model's engine reads no PDF and no files")),
    };
    let text = match block.text("title")? {
        Some(title) => format!("{title}\n\n{text}").into(),
        None => text,
    };
    Ok(Part::Text { text })
}

fn tool_result<'a>(block: &Members<'a>) -> Result<Message<'a>, ApiError> {
    let mut parts = Vec::new();
    match block.get("content") {
        None => {}
        Some(content) if content.is_text() => parts.push(Part::Text { text: content.text()? }),
        Some(content) => {
            for block in content.list()? {
                let block = block.members()?;
                let kind = block.need_text("type")?;
                parts.extend(part(&block, &kind)?);
            }
        }
    }
    // A chat has no other way to say that a call failed.
    if block.flag("is_error")? == Some(true) {
        match parts.first_mut() {
            Some(Part::Text { text }) if text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error")) => {}
            Some(Part::Text { text }) => *text = format!("Error: {text}").into(),
            _ => parts.insert(0, Part::Text { text: "Error".into() }),
        }
    }
    // Texts only become one string, which every chat template can print.
    let content = if parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        let texts = parts.into_iter().filter_map(|part| if let Part::Text { text } = part { Some(text) } else { None });
        Content::Text(join(texts.collect()))
    } else {
        Content::Parts(parts)
    };
    Ok(Message { role: "tool", content, tool_call_id: Some(block.need_text("tool_use_id")?), ..Message::default() })
}

fn assistant<'a>(content: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ApiError> {
    let mut message = Message { role: "assistant", ..Message::default() };
    if content.is_text() {
        message.content = Content::Text(content.text()?);
        messages.push(message);
        return Ok(());
    }
    let mut parts = Vec::new();
    for block in content.list()? {
        let block = block.members()?;
        match block.need_text("type")?.as_ref() {
            "text" => parts.extend(part(&block, "text")?),
            "thinking" => message.reasoning_content.get_or_insert_default().push_str(&block.need_text("thinking")?),
            // Only the service that wrote it can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let input = block.need("input")?;
                input.members()?;
                let arguments = Cow::Borrowed(input.raw().get());
                message.tool_calls.push(ToolCall::new(Some(block.need_text("id")?), block.need_text("name")?, arguments));
            }
            _ => return Err(block.wrong("type", ASSISTANTS)),
        }
    }
    message.content = Content::of(parts);
    messages.push(message);
    Ok(())
}
