//! The HTTP client for control traffic (lookups, downloads). The hot path has its own.
//!
//! Certificates are those the system trusts and proxies those its environment names (`HTTPS_PROXY`,
//! `NO_PROXY`), so that a machine behind a company's proxy needs no setting of ours. It must never be
//! built by a start that finds everything on disk: reading the certificate store costs memory and
//! milliseconds that a cached start does not need.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A text as one segment of a path or one value of a query.
pub fn encode(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

/// A path of several segments.
pub fn encode_path(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

/// What mostly helps where TLS cannot be set up.
pub const CERTIFICATES_HINT: &str = "does this system have CA certificates (package `ca-certificates`, or SSL_CERT_FILE)?";

/// Why there is no client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the HTTP client cannot be set up; {CERTIFICATES_HINT}")]
pub struct HttpError(#[source] Arc<reqwest::Error>);

/// One client, built when it is first asked for. Clones share it.
#[derive(Debug, Clone)]
pub struct Http {
    connect: Duration,
    client: Arc<OnceLock<reqwest::Client>>,
}

impl Http {
    /// A client to be, with a limit on the time a connection may take.
    pub fn new(connect: Duration) -> Self {
        Self { connect, client: Arc::default() }
    }

    /// The longest a connection may take.
    pub const fn connect(&self) -> Duration {
        self.connect
    }

    /// The client. Blocks for some milliseconds the first time.
    pub fn client(&self) -> Result<reqwest::Client, HttpError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let built = client(self.connect).map_err(|source| HttpError(Arc::new(source)))?;
        Ok(self.client.get_or_init(|| built).clone())
    }
}

/// A client that trusts the system's certificates, honours `HTTPS_PROXY` and follows redirects. On a redirect
/// to another host the `Authorization` header stays behind.
pub fn client(connect: Duration) -> Result<reqwest::Client, reqwest::Error> {
    // An error means that a provider is installed already, which is all we want.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .user_agent(concat!("lifeboat/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect)
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .referer(false)
        .build()
}

/// A hub answers with one or two redirects; more is a loop.
const MAX_REDIRECTS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded_whole_and_paths_but_for_their_slashes() {
        assert_eq!(encode("hf:a/b:Q4_K_M ä"), "hf%3Aa%2Fb%3AQ4_K_M%20%C3%A4");
        assert_eq!(encode_path("a b/ü%-1_2.gguf"), "a%20b/%C3%BC%25-1_2.gguf");
    }
}
