//! The integration tests, as one binary: real `lifeboat serve` processes, real sockets, a real database.
//!
//! One file per concern. Each starts a [`support::TestApp`] of its own, whose drop asserts that nothing is left
//! behind. Tests wait on conditions with a deadline; none sleeps for luck and none skips itself.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must stop loudly; clippy sees helpers of an integration test as production code"
)]

mod adopt;
mod api;
mod cli;
mod clients;
mod crash;
mod engines;
mod gateway;
mod handover;
mod limits;
mod listener;
mod on_demand;
mod pull;
mod real_engine;
mod reconcile;
mod requests;
mod rolling;
mod sdk;
mod shutdown;
mod sim_engine;
mod supervisor;
mod support;
mod support_works;
mod tidy;
