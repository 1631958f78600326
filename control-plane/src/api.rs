//! REST for the console and the CLI.
