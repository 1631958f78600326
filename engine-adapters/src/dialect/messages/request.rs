//! A Messages request as a chat request.

use super::super::ApiError;
use super::super::chat::{Choice, Flavor, Function, Request, Tool};
use super::super::node::{Members, Node};
use super::super::raw::{Object, raw};
use super::content;

/// Fields that mean the same in both dialects.
const SAME: [&str; 3] = ["temperature", "top_p", "top_k"];
/// Fields that engines have beside Anthropic's own; clients can send them as extra ones.
const EXTRA: [&str; 15] = [
    "seed",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "grammar",
    "cache_prompt",
    "id_slot",
    "reasoning_format",
    "priority",
    "user",
];

/// The chat request that means the same. `stream` is kept; the model's name too, for the gateway to put in the engine's.
pub fn to_chat(body: &[u8], flavor: Flavor) -> Result<Vec<u8>, ApiError> {
    request(&Members::of_body(body)?, flavor)?.into_body()
}

fn request<'a>(body: &Members<'a>, flavor: Flavor) -> Result<Request<'a>, ApiError> {
    let mut request = Request { model: body.raw("model"), stream: body.flag("stream")?.unwrap_or(false), ..Request::default() };
    if let Some(system) = body.get("system") {
        request.messages.extend(content::system(&system)?);
    }
    for turn in body.need("messages")?.list()? {
        content::turn(&turn, &mut request.messages)?;
    }
    for tool in body.list("tools")? {
        request.tools.push(self::tool(&tool)?);
    }
    if let Some(choice) = body.get("tool_choice") {
        tool_choice(&choice.members()?, flavor, &mut request)?;
    }
    for name in ["mcp_servers", "container"] {
        if body.get(name).is_some_and(|value| !value.is_empty()) {
            return Err(body.wrong(name, "is not supported: it needs services that a local model does not have"));
        }
    }
    let settings = &mut request.settings;
    settings.put_some("max_tokens", body.raw("max_tokens"));
    settings.put_some("stop", body.get("stop_sequences").filter(|stop| !stop.is_empty()).map(|stop| stop.raw()));
    for name in SAME.into_iter().chain(EXTRA) {
        settings.put_some(name, body.raw(name));
    }
    if body.raw("user").is_none()
        && let Some(metadata) = body.get("metadata")
    {
        settings.put_some("user", metadata.members()?.raw("user_id"));
    }
    thinking(body, flavor, settings)?;
    output(body, settings)?;
    if request.stream && flavor == Flavor::LlamaCpp {
        // The first event of a message tells the prompt's tokens: only so are they known by then.
        request.settings.put("timings_per_token", &true);
    }
    Ok(request)
}

fn tool<'a>(node: &Node<'a>) -> Result<Tool<'a>, ApiError> {
    let tool = node.members()?;
    if tool.text("type")?.is_some_and(|kind| kind != "custom") {
        return Err(tool.wrong("type", "must be `custom`: tools that Anthropic runs or defines are not there with a local model"));
    }
    Ok(Tool::new(Function {
        name: tool.need_text("name")?,
        description: tool.raw("description"),
        parameters: Some(tool.need("input_schema")?.raw()),
        strict: tool.raw("strict"),
    }))
}

fn tool_choice<'a>(choice: &Members<'a>, flavor: Flavor, request: &mut Request<'a>) -> Result<(), ApiError> {
    let wanted = match choice.need_text("type")?.as_ref() {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" => Choice::Any,
        "tool" => {
            let name = choice.need_text("name")?;
            if !request.tools.iter().any(|tool| tool.function.name == name) {
                return Err(choice.wrong("name", "names none of the `tools`"));
            }
            Choice::Named(name)
        }
        _ => return Err(choice.wrong("type", "must be `auto`, `any`, `tool` or `none`")),
    };
    wanted.apply(flavor, request);
    if choice.flag("disable_parallel_tool_use")? == Some(true) {
        request.settings.put("parallel_tool_calls", &false);
    }
    Ok(())
}

/// Whether to think is a variable of the model's template; how long, a bound that only llama-server knows.
fn thinking(body: &Members<'_>, flavor: Flavor, settings: &mut Object) -> Result<(), ApiError> {
    let mut arguments = Object::default();
    if let Some(given) = body.get("chat_template_kwargs") {
        for (name, value) in given.members()?.iter() {
            arguments.set(name, value);
        }
    }
    if let Some(thinking) = body.get("thinking") {
        let thinking = thinking.members()?;
        let enabled = match thinking.need_text("type")?.as_ref() {
            "enabled" => Some(true),
            "disabled" => Some(false),
            "adaptive" => None,
            _ => return Err(thinking.wrong("type", "must be `enabled`, `disabled` or `adaptive`")),
        };
        if let Some(enabled) = enabled
            && (flavor == Flavor::LlamaCpp || !enabled)
        {
            arguments.set("enable_thinking", &raw(&enabled));
        }
        if enabled == Some(true) && flavor == Flavor::LlamaCpp {
            settings.put_some("thinking_budget_tokens", thinking.raw("budget_tokens"));
        }
    }
    if arguments.iter().next().is_some() {
        settings.put("chat_template_kwargs", &arguments);
    }
    Ok(())
}

/// How much effort, and in what form.
fn output(body: &Members<'_>, settings: &mut Object) -> Result<(), ApiError> {
    let config = body.get("output_config").map(|config| config.members()).transpose()?;
    if let Some(effort) = config.as_ref().map(|config| config.text("effort")).transpose()?.flatten() {
        // Models are taught three steps.
        let effort = if matches!(effort.as_ref(), "max" | "xhigh") { "high" } else { effort.as_ref() };
        settings.put("reasoning_effort", effort);
    }
    let format = config.as_ref().and_then(|config| config.get("format")).or_else(|| body.get("output_format"));
    if let Some(format) = format {
        let format = format.members()?;
        if format.need_text("type")? != "json_schema" {
            return Err(format.wrong("type", "must be `json_schema`"));
        }
        let mut schema = Object::default();
        schema.put("name", "reply");
        schema.put("schema", format.need("schema")?.raw());
        schema.put("strict", &true);
        let mut wanted = Object::default();
        wanted.put("type", "json_schema");
        wanted.put("json_schema", &schema);
        settings.put("response_format", &wanted);
    }
    Ok(())
}
