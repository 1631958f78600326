//! Lifeboat: one binary that turns a machine into a dependable OpenAI- and Anthropic-compatible endpoint.

pub mod activator;
pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod console;
pub mod download;
pub mod engines;
pub mod events;
pub mod gateway;
pub mod guard;
pub mod host;
pub mod ids;
pub mod jobs;
pub mod keys;
pub mod lifecycle;
pub mod models;
pub mod progress;
pub mod reconciler;
pub mod recorder;
pub mod registry;
pub mod security;
pub mod sim_engine;
pub mod store;
pub mod supervisor;
pub mod telemetry;
