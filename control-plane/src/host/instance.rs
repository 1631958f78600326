//! One control plane per data directory, and a file that tells who it is.
//!
//! The lock is the kernel's (`flock`): it goes with the process however that ends, so there is no stale lock to
//! clean up. The file beside it names the process for the guards of running engines.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::Serialize;

use crate::host::files;
use crate::host::process::Identity;

const LOCK_FILE: &str = "lifeboat.lock";
const CONTROL_FILE: &str = "control-plane.json";

/// The claim of this process on a data directory; ends when dropped.
#[derive(Debug)]
pub struct Instance {
    control_file: PathBuf,
    // Held for its lock alone.
    _lock: File,
}

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process works on it.
    #[error("{} is in use by another lifeboat{}", data_dir.display(), pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Held {
        /// The directory.
        data_dir: PathBuf,
        /// Who holds it, where it could be read.
        pid: Option<u32>,
    },
    /// It cannot be created or written.
    #[error("could not use {} as data directory", data_dir.display())]
    Io {
        /// The directory.
        data_dir: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl Instance {
    /// Takes the data directory for this process, and creates it if need be.
    pub fn claim(data_dir: &Path) -> Result<Self, ClaimError> {
        Self::try_claim(data_dir)
            .map_err(|source| ClaimError::Io { data_dir: data_dir.to_owned(), source })?
            .map_err(|pid| ClaimError::Held { data_dir: data_dir.to_owned(), pid })
    }

    fn try_claim(data_dir: &Path) -> io::Result<Result<Self, Option<u32>>> {
        files::create_private_dir(data_dir)?;
        let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(data_dir.join(LOCK_FILE))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The holder may be about to write its number; the refusal stands without it.
                let _ = lock.read_to_string(&mut text);
                return Ok(Err(text.trim().parse().ok()));
            }
            Err(error) => return Err(error.into()),
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        let instance = Self { control_file: control_file(data_dir), _lock: lock };
        instance.write(None, false)?;
        Ok(Ok(instance))
    }

    /// Notes where this control plane listens, for the programs of this machine, and for guards whether it takes care of
    /// rows: one that only carries out a command does not.
    pub fn announce(&self, listen: SocketAddr, serves: bool) -> io::Result<()> {
        self.write(Some(listen), serves)
    }

    fn write(&self, listen: Option<SocketAddr>, serves: bool) -> io::Result<()> {
        let identity = Identity::current().ok_or_else(|| io::Error::other("/proc does not show this process"))?;
        files::write_private(&self.control_file, &serde_json::to_vec(&ControlFile { identity, listen, serves })?)
    }
}

/// What the control file holds. Guards read all but the address.
#[derive(Serialize)]
struct ControlFile {
    #[serde(flatten)]
    identity: Identity,
    listen: Option<SocketAddr>,
    serves: bool,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Were it to stay, it would name a process that has ended, which means the same.
        let _ = files::remove_if_there(&self.control_file);
    }
}

/// The file that names the control plane of a data directory: what guards look at.
pub fn control_file(data_dir: &Path) -> PathBuf {
    data_dir.join(CONTROL_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_one_holder_who_is_named_to_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("new");
        let held = Instance::claim(&data_dir).unwrap();
        held.announce("127.0.0.1:4180".parse().unwrap(), true).unwrap();
        assert_eq!(
            serde_json::from_slice::<Identity>(&std::fs::read(control_file(&data_dir)).unwrap()).unwrap(),
            Identity::current().unwrap()
        );
        match Instance::claim(&data_dir) {
            Err(ClaimError::Held { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(held);
        assert!(!control_file(&data_dir).exists());
        assert!(Instance::claim(&data_dir).is_ok());
    }

    #[test]
    fn a_place_that_cannot_be_a_directory_is_an_error_with_its_cause() {
        let file = tempfile::NamedTempFile::new().unwrap();
        match Instance::claim(file.path()) {
            Err(ClaimError::Io { data_dir, .. }) => assert_eq!(data_dir, file.path()),
            other => panic!("{other:?}"),
        }
    }
}
