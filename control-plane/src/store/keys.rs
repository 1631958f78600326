//! API keys: only their hash is kept.
