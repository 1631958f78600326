//! Server rows: desired state in, desired and observed state out. Every change is a write of the desired
//! row and a wake-up of the reconciler; nothing here starts or stops an engine.

pub mod actions;
pub mod feed;
pub mod logs;
mod patch;
pub mod view;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lifeboat_engines::adapter;
use lifeboat_engines::spec::{EngineSpec, SpecError};
use serde_json::{Map, Value};

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Body, Params, ServerId};
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::ids::{Generation, RowId};
use crate::registry::{RowState, RowStatus};
use crate::store::servers::ServerRow;
use view::Server;

/// Longest wait of an answer until a row's task has taken an edit over; it takes milliseconds.
const TAKEN_OVER: Duration = Duration::from_millis(500);

/// All server rows, oldest first.
#[utoipa::path(get, path = "/servers", tag = "servers", params(PageParams), responses((status = 200, body = Page<Server>)))]
pub async fn list_servers(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<Server>>, ApiError> {
    let page = Page::cut(state.store.list_servers().await?, &page, |row| row.id.to_string())?;
    let data = shown(&state, page.data).await?;
    Ok(Json(Page { data, next_cursor: page.next_cursor }))
}

/// Creates a server row. The reconciler takes it from there.
#[utoipa::path(
    post, path = "/servers", tag = "servers", request_body = EngineSpec,
    responses((status = 201, body = Server), (status = 422, body = ErrorEnvelope))
)]
pub async fn create_server(State(state): State<ApiState>, Body(spec): Body<EngineSpec>) -> Result<Response, ApiError> {
    validate(&state, &spec)?;
    check_build(&state, &spec).await?;
    let row = state.store.create_server(&spec).await?;
    let location = HeaderValue::from_str(&format!("/api/servers/{}", row.id)).map_err(|error| ApiError::internal(&error))?;
    tracing::info!(server.id = %row.id, server.model = spec.model_name, "created a server row");
    let mut response = (StatusCode::CREATED, changed(&state, row).await?).into_response();
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// One server row.
#[utoipa::path(
    get, path = "/servers/{id}", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    responses((status = 200, body = Server), (status = 404, body = ErrorEnvelope))
)]
pub async fn find_server(State(state): State<ApiState>, ServerId(id): ServerId) -> Result<Response, ApiError> {
    let row = find(&state, id).await?;
    tagged(show(&state, row).await?)
}

/// Changes some fields of a row (JSON merge patch; `null` = auto). With `If-Match` or `generation` the edit
/// is refused unless the row is still at that generation. A running engine is drained and started again.
#[utoipa::path(
    patch, path = "/servers/{id}", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    request_body(content = Object, description = "The fields to change, and optionally the `generation` seen"),
    responses((status = 200, body = Server), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope),
              (status = 422, body = ErrorEnvelope))
)]
pub async fn update_server(
    State(state): State<ApiState>,
    ServerId(id): ServerId,
    headers: HeaderMap,
    Body(mut change): Body<Map<String, Value>>,
) -> Result<Response, ApiError> {
    let seen = match patch::take_generation(&mut change)? {
        Some(generation) => Some(generation),
        None => if_match(&headers)?,
    };
    let row = find_readable(&state, id).await?;
    if let Some(expected) = seen.filter(|seen| *seen != row.generation) {
        return Err(crate::store::StoreError::Conflict { expected, found: row.generation }.into());
    }
    let spec = patch::apply(&row.spec, change)?;
    validate(&state, &spec)?;
    if spec.engine_build != row.spec.engine_build {
        check_build(&state, &spec).await?;
    }
    if spec == row.spec {
        return tagged(show(&state, row).await?);
    }
    // The generation just read: an edit that came between would be overwritten by what it was merged into.
    let row = state.store.update_server(id, Some(row.generation), &spec).await?.ok_or_else(|| gone(id))?;
    tagged(changed(&state, row).await?)
}

/// Deletes a row: its engine ends, its model stays.
#[utoipa::path(
    delete, path = "/servers/{id}", tag = "servers", params(("id" = String, Path, description = "Id of the row")),
    responses((status = 204), (status = 404, body = ErrorEnvelope))
)]
pub async fn delete_server(State(state): State<ApiState>, ServerId(id): ServerId) -> Result<StatusCode, ApiError> {
    if !state.store.delete_server(id).await? {
        return Err(gone(id));
    }
    tracing::info!(server.id = %id, "deleted a server row");
    state.activator.wake();
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses a row that no engine of its kind could run, without touching the machine.
fn validate(state: &ApiState, spec: &EngineSpec) -> Result<(), ApiError> {
    let adapter = adapter(spec.engine);
    adapter.validate(spec, state.config.security.open_engine_arguments)?;
    if let Some(source) = spec.model.as_ref().filter(|_| adapter.capabilities().needs_model) {
        state.models.parse(source).map_err(|error| ApiError::from(error).field("model"))?;
    }
    Ok(())
}

/// Refuses a pin on a build that is not here: the row could not start.
async fn check_build(state: &ApiState, spec: &EngineSpec) -> Result<(), ApiError> {
    let Some(pinned) = &spec.engine_build else { return Ok(()) };
    let here =
        state.engines.list().await?.into_iter().any(|installed| installed.build.id == *pinned && installed.build.engine == spec.engine);
    if here {
        return Ok(());
    }
    let refusal = SpecError {
        field: "engine_build",
        problem: format!("no {} build `{pinned}` is installed", spec.engine),
        hint: "`lifeboat engine list` shows those that are; leave it out for the active one".into(),
    };
    Err(refusal.into())
}

async fn find(state: &ApiState, id: RowId) -> Result<ServerRow, ApiError> {
    state.store.find_server(id).await?.ok_or_else(|| gone(id))
}

/// A row to be changed: what this version cannot read it must not write either.
async fn find_readable(state: &ApiState, id: RowId) -> Result<ServerRow, ApiError> {
    let row = find(state, id).await?;
    match &row.unreadable {
        Some(problem) => Err(ApiError::conflict(format!("this version of Lifeboat cannot read the row: {problem}"))
            .hint("start the version that wrote it, or delete the row")),
        None => Ok(row),
    }
}

fn gone(id: RowId) -> ApiError {
    ApiError::not_found("server row", &id.to_string())
}

/// After a desired change: wakes the reconciler and shows the row, once its names can be used.
async fn changed(state: &ApiState, row: ServerRow) -> Result<Json<Server>, ApiError> {
    state.activator.wake();
    if state.supervisor.is_some() {
        // A row that is just being ended takes the change over later; the answer does not wait for that.
        state.registry.shows(row.id, row.generation, TAKEN_OVER).await;
    }
    show(state, row).await
}

async fn show(state: &ApiState, row: ServerRow) -> Result<Json<Server>, ApiError> {
    let mut servers = shown(state, vec![row]).await?;
    servers.pop().map(Json).ok_or_else(|| ApiError::not_found("server row", ""))
}

/// The rows with what is observed of them: living views where a supervisor runs, else what it last wrote.
async fn shown(state: &ApiState, rows: Vec<ServerRow>) -> Result<Vec<Server>, ApiError> {
    if state.supervisor.is_some() {
        let snapshot = state.registry.snapshot();
        return Ok(rows.into_iter().map(|row| Server::observed(row.clone(), snapshot.rows.get(&row.id).map(AsRef::as_ref))).collect());
    }
    let mut last = state.store.list_statuses().await?;
    let at_rest = |row: ServerRow| {
        let seen = last.iter().position(|status| status.id == row.id).map(|index| last.swap_remove(index).status);
        let status = match seen {
            Some(status) if status.state == RowState::Failed => RowStatus { pid: None, endpoint: None, ..status },
            _ => RowStatus { state_reason: Some("no control plane runs".into()), ..RowStatus::default() },
        };
        Server::new(row, status, 0)
    };
    Ok(rows.into_iter().map(at_rest).collect())
}

/// With the generation as its entity tag.
fn tagged(server: Json<Server>) -> Result<Response, ApiError> {
    let tag = HeaderValue::from_str(&format!("\"{}\"", server.generation)).map_err(|error| ApiError::internal(&error))?;
    let mut response = server.into_response();
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

fn if_match(headers: &HeaderMap) -> Result<Option<Generation>, ApiError> {
    let Some(value) = headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok()) else { return Ok(None) };
    let value = value.trim().trim_matches('"');
    if value == "*" {
        return Ok(None);
    }
    let wrong =
        || ApiError::invalid(format!("`If-Match: {value}` is not a generation")).hint("send the ETag of the row, for example \"3\"");
    value.parse().map(|number| Some(Generation(number))).map_err(|_| wrong())
}
