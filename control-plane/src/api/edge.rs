//! What every call of `/api` passes: a request id, the key, and at the end the error envelope.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, StatusCode};
use tracing::Instrument;
use uuid::Uuid;

use super::error::ApiError;
use super::state::ApiState;
use crate::keys::Scope;

/// The header that carries the request id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Lets in callers that may administer; gives every answer its request id.
pub async fn admin(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let allowed = state.keys.authorize(request.headers(), Scope::Admin);
    finish(request, |request| async move {
        match allowed {
            Ok(_principal) => match announced(&request).filter(|bytes| *bytes > state.config.http.max_api_body_bytes as u64) {
                Some(_) => too_large(state.config.http.max_api_body_bytes).into_response(),
                None => next.run(request).await,
            },
            Err(denied) => ApiError::from(denied).into_response(),
        }
    })
    .await
}

/// Bytes the body says it has: one that is too large need not be waited for.
fn announced(request: &Request) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body that is too large, announced or read.
pub fn too_large(limit: usize) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("the body is larger than the limit of {limit} bytes"))
        .hint("`http.max_api_body_bytes` sets it")
}

/// Gives every answer its request id and writes the envelope of an error.
async fn finish<F: Future<Output = Response>>(request: Request, answer: impl FnOnce(Request) -> F) -> Response {
    let id = Uuid::now_v7().to_string();
    let span = tracing::info_span!("api", request.id = id, method = %request.method(), path = request.uri().path());
    let mut response = answer(request).instrument(span).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let rendered = error.render(&id);
        let (parts, body) = rendered.into_parts();
        response.headers_mut().extend(parts.headers);
        *response.body_mut() = body;
    } else if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// For routes that need no key: only the request id and the envelope.
pub async fn open(request: Request, next: Next) -> Response {
    finish(request, |request| next.run(request)).await
}
