//! Rebuilds when a migration or the console changes; both are embedded in the binary.

use std::io;

/// Where Vite puts the console. A clone that has not built it gets an empty folder, because cargo would
/// rebuild the crate every time over a watched path that is not there.
const CONSOLE: &str = "../console-ui/dist";

fn main() -> io::Result<()> {
    std::fs::create_dir_all(CONSOLE)?;
    println!("cargo:rerun-if-changed=../migrations");
    println!("cargo:rerun-if-changed={CONSOLE}");
    Ok(())
}
