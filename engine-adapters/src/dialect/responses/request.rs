//! A Responses request as a chat request.

use super::super::ApiError;
use super::super::chat::{Choice, Flavor, Function, Request, Tool};
use super::super::node::{Members, Node};
use super::super::raw::Object;
use super::input;

/// Fields by which state would be used that is not kept, and what the client can do instead.
const STATEFUL: [(&str, &str); 4] = [
    ("previous_response_id", "cannot be used: responses are not kept here; send the whole conversation as `input`"),
    ("conversation", "cannot be used: conversations are not kept here; send the whole conversation as `input`"),
    ("prompt", "cannot be used: prompt templates are not kept here; send `instructions` and `input`"),
    ("background", "must be false: responses are not kept here"),
];

/// Fields that mean the same in both dialects, and those that engines have beside them.
const SAME: [&str; 17] = [
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "seed",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "cache_prompt",
    "id_slot",
    "chat_template_kwargs",
    "priority",
];

/// The chat request that means the same. `stream` is kept; the model's name too, for the gateway to put in the engine's.
pub fn to_chat(body: &[u8], flavor: Flavor) -> Result<Vec<u8>, ApiError> {
    request(&Members::of_body(body)?, flavor)?.into_body()
}

fn request<'a>(body: &Members<'a>, flavor: Flavor) -> Result<Request<'a>, ApiError> {
    for (name, why) in STATEFUL {
        if body.get(name).is_some_and(|value| value.raw().get() != "false") {
            return Err(body.wrong(name, why));
        }
    }
    if body.get("top_logprobs").is_some_and(|value| value.raw().get() != "0") {
        return Err(body.wrong("top_logprobs", "is not supported with this model's engine; /v1/chat/completions has it"));
    }
    let mut request = Request { model: body.raw("model"), stream: body.flag("stream")?.unwrap_or(false), ..Request::default() };
    request.messages = input::messages(body)?;
    for tool in body.list("tools")? {
        request.tools.push(self::tool(&tool)?);
    }
    if let Some(choice) = body.get("tool_choice") {
        tool_choice(&choice, &request.tools)?.apply(flavor, &mut request);
    }
    let settings = &mut request.settings;
    settings.put_some("max_tokens", body.raw("max_output_tokens"));
    for name in SAME {
        settings.put_some(name, body.raw(name));
    }
    if let Some(reasoning) = body.get("reasoning") {
        settings.put_some("reasoning_effort", reasoning.members()?.raw("effort"));
    }
    if let Some(text) = body.get("text")
        && let Some(format) = text.members()?.get("format")
    {
        self::format(&format.members()?, settings)?;
    }
    if request.stream && flavor == Flavor::LlamaCpp {
        request.settings.put("timings_per_token", &true);
    }
    Ok(request)
}

fn tool<'a>(node: &Node<'a>) -> Result<Tool<'a>, ApiError> {
    let tool = node.members()?;
    if tool.need_text("type")? != "function" {
        return Err(tool.wrong("type", "must be `function`: tools that OpenAI runs or defines are not there with a local model"));
    }
    Ok(Tool::new(Function {
        name: tool.need_text("name")?,
        description: tool.raw("description"),
        parameters: tool.raw("parameters"),
        strict: tool.raw("strict"),
    }))
}

fn tool_choice<'a>(choice: &Node<'a>, tools: &[Tool<'_>]) -> Result<Choice<'a>, ApiError> {
    if choice.is_text() {
        return match choice.text()?.as_ref() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Any),
            _ => Err(choice.wrong("must be `auto`, `none`, `required` or a function")),
        };
    }
    let choice = choice.members()?;
    if choice.need_text("type")? != "function" {
        return Err(choice.wrong("type", "must be `function`"));
    }
    let name = choice.need_text("name")?;
    if tools.iter().any(|tool| tool.function.name == name) {
        Ok(Choice::Named(name))
    } else {
        Err(choice.wrong("name", "names none of the `tools`"))
    }
}

/// Responses put next to the type what chat completions put one level deeper.
fn format(format: &Members<'_>, settings: &mut Object) -> Result<(), ApiError> {
    let kind = format.need_text("type")?;
    let mut wanted = Object::default();
    wanted.put("type", kind.as_ref());
    match kind.as_ref() {
        "text" => return Ok(()),
        "json_object" => {}
        "json_schema" => {
            let mut schema = Object::default();
            schema.put("name", format.need_text("name")?.as_ref());
            for name in ["description", "schema", "strict"] {
                schema.put_some(name, format.raw(name));
            }
            wanted.put("json_schema", &schema);
        }
        _ => return Err(format.wrong("type", "must be `text`, `json_object` or `json_schema`")),
    }
    settings.put("response_format", &wanted);
    Ok(())
}
