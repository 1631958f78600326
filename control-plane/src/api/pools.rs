//! Pools over REST: all rows of one public name, how they share requests, and how busy they are.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Body, Name, Params};
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::gateway::RetriesView;
use crate::ids::RowId;
use crate::registry::RowState;
use crate::routing::{LineView, Mode, RowLoadView};

/// All rows of one public name.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pool {
    /// The public name.
    pub name: String,
    /// How it chooses and how hot it is.
    #[serde(flatten)]
    pub line: LineView,
    /// What it may spend on failed requests.
    pub retries: RetriesView,
    /// Its rows.
    pub rows: Vec<PoolRow>,
}

/// One row of a pool.
#[derive(Debug, Serialize, ToSchema)]
pub struct PoolRow {
    /// Its id.
    #[schema(value_type = String)]
    pub id: RowId,
    /// Where it stands.
    pub state: RowState,
    /// Its load and speed, while it is up.
    pub load: Option<RowLoadView>,
}

/// Changes of a pool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditPool {
    /// How it chooses its rows: `ttft` (default), `throughput`, `sticky` or `hybrid`.
    pub mode: Mode,
}

fn pool(state: &ApiState, name: &str) -> Option<Pool> {
    let snapshot = state.registry.snapshot();
    let rows = snapshot.by_name.get(name)?.iter().filter(|row| row.model_name == name);
    let view = state.pools.view(name)?;
    let load = |id: RowId| view.rows.iter().find(|(other, _)| *other == id).map(|(_, load)| load.clone());
    let rows: Vec<_> = rows.map(|row| PoolRow { id: row.id, state: row.status.state, load: load(row.id) }).collect();
    (!rows.is_empty()).then(|| Pool { name: name.to_owned(), line: view.line, retries: view.retries, rows })
}

/// All pools, by name.
#[utoipa::path(get, path = "/pools", tag = "pools", params(PageParams), responses((status = 200, body = Page<Pool>)))]
pub async fn list_pools(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<Pool>>, ApiError> {
    let snapshot = state.registry.snapshot();
    let mut names: Vec<_> = snapshot.by_name.keys().cloned().collect();
    names.sort_unstable();
    let pools: Vec<_> = names.iter().filter_map(|name| pool(&state, name)).collect();
    Page::cut(pools, &page, |pool| pool.name.clone()).map(Json)
}

/// One pool: its mode, its heat, who waits, and the load of its rows.
#[utoipa::path(
    get, path = "/pools/{name}", tag = "pools", params(("name" = String, Path, description = "Public model name")),
    responses((status = 200, body = Pool), (status = 404, body = ErrorEnvelope))
)]
pub async fn find_pool(State(state): State<ApiState>, Name(name): Name) -> Result<Json<Pool>, ApiError> {
    pool(&state, &name).map(Json).ok_or_else(|| ApiError::not_found("pool", &name))
}

/// Changes how a pool chooses its rows, from the next request on.
#[utoipa::path(
    patch, path = "/pools/{name}", tag = "pools", params(("name" = String, Path, description = "Public model name")),
    request_body = EditPool,
    responses((status = 200, body = Pool), (status = 404, body = ErrorEnvelope), (status = 422, body = ErrorEnvelope))
)]
pub async fn update_pool(State(state): State<ApiState>, Name(name): Name, Body(change): Body<EditPool>) -> Result<Json<Pool>, ApiError> {
    let missing = || ApiError::not_found("pool", &name);
    if pool(&state, &name).is_none() {
        return Err(missing());
    }
    state.store.set_pool_mode(&name, change.mode.as_str()).await?;
    state.pools.set_mode(&name, change.mode);
    tracing::info!(pool.name = name, pool.mode = change.mode.as_str(), "set how a pool chooses");
    pool(&state, &name).map(Json).ok_or_else(missing)
}
