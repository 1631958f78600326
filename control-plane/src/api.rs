//! REST for the console and the CLI: plural nouns, `snake_case`, RFC 3339, one error envelope, cursor pages.
//!
//! Handlers are thin: they check, write a desired row or start a job, wake the reconciler and show what is.
//! None starts or stops an engine by itself, none touches the hot path. The `OpenAPI` document is made from the
//! same annotations that register the routes, so it cannot forget one.

mod document;
pub mod edge;
pub mod engines;
pub mod error;
pub mod events;
pub mod extract;
pub mod hardware;
pub mod jobs;
pub mod keys;
mod merge;
pub mod models;
pub mod openapi;
pub mod page;
pub mod pools;
pub mod probes;
pub mod requests;
pub mod servers;
pub mod state;
pub mod status;
mod table;
pub mod usage;

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::{Router, middleware};
use http::{StatusCode, Uri};

use error::ApiError;
use state::ApiState;

/// All routes of this module, complete with key check and error envelope.
pub fn router(state: ApiState) -> Router {
    let body_limit = DefaultBodyLimit::max(state.config.http.max_api_body_bytes);
    let api = table::api_routes()
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(body_limit)
        .layer(from_fn_with_state(state.clone(), edge::admin));
    let probes = table::probe_routes().route("/openapi.json", axum::routing::get(openapi::serve)).layer(middleware::from_fn(edge::open));
    Router::new().nest("/api", api).merge(probes).with_state(state)
}

async fn no_route(uri: Uri) -> ApiError {
    // What routes below `/api` see has lost that.
    ApiError::not_found("route", &format!("/api{}", uri.path())).hint("the routes are listed in /openapi.json")
}

async fn no_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route does not know this method")
}
