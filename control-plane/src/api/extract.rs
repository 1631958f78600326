//! Reads bodies, queries and ids so that whatever is wrong with them becomes the API's own envelope, with
//! the field named.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::ids::RowId;
use crate::request_body::{self, BodyError};

/// A JSON body. The content type is not insisted on: a body that parses is meant as JSON.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            if let Some(error) = request_body::cause(&rejection) {
                return cut_off(error);
            }
            let status = rejection.status();
            let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "body_too_large" } else { "invalid_request" };
            ApiError::new(status, code, rejection.body_text())
        })?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        serde_json::from_slice(&bytes).map(Self).map_err(|error| not_readable(&error))
    }
}

/// A body that did not come whole, in words and with the status that says whether to try again.
fn cut_off(error: &BodyError) -> ApiError {
    match error {
        BodyError::Late(_) => {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", error.to_string()).hint("`http.body_timeout` sets it")
        }
        BodyError::Stopping => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", error.to_string()),
        BodyError::Broken(_) => ApiError::invalid(error.to_string()),
    }
}

/// A query string.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// A name or an id from the path.
#[derive(Debug, Clone)]
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| text);
        text.map(Self).map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// The id of a server row from the path. An id that cannot be one is simply not found.
#[derive(Debug, Clone, Copy)]
pub struct ServerId(pub RowId);

impl<S: Send + Sync> FromRequestParts<S> for ServerId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Name(text) = Name::from_request_parts(parts, state).await?;
        text.parse().map(Self).map_err(|_| ApiError::not_found("server row", &text))
    }
}

/// Words a JSON error and names its field where serde does.
pub fn not_readable(error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    let named = ["unknown field `", "missing field `"].iter().find_map(|start| text.split_once(start)?.1.split_once('`'));
    match named {
        Some((field, _)) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", text.clone()).field(field),
        None if error.is_data() => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", text),
        None => ApiError::invalid(format!("the body is not JSON: {text}")),
    }
}
