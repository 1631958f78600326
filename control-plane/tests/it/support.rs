//! What the integration tests share: the application under test, its clients, its processes.

mod app;
mod http;
mod process;

pub use app::{STEP, TestApp, sim_row};
pub use http::{SseEvent, SseStream, bare_request, client, half_closing_request};
pub use process::{Served, alive, command, eventually, free_port, parent_of, processes_naming, send_signal};
