//! What `up` prints once a model serves: where, and a line to try it that works when it is pasted.

use lifeboat_engines::spec::Task;
use serde_json::{Value, json};

use crate::cli::output;
use crate::console;

/// A served model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Its public name.
    pub name: String,
    /// What it is for.
    pub task: Task,
}

/// Prints where it serves.
pub fn print(base: &str, served: &[Served], keys_required: bool, as_json: bool) -> anyhow::Result<()> {
    let example = served.first().map(|first| command(base, first, keys_required));
    let console = console::is_built().then(|| format!("{base}/"));
    if as_json {
        let names: Vec<&str> = served.iter().map(|served| served.name.as_str()).collect();
        return Ok(output::line(
            json!({"url": base, "base_url": format!("{base}/v1"), "console": console, "models": names, "curl": example}).to_string(),
        )?);
    }
    output::line("")?;
    for Served { name, .. } in served {
        output::line(format!("{name} is ready."))?;
    }
    output::line("")?;
    output::line(format!("  Base URL  {base}/v1"))?;
    if let Some(console) = console {
        output::line(format!("  Console   {console}"))?;
    }
    if let Some(example) = example {
        output::line(format!("  Try it    {example}"))?;
    }
    output::line("")?;
    output::line("Ctrl-C stops it.")?;
    Ok(())
}

fn command(base: &str, served: &Served, keys_required: bool) -> String {
    let model = &served.name;
    let (path, body): (&str, Value) = match served.task {
        Task::Chat => ("chat/completions", json!({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})),
        Task::Embedding => ("embeddings", json!({"model": model, "input": "hello"})),
        Task::Rerank => ("rerank", json!({"model": model, "query": "sea", "documents": ["a boat", "a car"]})),
    };
    let key = if keys_required { " -H \"Authorization: Bearer $LIFEBOAT_API_KEY\"" } else { "" };
    format!("curl {base}/v1/{path} -H 'content-type: application/json'{key} -d {}", quoted(&body.to_string()))
}

/// A word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_fits_the_task_and_names_the_key_only_where_one_is_needed() {
        let served = Served { name: "it's".into(), task: Task::Embedding };
        assert_eq!(
            command("http://127.0.0.1:4180", &served, false),
            r#"curl http://127.0.0.1:4180/v1/embeddings -H 'content-type: application/json' -d '{"input":"hello","model":"it'\''s"}'"#
        );
        assert!(command("http://h", &served, true).contains(r#"-H "Authorization: Bearer $LIFEBOAT_API_KEY""#));
    }
}
