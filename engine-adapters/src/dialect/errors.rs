//! One error type for the data plane, and the object each dialect makes of it.
//!
//! Codes are part of the API and never change their meaning. [`TABLE`] is the whole list: code, HTTP status,
//! OpenAI type, Anthropic type. Clients' own retry rules look at the status: 408, 409, 429 and 5xx are tried
//! again by the official libraries, so only what may go away by itself has one of those.

use serde::Deserialize;
use serde_json::{Value, json};

/// Whose shape a reply has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/*` but for messages.
    OpenAi,
    /// `/v1/messages*`.
    Anthropic,
    /// Ollama's `/api/*`.
    Ollama,
}

/// What went wrong, as clients can tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// A field is missing or wrong.
    InvalidRequest,
    /// The body is no JSON object.
    InvalidJson,
    /// No key, or one that is not known.
    InvalidApiKey,
    /// The key may not do this.
    InsufficientScope,
    /// The Host header names a host this server does not answer for.
    UnknownHost,
    /// The browser's origin is not allowed.
    ForbiddenOrigin,
    /// The key may not use this model.
    ModelNotAllowed,
    /// No row answers to this model name.
    ModelNotFound,
    /// No such path.
    NotFound,
    /// The path does not take this method.
    MethodNotAllowed,
    /// The engine of this model has no such endpoint.
    UnsupportedEndpoint,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The prompt is longer than the context.
    ContextLengthExceeded,
    /// The engine has too many requests.
    RateLimited,
    /// The caller's key has used up one of its limits.
    RateLimitExceeded,
    /// The queue of this model is full.
    QueueFull,
    /// No slot became free in time.
    QueueTimeout,
    /// More work is held than there is room for.
    Overloaded,
    /// The model has no engine that serves, and none is coming.
    NoReadyRow,
    /// The engine failed before or while it answered.
    UpstreamFailed,
    /// The engine did not answer in time.
    UpstreamTimeout,
    /// The request has come back to a control plane that passed it on.
    RequestLoop,
    /// The operator ended the request.
    Cancelled,
    /// A fault of Lifeboat's own.
    Internal,
}

/// Code, HTTP status, OpenAI type, Anthropic type.
pub const TABLE: [(ErrorCode, &str, u16, &str, &str); 24] = [
    (ErrorCode::InvalidRequest, "invalid_request", 400, "invalid_request_error", "invalid_request_error"),
    (ErrorCode::InvalidJson, "invalid_json", 400, "invalid_request_error", "invalid_request_error"),
    (ErrorCode::InvalidApiKey, "invalid_api_key", 401, "authentication_error", "authentication_error"),
    (ErrorCode::InsufficientScope, "insufficient_scope", 403, "permission_error", "permission_error"),
    (ErrorCode::UnknownHost, "unknown_host", 421, "permission_error", "permission_error"),
    (ErrorCode::ForbiddenOrigin, "forbidden_origin", 403, "permission_error", "permission_error"),
    (ErrorCode::ModelNotAllowed, "model_not_allowed", 403, "permission_error", "permission_error"),
    (ErrorCode::ModelNotFound, "model_not_found", 404, "invalid_request_error", "not_found_error"),
    (ErrorCode::NotFound, "not_found", 404, "invalid_request_error", "not_found_error"),
    (ErrorCode::MethodNotAllowed, "method_not_allowed", 405, "invalid_request_error", "invalid_request_error"),
    (ErrorCode::UnsupportedEndpoint, "unsupported_endpoint", 404, "invalid_request_error", "not_found_error"),
    (ErrorCode::BodyTooLarge, "body_too_large", 413, "invalid_request_error", "request_too_large"),
    (ErrorCode::ContextLengthExceeded, "context_length_exceeded", 400, "invalid_request_error", "invalid_request_error"),
    (ErrorCode::RateLimited, "rate_limited", 429, "rate_limit_error", "rate_limit_error"),
    (ErrorCode::RateLimitExceeded, "rate_limit_exceeded", 429, "rate_limit_error", "rate_limit_error"),
    (ErrorCode::QueueFull, "queue_full", 429, "rate_limit_error", "rate_limit_error"),
    (ErrorCode::QueueTimeout, "queue_timeout", 503, "overloaded_error", "overloaded_error"),
    (ErrorCode::Overloaded, "overloaded", 503, "overloaded_error", "overloaded_error"),
    (ErrorCode::NoReadyRow, "no_ready_row", 503, "overloaded_error", "overloaded_error"),
    (ErrorCode::UpstreamFailed, "upstream_failed", 502, "server_error", "api_error"),
    (ErrorCode::UpstreamTimeout, "upstream_timeout", 504, "server_error", "timeout_error"),
    (ErrorCode::RequestLoop, "request_loop", 508, "server_error", "api_error"),
    (ErrorCode::Cancelled, "cancelled", 410, "request_cancelled", "api_error"),
    (ErrorCode::Internal, "internal", 500, "server_error", "api_error"),
];

impl ErrorCode {
    fn row(self) -> (&'static str, u16, &'static str, &'static str) {
        // A test checks that every code has its row.
        TABLE
            .iter()
            .find(|(code, ..)| *code == self)
            .map_or(("internal", 500, "server_error", "api_error"), |(_, name, status, openai, anthropic)| {
                (*name, *status, *openai, *anthropic)
            })
    }

    /// The code as clients see it.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status it goes out with.
    pub fn status(self) -> u16 {
        self.row().1
    }
}

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What went wrong.
    pub code: ErrorCode,
    /// HTTP status; that of the code unless the engine said something more exact.
    pub status: u16,
    /// For people, with the cure where there is one. Never a prompt, a key or an address.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Tokens of the prompt, where the context was too short.
    pub prompt_tokens: Option<u64>,
    /// Tokens of context of a slot, where it was too short.
    pub context: Option<u64>,
}

/// Longest message taken over from an engine, characters.
const MAX_MESSAGE_CHARS: usize = 2000;

impl ApiError {
    /// An error with the status of its code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, status: code.status(), message: message.into(), param: None, prompt_tokens: None, context: None }
    }

    /// The same, blaming a field.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    fn object(&self, dialect: Dialect) -> Value {
        let (code, _, openai, anthropic) = self.code.row();
        let mut error = match dialect {
            Dialect::OpenAi => json!({ "message": self.message, "type": openai, "param": self.param, "code": code }),
            Dialect::Anthropic => json!({ "type": anthropic, "message": self.message, "code": code }),
            // Its clients read nothing else.
            Dialect::Ollama => return json!({ "error": self.message }),
        };
        for (name, number) in [("n_prompt_tokens", self.prompt_tokens), ("n_ctx", self.context)] {
            if let (Some(number), Some(fields)) = (number, error.as_object_mut()) {
                fields.insert(name.to_owned(), number.into());
            }
        }
        match dialect {
            Dialect::Anthropic => json!({ "type": "error", "error": error }),
            _ => json!({ "error": error }),
        }
    }

    /// The body of the reply.
    pub fn body(&self, dialect: Dialect) -> Vec<u8> {
        self.object(dialect).to_string().into_bytes()
    }

    /// The event that ends a stream which already has its 200. Clients of both dialects raise it as an error;
    /// no end marker follows, so nobody can take the reply for a whole one.
    pub fn event(&self, dialect: Dialect) -> Vec<u8> {
        let object = self.object(dialect);
        match dialect {
            Dialect::OpenAi => format!("data: {object}\n\n"),
            Dialect::Anthropic => format!("event: error\ndata: {object}\n\n"),
            Dialect::Ollama => format!("{object}\n"),
        }
        .into_bytes()
    }

    /// What an engine's error reply means to a client. `body` may be cut off; what cannot be read becomes the
    /// plain meaning of the status.
    pub fn from_engine(status: u16, body: &[u8]) -> Self {
        let said = EngineError::read(body);
        let message = said.message.as_deref().map(str::trim).filter(|message| !message.is_empty());
        let kind = said.kind.as_deref().unwrap_or_default();
        let message_says = |words: &str| message.is_some_and(|message| message.to_ascii_lowercase().contains(words));
        if kind == "exceed_context_size_error" || said.code_is("context_length_exceeded") || message_says("context size has been exceeded")
        {
            return Self::context_exceeded(said.n_prompt_tokens, said.n_ctx);
        }
        if let Some(error) = message.and_then(misused) {
            return error;
        }
        let (code, keep_status) = match status {
            401 | 403 if kind != "feature_disabled" && !message_says("does not support") => {
                let message = "the engine did not accept the key it was given; its row needs the right `api_key`";
                return Self::new(ErrorCode::UpstreamFailed, message);
            }
            403 | 404 | 405 | 501 => (ErrorCode::UnsupportedEndpoint, false),
            413 => (ErrorCode::BodyTooLarge, false),
            429 => (ErrorCode::RateLimited, false),
            503 | 529 => (ErrorCode::NoReadyRow, false),
            504 => (ErrorCode::UpstreamTimeout, false),
            508 => (ErrorCode::RequestLoop, false),
            400..=499 => (ErrorCode::InvalidRequest, true),
            _ => (ErrorCode::UpstreamFailed, false),
        };
        let mut error = Self::new(
            code,
            match message {
                Some(message) => message.chars().take(MAX_MESSAGE_CHARS).collect(),
                None if code == ErrorCode::BodyTooLarge => "the engine takes no request as large as this one; make it smaller".to_owned(),
                None => format!("the engine answered {status}"),
            },
        );
        if keep_status {
            error.status = status;
        }
        error.param = said.param;
        error
    }

    /// The prompt does not fit; the numbers where the engine told them.
    pub fn context_exceeded(prompt_tokens: Option<u64>, context: Option<u64>) -> Self {
        let message = match (prompt_tokens, context) {
            (Some(prompt), Some(context)) => format!(
                "the prompt has {prompt} tokens and this model is served with a context of {context}; shorten it or raise the row's `context`"
            ),
            _ => "the prompt and the reply do not fit this model's context; shorten the prompt or raise the row's `context`".to_owned(),
        };
        Self { prompt_tokens, context, ..Self::new(ErrorCode::ContextLengthExceeded, message).with_param("messages") }
    }
}

/// llama-server calls some mistakes of clients its own (500, 501) and names its own flags as their cure.
fn misused(message: &str) -> Option<ApiError> {
    let said = message.to_ascii_lowercase();
    if said.contains("is too large to process") && said.contains("batch size") {
        // "input (9001 tokens) is too large to process. increase the physical batch size (current batch size: 2048)"
        let mut numbers = said.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
        let (tokens, most) = (numbers.next(), numbers.next());
        let words = match (tokens, most) {
            (Some(tokens), Some(most)) => format!("the input has {tokens} tokens and this row reads at most {most} at once"),
            _ => "the input is longer than this row can read at once".to_owned(),
        };
        let words = words + "; split it, or raise the row's `context`";
        let error = ApiError::new(ErrorCode::ContextLengthExceeded, words).with_param("input");
        return Some(ApiError { prompt_tokens: tokens, context: most, ..error });
    }
    let input = ["image", "audio", "video"].into_iter().find(|kind| said.contains(&format!("{kind} input is not supported")));
    if let Some(kind) = input.or_else(|| said.contains("does not support multimodal").then_some("image and audio")) {
        let words = format!("this model takes no {kind} input; ask a model that does (its row needs the model's projector, `mmproj`)");
        return Some(ApiError::new(ErrorCode::InvalidRequest, words).with_param("messages"));
    }
    // "Failed to parse messages: …", "'messages' is required"
    let misread = said.strip_prefix("failed to parse ").and_then(|rest| rest.split_once(':')).map(|(field, _)| field);
    let missing = || said.strip_prefix('\'')?.strip_suffix("' is required");
    if let Some(field) = misread.or_else(missing).filter(|field| ["messages", "tools", "prompt", "input"].contains(field)) {
        return Some(ApiError::new(ErrorCode::InvalidRequest, message).with_param(field));
    }
    // "Field 'max_tokens': [json.exception.type_error.302] type must be number, but is string"
    if let Some((field, what)) = message.strip_prefix("Field '").and_then(|rest| rest.split_once("': ")) {
        let what = what.rsplit_once("] ").map_or(what, |(_, what)| what);
        return Some(ApiError::new(ErrorCode::InvalidRequest, format!("`{field}`: {what}")).with_param(field));
    }
    let task = match said.split_once("does not support ")?.1 {
        rest if rest.starts_with("embedding") => "embedding",
        rest if rest.starts_with("rerank") => "rerank",
        rest if rest.starts_with("completion") || rest.starts_with("chat") => "chat",
        _ => return None,
    };
    let words = format!("this model's row does another task; a row with `task` set to `{task}` is needed for this endpoint");
    Some(ApiError::new(ErrorCode::UnsupportedEndpoint, words))
}

/// What engines put into their error objects, as far as it is used. Every field may be anything.
#[derive(Debug, Default)]
struct EngineError {
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
    param: Option<String>,
    n_prompt_tokens: Option<u64>,
    n_ctx: Option<u64>,
}

impl EngineError {
    fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Envelope {
            error: Option<Value>,
            message: Option<Value>,
            detail: Option<Value>,
        }
        let Ok(envelope) = serde_json::from_slice::<Envelope>(body) else { return Self::default() };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match envelope.error {
            Some(Value::Object(fields)) => {
                let field = |name: &str| fields.get(name);
                Self {
                    message: field("message").and_then(text),
                    kind: field("type").and_then(text),
                    code: field("code").and_then(text),
                    param: field("param").and_then(text),
                    n_prompt_tokens: field("n_prompt_tokens").and_then(Value::as_u64),
                    n_ctx: field("n_ctx").and_then(Value::as_u64),
                }
            }
            Some(Value::String(message)) => Self { message: Some(message), ..Self::default() },
            _ => Self { message: envelope.message.or(envelope.detail).as_ref().and_then(text), ..Self::default() },
        }
    }

    fn code_is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn the_table_has_every_code_once_with_distinct_names() {
        let mut names: Vec<_> = TABLE.iter().map(|(_, name, ..)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        for (code, name, status, ..) in TABLE {
            assert_eq!((code.as_str(), code.status()), (name, status));
        }
        // A new variant must be added here and to the table.
        let last = ErrorCode::Internal as usize;
        assert_eq!(TABLE.len(), last + 1);
    }

    #[test]
    fn each_dialect_gets_its_own_object() {
        let error = ApiError::new(ErrorCode::ModelNotFound, "no model `x`").with_param("model");
        assert_eq!(
            parsed(&error.body(Dialect::OpenAi)),
            json!({"error":{"message":"no model `x`","type":"invalid_request_error","param":"model","code":"model_not_found"}})
        );
        assert_eq!(
            parsed(&error.body(Dialect::Anthropic)),
            json!({"type":"error","error":{"type":"not_found_error","message":"no model `x`","code":"model_not_found"}})
        );
    }

    #[test]
    fn a_stream_is_ended_by_an_event_and_no_end_marker() {
        let error = ApiError::new(ErrorCode::UpstreamFailed, "line one\nline two");
        let openai = String::from_utf8(error.event(Dialect::OpenAi)).unwrap();
        assert!(openai.starts_with("data: {\"error\":{") && openai.ends_with("}\n\n") && !openai.contains("DONE"));
        assert_eq!(openai.matches('\n').count(), 2, "a newline in the message is escaped");
        assert_eq!(error.event(Dialect::Ollama), b"{\"error\":\"line one\\nline two\"}\n");
        let anthropic = String::from_utf8(error.event(Dialect::Anthropic)).unwrap();
        assert!(anthropic.starts_with("event: error\ndata: {") && anthropic.contains("\"type\":\"api_error\""));
    }

    #[test]
    fn a_clients_mistake_that_an_engine_takes_for_its_own_is_the_clients() {
        use ErrorCode::{ContextLengthExceeded, InvalidRequest, UnsupportedEndpoint};
        for (status, message, code, expected, named) in [
            (
                500,
                "input (9001 tokens) is too large to process. increase the physical batch size (current batch size: 2048)",
                ContextLengthExceeded,
                400,
                "`context`",
            ),
            (500, "input is too large to process. increase the physical batch size", ContextLengthExceeded, 400, "`context`"),
            (500, "image input is not supported - hint: you may need to provide the mmproj", InvalidRequest, 400, "`mmproj`"),
            (500, "audio input is not supported - hint: you may need to provide the mmproj", InvalidRequest, 400, "audio"),
            (501, "This server does not support multimodal. Start it with `--mmproj`", InvalidRequest, 400, "`mmproj`"),
            (500, "Failed to parse messages: Missing 'role' in message: {}", InvalidRequest, 400, "'role'"),
            (500, "Failed to parse tools: Expected 'tools' to be an array", InvalidRequest, 400, "'tools'"),
            (500, "'messages' is required", InvalidRequest, 400, "'messages'"),
            (
                500,
                "Field 'top_k': [json.exception.type_error.302] type must be number, but is string",
                InvalidRequest,
                400,
                "`top_k`: type",
            ),
            (501, "This server does not support embeddings. Start it with `--embeddings`", UnsupportedEndpoint, 404, "`embedding`"),
            (501, "This server does not support reranking. Start it with `--reranking`", UnsupportedEndpoint, 404, "`rerank`"),
            (501, "This server does not support completions. Start it without `--embeddings`", UnsupportedEndpoint, 404, "`chat`"),
        ] {
            let body = json!({"error": {"code": status, "message": message, "type": "server_error"}}).to_string();
            let error = ApiError::from_engine(status, body.as_bytes());
            assert_eq!((error.code, error.status), (code, expected), "{message}");
            assert!(error.message.contains(named) && !error.message.contains("--"), "{}", error.message);
        }
        let body = br#"{"error":{"message":"input (9001 tokens) is too large to process. increase the physical batch size (current batch size: 2048)"}}"#;
        let error = ApiError::from_engine(500, body);
        assert_eq!((error.prompt_tokens, error.context), (Some(9001), Some(2048)));
    }

    #[test]
    fn engine_errors_become_stable_codes() {
        let table: [(u16, &str, ErrorCode, u16); 15] = [
            (400, r#"{"error":{"code":400,"message":"bad","type":"invalid_request_error"}}"#, ErrorCode::InvalidRequest, 400),
            (422, r#"{"detail":"no"}"#, ErrorCode::InvalidRequest, 422),
            (
                400,
                r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}"#,
                ErrorCode::ContextLengthExceeded,
                400,
            ),
            (
                500,
                r#"{"error":{"message":"Context size has been exceeded.","type":"server_error"}}"#,
                ErrorCode::ContextLengthExceeded,
                400,
            ),
            (401, r#"{"error":{"message":"Invalid API Key","type":"authentication_error"}}"#, ErrorCode::UpstreamFailed, 502),
            (403, r#"{"error":{"message":"off","type":"feature_disabled"}}"#, ErrorCode::UnsupportedEndpoint, 404),
            (404, r#"{"error":{"message":"File Not Found","type":"not_found_error"}}"#, ErrorCode::UnsupportedEndpoint, 404),
            (501, r#"{"error":{"message":"no embeddings","type":"not_supported_error"}}"#, ErrorCode::UnsupportedEndpoint, 404),
            (503, r#"{"error":{"message":"Loading model","type":"unavailable_error"}}"#, ErrorCode::NoReadyRow, 503),
            (500, r#"{"error":{"message":"boom","type":"server_error"}}"#, ErrorCode::UpstreamFailed, 502),
            (500, "<html>", ErrorCode::UpstreamFailed, 502),
            (413, "", ErrorCode::BodyTooLarge, 413),
            (429, "", ErrorCode::RateLimited, 429),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, ErrorCode::NoReadyRow, 503),
            (400, r#"{"error":"plain"}"#, ErrorCode::InvalidRequest, 400),
        ];
        for (status, body, code, out) in table {
            let error = ApiError::from_engine(status, body.as_bytes());
            assert_eq!((error.code, error.status), (code, out), "{status} {body}");
        }
        let long = ApiError::from_engine(400, table[2].1.as_bytes());
        assert_eq!((long.prompt_tokens, long.context), (Some(9000), Some(4096)));
        assert_eq!(parsed(&long.body(Dialect::OpenAi))["error"]["n_prompt_tokens"], 9000);
        assert_eq!(ApiError::from_engine(400, br#"{"error":"plain"}"#).message, "plain");
    }

    #[test]
    fn long_engine_messages_are_cut() {
        let body = json!({"error":{"message":"ж".repeat(10_000)}}).to_string();
        assert_eq!(ApiError::from_engine(400, body.as_bytes()).message.chars().count(), MAX_MESSAGE_CHARS);
    }
}
