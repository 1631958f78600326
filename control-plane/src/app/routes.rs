//! All routes behind the Host and Origin rules.

use std::net::SocketAddr;

use axum::Router;
use axum::response::Response;
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

fn refuse(_path: &str, refused: &Refused) -> Response {
    ApiError::from(refused.clone()).render(&Uuid::now_v7().to_string())
}
