//! The output stream: lines, tables, JSON, and how sizes and times are written.
//!
//! Every function gives back the write error, so that a closed pipe (`| head`) ends the command quietly
//! instead of by a panic.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use lifeboat_engines::sizing::show::size;
use serde::Serialize;
use serde_json::Value;

/// What is shown where there is nothing to show.
pub const NONE: &str = "-";

/// One line on the output stream.
pub fn line(text: impl AsRef<str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")
}

/// Text without a line end, shown at once: a streamed reply.
pub fn piece(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One line for people on the error stream: progress and remarks, never a result. Nobody listening is no failure.
pub fn remark(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Indented JSON on the output stream.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// A table without lines, for people; columns are not cut where the output is not a terminal.
pub fn table(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headers.iter().map(|header| header.to_uppercase()));
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    let mut empty = true;
    for row in rows {
        empty = false;
        table.add_row(row);
    }
    if empty {
        return line("none");
    }
    for text in table.lines() {
        line(text.strip_prefix(' ').unwrap_or(&text).trim_end())?;
    }
    Ok(())
}

/// The fields of a reply, one a line; nested ones indented.
pub fn fields(value: &Value) -> anyhow::Result<()> {
    fn walk(value: &Value, depth: usize) -> io::Result<()> {
        let width = 24usize.saturating_sub(2 * depth);
        for (name, field) in value.as_object().into_iter().flatten() {
            let indent = " ".repeat(2 * depth);
            match field {
                Value::Null => {}
                Value::Object(_) => {
                    line(format!("{indent}{name}"))?;
                    walk(field, depth + 1)?;
                }
                Value::Array(items) if items.iter().any(|item| item.is_string() && items.len() > 1) => {
                    line(format!("{indent}{name}"))?;
                    items.iter().try_for_each(|item| line(format!("{indent}  {}", text(item))))?;
                }
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    line(format!("{indent}{name:<width$}{} entries", items.len()))?;
                }
                Value::Number(number) if name.ends_with("bytes") && number.as_u64().is_some() => {
                    line(format!("{indent}{name:<width$}{}", size(number.as_u64().unwrap_or_default())))?;
                }
                _ => line(format!("{indent}{name:<width$}{}", text(field)))?,
            }
        }
        Ok(())
    }
    walk(value, 0)?;
    Ok(())
}

/// A JSON value as people read it: no quotes, [`NONE`] for null and for what is missing.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) if items.is_empty() => NONE.to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// A duration to the second: `42 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_in_the_two_units_that_matter() {
        for (seconds, expected) in [(0, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")] {
            assert_eq!(duration(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn values_are_shown_without_json_syntax() {
        assert_eq!(text(&Value::Null), NONE);
        assert_eq!(text(&serde_json::json!(["a", "b"])), "a, b");
        assert_eq!(text(&serde_json::json!(true)), "yes");
    }
}
