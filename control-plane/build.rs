//! Rebuilds when a migration or the console changes; both are embedded in the binary.

#![expect(clippy::print_stdout, reason = "cargo reads a build script's standard output")]

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
    println!("cargo:rerun-if-changed=../console-ui/dist");
}
