//! Random secrets, and the token that lets this machine's command line talk to a running server whatever
//! keys exist: a file only its owner may read, made at start and removed at stop. Whoever can read it can
//! read the database too, so it gives nothing away.

use std::io;
use std::path::{Path, PathBuf};

use rand::RngExt;
use rand::distr::Alphanumeric;

use super::local_token_path;
use crate::host::files;

/// Characters of a secret: 62^43 is just above 2^256.
const LENGTH: usize = 43;

/// 256 random bits as letters and digits, so that a double click selects all of it.
pub(super) fn random() -> String {
    rand::rng().sample_iter(Alphanumeric).take(LENGTH).map(char::from).collect()
}

/// This run's local token; its file is removed when this is dropped.
pub struct LocalToken {
    secret: String,
    path: PathBuf,
}

impl std::fmt::Debug for LocalToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalToken").field("path", &self.path).finish_non_exhaustive()
    }
}

impl LocalToken {
    /// Makes a token and writes its file; one left by a crash is replaced.
    pub fn create(data_dir: &Path) -> io::Result<Self> {
        let path = local_token_path(data_dir);
        let secret = format!("lb_local_{}", random());
        files::write_private(&path, secret.as_bytes())?;
        Ok(Self { secret, path })
    }

    /// The token in clear, for the one place that hashes it.
    pub fn expose(&self) -> &str {
        &self.secret
    }
}

impl Drop for LocalToken {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the local token was gone already");
        }
    }
}

/// The token of the server that uses this data directory; `None` where none runs.
pub fn read_local_token(data_dir: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(local_token_path(data_dir)) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
