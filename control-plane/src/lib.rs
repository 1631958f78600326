//! Lifeboat: one binary that turns a machine into a dependable OpenAI- and Anthropic-compatible endpoint.

pub mod activator;
pub mod config;
pub mod engines;
pub mod ids;
pub mod models;
pub mod progress;
pub mod registry;
pub mod store;
pub mod supervisor;
