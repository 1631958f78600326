//! API keys in memory: who is calling, and may they.
//!
//! A key is 256 random bits, so its SHA-256 is as safe to keep as a slow hash of a password would be, and
//! costs a microsecond instead of a tenth of a second. Lookups take no lock and never touch the database;
//! the last use is noted in memory and written once a minute. A key in clear exists only in the answer
//! that creates it: nothing here may log or keep one. What a key may use (`limits`) is counted here too, before a request
//! is read and after it has ended; what runs now outlives a change of the limits.

mod limits;
mod principal;
mod token;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::host::clock::unix_millis;
use crate::key_limits::KeyLimits;
use crate::store::keys::KeyRow;
use crate::store::{Store, StoreError};

use self::principal::Entry;
pub use limits::{Limit, LimitReached, Standing};
pub use principal::{Principal, Running};
pub use token::{LocalToken, read_local_token};

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// `/v1`.
    Inference,
    /// `/api`.
    Admin,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Inference => "inference",
            Self::Admin => "admin",
        })
    }
}

/// Why a caller is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No key was sent.
    #[error("no API key was sent")]
    Missing,
    /// The key is not known or was revoked.
    #[error("the API key is not valid")]
    Unknown,
    /// The key has another scope.
    #[error("the API key does not have the scope `{0}`")]
    Scope(Scope),
}

type Hash = [u8; 32];

/// The table of live keys. Lookups take no lock and never touch the database.
#[derive(Debug)]
pub struct Keys {
    table: ArcSwap<HashMap<Hash, Arc<Entry>>>,
    /// Held from the read of the database to the change of the table: a reader overtaken by another would put back what
    /// that one took away.
    reloading: Mutex<()>,
    /// Hash of this run's local token.
    local: Option<Hash>,
    /// Whether callers without a key are let in while no key exists: only where just this machine can call.
    open_when_empty: bool,
}

impl Keys {
    /// Reads the living keys. `local` is this run's token; `loopback` tells that only this machine can call.
    pub async fn load(store: &Store, local: Option<&LocalToken>, loopback: bool) -> Result<Self, StoreError> {
        let keys = Self {
            table: ArcSwap::default(),
            reloading: Mutex::default(),
            local: local.map(|token| hash(token.expose())),
            open_when_empty: loopback,
        };
        keys.reload(store).await?;
        Ok(keys)
    }

    /// Takes over what the database says now. What keys use at the moment is kept; of those that are gone, the last use is
    /// written now, since nobody will do it later.
    pub async fn reload(&self, store: &Store) -> Result<(), StoreError> {
        let _turn = self.reloading.lock().await;
        let before = self.table.load_full();
        let living = store.list_keys().await?.into_iter().filter(|row| row.revoked_at.is_none());
        let table = living.map(|row| {
            let known = before.get(&row.hash).inspect(|entry| entry.update(&row)).cloned();
            (row.hash, known.unwrap_or_else(|| Arc::new(Entry::new(&row))))
        });
        let table: HashMap<_, _> = table.collect();
        let gone: Vec<_> = before.iter().filter(|(hash, _)| !table.contains_key(*hash)).map(|(_, entry)| entry).collect();
        self.table.store(Arc::new(table));
        if let Err(error) = write_uses(store, gone.into_iter()).await {
            tracing::warn!(%error, "the last use of a revoked key is not written");
        }
        Ok(())
    }

    /// Whether no living key exists.
    pub fn is_empty(&self) -> bool {
        self.table.load().is_empty()
    }

    /// Whether callers need no key now.
    pub fn is_open(&self) -> bool {
        self.open_when_empty && self.is_empty()
    }

    /// Reads `Authorization: Bearer …` or `X-Api-Key` and decides.
    pub fn authorize(&self, headers: &HeaderMap, scope: Scope) -> Result<Principal, Denied> {
        let table = self.table.load();
        if self.open_when_empty && table.is_empty() {
            return Ok(Principal::local());
        }
        let hash = hash(presented(headers).ok_or(Denied::Missing)?);
        if self.local == Some(hash) {
            return Ok(Principal::local());
        }
        let entry = table.get(&hash).ok_or(Denied::Unknown)?;
        if !entry.may(scope) {
            return Err(Denied::Scope(scope));
        }
        entry.last_used.store(unix_millis(), Ordering::Relaxed);
        entry.dirty.store(true, Ordering::Release);
        Ok(Principal::with(Arc::clone(entry)))
    }

    /// Unix milliseconds of the last call with this key since the start, if there was one.
    pub fn last_used(&self, id: Uuid) -> Option<i64> {
        let table = self.table.load();
        let at = table.values().find(|entry| entry.id == id)?.last_used.load(Ordering::Relaxed);
        (at > 0).then_some(at)
    }

    /// Writes the uses noted since the last call.
    pub async fn flush(&self, store: &Store) -> Result<(), StoreError> {
        let table = self.table.load_full();
        write_uses(store, table.values()).await
    }
}

/// Writes the uses that are not written yet; what fails is kept for the next time.
async fn write_uses(store: &Store, entries: impl Iterator<Item = &Arc<Entry>>) -> Result<(), StoreError> {
    let used: Vec<_> = entries.filter(|entry| entry.dirty.swap(false, Ordering::AcqRel)).collect();
    if used.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = used.iter().map(|entry| (entry.id, entry.last_used.load(Ordering::Relaxed))).collect();
    let written = store.record_key_use(&rows).await;
    if written.is_err() {
        for entry in used {
            entry.dirty.store(true, Ordering::Release);
        }
    }
    written
}

/// A key that was just made: the row to keep and the secret to show once.
#[derive(Debug)]
pub struct NewKey {
    /// For [`Store::create_key`].
    pub row: KeyRow,
    /// The key itself. Shown to its owner, never stored or logged.
    pub secret: String,
}

/// Makes a key. `scopes` must not be empty.
pub fn generate(name: &str, scopes: &[Scope], limits: KeyLimits) -> NewKey {
    let secret = format!("lb_{}", token::random());
    let row = KeyRow {
        id: Uuid::now_v7(),
        name: name.to_owned(),
        hash: hash(&secret),
        prefix: secret.chars().take(8).collect(),
        inference: scopes.contains(&Scope::Inference),
        admin: scopes.contains(&Scope::Admin),
        limits,
        created_at: unix_millis(),
        last_used_at: None,
        revoked_at: None,
    };
    NewKey { row, secret }
}

/// The token of the server that uses this data directory, where one runs and this user may read it.
pub fn local_token_path(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("admin.token")
}

fn hash(key: &str) -> Hash {
    Sha256::digest(key.as_bytes()).into()
}

/// The key a caller sent. The scheme's name is compared without regard to case, as HTTP wants it.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
        let (scheme, key) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = || headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim);
    bearer.or_else(plain).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests;
