//! Free disk space, asked before the first byte is written.

use std::io;
use std::path::Path;

use super::{DownloadError, Limits};

/// Bytes an ordinary user may still write below `folder`.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Fails unless `need` bytes and the margin fit below `folder`.
pub(super) fn check(limits: &Limits, folder: &Path, need: u64) -> Result<(), DownloadError> {
    let free = (limits.free_space)(folder).map_err(|source| DownloadError::io("ask for the free space of", folder, source))?;
    if need.saturating_add(limits.disk_margin_bytes) <= free {
        return Ok(());
    }
    Err(DownloadError::DiskFull { folder: folder.to_owned(), need, free, margin: limits.disk_margin_bytes })
}
