//! The embedded console.
