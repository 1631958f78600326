//! Resumable, verified downloads.
