//! Where results go: a table for people on standard output, JSON in a file.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Prints a table. The first column is text, the others are numbers.
pub fn table(header: &[&str], rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    line(&table.to_string());
}

/// Prints a line.
pub fn line(text: &str) {
    // A reader that has gone needs no results.
    let _gone = writeln!(std::io::stdout().lock(), "{text}");
}

/// Tells a problem or how far a long run is.
pub fn problem(text: &str) {
    let _gone = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a JSON file, where one is wanted.
pub fn json(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).context("could not write the results as JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("could not write {}", path.display()))
}

/// Seconds, to read.
pub fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

/// A part, to read.
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}
