//! `/api/chat` and `/api/generate` as requests an engine understands.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::super::ApiError;
use super::super::chat::{Content, Flavor, Function, Message, Part, Request, Tool, ToolCall, Url};
use super::super::node::{Members, Node};
use super::super::raw::{Object, raw};
use super::Endpoint;

/// Options and the fields they become.
const OPTIONS: [(&str, &str); 15] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("typical_p", "typical_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("repeat_penalty", "repeat_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("mirostat", "mirostat"),
    ("mirostat_tau", "mirostat_tau"),
    ("mirostat_eta", "mirostat_eta"),
    ("num_keep", "n_keep"),
];

/// What an engine is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// A chat completion with this body.
    Chat(Vec<u8>),
    /// A text completion with this body.
    Text(Vec<u8>),
    /// Nothing: the client only wants the model to be there.
    Load,
}

/// The request that means the same. Streaming is on unless the client says otherwise.
pub fn to_upstream(endpoint: Endpoint, body: &[u8], flavor: Flavor) -> Result<Upstream, ApiError> {
    let body = Members::of_body(body)?;
    let mut request = Request { model: body.raw("model"), stream: body.flag("stream")?.unwrap_or(true), ..Request::default() };
    match endpoint {
        Endpoint::Chat => {
            for message in body.list("messages")? {
                request.messages.push(self::message(&message)?);
            }
            if request.messages.is_empty() {
                return Ok(Upstream::Load);
            }
            for tool in body.list("tools")? {
                request.tools.push(self::tool(&tool)?);
            }
        }
        Endpoint::Generate => {
            if body.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
                return Err(body.wrong("suffix", "is not supported here; llama.cpp's own fill-in-the-middle endpoint has it"));
            }
            let prompt = body.text("prompt")?.unwrap_or_default();
            let images = body.list("images")?;
            if prompt.is_empty() && images.is_empty() {
                return Ok(Upstream::Load);
            }
            if body.flag("raw")? == Some(true) {
                settings(&body, flavor, &mut request.settings)?;
                return Ok(Upstream::Text(text(&request, &prompt)));
            }
            if let Some(system) = body.text("system")?.filter(|system| !system.is_empty()) {
                request.messages.push(Message { role: "system", content: Content::Text(system), ..Message::default() });
            }
            request.messages.push(Message { role: "user", content: content(prompt, &images)?, ..Message::default() });
        }
    }
    settings(&body, flavor, &mut request.settings)?;
    request.into_body().map(Upstream::Chat)
}

fn text(request: &Request<'_>, prompt: &str) -> Vec<u8> {
    let mut body = Object::default();
    body.put_some("model", request.model);
    body.put("prompt", prompt);
    for (name, value) in request.settings.iter() {
        body.set(name, value);
    }
    body.put("stream", &request.stream);
    if request.stream {
        body.put("stream_options", &serde_json::json!({ "include_usage": true }));
    }
    body.into_bytes()
}

fn message<'a>(node: &Node<'a>) -> Result<Message<'a>, ApiError> {
    let given = node.members()?;
    let role = match given.need_text("role")?.as_ref() {
        "system" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        _ => return Err(given.wrong("role", "must be `system`, `user`, `assistant` or `tool`")),
    };
    let mut message = Message {
        role,
        content: content(given.text("content")?.unwrap_or_default(), &given.list("images")?)?,
        reasoning_content: given.text("thinking")?.filter(|thinking| !thinking.is_empty()).map(Cow::into_owned),
        ..Message::default()
    };
    for call in given.list("tool_calls")? {
        let call = call.members()?;
        let function = call.need("function")?.members()?;
        let arguments = function.get("arguments").map_or("{}", |arguments| arguments.raw().get());
        message.tool_calls.push(ToolCall::new(call.text("id")?, function.need_text("name")?, arguments.into()));
    }
    if role == "tool" {
        // Ollama names the tool; newer clients name the call.
        message.tool_call_id = given.text("tool_call_id")?.or(given.text("tool_name")?);
    }
    Ok(message)
}

fn content<'a>(text: Cow<'a, str>, images: &[Node<'a>]) -> Result<Content<'a>, ApiError> {
    if images.is_empty() {
        return Ok(Content::Text(text));
    }
    let mut parts = Vec::new();
    if !text.is_empty() {
        parts.push(Part::Text { text });
    }
    for image in images {
        let base64 = image.text()?;
        parts.push(Part::image(Url::Data { media_type: media_type(&base64).into(), base64 }));
    }
    Ok(Content::Parts(parts))
}

/// Ollama's images are bare base64; their first bytes tell what they are.
fn media_type(base64: &str) -> &'static str {
    match base64.as_bytes() {
        [b'/', b'9', b'j', ..] => "image/jpeg",
        [b'R', b'0', b'l', b'G', ..] => "image/gif",
        [b'U', b'k', b'l', b'G', ..] => "image/webp",
        _ => "image/png",
    }
}

fn tool<'a>(node: &Node<'a>) -> Result<Tool<'a>, ApiError> {
    let function = node.members()?.need("function")?.members()?;
    Ok(Tool::new(Function {
        name: function.need_text("name")?,
        description: function.raw("description"),
        parameters: function.raw("parameters"),
        strict: None,
    }))
}

fn settings(body: &Members<'_>, flavor: Flavor, settings: &mut Object) -> Result<(), ApiError> {
    if let Some(options) = body.get("options") {
        let options = options.members()?;
        // Below zero means without a bound.
        if let Some(bound) = options.raw("num_predict").filter(|bound| !bound.get().starts_with('-')) {
            settings.put("max_tokens", bound);
        }
        for (theirs, ours) in OPTIONS {
            settings.put_some(ours, options.raw(theirs));
        }
    }
    if let Some(format) = body.get("format") {
        if format.is_text() {
            match format.text()?.as_ref() {
                "" => {}
                "json" => settings.put("response_format", &serde_json::json!({ "type": "json_object" })),
                _ => return Err(format.wrong("must be `json` or a JSON schema")),
            }
        } else {
            format.members()?;
            settings.put("response_format", &schema(format.raw()));
        }
    }
    think(body, flavor, settings)
}

fn schema(schema: &RawValue) -> Object {
    let mut inner = Object::default();
    inner.put("name", "reply");
    inner.put("schema", schema);
    inner.put("strict", &true);
    let mut format = Object::default();
    format.put("type", "json_schema");
    format.put("json_schema", &inner);
    format
}

fn think(body: &Members<'_>, flavor: Flavor, settings: &mut Object) -> Result<(), ApiError> {
    let Some(think) = body.get("think") else { return Ok(()) };
    if think.is_text() {
        match think.text()?.as_ref() {
            effort @ ("low" | "medium" | "high") => settings.put("reasoning_effort", effort),
            _ => return Err(think.wrong("must be true, false, `low`, `medium` or `high`")),
        }
        return Ok(());
    }
    let enabled: bool = think.read("true, false, `low`, `medium` or `high`")?;
    if flavor == Flavor::LlamaCpp || !enabled {
        let mut arguments = Object::default();
        arguments.set("enable_thinking", &raw(&enabled));
        settings.put("chat_template_kwargs", &arguments);
    }
    Ok(())
}
