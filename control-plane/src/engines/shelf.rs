//! The folders builds live in: `<data>/engines/<kind>/<build id>/`, side by side by version.
//!
//! A build comes into being by one rename of a finished folder, and becomes the active one by one rename of
//! `active.json`; so a kill at any point leaves either the old state or the new one, and beside it at most a
//! folder whose name starts with a dot, which the next installation removes. All of it blocks.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lifeboat_engines::spec::EngineKind;
use tempfile::TempDir;

use super::error::EnginesError;
use super::record::{Active, Record, placed};
use crate::host::files;
use crate::host::pip;

const RECORD: &str = "build.json";
const ACTIVE: &str = "active.json";
const STAGING: &str = ".staging-";
const TRASH: &str = ".trash-";
const PROOF: &str = ".proof-";
const DOWNLOADS: &str = "downloads";
/// Largest record that is read, bytes.
const RECORD_BYTES: u64 = 1 << 20;

/// The folders of one data directory.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    root: PathBuf,
}

impl Shelf {
    pub fn new(data_dir: &Path) -> Self {
        Self { root: data_dir.join("engines") }
    }

    /// Folder of all builds of a kind.
    pub fn kind_folder(&self, kind: EngineKind) -> PathBuf {
        self.root.join(kind.as_str())
    }

    /// Folder of a build. `None` for an id that is no plain folder name.
    pub fn folder(&self, kind: EngineKind, id: &str) -> Option<PathBuf> {
        let plain = !id.is_empty() && id.len() <= 200 && !id.starts_with('.') && id != DOWNLOADS && !id.contains(['/', '\\', '\0']);
        plain.then(|| self.kind_folder(kind).join(id))
    }

    /// Where archives of a kind are fetched to; they stay until the installation is over, so that one that was
    /// interrupted goes on where it stopped.
    pub fn downloads(&self, kind: EngineKind) -> Result<PathBuf, EnginesError> {
        let folder = self.kind_folder(kind).join(DOWNLOADS);
        files::create_private_dir(&folder).map_err(EnginesError::io("create", &folder))?;
        Ok(folder)
    }

    /// Removes fetched archives.
    pub fn drop_downloads(&self, kind: EngineKind) {
        remove(&self.kind_folder(kind).join(DOWNLOADS));
    }

    /// One build, ready to launch. `None` where it is not here.
    pub fn find(&self, kind: EngineKind, id: &str) -> Option<Record> {
        read_record(&self.folder(kind, id)?)
    }

    /// Every build of a kind, failed ones included, by id.
    pub fn list(&self, kind: EngineKind) -> Vec<Record> {
        let entries = fs::read_dir(self.kind_folder(kind)).into_iter().flatten().flatten();
        let mut records: Vec<_> = entries.filter_map(|entry| read_record(&entry.path())).collect();
        records.sort_by(|one, other| one.build.id.cmp(&other.build.id));
        records
    }

    /// Which build is launched. A file that cannot be read counts as none.
    pub fn active(&self, kind: EngineKind) -> Active {
        read_json(&self.kind_folder(kind).join(ACTIVE)).unwrap_or_default()
    }

    /// Says which build is launched from now on.
    pub fn set_active(&self, kind: EngineKind, active: &Active) -> Result<(), EnginesError> {
        let folder = self.kind_folder(kind);
        write_json(&folder, ACTIVE, active).map_err(EnginesError::io("write the active build in", &folder))
    }

    /// An empty folder to make a build in; gone when dropped.
    pub fn stage(&self, kind: EngineKind) -> Result<TempDir, EnginesError> {
        let folder = self.kind_folder(kind);
        files::create_private_dir(&folder)
            .and_then(|()| tempfile::Builder::new().prefix(STAGING).tempdir_in(&folder))
            .map_err(EnginesError::io("create a folder in", &folder))
    }

    /// Puts a finished folder in its place, whole and on disk. A build of that id that was there is replaced.
    pub fn commit(&self, staged: TempDir, record: &Record) -> Result<(), EnginesError> {
        let kind = record.build.engine;
        let Some(target) = self.folder(kind, &record.build.id) else {
            return Err(EnginesError::NotInstalled { id: record.build.id.clone() });
        };
        let failed = |error| EnginesError::io("put in place", &target)(error);
        write_json(staged.path(), RECORD, record).and_then(|()| sync_tree(staged.path())).map_err(failed)?;
        let trash = tempfile::Builder::new().prefix(TRASH).tempdir_in(self.kind_folder(kind)).map_err(failed)?;
        if target.exists() {
            fs::rename(&target, trash.path().join("old")).map_err(failed)?;
        }
        fs::rename(staged.path(), &target).map_err(failed)?;
        // The folder has its own name now; there is nothing left under the staging one.
        let _ = staged.keep();
        files::sync_folder(&self.kind_folder(kind)).map_err(failed)
    }

    /// Removes a build.
    pub fn remove(&self, kind: EngineKind, id: &str) -> Result<(), EnginesError> {
        let Some(target) = self.folder(kind, id) else { return Ok(()) };
        let failed = |error| EnginesError::io("remove", &target)(error);
        // Out of the way in one step first, so that a kill leaves no half of it.
        let trash = tempfile::Builder::new().prefix(TRASH).tempdir_in(self.kind_folder(kind)).map_err(failed)?;
        fs::rename(&target, trash.path().join("old")).map_err(failed)?;
        trash.close().map_err(failed)
    }

    /// A folder for the traces of a proof; gone when dropped.
    pub fn proof_folder(&self, kind: EngineKind) -> Result<TempDir, EnginesError> {
        let folder = self.kind_folder(kind);
        tempfile::Builder::new().prefix(PROOF).tempdir_in(&folder).map_err(EnginesError::io("create a folder in", &folder))
    }

    /// Folders of proofs that were interrupted: their engines may still run.
    pub fn unfinished_proofs(&self, kind: EngineKind) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.kind_folder(kind)).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PROOF)).map(|entry| entry.path()).collect()
    }

    /// Removes what a killed installation left behind. Only while none is under way.
    pub fn clean(&self, kind: EngineKind) {
        for entry in fs::read_dir(self.kind_folder(kind)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if [STAGING, TRASH, PROOF, pip::TEMP_PREFIX].iter().any(|prefix| name.starts_with(prefix)) {
                remove(&entry.path());
            }
        }
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %folder.display(), %error, "could not remove a leftover of the engine store");
    }
}

fn read_record(folder: &Path) -> Option<Record> {
    let mut record: Record = read_json(&folder.join(RECORD))?;
    let named = folder.file_name().is_some_and(|name| name == record.build.id.as_str());
    record.build = placed(&record.build, folder);
    named.then_some(record)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let file = File::open(path).ok()?;
    serde_json::from_reader(io::BufReader::new(io::Read::take(file, RECORD_BYTES)))
        .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "could not read a record of the engine store"))
        .ok()
}

fn write_json(folder: &Path, name: &str, value: &impl serde::Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    files::write_synced(&folder.join(name), &text)
}

/// Every file and folder below, on disk before anything says that the build is there.
fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    files::sync_folder(folder)
}

/// Bytes of all files below.
pub(super) fn tree_bytes(folder: &Path) -> u64 {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => tree_bytes(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |metadata| metadata.len()),
            _ => 0,
        })
        .sum()
}
