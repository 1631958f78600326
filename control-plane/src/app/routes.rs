//! All routes behind the Host and Origin rules.

use std::net::SocketAddr;

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::header;
use lifeboat_engines::dialect::errors::{self, Dialect, ErrorCode};
use tower::Layer;
use uuid::Uuid;

use crate::api::error::ApiError;
use crate::api::state::ApiState;
use crate::config::SecurityConfig;
use crate::security::{self, Guard, GuardLayer, Refused, Rules};
use crate::{api, console};

/// The whole HTTP service.
pub fn service(api: ApiState, config: &SecurityConfig, listen: SocketAddr) -> Guard<Router> {
    let routes = Router::new().merge(api::router(api)).fallback(console::serve);
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
        _ if path.starts_with("/v1/") => Dialect::OpenAi,
        _ => return ApiError::from(refused.clone()).render(&Uuid::now_v7().to_string()),
    };
    let error = errors::ApiError::new(ErrorCode::ForbiddenOrigin, format!("{refused}; {}", refused.hint()));
    (refused.status(), [(header::CONTENT_TYPE, "application/json")], error.body(dialect)).into_response()
}
