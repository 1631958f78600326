//! The checked-in description of the API is the one the code gives.

use std::path::Path;

use lifeboat::api::openapi;
use reqwest::StatusCode;

use super::Api;

/// With `LIFEBOAT_WRITE_OPENAPI=1` (`make openapi`) the document is written instead.
#[test]
fn openapi_document_that_is_checked_in_is_the_one_the_code_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console-ui/openapi.json");
    let made = openapi::text().unwrap();
    if std::env::var_os("LIFEBOAT_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap();
    assert!(made == checked_in, "console-ui/openapi.json is out of date: run `make openapi` and check in what it writes");
}

#[tokio::test]
async fn openapi_document_is_served_and_names_every_fixed_route() {
    let api = Api::start().await;
    let reply = api.get("/openapi.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, "application/json"));
    for path in [
        "/api/servers",
        "/api/servers/{id}",
        "/api/servers/{id}/start",
        "/api/servers/{id}/stop",
        "/api/servers/{id}/restart",
        "/api/servers/{id}/logs",
        "/api/models",
        "/api/models/inspect",
        "/api/engines",
        "/api/engines/candidates",
        "/api/keys",
        "/api/events",
        "/api/hardware/profile",
        "/health",
        "/ready",
        "/metrics",
    ] {
        assert!(reply.body["paths"].get(path).is_some(), "{path}");
    }
    api.stop().await;
}
