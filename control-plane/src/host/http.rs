//! The HTTP client for control traffic (lookups, downloads). The hot path has its own.
//!
//! Certificates are those the system trusts and proxies those its environment names (`HTTPS_PROXY`,
//! `NO_PROXY`), so that a machine behind a company's proxy needs no setting of ours. It must never be
//! built by a start that finds everything on disk: reading the certificate store costs memory and
//! milliseconds that a cached start does not need.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Why there is no client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the HTTP client cannot be set up; does this system have CA certificates (package `ca-certificates`, or SSL_CERT_FILE)?")]
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
