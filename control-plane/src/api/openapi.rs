//! The `OpenAPI` document: made from the code by a test, checked in as `console-ui/openapi.json`, embedded and
//! served from there. So serving it costs no memory, and a change of the API shows in its diff.

use axum::response::IntoResponse;
use http::{HeaderName, header};
use utoipa::openapi::OpenApi;
use utoipa::openapi::info::{Info, License};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

use super::table::{api_document, probe_document};

/// The document as checked in.
const DOCUMENT: &str = include_str!("../../../console-ui/openapi.json");

/// Answers `GET /openapi.json`.
pub async fn serve() -> impl IntoResponse {
    const HEADERS: [(HeaderName, &str); 2] = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (HEADERS, DOCUMENT)
}

/// The document as the code has it.
pub fn document() -> OpenApi {
    let mut info = Info::new("Lifeboat", env!("CARGO_PKG_VERSION"));
    info.description = Some("REST API of the Lifeboat control plane. The inference API under /v1 is OpenAI's and Anthropic's own.".into());
    info.license = Some(License::new("Apache-2.0"));
    let empty = OpenApi::new(info, utoipa::openapi::Paths::new());
    let router = OpenApiRouter::with_openapi(empty).nest("/api", api_document()).merge(probe_document());
    let mut document = router.into_openapi();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    document.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new()), SecurityRequirement::default()]);
    document
}

/// The document as text, the way it is checked in.
pub fn text() -> Result<String, serde_json::Error> {
    // Through a value, whose members are ordered, so that the text does not depend on the order of registration.
    let value = serde_json::to_value(document())?;
    serde_json::to_string_pretty(&value).map(|text| text + "\n")
}
