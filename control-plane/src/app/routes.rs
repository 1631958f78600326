//! All routes behind the Host and Origin rules.

use std::net::SocketAddr;

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::header;
use lifeboat_engines::dialect::errors::{self, Dialect, ErrorCode};
use tower::Layer;
use uuid::Uuid;

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
    let dialect = match path {
        _ if path.starts_with("/v1/messages") => Dialect::Anthropic,
        "/tokenize" | "/detokenize" => Dialect::OpenAi,
        _ if path.starts_with("/v1/") => Dialect::OpenAi,
        _ => return ApiError::from(refused.clone()).render(&Uuid::now_v7().to_string()),
    };
    let code = match refused {
        Refused::Host(_) => ErrorCode::UnknownHost,
        Refused::Origin(_) => ErrorCode::ForbiddenOrigin,
    };
    let error = errors::ApiError::new(code, format!("{refused}; {}", refused.hint()));
    (refused.status(), [(header::CONTENT_TYPE, "application/json")], error.body(dialect)).into_response()
}
