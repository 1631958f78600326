//! The engine guard process (`lifeboat engine-guard`).
