//! The part file: what has arrived, which version of the remote file it belongs to, and its lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Download, DownloadError};
use crate::host::hex::hex;

/// Chunks between the network and the disk. A chunk is at most some 16 KiB to 2 MiB, as the HTTP client cuts them.
const CHUNKS_AHEAD: usize = 64;

/// Which version of the remote file the part is a piece of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    /// Strong entity tag.
    pub(super) etag: Option<String>,
    /// `Last-Modified`, as sent.
    pub(super) last_modified: Option<String>,
    /// Length of the whole file.
    pub(super) size: Option<u64>,
    /// Digest the caller expects.
    pub(super) sha256: Option<String>,
}

/// The bytes on disk and their digest so far; always of one mind about how many there are.
struct Sink {
    file: Arc<File>,
    hasher: Option<Sha256>,
    length: u64,
}

/// A part file that this process holds the lock of.
pub(super) struct Part {
    path: PathBuf,
    target: PathBuf,
    file: Arc<File>,
    /// Taken while a writer has it.
    sink: Option<Sink>,
    /// `None` for an empty part.
    pub(super) version: Option<Version>,
}

/// What opening found.
pub(super) enum Opened {
    /// The part is ours.
    Part(Box<Part>),
    /// Another process holds it; so long is it now.
    Held(u64),
    /// The target is there already.
    Done,
}

fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The part file of a target.
pub(super) fn part_path(target: &Path) -> PathBuf {
    beside(target, ".part")
}

fn version_path(target: &Path) -> PathBuf {
    beside(target, ".part.json")
}

/// Runs file work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, DownloadError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| DownloadError::Lost)
}

impl Part {
    /// Opens or creates the part of `download` and locks it. Blocking: reads what is there when a digest is wanted.
    pub(super) fn open(download: &Download) -> Result<Opened, DownloadError> {
        let (target, path) = (&download.target, part_path(&download.target));
        let failed = |doing| move |source| DownloadError::io(doing, &part_path(&download.target), source);
        let file = loop {
            if target.exists() {
                if complete(download)? {
                    return Ok(Opened::Done);
                }
                fs::remove_file(target).map_err(|source| DownloadError::io("remove the damaged", target, source))?;
            }
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed("open"))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Opened::Held(file.metadata().map_or(0, |meta| meta.len()))),
                Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
            }
            // Between the open and the lock its former holder may have finished it and given it its final name.
            let ours = file.metadata().map_err(failed("read"))?;
            if fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        let file = Arc::new(file);
        let version = fs::read(version_path(target)).ok().and_then(|bytes| serde_json::from_slice::<Version>(&bytes).ok());
        let hasher = download.sha256.is_some().then(Sha256::new);
        let sink = Sink { file: Arc::clone(&file), hasher, length: 0 };
        let mut part = Self { path, target: target.clone(), file, sink: Some(sink), version: None };
        match version {
            Some(version) if version.sha256 == download.sha256 => {
                part.version = Some(version);
                part.reread()?;
            }
            _ => empty(&part.file, &part.path, &version_path(target))?,
        }
        Ok(Opened::Part(Box::new(part)))
    }

    /// Bytes that have arrived.
    pub(super) fn length(&self) -> u64 {
        self.sink.as_ref().map_or(0, |sink| sink.length)
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> DownloadError {
        let path = self.path.clone();
        move |source| DownloadError::io(doing, &path, source)
    }

    fn reread(&mut self) -> Result<(), DownloadError> {
        let Some(sink) = &mut self.sink else { return Err(DownloadError::Lost) };
        let result = match &mut sink.hasher {
            Some(hasher) => digest_into(&sink.file, hasher),
            None => sink.file.metadata().map(|meta| meta.len()),
        };
        match result {
            Ok(length) => {
                sink.length = length;
                Ok(())
            }
            Err(source) => Err(self.failed("read")(source)),
        }
    }

    /// Throws away what has arrived.
    pub(super) async fn restart(&mut self) -> Result<(), DownloadError> {
        let (file, part, note) = (Arc::clone(&self.file), self.path.clone(), version_path(&self.target));
        blocking(move || empty(&file, &part, &note)).await??;
        self.forget();
        Ok(())
    }

    /// Begins an empty part of the given version. The note is not written atomically on purpose: one that was
    /// cut off belongs to a part without a byte, and an unreadable note means a fresh start.
    pub(super) async fn begin(&mut self, version: Version) -> Result<(), DownloadError> {
        self.restart().await?;
        let path = version_path(&self.target);
        let text = serde_json::to_vec(&version).map_err(|source| DownloadError::io("write", &path, source.into()))?;
        blocking(move || fs::write(&path, text).map_err(|source| DownloadError::io("write", &path, source))).await??;
        self.version = Some(version);
        Ok(())
    }

    fn forget(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.length = 0;
            sink.hasher = sink.hasher.as_ref().map(|_| Sha256::new());
        }
        self.version = None;
    }

    /// Starts a writer that appends to the part.
    pub(super) fn writer(&mut self) -> Result<Writer, DownloadError> {
        let mut sink = self.sink.take().ok_or(DownloadError::Lost)?;
        let (tx, mut rx) = mpsc::channel::<Bytes>(CHUNKS_AHEAD);
        let done = tokio::task::spawn_blocking(move || {
            let result = append(&mut sink, &mut rx);
            if result.is_err() {
                // A write that failed half-way: cut back to what the digest covers. A failure here shows up on the next try.
                drop(sink.file.set_len(sink.length));
            }
            (sink, result)
        });
        Ok(Writer { tx, done })
    }

    /// Waits for a writer's last byte and takes the part back from it.
    pub(super) async fn finish(&mut self, writer: Writer) -> Result<(), DownloadError> {
        let Writer { tx, done } = writer;
        drop(tx);
        let (sink, result) = done.await.map_err(|_| DownloadError::Lost)?;
        self.sink = Some(sink);
        result.map_err(self.failed("write"))
    }

    /// Digest of everything that has arrived, in hex, where one is wanted.
    pub(super) fn digest(&self) -> Option<String> {
        self.sink.as_ref()?.hasher.clone().map(|hasher| hex(&hasher.finalize()))
    }

    /// Flushes the bytes and gives the file its final name. Blocking.
    pub(super) fn commit(&self) -> Result<(), DownloadError> {
        self.file.sync_all().map_err(self.failed("flush"))?;
        fs::rename(&self.path, &self.target).map_err(self.failed("rename"))?;
        drop(fs::remove_file(version_path(&self.target)));
        sync_folder_of(&self.target).map_err(self.failed("flush the folder of"))
    }
}

/// Where the network side puts chunks.
pub(super) struct Writer {
    tx: mpsc::Sender<Bytes>,
    done: JoinHandle<(Sink, io::Result<()>)>,
}

impl Writer {
    /// Hands over one chunk; false once the writer has given up.
    pub(super) async fn put(&self, chunk: Bytes) -> bool {
        self.tx.send(chunk).await.is_ok()
    }
}

fn empty(file: &File, part: &Path, note: &Path) -> Result<(), DownloadError> {
    file.set_len(0).map_err(|source| DownloadError::io("empty", part, source))?;
    match fs::remove_file(note) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DownloadError::io("remove", note, source)),
        _ => Ok(()),
    }
}

fn append(sink: &mut Sink, chunks: &mut mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut file = &*sink.file;
    file.seek(SeekFrom::Start(sink.length))?;
    while let Some(chunk) = chunks.blocking_recv() {
        file.write_all(&chunk)?;
        if let Some(hasher) = &mut sink.hasher {
            hasher.update(&chunk);
        }
        sink.length += chunk.len() as u64;
    }
    Ok(())
}

fn digest_into(mut file: &File, hasher: &mut Sha256) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(length),
            read => {
                hasher.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

/// Whether the target on disk is what `download` describes.
fn complete(download: &Download) -> Result<bool, DownloadError> {
    let target = &download.target;
    let failed = |source| DownloadError::io("read", target, source);
    let file = File::open(target).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if download.expected_size.is_some_and(|expected| expected != length) {
        return Ok(false);
    }
    let Some(expected) = &download.sha256 else { return Ok(true) };
    let mut hasher = Sha256::new();
    digest_into(&file, &mut hasher).map_err(failed)?;
    Ok(hex(&hasher.finalize()).eq_ignore_ascii_case(expected))
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
