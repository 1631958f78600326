//! All routes behind the Host and Origin rules.

use std::net::SocketAddr;

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use lifeboat_engines::dialect::errors::{self, Dialect, ErrorCode};
use tower::Layer;
use uuid::Uuid;

use crate::api::edge::REQUEST_ID;
use crate::api::error::ApiError;
use crate::config::SecurityConfig;
use crate::console;
use crate::security::{self, Guard, GuardLayer, Refused, Rules};

/// The whole HTTP service: these routes, the console for every other path, all behind the rules.
pub fn service(routes: Router, config: &SecurityConfig, listen: SocketAddr) -> Guard<Router> {
    let routes = routes.fallback(console::serve);
    let routes = match security::cors(config) {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    GuardLayer::new(Rules::new(config, listen), refuse).layer(routes)
}

/// Words a refusal in the dialect of the path.
fn refuse(path: &str, refused: &Refused) -> Response {
    let Some(dialect) = dialect(path) else { return ApiError::from(refused.clone()).render(&Uuid::now_v7().to_string()) };
    let code = match refused {
        Refused::Host(_) => ErrorCode::UnknownHost,
        Refused::NoHost | Refused::TwoHosts => ErrorCode::InvalidRequest,
        Refused::Origin(_) => ErrorCode::ForbiddenOrigin,
    };
    let error = errors::ApiError::new(code, format!("{refused}; {}", refused.hint()));
    in_dialect(refused.status(), &error, dialect)
}

/// The answer to a head of more than `most` bytes.
pub(super) fn head_too_large(path: &str, most: usize) -> Response {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let message = format!("the request's line and headers are larger than the limit of {most} bytes");
    match dialect(path) {
        None => ApiError::new(status, "head_too_large", message).hint("`http.max_head_bytes` sets it").render(&Uuid::now_v7().to_string()),
        Some(dialect) => {
            let error = errors::ApiError::new(ErrorCode::InvalidRequest, message);
            in_dialect(status, &error, dialect)
        }
    }
}

/// An error of the data plane, with a name of its own.
fn in_dialect(status: StatusCode, error: &errors::ApiError, dialect: Dialect) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (REQUEST_ID, Uuid::now_v7().to_string())];
    (status, headers, error.body(dialect)).into_response()
}

/// Whose shape the errors of a path have; `None` = the API's own.
fn dialect(path: &str) -> Option<Dialect> {
    match path {
        _ if path.starts_with("/v1/messages") => Some(Dialect::Anthropic),
        "/tokenize" | "/detokenize" => Some(Dialect::OpenAi),
        _ if path.starts_with("/v1/") => Some(Dialect::OpenAi),
        _ => None,
    }
}
