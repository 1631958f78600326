//! API keys in memory: who is calling, and may they.

use http::HeaderMap;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `/v1`.
    Inference,
    /// `/api`.
    Admin,
}

/// The caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Id of the key; `None` when no key exists and the server is open on loopback.
    pub key_id: Option<uuid::Uuid>,
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
    #[error("the API key does not have the scope this needs")]
    Scope,
}

/// The table of live keys. Lookups take no lock and never touch the database.
#[derive(Debug)]
pub struct Keys {}

impl Keys {
    /// Reads `Authorization: Bearer …` or `X-Api-Key` and decides.
    pub fn authorize(&self, _headers: &HeaderMap, _scope: Scope) -> Result<Principal, Denied> {
        todo!()
    }
}
