//! The binary: everything is in the library, so that tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a guard must stay small and must not have a runtime.
    lifeboat::guard::dispatch().or_else(lifeboat::sim_engine::dispatch).unwrap_or_else(|| lifeboat::cli::run(std::env::args_os()))
}
