//! What `<data>/models/<slug>/model.json` says: this model is here, whole and verified.
//!
//! The file is written last and in one step, so that its presence is the proof. At every start lengths and
//! modification times are compared with it instead of reading gigabytes again; a file that changed under our
//! feet makes the record void, and the next pull verifies and mends the model.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lifeboat_engines::model::ModelFacts;
use serde::{Deserialize, Serialize};

use super::{LocalModel, header};
use crate::host::files::write_synced;

/// Name of the record in a model's folder.
const FILE: &str = "model.json";
/// Facts are read again from the header when another version of Lifeboat wrote them.
const READER: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// Canonical source.
    pub(super) source: String,
    /// Other spellings that led here, so that they lead here again without a network.
    #[serde(default)]
    pub(super) asked: Vec<String>,
    /// The one file, or all shards in order.
    pub(super) files: Vec<FileRecord>,
    /// Projector.
    pub(super) mmproj: Option<FileRecord>,
    /// Version that read the facts.
    reader: String,
    /// Kept as a value: another version may know other facts.
    facts: serde_json::Value,
}

/// One file as it was when it was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    name: String,
    bytes: u64,
    modified_ns: i128,
    /// Digest it was checked against.
    sha256: Option<String>,
}

impl FileRecord {
    /// Describes a file that was just verified. Blocking.
    pub(super) fn of(folder: &Path, name: &str, sha256: Option<String>) -> io::Result<Self> {
        let (bytes, modified_ns) = stamp(&folder.join(name))?;
        Ok(Self { name: name.to_owned(), bytes, modified_ns, sha256 })
    }

    fn holds(&self, folder: &Path) -> bool {
        stamp(&folder.join(&self.name)).is_ok_and(|found| found == (self.bytes, self.modified_ns))
    }
}

/// Length and modification time: what a file is recognised by.
pub(super) fn stamp(path: &Path) -> io::Result<(u64, i128)> {
    let meta = fs::metadata(path)?;
    Ok((meta.len(), i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())))
}

impl Record {
    /// A record to be written.
    pub(super) fn new(source: String, asked: Vec<String>, files: Vec<FileRecord>, mmproj: Option<FileRecord>) -> Self {
        Self { source, asked, files, mmproj, reader: String::new(), facts: serde_json::Value::Null }
    }

    /// Writes the record: from here on the model counts. Blocking.
    pub(super) fn write(&mut self, folder: &Path, facts: &ModelFacts) -> io::Result<()> {
        READER.clone_into(&mut self.reader);
        self.facts = serde_json::to_value(facts)?;
        write_synced(&folder.join(FILE), &serde_json::to_vec_pretty(self)?)
    }

    /// The record of a folder, if every file is as it was. Blocking.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let record: Self = serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()?;
        let whole = !record.files.is_empty() && record.files.iter().chain(&record.mmproj).all(|file| file.holds(folder));
        whole.then_some(record)
    }

    /// Paths of the one file, or of all shards in order.
    pub(super) fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        self.files.iter().map(|file| folder.join(&file.name)).collect()
    }

    /// Path of the projector.
    pub(super) fn mmproj_path(&self, folder: &Path) -> Option<PathBuf> {
        self.mmproj.as_ref().map(|file| folder.join(&file.name))
    }

    /// Whether a canonical text means this model.
    pub(super) fn answers_to(&self, canonical: &str) -> bool {
        std::iter::once(&self.source).chain(&self.asked).any(|known| {
            // A quantisation is one whatever its case; everything else is not.
            known == canonical || (known.starts_with("hf:") && known.eq_ignore_ascii_case(canonical))
        })
    }

    /// The model, with its facts from the record or, where another version wrote them, from its header. Blocking.
    pub(super) fn model(mut self, folder: &Path) -> Option<Arc<LocalModel>> {
        let (files, mmproj) = (self.paths(folder), self.mmproj_path(folder));
        let known = serde_json::from_value(self.facts.clone()).ok().filter(|_| self.reader == READER);
        let facts = if let Some(facts) = known {
            facts
        } else {
            let facts = header::read_local(&files, mmproj.as_deref()).ok()?;
            // Only a shortcut for the next start.
            drop(self.write(folder, &facts));
            facts
        };
        let bytes = self.files.iter().chain(&self.mmproj).map(|file| file.bytes).sum();
        Some(Arc::new(LocalModel::new(self.source, files, mmproj, facts, bytes, true)))
    }

    /// Makes the record void; what is left is a folder that does not count. Blocking.
    pub(super) fn void(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
