//! The accept loop. Our own, because the limits live here: connections at once, the size and the number of
//! headers, how long a head may take; and because a stop must be able to end idle connections at once, let
//! running replies finish, and cut what does not.
//!
//! A client that closes its sending half counts as gone: only so a vanished client is noticed while its
//! request waits in a queue.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Service, ServiceExt};

use crate::config::HttpConfig;
use crate::lifecycle::Lifecycle;

/// Pause after a failed accept: it mostly means that file descriptors have run out, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until the soft stop, then returns once every connection has ended: the idle ones at once, the
/// others with their reply, or cut at the hard stop.
pub async fn serve<S>(listener: TcpListener, service: S, config: &HttpConfig, lifecycle: &Lifecycle)
where
    S: Service<Request<Body>, Response = Response, Error = std::convert::Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_headers(config.max_headers)
        .max_buf_size(config.max_head_bytes)
        .half_close(false);
    let places = Arc::new(Semaphore::new(config.max_connections));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = lifecycle.soft.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _peer)) => {
                let connection = connection(stream, builder.clone(), service.clone(), lifecycle.clone(), place);
                lifecycle.tracker.spawn(connection);
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = u32::try_from(config.max_connections).unwrap_or(u32::MAX);
    // Fails only if the semaphore were closed, which nobody does.
    let _ = places.acquire_many(all).await;
}

async fn connection<S>(stream: TcpStream, builder: http1::Builder, service: S, lifecycle: Lifecycle, place: OwnedSemaphorePermit)
where
    S: Service<Request<Body>, Response = Response, Error = std::convert::Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let service = TowerToHyperService::new(service.map_request(|request: Request<Incoming>| request.map(Body::new)));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    // A child of its own: all connections would meet at the one token's lock with every piece they send.
    let soft = lifecycle.soft.child_token();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = soft.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = lifecycle.hard.cancelled() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(place);
}
