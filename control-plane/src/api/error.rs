//! The one error envelope of `/api`: `{"error":{"code","message","field","hint","request_id"}}`.
//!
//! A handler answers with an [`ApiError`]; the envelope is written by [`super::edge`], which knows the
//! request's id. What goes wrong inside is logged with its causes and shown as a fixed text, because a
//! stranger has no use for our paths and SQL.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use lifeboat_engines::spec::SpecError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::edge::REQUEST_ID;
use crate::causes::chain;
use crate::jobs::{Busy, JobError};
use crate::keys::Denied;
use crate::security::Refused;
use crate::store::StoreError;

/// Seconds after which what is refused for the moment (429, 503) is worth another try: a job may have ended, a stop is over.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// What went wrong, for programs (`code`) and people (`message`, `hint`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Stable word for programs.
    pub code: String,
    /// What went wrong.
    pub message: String,
    /// The field at fault, where one is.
    pub field: Option<String>,
    /// The cure, where there is one.
    pub hint: Option<String>,
    /// Names this request in the log.
    pub request_id: String,
}

/// Every error of `/api`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEnvelope {
    /// The error.
    pub error: ErrorBody,
}

/// An error on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    field: Option<String>,
    hint: Option<String>,
}

impl ApiError {
    /// An error with this status, stable code and message.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), field: None, hint: None }
    }

    /// Gives it a more exact code.
    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }

    /// Names the field at fault.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says that the field at fault lies below another one.
    #[must_use]
    pub fn below(mut self, parent: &str) -> Self {
        self.field = self.field.map(|field| format!("{parent}.{field}"));
        self
    }

    /// Adds the cure.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// There is no such thing.
    pub fn not_found(what: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} `{name}`"))
    }

    /// The request itself is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// The state of things does not allow it now.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// Our own failure: logged with its causes, shown as a fixed text.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = chain(error), "a request failed");
        let text = "something went wrong inside; the server's log has it under this request id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text)
    }

    /// The envelope as a response.
    pub fn render(self, request_id: &str) -> Response {
        let Self { status, code, message, field, hint } = self;
        let error = ErrorBody { code: code.into(), message, field, hint, request_id: request_id.into() };
        let mut response = (status, axum::Json(ErrorEnvelope { error })).into_response();
        if let Ok(id) = HeaderValue::from_str(request_id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

impl IntoResponse for ApiError {
    /// Leaves the body to [`super::edge`].
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { .. } => Self::conflict(error.to_string()).hint("read it again, then repeat the edit"),
            StoreError::DiskFull(_) => Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", error.to_string())
                .hint("free some space on the disk of the data directory; models that run go on serving"),
            // What the disk says is no secret of ours, and whoever reads it may be the one who can mend it.
            StoreError::Unusable { .. } | StoreError::Damaged { .. } => {
                tracing::error!(error = chain(&error), "the database cannot be used");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "database_unusable", chain(&error))
                    .hint("see whether the data directory can be written and its disk is well; models that run go on serving")
            }
            other => Self::internal(&other),
        }
    }
}

impl From<SpecError> for ApiError {
    fn from(error: SpecError) -> Self {
        let refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", error.to_string()).field(error.field);
        if error.hint.is_empty() { refusal } else { refusal.hint(error.hint) }
    }
}

impl From<Busy> for ApiError {
    fn from(error: Busy) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_jobs", error.to_string()).hint("wait for one to end, or cancel one")
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        let (status, code) = match denied {
            Denied::Missing => (StatusCode::UNAUTHORIZED, "key_missing"),
            Denied::Unknown => (StatusCode::UNAUTHORIZED, "key_invalid"),
            Denied::Scope(_) => (StatusCode::FORBIDDEN, "key_scope"),
        };
        Self::new(status, code, denied.to_string()).hint(
            "send a key with the scope `admin` as `Authorization: Bearer lb_…`; on the machine of the server, \
             `lifeboat key create NAME --scope admin` needs none and makes one",
        )
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let code = match refused {
            Refused::Host(_) => "host_not_allowed",
            Refused::TwoHosts | Refused::NoHost => "invalid_request",
            Refused::Origin(_) => "origin_not_allowed",
        };
        Self::new(refused.status(), code, refused.to_string()).hint(refused.hint())
    }
}

impl From<ApiError> for JobError {
    fn from(error: ApiError) -> Self {
        Self { code: error.code.into(), message: error.message, hint: error.hint }
    }
}
