//! Folders with models that an operator registered while Lifeboat runs, beside those of the configuration.
//! They are read, never written: no file in them is ever changed or removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

use super::ModelsError;
use crate::host::files::write_synced;

/// Folders that may be registered.
const MOST: usize = 100;

/// One folder that is scanned for models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelFolder {
    /// Where.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// It stands in the configuration and cannot be unregistered here.
    pub configured: bool,
}

/// The registered folders of one data directory.
#[derive(Debug)]
pub(super) struct Folders {
    file: PathBuf,
    configured: Vec<PathBuf>,
    registered: Mutex<Option<Vec<PathBuf>>>,
}

impl Folders {
    pub(super) fn new(file: PathBuf, configured: Vec<PathBuf>) -> Self {
        Self { file, configured, registered: Mutex::default() }
    }

    /// All folders, those of the configuration first. Blocking.
    pub(super) fn list(&self) -> Vec<ModelFolder> {
        let registered = self.registered.lock().get_or_insert_with(|| self.load()).clone();
        let configured = self.configured.iter().cloned().map(|path| ModelFolder { path, configured: true });
        let own = registered.into_iter().filter(|path| !self.configured.contains(path)).map(|path| ModelFolder { path, configured: false });
        configured.chain(own).collect()
    }

    /// Adds a folder; adding it twice changes nothing. Blocking.
    pub(super) fn register(&self, path: &Path) -> Result<PathBuf, ModelsError> {
        let refuse = |problem: String| ModelsError::BadFolder { path: path.to_owned(), problem };
        if !path.is_absolute() {
            return Err(refuse("the path is not absolute".into()));
        }
        if path.to_str().is_none() {
            return Err(refuse("the path is not UTF-8, so no row could name a model in it".into()));
        }
        // Reading it once tells a missing folder, a file and a forbidden one apart from a good one.
        let path = path.canonicalize().map_err(|error| refuse(error.to_string()))?;
        fs::read_dir(&path).map_err(|error| refuse(error.to_string()))?;
        self.change(|folders| {
            if folders.len() >= MOST {
                return Err(refuse(format!("{MOST} folders are registered already")));
            }
            if !folders.contains(&path) {
                folders.push(path.clone());
            }
            Ok(())
        })?;
        Ok(path)
    }

    /// Forgets a folder; false if it was not registered. Blocking.
    pub(super) fn unregister(&self, path: &Path) -> Result<bool, ModelsError> {
        let mut known = false;
        self.change(|folders| {
            known = folders.iter().any(|folder| folder == path);
            folders.retain(|folder| folder != path);
            Ok(())
        })?;
        Ok(known)
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<PathBuf>) -> Result<(), ModelsError>) -> Result<(), ModelsError> {
        let mut registered = self.registered.lock();
        let mut folders = registered.clone().unwrap_or_else(|| self.load());
        edit(&mut folders)?;
        let failed = |source: io::Error| ModelsError::io("write", &self.file, source);
        write_synced(&self.file, &serde_json::to_vec_pretty(&folders).map_err(|error| failed(error.into()))?).map_err(failed)?;
        *registered = Some(folders);
        Ok(())
    }

    fn load(&self) -> Vec<PathBuf> {
        match fs::read(&self.file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %self.file.display(), "the list of model folders cannot be read and is taken as empty");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_remembered_and_only_what_was_registered_can_be_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let (file, models) = (root.path().join("folders.json"), root.path().canonicalize().unwrap().join("models"));
        fs::create_dir(&models).unwrap();
        let folders = Folders::new(file.clone(), vec!["/configured".into()]);
        folders.register(&models).unwrap();
        folders.register(&models).unwrap();
        let listed =
            [ModelFolder { path: "/configured".into(), configured: true }, ModelFolder { path: models.clone(), configured: false }];
        assert_eq!(folders.list(), listed);
        let later = Folders::new(file, vec!["/configured".into()]);
        assert_eq!(later.list(), listed);
        assert!(!later.unregister(Path::new("/configured")).unwrap());
        assert!(later.unregister(&models).unwrap());
        assert_eq!(later.list().len(), 1);
    }

    #[test]
    fn what_is_no_readable_folder_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folders = Folders::new(root.path().join("folders.json"), Vec::new());
        fs::write(root.path().join("file"), b"").unwrap();
        for path in [PathBuf::from("relative"), root.path().join("absent"), root.path().join("file")] {
            assert!(matches!(folders.register(&path), Err(ModelsError::BadFolder { .. })), "{}", path.display());
        }
        assert!(folders.list().is_empty());
    }
}
