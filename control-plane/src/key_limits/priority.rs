//! The four bands of priority: whom the line serves first, and how high a key may ask.

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The header by which a caller asks for a band.
const HEADER: &str = "x-lifeboat-priority";

/// A band of priority, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Work nobody waits for.
    Bulk,
    /// Where a caller does not say.
    #[default]
    Default,
    /// Somebody watches the reply.
    Interactive,
    /// Before everything else.
    System,
}

impl Priority {
    /// All bands, lowest first.
    const ALL: [Self; 4] = [Self::Bulk, Self::Default, Self::Interactive, Self::System];

    /// 0 (bulk) to 3 (system).
    pub const fn band(self) -> u8 {
        self as u8
    }

    /// Its name, as the header and the API write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Default => "default",
            Self::Interactive => "interactive",
            Self::System => "system",
        }
    }

    /// What a caller asks for. A word that names no band asks for nothing.
    pub fn asked(headers: &HeaderMap) -> Self {
        let word = headers.get(HEADER).map(http::HeaderValue::as_bytes).unwrap_or_default();
        Self::ALL.into_iter().find(|band| word.eq_ignore_ascii_case(band.as_str().as_bytes())).unwrap_or_default()
    }
}
