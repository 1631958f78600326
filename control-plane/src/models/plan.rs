//! The files of one model before they are here, whatever the source.

use std::path::Path;

use super::choose::shard;
use super::remote::Remote;
use super::source::is_relative_file;
use super::{ModelsError, Source};
use crate::download::Download;

/// Parts of a split model that are looked for; the largest models published have some tens.
const MOST_SHARDS: u64 = 512;

/// What to fetch for one model.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Canonical source, which names this very model.
    pub(super) source: String,
    /// The one file, or all shards in order. Never empty.
    pub(super) files: Vec<PlannedFile>,
    /// Projector.
    pub(super) mmproj: Option<PlannedFile>,
}

/// One file to fetch.
#[derive(Clone)]
pub(super) struct PlannedFile {
    pub(super) url: String,
    pub(super) token: Option<String>,
    /// Path in its repository; only its last part names the local file.
    pub(super) name: String,
    pub(super) size: Option<u64>,
    pub(super) sha256: Option<String>,
}

impl std::fmt::Debug for PlannedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlannedFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PlannedFile {
    /// Name of the local file.
    pub(super) fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// The download of this file into a folder. `place` is (index, count) among the files of the model.
    pub(super) fn download(&self, folder: &Path, place: (usize, usize)) -> Download {
        let of = if place.1 > 1 { format!(" ({} of {})", place.0 + 1, place.1) } else { String::new() };
        Download {
            url: self.url.clone(),
            token: self.token.clone(),
            target: folder.join(self.file_name()),
            sha256: self.sha256.clone(),
            expected_size: self.size,
            label: format!("downloading {}{of}", self.file_name()),
        }
    }
}

impl Plan {
    /// Every file, projector last.
    pub(super) fn all(&self) -> impl Iterator<Item = &PlannedFile> {
        self.files.iter().chain(&self.mmproj)
    }

    /// Bytes of all files whose size is known.
    pub(super) fn bytes(&self) -> u64 {
        self.all().filter_map(|file| file.size).sum()
    }
}

/// What to fetch for a plain address: the file, or all parts of a split model.
pub(super) async fn plan_url(remote: &Remote, url: &reqwest::Url) -> Result<Plan, ModelsError> {
    let source = Source::Url(url.clone()).canonical();
    let path = url.path();
    let name = path.rsplit('/').next().filter(|name| is_relative_file(name)).unwrap_or("model.gguf");
    let names: Vec<String> = match shard(name) {
        Some((_, _, of)) if of > MOST_SHARDS => return Err(ModelsError::BadSource(format!("{source}: more than {MOST_SHARDS} parts"))),
        Some((stem, _, of)) => (1..=of).map(|index| format!("{stem}-{index:05}-of-{of:05}.gguf")).collect(),
        None => vec![name.to_owned()],
    };
    let mut files = Vec::new();
    for file in names {
        let mut address = url.clone();
        address.set_path(&format!("{}{file}", &path[..path.len() - path.rsplit('/').next().map_or(0, str::len)]));
        let address = address.to_string();
        let size = remote.length(&address).await.map_err(|cause| ModelsError::Lookup { source_text: source.clone(), cause })?;
        files.push(PlannedFile { url: address, token: None, name: file, size, sha256: None });
    }
    Ok(Plan { source, files, mmproj: None })
}
