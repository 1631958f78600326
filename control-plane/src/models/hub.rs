//! A Hugging Face hub: which files of a repository make the model that was asked for.

use serde::Deserialize;

use super::choose::{Choice, Listed, choose};
use super::plan::{Plan, PlannedFile};
use super::remote::Remote;
use super::source::{HubSource, is_relative_file};
use super::{ModelsError, Source};
use crate::host::http::encode_path;

/// Pages of a listing that are read; a page has up to a thousand files.
const PAGES: usize = 10;

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// What to fetch for a hub source, asked of the hub.
pub(super) async fn plan(remote: &Remote, source: &HubSource) -> Result<Plan, ModelsError> {
    let listing = list(remote, &source.repo).await?;
    let Choice { label, files, mmproj } = choose(&source.repo, &listing, source.want.as_deref())?;
    let planned = |file: Listed| {
        let url = format!("{}/{}/resolve/main/{}", remote.hub(), source.repo, encode_path(&file.path));
        PlannedFile { token: remote.token_for(&url), url, name: file.path, size: Some(file.size), sha256: file.sha256 }
    };
    let canonical = Source::Hub(HubSource { repo: source.repo.clone(), want: Some(label) }).canonical();
    Ok(Plan { source: canonical, files: files.into_iter().map(planned).collect(), mmproj: mmproj.map(planned) })
}

/// All files of a repository.
async fn list(remote: &Remote, repo: &str) -> Result<Vec<Listed>, ModelsError> {
    let mut url = format!("{}/api/models/{repo}/tree/main?recursive=true", remote.hub());
    let mut files = Vec::new();
    for _ in 0..PAGES {
        let (page, next): (Vec<Entry>, _) =
            remote.json(&url).await.map_err(|cause| ModelsError::Lookup { source_text: format!("hf:{repo}"), cause })?;
        // A listing is somebody else's text: what does not stay below a folder is not taken up.
        files.extend(page.into_iter().filter(|entry| entry.kind == "file" && is_relative_file(&entry.path)).map(|entry| match entry.lfs {
            Some(lfs) => Listed { path: entry.path, size: lfs.size, sha256: Some(lfs.oid).filter(|oid| is_sha256(oid)) },
            None => Listed { path: entry.path, size: entry.size, sha256: None },
        }));
        match next {
            Some(next) => url = next,
            None => break,
        }
    }
    Ok(files)
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
