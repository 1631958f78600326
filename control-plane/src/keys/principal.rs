//! A caller that was let in: what its key allows, and what it holds while one of its requests runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use arc_swap::ArcSwap;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::Scope;
use super::limits::{LimitReached, Standing, Use};
use crate::key_limits::{KeyLimits, Priority};
use crate::store::keys::KeyRow;

/// One living key.
#[derive(Debug)]
pub(super) struct Entry {
    pub id: Uuid,
    inference: bool,
    admin: bool,
    settings: ArcSwap<Settings>,
    used: Mutex<Use>,
    /// Unix milliseconds of the last call; 0 = none since the start.
    pub last_used: AtomicI64,
    /// Has a use that is not written yet.
    pub dirty: AtomicBool,
}

/// What of a key can be changed while it lives.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    name: Arc<str>,
    limits: KeyLimits,
}

impl Entry {
    pub fn new(row: &KeyRow) -> Self {
        Self {
            id: row.id,
            inference: row.inference,
            admin: row.admin,
            settings: ArcSwap::from_pointee(Settings::of(row)),
            used: Mutex::default(),
            last_used: AtomicI64::new(row.last_used_at.unwrap_or(0)),
            dirty: AtomicBool::new(false),
        }
    }

    /// Takes over what may have changed. What the key uses now goes on to count.
    pub fn update(&self, row: &KeyRow) {
        self.settings.store(Arc::new(Settings::of(row)));
    }

    pub const fn may(&self, scope: Scope) -> bool {
        match scope {
            Scope::Inference => self.inference,
            Scope::Admin => self.admin,
        }
    }
}

impl Settings {
    fn of(row: &KeyRow) -> Self {
        Self { name: row.name.as_str().into(), limits: row.limits.clone() }
    }
}

/// The caller.
#[derive(Debug, Clone)]
pub struct Principal {
    /// `None` when no key exists and the server is open on loopback, and for the local token.
    key: Option<Arc<Entry>>,
}

impl Principal {
    /// Who needs no key.
    pub(super) const fn local() -> Self {
        Self { key: None }
    }

    pub(super) const fn with(key: Arc<Entry>) -> Self {
        Self { key: Some(key) }
    }

    /// Id of the key, where the caller has one.
    pub fn key_id(&self) -> Option<Uuid> {
        self.key.as_ref().map(|key| key.id)
    }

    /// Name of the key. Not a secret: operators choose it.
    pub fn key_name(&self) -> Option<Arc<str>> {
        self.key.as_ref().map(|key| Arc::clone(&key.settings.load().name))
    }

    /// The band its request belongs to: what it asks for, at most what its key allows.
    pub fn priority(&self, headers: &HeaderMap) -> Priority {
        let ceiling = self.key.as_ref().map_or_else(|| KeyLimits::none().priority, |key| key.settings.load().limits.priority);
        Priority::asked(headers).min(ceiling)
    }

    /// Whether it may use the model that is asked for by `name` and served by rows of these public names.
    pub fn may_use<'a>(&self, name: &str, mut public: impl Iterator<Item = &'a str>) -> bool {
        let Some(key) = &self.key else { return true };
        let settings = key.settings.load();
        let allowed = |name: &str| settings.limits.models.iter().any(|model| model == name);
        settings.limits.models.is_empty() || allowed(name) || public.all(allowed)
    }

    /// Counts one request in, until what this gives back is dropped.
    pub fn begin(&self) -> Result<Running, LimitReached> {
        if let Some(key) = &self.key {
            let settings = key.settings.load();
            let begun = key.used.lock().begin(&settings.limits, Instant::now());
            begun.map_err(|(limit, retry_after)| LimitReached { key: settings.name.to_string(), limit, retry_after })?;
        }
        Ok(Running { caller: self.clone(), tokens: 0 })
    }

    /// Where it stands with its requests and its tokens a minute, as far as they are limited.
    pub fn standing(&self) -> (Option<Standing>, Option<Standing>) {
        let Some(key) = &self.key else { return (None, None) };
        key.used.lock().standing(&key.settings.load().limits, Instant::now())
    }

    /// Requests of this key that run now.
    #[cfg(test)]
    pub(super) fn running(&self) -> u32 {
        self.key.as_ref().map_or(0, |key| key.used.lock().running())
    }
}

/// One request of a caller, from its arrival to its end. The reply's body holds it, so every way to end counts it out.
#[derive(Debug)]
pub struct Running {
    caller: Principal,
    tokens: u64,
}

impl Running {
    /// Who asks.
    pub const fn caller(&self) -> &Principal {
        &self.caller
    }

    /// Sets what it has used, in tokens; charged at its end.
    pub const fn used(&mut self, tokens: u64) {
        self.tokens = tokens;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(key) = &self.caller.key {
            key.used.lock().end(&key.settings.load().limits, self.tokens, Instant::now());
        }
    }
}
