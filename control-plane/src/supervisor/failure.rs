//! Why a row cannot serve now, in words for people, and how soon it is worth another try.

use std::error::Error;

use lifeboat_engines::sizing::{Shortage, SizingError};

use crate::causes::chain;

/// How soon another try makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An engine was started and died or hung: again soon, a little later each time.
    Died,
    /// Something could not be fetched or started: as above, but the row counts as failed meanwhile.
    Unavailable,
    /// It cannot be on this machine as it is now: only after a long rest.
    Refused,
}

/// Why a row cannot serve now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How soon another try makes sense.
    pub kind: Kind,
    /// In words, with the cure where there is one.
    pub reason: String,
    /// Memory that others may have to give for it.
    pub short: Option<Shortage>,
}

impl Failure {
    /// A death, whatever was seen of it.
    pub fn died(reason: impl Into<String>) -> Self {
        Self { kind: Kind::Died, reason: reason.into(), short: None }
    }

    /// Something that failed on the way to an engine.
    pub fn unavailable(error: &(dyn Error + 'static)) -> Self {
        Self { kind: Kind::Unavailable, reason: chain(error), short: None }
    }

    /// A row that this machine cannot serve.
    pub fn refused(error: &SizingError) -> Self {
        let (reason, short) = match error {
            SizingError::DoesNotFit { arithmetic, hint, short } => (format!("{arithmetic}; {hint}"), Some(*short)),
            SizingError::NotServable(reason) => (reason.clone(), None),
        };
        Self { kind: Kind::Refused, reason, short: short.filter(|short| short.bytes > 0) }
    }
}

#[cfg(test)]
mod tests {
    use lifeboat_engines::sizing::Pool;

    use super::*;

    #[test]
    fn a_refusal_shows_its_arithmetic_and_its_cure() {
        let short = Shortage { bytes: 1_000_000_000, of: Pool::Host };
        let error = SizingError::DoesNotFit { arithmetic: "8 GB > 7 GB free".into(), hint: "fits with --context 4096".into(), short };
        let failure = Failure::refused(&error);
        assert_eq!((failure.reason.as_str(), failure.short), ("8 GB > 7 GB free; fits with --context 4096", Some(short)));
    }
}
