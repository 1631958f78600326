//! Small private files that replace each other whole: records and secrets of running processes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Writes a file that only its owner can read. A reader sees the old content or the new one, never a part.
///
/// Not synced: what is written here is about running processes, and means nothing after a power failure.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first failure is the one to report; a leftover that cannot be removed changes nothing.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Writes a small file so that it is the old one or the new one whatever happens, a power failure too. Blocking.
pub fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_folder(folder)
}

/// Makes what was created, renamed or removed in a folder outlast a power failure. Blocking.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Opens a regular file to read it. A pipe, a device or a folder is refused: opening or reading one may wait for ever,
/// and with it the thread and the end of the process.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Not to wait is said at the open itself, so that what changes under the path between two calls cannot matter.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")) }
}

/// Creates a folder, and those above it, that only their owner can enter. One that is there stays as it is.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a file; one that is not there is no error.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, pipe) = (dir.path().join("plain"), dir.path().join("pipe"));
        fs::write(&plain, b"x").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(open_regular(&plain).is_ok());
        for special in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
            assert_eq!(open_regular(special).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", special.display());
        }
        assert_eq!(open_regular(&dir.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_private_file_is_replaced_whole_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/record.json");
        create_private_dir(path.parent().unwrap()).unwrap();
        write_private(&path, b"a longer first text").unwrap();
        write_private(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1, "no temporary file stays behind");
    }
}
