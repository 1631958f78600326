//! Connections to engines: TCP without delay, with TLS where the row says `https`, bounded in time.
//!
//! TLS is set up only when the first such engine is called: reading the system's certificates costs memory that most
//! set-ups never need.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::{coop, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::host::http::CERTIFICATES_HINT;

/// Opens connections.
#[derive(Debug)]
pub(super) struct Connector {
    timeout: Duration,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Connector {
    /// `timeout` = longest time for a connection, TLS and all.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, tls: OnceCell::new() }
    }

    /// A new connection.
    pub(super) async fn connect(&self, scheme: &Scheme, authority: &Authority) -> io::Result<Wire> {
        timeout(self.timeout, self.open(scheme, authority))
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time")))
    }

    async fn open(&self, scheme: &Scheme, authority: &Authority) -> io::Result<Wire> {
        let is_secure = *scheme == Scheme::HTTPS;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if !is_secure {
            return Ok(Wire::Plain(stream));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Wire::Secure(Box::new(TlsConnector::from(self.tls().await?).connect(name, stream).await?)))
    }

    async fn tls(&self) -> io::Result<Arc<ClientConfig>> {
        self.tls.get_or_try_init(|| async { spawn_blocking(tls).await?.map(Arc::new) }).await.cloned()
    }
}

/// Reads the system's certificates.
fn tls() -> io::Result<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map_err(|error| io::Error::other(format!("TLS cannot be set up ({error}); {CERTIFICATES_HINT}")))?
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// One connection.
#[derive(Debug)]
pub(super) enum Wire {
    /// Without TLS.
    Plain(TcpStream),
    /// With it.
    Secure(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// Nothing has come, not even the end. One that is idle and not quiet cannot carry another request.
    pub(super) fn is_quiet(&mut self) -> bool {
        // Without budget nothing is read, and the answer would always be yes.
        let mut byte = [0];
        coop::has_budget_remaining()
            && Pin::new(self).poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Secure(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
