//! The command line: one file per command, the only printing code.
