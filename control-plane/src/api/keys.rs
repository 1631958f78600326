//! API keys over REST. The secret is part of exactly one reply: the one that creates it. A change of name or limits holds
//! for the next request; what runs goes on.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::error::{ApiError, ErrorEnvelope};
use super::extract::{Body, Name, Params, read};
use super::merge::merge;
use super::page::{Page, PageParams};
use super::state::ApiState;
use crate::host::clock::rfc3339;
use crate::key_limits::KeyLimits;
use crate::keys::{Scope, generate};
use crate::security::is_loopback;
use crate::store::keys::KeyRow;

/// Longest name, in characters.
const NAME_LIMIT: usize = 100;

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub struct Key {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Uuid,
    /// What it is for.
    pub name: String,
    /// First characters, to recognise it by.
    pub prefix: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// What it may use.
    pub limits: KeyLimits,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub last_used_at: Option<String>,
    /// RFC 3339; set = the key is dead.
    #[schema(format = DateTime)]
    pub revoked_at: Option<String>,
}

/// A key that was just created.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedKey {
    /// The key itself. It is not shown again.
    pub key: String,
    /// What changes with it for those who have none, where something does.
    pub hint: Option<String>,
    /// What is kept of it.
    #[serde(flatten)]
    pub stored: Key,
}

/// A key to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it is for, 1 to 100 characters.
    pub name: String,
    /// What it may do; default `inference`.
    #[serde(default = "inference_only")]
    pub scopes: Vec<Scope>,
    /// What it may use; left out = no limit.
    #[serde(default)]
    pub limits: KeyLimits,
}

/// Changes of a key. What is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditKey {
    /// What it is for, 1 to 100 characters.
    pub name: Option<String>,
    /// A merge patch: a member replaces, `null` lifts a limit, the rest stays.
    #[schema(value_type = Option<KeyLimits>)]
    pub limits: Option<Map<String, Value>>,
}

fn inference_only() -> Vec<Scope> {
    vec![Scope::Inference]
}

/// All keys, oldest first, revoked ones included.
#[utoipa::path(get, path = "/keys", tag = "keys", params(PageParams), responses((status = 200, body = Page<Key>)))]
pub async fn list_keys(State(state): State<ApiState>, Params(page): Params<PageParams>) -> Result<Json<Page<Key>>, ApiError> {
    let page = Page::cut(state.store.list_keys().await?, &page, |row| row.id.to_string())?;
    let data = page.data.into_iter().map(|row| shown(&state, row)).collect();
    Ok(Json(Page { data, next_cursor: page.next_cursor }))
}

/// Creates a key. With the first one, every call needs a key.
#[utoipa::path(
    post, path = "/keys", tag = "keys", request_body = CreateKey,
    responses((status = 201, body = CreatedKey), (status = 422, body = ErrorEnvelope))
)]
pub async fn create_key(State(state): State<ApiState>, Body(wanted): Body<CreateKey>) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let name = checked_name(&wanted.name)?;
    if wanted.scopes.is_empty() {
        return Err(invalid("scopes", "scopes: a key without a scope could do nothing").hint("use \"inference\", \"admin\" or both"));
    }
    check_limits(&wanted.limits)?;
    let first = state.store.list_keys().await?.iter().all(|row| row.revoked_at.is_some());
    let created = generate(name, &wanted.scopes, wanted.limits);
    let row = created.row.clone();
    to_the_end(&state, async move |state| Ok(state.store.create_key(&row).await?)).await?;
    tracing::info!(key.id = %created.row.id, key.name = name, "created an API key");
    Ok((
        StatusCode::CREATED,
        Json(CreatedKey { key: created.secret, hint: first.then(|| first_key(&wanted.scopes)), stored: shown(&state, created.row) }),
    ))
}

/// Changes the name or the limits of a key at once.
#[utoipa::path(
    patch, path = "/keys/{id}", tag = "keys", params(("id" = String, Path, description = "Id of the key")), request_body = EditKey,
    responses((status = 200, body = Key), (status = 404, body = ErrorEnvelope), (status = 422, body = ErrorEnvelope))
)]
pub async fn update_key(State(state): State<ApiState>, Name(id): Name, Body(change): Body<EditKey>) -> Result<Json<Key>, ApiError> {
    let missing = || ApiError::not_found("living key", &id);
    let parsed: Uuid = id.parse().map_err(|_| missing())?;
    let changed = to_the_end(&state, async move |state| state.store.update_key(parsed, |row| apply(change, row)).await).await?;
    let row = changed.ok_or_else(missing)?;
    tracing::info!(key.id = %parsed, key.name = row.name, "changed an API key");
    Ok(Json(shown(&state, row)))
}

/// Revokes a key at once and for good.
#[utoipa::path(
    delete, path = "/keys/{id}", tag = "keys", params(("id" = String, Path, description = "Id of the key")),
    responses((status = 204), (status = 404, body = ErrorEnvelope), (status = 409, body = ErrorEnvelope))
)]
pub async fn revoke_key(State(state): State<ApiState>, Name(id): Name) -> Result<StatusCode, ApiError> {
    let missing = || ApiError::not_found("living key", &id);
    let parsed: Uuid = id.parse().map_err(|_| missing())?;
    let living: Vec<_> = state.store.list_keys().await?.into_iter().filter(|row| row.revoked_at.is_none()).collect();
    let listen = state.config.listen;
    if !is_loopback(listen.ip()) && matches!(living.as_slice(), [only] if only.id == parsed) {
        return Err(ApiError::conflict(format!("this is the last key, and {listen} can be reached from other machines"))
            .hint("create another key first, or listen on 127.0.0.1"));
    }
    if !to_the_end(&state, async move |state| Ok(state.store.revoke_key(parsed).await?)).await? {
        return Err(missing());
    }
    tracing::info!(key.id = %parsed, "revoked an API key");
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the database and then what is in memory, in a task of its own: a caller that hangs up in between would leave a
/// revoked key alive.
async fn to_the_end<T, F>(state: &ApiState, change: impl FnOnce(ApiState) -> F + Send + 'static) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let (state, tracker) = (state.clone(), state.tracker.clone());
    let changing = tracker.spawn(async move {
        let changed = change(state.clone()).await?;
        state.keys.reload(&state.store).await?;
        Ok(changed)
    });
    changing.await.map_err(|error| ApiError::internal(&error))?
}

/// Puts a change into a key.
fn apply(change: EditKey, row: &mut KeyRow) -> Result<(), ApiError> {
    if let Some(name) = &change.name {
        checked_name(name)?.clone_into(&mut row.name);
    }
    if let Some(patch) = change.limits {
        let mut merged = serde_json::to_value(&row.limits).map_err(|error| ApiError::internal(&error))?;
        merge(&mut merged, Value::Object(patch));
        row.limits = read(merged).map_err(|error| error.below("limits"))?;
        check_limits(&row.limits)?;
    }
    Ok(())
}

/// What the first key changes.
fn first_key(scopes: &[Scope]) -> String {
    let every = "this is the first key: every call needs one from now on";
    if scopes.contains(&Scope::Admin) {
        return every.to_owned();
    }
    format!("{every}, and this one may not call /api; `lifeboat key create NAME --scope admin` on this machine makes one that may")
}

fn invalid(field: &str, message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", message).field(field)
}

fn checked_name(name: &str) -> Result<&str, ApiError> {
    let name = name.trim();
    if name.is_empty() || name.chars().count() > NAME_LIMIT {
        return Err(invalid("name", format!("name: it must have 1 to {NAME_LIMIT} characters")));
    }
    Ok(name)
}

fn check_limits(limits: &KeyLimits) -> Result<(), ApiError> {
    limits.check().map_err(|(field, why)| invalid(field, format!("{field}: {why}")).below("limits"))
}

fn shown(state: &ApiState, row: KeyRow) -> Key {
    let scopes = [(row.inference, Scope::Inference), (row.admin, Scope::Admin)];
    Key {
        id: row.id,
        name: row.name,
        prefix: row.prefix,
        scopes: scopes.into_iter().filter_map(|(has, scope)| has.then_some(scope)).collect(),
        limits: row.limits,
        created_at: rfc3339(row.created_at),
        last_used_at: state.keys.last_used(row.id).or(row.last_used_at).map(rfc3339),
        revoked_at: row.revoked_at.map(rfc3339),
    }
}
