//! Why the control plane does not start, each with its cure.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::host::instance::ClaimError;
use crate::security::OpenToOthers;
use crate::store::StoreError;

const FREE_SPACE: &str = "free some space on the disk of the data directory";

const DAMAGED: &str = "put a backup of the file in its place, or move it away: the next start makes a new one, without rows and keys";
const UNUSABLE: &str = "see whether the data directory and its files can be written, and whether its disk is well";

/// Why the control plane does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used, or another process uses it.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A file in the data directory cannot be written.
    #[error("could not write into the data directory")]
    DataDir(#[source] std::io::Error),
    /// The database cannot be opened or read.
    #[error("the database {} cannot be used", path.display())]
    Store {
        /// Its file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: StoreError,
    },
    /// The address would let strangers in.
    #[error(transparent)]
    OpenToOthers(#[from] OpenToOthers),
    /// The address cannot be listened on.
    #[error("could not listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

impl StartError {
    /// The cure, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Claim(ClaimError::Held { .. }) => Some("use that one, or give this one another --data-dir"),
            Self::OpenToOthers(_) => Some(OpenToOthers::HINT),
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Some("another program listens there: choose another address with --listen")
            }
            Self::Store { source: StoreError::DiskFull(_), .. } => Some(FREE_SPACE),
            Self::Store { source: StoreError::Damaged { .. }, .. } => Some(DAMAGED),
            Self::Store { source: StoreError::Unusable { .. } | StoreError::File { .. }, .. } => Some(UNUSABLE),
            Self::DataDir(source) | Self::Claim(ClaimError::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
                Some(FREE_SPACE)
            }
            Self::Claim(_) | Self::DataDir(_) | Self::Store { .. } | Self::Listen { .. } => None,
        }
    }

    /// Whether the cause is somebody else who holds the directory or the address.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Claim(ClaimError::Held { .. }) => true,
            Self::Listen { source, .. } => source.kind() == std::io::ErrorKind::AddrInUse,
            _ => false,
        }
    }
}
