//! The table of all routes, written once and read twice: as an axum router, and as the `OpenAPI` document.
//!
//! A running server needs the handlers only. Making the schemas of the document as well would touch a
//! megabyte of code and heap at every start, for a text that is checked in anyway.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::{PathItemExt, routes};

use super::servers::{actions, logs};
use super::state::ApiState;
use super::{engines, events, hardware, jobs, keys, models, pools, probes, requests, servers, status, usage};

macro_rules! table {
    ($router:ident, $document:ident: $($module:ident: $($handler:ident),+;)+) => {
        /// The handlers.
        pub(super) fn $router() -> Router<ApiState> {
            let router = Router::new();
            $($(let router = utoipa_axum::paste! {
                mount::<$module::[<__path_ $handler>], _, _>(router, $module::$handler)
            };)+)+
            router
        }

        /// The same as documentation.
        pub(super) fn $document() -> OpenApiRouter<ApiState> {
            OpenApiRouter::new()$($(.routes(routes!($module::$handler)))+)+
        }
    };
}

table! { api_routes, api_document:
    servers: list_servers, create_server, find_server, update_server, delete_server;
    actions: start_server, stop_server, restart_server;
    logs: show_logs;
    models: list_models, pull_model, remove_model, inspect_model;
    models: list_model_folders, register_model_folder, unregister_model_folder;
    engines: list_engines, list_engine_candidates, install_engine, rollback_engine, activate_engine, remove_engine;
    keys: list_keys, create_key, update_key, revoke_key;
    jobs: list_jobs, find_job, cancel_job;
    events: list_events;
    pools: list_pools, find_pool, update_pool;
    requests: list_requests, find_request, cancel_request;
    usage: list_usage;
    hardware: hardware_profile;
    status: show_status;
}

table! { probe_routes, probe_document:
    probes: health, ready, metrics;
}

/// Adds a handler at the path and methods of its annotation.
fn mount<P: utoipa::Path, H: Handler<T, ApiState>, T: 'static>(router: Router<ApiState>, handler: H) -> Router<ApiState> {
    let filter = P::methods().iter().map(PathItemExt::to_method_filter).reduce(MethodFilter::or);
    match filter {
        Some(filter) => router.route(&P::path(), on(filter, handler)),
        None => router,
    }
}
