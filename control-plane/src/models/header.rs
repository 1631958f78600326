//! Facts from GGUF headers, wherever the file lies: read from its beginning, in growing steps, no further than needed.

use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use futures_util::{StreamExt, TryStreamExt, stream};
use lifeboat_engines::gguf::header::MAX_HEADER_BYTES;
use lifeboat_engines::gguf::{GgufError, Header, facts, read};
use lifeboat_engines::model::ModelFacts;

use crate::host::files::open_regular;

use super::plan::{Plan, PlannedFile};
use super::remote::Remote;
use super::{ModelsError, blocking, file_name};

/// First step. Later ones are four times the last, or what the reader asks for.
const FIRST_STEP: u64 = 1 << 20;
/// Headers of shards that are asked for at the same time.
const AT_ONCE: usize = 4;

fn refused(file: &str, error: &GgufError) -> ModelsError {
    ModelsError::NotAModel { file: file.to_owned(), problem: error.to_string() }
}

/// The next step after one that was too short; `None` when no header is that long.
fn next_step(step: u64, at_least: u64) -> Option<u64> {
    (step < MAX_HEADER_BYTES).then(|| step.saturating_mul(4).max(at_least).min(MAX_HEADER_BYTES))
}

/// Facts of a model on disk. Blocking.
pub(super) fn read_local(files: &[PathBuf], mmproj: Option<&Path>) -> Result<ModelFacts, ModelsError> {
    let headers = files.iter().map(|path| header_of(path)).collect::<Result<Vec<_>, _>>()?;
    let projector = mmproj.map(|path| path.metadata().map_err(|error| ModelsError::io("read", path, error))).transpose()?;
    let name = files.first().map_or_else(String::new, |path| file_name(path));
    join(&name, &headers, projector.map_or(0, |meta| meta.len()))
}

fn header_of(path: &Path) -> Result<Header, ModelsError> {
    // Somebody named the path, so whatever is wrong with it is theirs to hear: a device, no right to read, a broken disk.
    let failed = |error| ModelsError::NotAModel { file: file_name(path), problem: format!("cannot read it: {error}") };
    let mut file = open_regular(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let (mut bytes, mut step) = (Vec::new(), FIRST_STEP);
    loop {
        (&mut file).take(step - bytes.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
        match read(&bytes) {
            Ok(header) if header.end_of_data() > length => {
                let problem = format!("its header tells of {} bytes and it has {length}: the file is cut short", header.end_of_data());
                return Err(ModelsError::NotAModel { file: file_name(path), problem });
            }
            Ok(header) => return Ok(header),
            Err(error @ GgufError::NeedMore { at_least }) => match next_step(step, at_least).filter(|_| step <= length) {
                Some(next) => step = next,
                None => return Err(refused(&file_name(path), &error)),
            },
            Err(error) => return Err(refused(&file_name(path), &error)),
        }
    }
}

/// Facts of a model on a server, from the beginnings of its files.
pub(super) async fn read_remote(remote: &Remote, plan: &Plan) -> Result<ModelFacts, ModelsError> {
    let headers: Vec<_> = plan.files.iter().map(|file| fetch_header(remote, plan, file)).collect();
    let headers: Vec<Header> = stream::iter(headers).buffered(AT_ONCE).try_collect().await?;
    let projector = plan.mmproj.as_ref().and_then(|file| file.size).unwrap_or(0);
    join(plan.files.first().map_or("", |file| file.file_name()), &headers, projector)
}

async fn fetch_header(remote: &Remote, plan: &Plan, file: &PlannedFile) -> Result<Header, ModelsError> {
    let (mut bytes, mut step) = (BytesMut::new(), FIRST_STEP);
    loop {
        let more = remote.range(&file.url, bytes.len() as u64, step).await;
        let more = more.map_err(|cause| ModelsError::Lookup { source_text: plan.source.clone(), cause })?;
        let ended = (bytes.len() + more.len()) as u64 != step;
        bytes.extend_from_slice(&more);
        // Parsing some megabytes takes milliseconds; the bytes go along and come back.
        let (result, back) = blocking(move || (read(&bytes), bytes)).await?;
        bytes = back;
        match result {
            Ok(header) => return Ok(header),
            Err(error @ GgufError::NeedMore { at_least }) => match next_step(step, at_least).filter(|_| !ended) {
                Some(next) => step = next,
                None => return Err(refused(file.file_name(), &error)),
            },
            Err(error) => return Err(refused(file.file_name(), &error)),
        }
    }
}

fn join(name: &str, headers: &[Header], projector_bytes: u64) -> Result<ModelFacts, ModelsError> {
    let Some((first, others)) = headers.split_first() else { return Err(refused(name, &GgufError::NotGguf)) };
    let facts = facts(first, others).map_err(|error| refused(name, &error))?;
    Ok(ModelFacts { projector_bytes, ..facts })
}
