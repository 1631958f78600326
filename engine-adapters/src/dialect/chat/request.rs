//! A chat request, to be written in one go: what is large in it (images, schemas) is copied once.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::super::raw::Object;
use super::super::{ApiError, ErrorCode};
use super::Flavor;

/// A chat request to be written.
#[derive(Debug, Default)]
pub(in super::super) struct Request<'a> {
    /// The model's name as the client wrote it.
    pub model: Option<&'a RawValue>,
    pub messages: Vec<Message<'a>>,
    pub stream: bool,
    pub tools: Vec<Tool<'a>>,
    /// Everything else, in order.
    pub settings: Object,
}

impl Serialize for Request<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct StreamOptions {
            include_usage: bool,
        }
        let mut map = serializer.serialize_map(None)?;
        if let Some(model) = self.model {
            map.serialize_entry("model", model)?;
        }
        map.serialize_entry("messages", &self.messages)?;
        if !self.tools.is_empty() {
            map.serialize_entry("tools", &self.tools)?;
        }
        for (name, value) in self.settings.iter() {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("stream", &self.stream)?;
        if self.stream {
            map.serialize_entry("stream_options", &StreamOptions { include_usage: true })?;
        }
        map.end()
    }
}

impl Request<'_> {
    /// The body.
    pub(in super::super) fn into_body(self) -> Result<Vec<u8>, ApiError> {
        serde_json::to_vec(&self).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
    }
}

/// One message of a request.
#[derive(Debug, Serialize, Default)]
pub(in super::super) struct Message<'a> {
    pub role: &'static str,
    pub content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<Cow<'a, str>>,
}

/// What a message says.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in super::super) enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

impl Default for Content<'_> {
    fn default() -> Self {
        Self::Text(Cow::Borrowed(""))
    }
}

/// One part of what a message says.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in super::super) enum Part<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

/// Where an image is.
#[derive(Debug, Serialize)]
pub(in super::super) struct ImageUrl<'a> {
    pub url: Url<'a>,
}

/// An address, or the image itself.
#[derive(Debug)]
pub(in super::super) enum Url<'a> {
    Address(Cow<'a, str>),
    Data { media_type: Cow<'a, str>, base64: Cow<'a, str> },
}

impl Serialize for Url<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Address(address) => serializer.serialize_str(address),
            // Written in one go: images are the bulk of a large request.
            Self::Data { media_type, base64 } => serializer.collect_str(&format_args!("data:{media_type};base64,{base64}")),
        }
    }
}

impl<'a> Content<'a> {
    /// A single text stays a plain string, which every chat template can print.
    pub(in super::super) fn of(mut parts: Vec<Part<'a>>) -> Self {
        match parts.as_mut_slice() {
            [] => Self::default(),
            [Part::Text { text }] => Self::Text(std::mem::take(text)),
            _ => Self::Parts(parts),
        }
    }
}

impl<'a> Part<'a> {
    /// An image at an address.
    pub(in super::super) fn image(url: Url<'a>) -> Self {
        Self::ImageUrl { image_url: ImageUrl { url } }
    }
}

/// A call of a function that an assistant made.
#[derive(Debug, Serialize)]
pub(in super::super) struct ToolCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: Call<'a>,
}

/// Name and arguments of a call.
#[derive(Debug, Serialize)]
pub(in super::super) struct Call<'a> {
    pub name: Cow<'a, str>,
    /// JSON, as a string.
    pub arguments: Cow<'a, str>,
}

impl<'a> ToolCall<'a> {
    /// A call of a function.
    pub(in super::super) fn new(id: Option<Cow<'a, str>>, name: Cow<'a, str>, arguments: Cow<'a, str>) -> Self {
        Self { id, kind: "function", function: Call { name, arguments } }
    }
}

/// A function that may be called.
#[derive(Debug, Serialize)]
pub(in super::super) struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pub function: Function<'a>,
}

/// What is said of a function.
#[derive(Debug, Serialize)]
pub(in super::super) struct Function<'a> {
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<&'a RawValue>,
}

impl<'a> Tool<'a> {
    /// A function that may be called.
    pub(in super::super) fn new(function: Function<'a>) -> Self {
        Self { kind: "function", function }
    }
}

/// Which tool is to be called, where that is said.
#[derive(Debug)]
pub(in super::super) enum Choice<'a> {
    Auto,
    None,
    Any,
    Named(Cow<'a, str>),
}

impl Choice<'_> {
    /// Writes it into a request. llama-server takes words only: there a named tool becomes the only one, and required.
    pub(in super::super) fn apply(&self, flavor: Flavor, request: &mut Request<'_>) {
        match self {
            Self::Auto => request.settings.put("tool_choice", "auto"),
            Self::None => request.settings.put("tool_choice", "none"),
            Self::Any => request.settings.put("tool_choice", "required"),
            Self::Named(name) if flavor == Flavor::LlamaCpp => {
                request.tools.retain(|tool| tool.function.name == *name);
                request.settings.put("tool_choice", "required");
            }
            Self::Named(name) => {
                let choice = serde_json::json!({ "type": "function", "function": { "name": name } });
                request.settings.put("tool_choice", &choice);
            }
        }
    }
}
