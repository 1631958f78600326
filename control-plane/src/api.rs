//! REST for the console and the CLI: plural nouns, `snake_case`, RFC 3339, one error envelope, cursor pages.
//!
//! Handlers are thin: they check, write a desired row or start a job, wake the reconciler and show what is.
//! None starts or stops an engine by itself, none touches the hot path. The `OpenAPI` document is made from the
//! same annotations that register the routes, so it cannot forget one.

pub mod edge;
pub mod engines;
pub mod error;
pub mod events;
pub mod extract;
pub mod hardware;
pub mod jobs;
pub mod keys;
pub mod models;
pub mod openapi;
pub mod page;
pub mod probes;
pub mod requests;
pub mod servers;
pub mod state;
pub mod status;

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::{Router, middleware};
use http::{StatusCode, Uri};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use error::ApiError;
use state::ApiState;

/// All routes of this module, complete with key check and error envelope.
pub fn router(state: ApiState) -> Router {
    let body_limit = DefaultBodyLimit::max(state.config.http.max_api_body_bytes);
    let (api, _document) = api_routes().split_for_parts();
    let api = api
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(body_limit)
        .layer(from_fn_with_state(state.clone(), edge::admin));
    let (probes, _document) = probe_routes().split_for_parts();
    let probes = probes.route("/openapi.json", axum::routing::get(openapi::serve)).layer(middleware::from_fn(edge::open));
    Router::new().nest("/api", api).merge(probes).with_state(state)
}

fn api_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(servers::list_servers, servers::create_server))
        .routes(routes!(servers::find_server, servers::update_server, servers::delete_server))
        .routes(routes!(servers::actions::start_server))
        .routes(routes!(servers::actions::stop_server))
        .routes(routes!(servers::actions::restart_server))
        .routes(routes!(servers::logs::show_logs))
        .routes(routes!(engines::list_engines, engines::install_engine))
        .routes(routes!(engines::list_engine_candidates))
        .routes(routes!(engines::rollback_engine))
        .routes(routes!(engines::activate_engine))
        .routes(routes!(engines::remove_engine))
        .routes(routes!(models::list_models, models::pull_model, models::remove_model))
        .routes(routes!(models::inspect_model))
        .routes(routes!(models::list_model_folders, models::register_model_folder, models::unregister_model_folder))
        .routes(routes!(keys::list_keys, keys::create_key))
        .routes(routes!(keys::revoke_key))
        .routes(routes!(jobs::list_jobs))
        .routes(routes!(jobs::find_job, jobs::cancel_job))
        .routes(routes!(events::list_events))
        .routes(routes!(requests::list_requests))
        .routes(routes!(hardware::hardware_profile))
        .routes(routes!(status::show_status))
}

fn probe_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(probes::health)).routes(routes!(probes::ready)).routes(routes!(probes::metrics))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::not_found("route", uri.path()).hint("the routes are listed in /openapi.json")
}

async fn no_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route does not know this method")
}
