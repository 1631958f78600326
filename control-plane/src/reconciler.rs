//! Turns desired rows into the work of row tasks, again and again.
//!
//! The reconciler takes no input: it runs on a wake-up and on a timer, reads desired rows, demand and observed state
//! afresh, and tells each row's task what is wanted. Doing it twice changes nothing. It never starts or stops a
//! process itself; the row's task does, and alone.
//!
//! - [`plan`] desired + observed -> actions, pure
//! - [`apply`] hands actions to the supervisor
//! - [`driver`] when to look, and what at

pub mod apply;
pub mod driver;
pub mod plan;
