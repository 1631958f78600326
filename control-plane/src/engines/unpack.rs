//! Unpacks an archive that was fetched: `.tar.gz` and `.zip`, within bounds and within its folder.
//!
//! The digest was checked before; this is the second line. A path that leaves the folder, a link that does, a kind
//! of entry that has no business in a build, too many entries or too many bytes end the work, and the caller throws
//! the folder away. Links are made after all files, so that nothing can be written through one. All of it blocks.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;

/// Bounds of what an archive may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caps {
    /// Entries of any kind.
    pub entries: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// The largest archive there is (a CUDA runtime) unpacks to about 1 GB, a source tree to some thousand files.
pub(super) const CAPS: Caps = Caps { entries: 50_000, file_bytes: 4 << 30, total_bytes: 8 << 30 };
/// Longest target of a link in a zip archive, bytes.
const LINK_BYTES: u64 = 4096;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("{name} is no archive of a known kind (.tar.gz, .zip)")]
    Kind { name: String },
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    #[error("the archive cannot be read")]
    Zip(#[from] zip::result::ZipError),
    #[error("the archive was refused: {entry} {problem}")]
    Refused { entry: String, problem: &'static str },
    #[error("the archive was refused: more than {limit} {what}")]
    TooMuch { limit: u64, what: &'static str },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Unpacks `archive` into the folder `target`, which must exist and be empty.
pub(super) fn unpack(archive: &Path, target: &Path, caps: Caps) -> Result<(), UnpackError> {
    let name = archive.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let file = File::open(archive).map_err(UnpackError::Read)?;
    let mut writer = Writer { root: target, caps, entries: 0, bytes: 0, links: Vec::new() };
    match Path::new(&name).extension().and_then(|extension| extension.to_str()) {
        Some("tgz") => unpack_tar(file, &mut writer)?,
        Some("gz") if name.ends_with(".tar.gz") => unpack_tar(file, &mut writer)?,
        Some("zip") => unpack_zip(file, &mut writer)?,
        _ => return Err(UnpackError::Kind { name }),
    }
    writer.make_links()
}

fn unpack_tar(file: File, writer: &mut Writer<'_>) -> Result<(), UnpackError> {
    // Bounds what is inflated at all, whatever the entries say about themselves.
    let inflated = GzDecoder::new(io::BufReader::new(file)).take(writer.caps.total_bytes.saturating_mul(2));
    let mut archive = tar::Archive::new(inflated);
    for entry in archive.entries().map_err(UnpackError::Read)? {
        let mut entry = entry.map_err(UnpackError::Read)?;
        let path = entry.path().map_err(UnpackError::Read)?.into_owned();
        let link = entry.link_name().map_err(UnpackError::Read)?.unwrap_or_default().into_owned();
        let executable = entry.header().mode().unwrap_or(0) & 0o111 != 0;
        match entry.header().entry_type() {
            tar::EntryType::Directory => writer.folder(&path)?,
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                writer.file(&path, executable, &mut entry)?;
            }
            tar::EntryType::Symlink => writer.link(&path, Link::Symbolic(link))?,
            tar::EntryType::Link => writer.link(&path, Link::Hard(link))?,
            tar::EntryType::XGlobalHeader => writer.count()?,
            _ => return Err(refused(&path, "is a device, a pipe or something else that a build has no use for")),
        }
    }
    Ok(())
}

fn unpack_zip(file: impl Read + Seek, writer: &mut Writer<'_>) -> Result<(), UnpackError> {
    const KIND: u32 = 0o170_000;
    let mut archive = zip::ZipArchive::new(file)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let path = PathBuf::from(entry.name()?.replace('\\', "/"));
        let mode = entry.unix_mode().unwrap_or(0);
        if entry.is_dir() {
            writer.folder(&path)?;
        } else if mode & KIND == 0o120_000 {
            let mut target = String::new();
            entry.by_ref().take(LINK_BYTES).read_to_string(&mut target).map_err(UnpackError::Read)?;
            writer.link(&path, Link::Symbolic(PathBuf::from(target)))?;
        } else {
            writer.file(&path, mode & 0o111 != 0, &mut entry)?;
        }
    }
    Ok(())
}

enum Link {
    Symbolic(PathBuf),
    Hard(PathBuf),
}

struct Writer<'a> {
    root: &'a Path,
    caps: Caps,
    entries: usize,
    bytes: u64,
    links: Vec<(PathBuf, Link)>,
}

impl Writer<'_> {
    fn count(&mut self) -> Result<(), UnpackError> {
        self.entries += 1;
        if self.entries > self.caps.entries {
            return Err(UnpackError::TooMuch { limit: self.caps.entries as u64, what: "entries" });
        }
        Ok(())
    }

    fn folder(&mut self, path: &Path) -> Result<(), UnpackError> {
        self.count()?;
        let target = self.inside(path)?;
        fs::create_dir_all(&target).map_err(|source| UnpackError::Write { path: target, source })
    }

    fn file(&mut self, path: &Path, executable: bool, content: &mut impl Read) -> Result<(), UnpackError> {
        self.count()?;
        let target = self.inside(path)?;
        let failed = |source| UnpackError::Write { path: target.clone(), source };
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mode = if executable { 0o755 } else { 0o644 };
        // Never over something that is there: no archive needs to say a thing twice.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&target).map_err(failed)?;
        let limit = self.caps.file_bytes.min(self.caps.total_bytes - self.bytes);
        let written = io::copy(&mut content.by_ref().take(limit + 1), &mut file).map_err(UnpackError::Read)?;
        if written > limit {
            return Err(UnpackError::TooMuch { limit, what: "bytes" });
        }
        self.bytes += written;
        // Once more without the umask, which may have taken the bits that make it executable.
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)
    }

    fn link(&mut self, path: &Path, link: Link) -> Result<(), UnpackError> {
        self.count()?;
        let at = self.inside(path)?;
        self.links.push((at, link));
        Ok(())
    }

    /// Makes the links that were put off, then looks where each of them really leads.
    fn make_links(self) -> Result<(), UnpackError> {
        let write = |path: &Path, source| UnpackError::Write { path: path.to_owned(), source };
        let root = self.root.canonicalize().map_err(|source| write(self.root, source))?;
        for (at, link) in &self.links {
            if let Some(parent) = at.parent() {
                // What is there decides before anything is created: links made so far are part of the way.
                let there = parent.ancestors().find_map(|folder| folder.canonicalize().ok());
                if !there.is_some_and(|there| there.starts_with(&root)) {
                    return Err(refused(at, "lies behind a link that leaves the folder"));
                }
                fs::create_dir_all(parent).map_err(|source| write(at, source))?;
            }
            match link {
                Link::Symbolic(target) if target.is_absolute() => return Err(refused(at, "is a link to an absolute path")),
                Link::Symbolic(target) => std::os::unix::fs::symlink(target, at).map_err(|source| write(at, source))?,
                Link::Hard(target) => {
                    let target = self.inside(target)?;
                    if !target.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
                        return Err(refused(at, "is a hard link to something that is no file of the archive"));
                    }
                    fs::hard_link(&target, at).map_err(|source| write(at, source))?;
                }
            }
        }
        for (at, _) in &self.links {
            if !at.canonicalize().is_ok_and(|real| real.starts_with(&root)) {
                return Err(refused(at, "is a link that leaves the folder or leads nowhere"));
            }
        }
        Ok(())
    }

    /// The place of an entry below the root.
    fn inside(&self, path: &Path) -> Result<PathBuf, UnpackError> {
        let mut target = self.root.to_owned();
        for component in path.components() {
            match component {
                Component::Normal(name) => target.push(name),
                Component::CurDir => {}
                _ => return Err(refused(path, "leaves the folder")),
            }
        }
        Ok(target)
    }
}

fn refused(path: &Path, problem: &'static str) -> UnpackError {
    UnpackError::Refused { entry: path.display().to_string(), problem }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
