//! The models in our own data directory: one folder each, complete only with its record.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::Record;
use super::source::slug;
use super::{LocalModel, ModelsError};

/// Suffix of a folder that is being removed; never taken for a model, emptied at the next chance.
const DOOMED: &str = ".removed";

/// `<data>/models`.
#[derive(Debug, Clone)]
pub(super) struct Shelf(PathBuf);

impl Shelf {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self(root)
    }

    /// The folder of a model, there or not.
    pub(super) fn folder(&self, canonical: &str) -> PathBuf {
        self.0.join(slug(canonical))
    }

    /// Every complete model. Blocking.
    pub(super) fn all(&self) -> Vec<Arc<LocalModel>> {
        let mut models: Vec<_> = self.records().filter_map(|(folder, record)| record.model(&folder)).collect();
        models.sort_by(|one, other| one.source.cmp(&other.source));
        models
    }

    /// The complete model a canonical text means. Blocking.
    pub(super) fn find(&self, canonical: &str) -> Option<Arc<LocalModel>> {
        let (folder, record) = self.lookup(canonical)?;
        record.model(&folder)
    }

    fn lookup(&self, canonical: &str) -> Option<(PathBuf, Record)> {
        let usual = self.folder(canonical);
        match Record::read(&usual).filter(|record| record.answers_to(canonical)) {
            Some(record) => Some((usual, record)),
            None => self.records().find(|(_, record)| record.answers_to(canonical)),
        }
    }

    fn records(&self) -> impl Iterator<Item = (PathBuf, Record)> {
        let folders = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.filter(|folder| !is_doomed(folder)).filter_map(|folder| Record::read(&folder).map(|record| (folder, record)))
    }

    /// Notes that `asked` means the complete model `canonical`. Blocking.
    pub(super) fn remember(&self, canonical: &str, asked: &str) {
        let Some((folder, mut record)) = self.lookup(canonical).filter(|(_, record)| !record.answers_to(asked)) else { return };
        record.asked.push(asked.to_owned());
        let Some(model) = Record::read(&folder).and_then(|record| record.model(&folder)) else { return };
        if let Err(error) = record.write(&folder, &model.facts) {
            // Costs a lookup next time, nothing else.
            tracing::warn!(%error, model.source = canonical, "could not note another name of a model");
        }
    }

    /// Deletes a model, complete or partly fetched; false if there is none. A kill half-way leaves a folder that
    /// does not count and that the next removal or pull empties. Blocking.
    pub(super) fn remove(&self, canonical: &str) -> Result<bool, ModelsError> {
        self.sweep();
        let folder = self.lookup(canonical).map_or_else(|| self.folder(canonical), |(folder, _)| folder);
        if !folder.is_dir() {
            return Ok(false);
        }
        let failed = |source| ModelsError::io("remove", &folder, source);
        Record::void(&folder).map_err(failed)?;
        let mut doomed = folder.clone().into_os_string();
        doomed.push(DOOMED);
        fs::rename(&folder, &doomed).map_err(failed)?;
        fs::remove_dir_all(&doomed).map_err(failed)?;
        Ok(true)
    }

    /// Empties what an interrupted removal left. Blocking.
    pub(super) fn sweep(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if is_doomed(&entry.path())
                && let Err(error) = fs::remove_dir_all(entry.path())
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, models.folder = %entry.path().display(), "could not empty the folder of a removed model");
            }
        }
    }
}

fn is_doomed(folder: &Path) -> bool {
    folder.to_string_lossy().ends_with(DOOMED)
}
