//! The accept loop. Our own, because the limits live here: connections at once, the size and the number of
//! headers, how long a head may take; and because a stop must be able to end idle connections at once, let
//! running replies finish, and cut what does not.
//!
//! A client that closes its sending half counts as gone: only so a vanished client is noticed while its
//! request waits in a queue. One that stops reading is cut off ([`stall`]); one that never sends a whole head, or opens more
//! than its share, gives way to others ([`doors`]).

mod doors;
mod stall;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Service, ServiceExt};

use self::doors::{Doors, Visit};
use self::stall::Stalling;
use super::routes;
use crate::config::HttpConfig;
use crate::lifecycle::Lifecycle;
use crate::request_body::Arrivals;

/// Pause after a failed accept: it mostly means that file descriptors have run out, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections the system holds until they are accepted.
const BACKLOG: u32 = 1024;
/// What the system may hold of a reply that its client has not read (it doubles this for its own needs). More would only
/// hide that a client does not read.
const SEND_BUFFER: u32 = 256 << 10;

/// Listens with the buffers that [`serve`] counts on.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the soft stop, then returns once every connection has ended: the idle ones at once, the
/// others with their reply, or cut at the hard stop.
pub async fn serve<S>(listener: TcpListener, service: S, config: &HttpConfig, lifecycle: &Lifecycle)
where
    S: Service<Request<Body>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_headers(config.max_headers)
        // Twice as much is read, so that a head that is a little too large is refused in words.
        .max_buf_size(2 * config.max_head_bytes)
        .half_close(false);
    let house = Arc::new(House {
        builder,
        arrivals: Arrivals { limit: config.body_timeout, stopping: lifecycle.soft.clone(), tracker: lifecycle.tracker.clone() },
        config: config.clone(),
        lifecycle: lifecycle.clone(),
    });
    let doors = Doors::new(config);
    let places = Arc::new(Semaphore::new(config.max_connections));
    loop {
        let accepted = tokio::select! {
            () = lifecycle.soft.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Before it enters: it must not be the one that gives way to itself.
                if places.available_permits() == 0 {
                    doors.make_room();
                }
                let Some(visit) = doors.enter(peer.ip()) else {
                    tracing::debug!(%peer, "a connection was closed at once: its peer has as many as it may");
                    continue;
                };
                let place = tokio::select! {
                    () = lifecycle.soft.cancelled() => break,
                    place = Arc::clone(&places).acquire_owned() => place,
                };
                // Fails only if the semaphore were closed, which nobody does.
                let Ok(place) = place else { return };
                lifecycle.tracker.spawn(connection(Arc::clone(&house), service.clone(), stream, visit, place));
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

/// What all connections share.
struct House {
    builder: http1::Builder,
    arrivals: Arrivals,
    config: HttpConfig,
    lifecycle: Lifecycle,
}

async fn connection<S>(house: Arc<House>, service: S, stream: TcpStream, visit: Visit, place: OwnedSemaphorePermit)
where
    S: Service<Request<Body>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let (most, arrivals, visiting) = (house.config.max_head_bytes, &house.arrivals, &visit);
    // Moved in: a shared reference would have to be `Sync`, which no service promises.
    let answer = service_fn(move |request: Request<Incoming>| {
        visiting.is_known();
        let answering = if head_bytes(&request) > most {
            Err(routes::head_too_large(request.uri().path(), most))
        } else {
            let (head, body) = request.into_parts();
            let body = Body::new(arrivals.wrap(&head.headers, body));
            Ok(service.clone().oneshot(Request::from_parts(head, body)))
        };
        async {
            match answering {
                Ok(answering) => answering.await,
                Err(refusal) => Ok(refusal),
            }
        }
    });
    let stream = TokioIo::new(Stalling::new(stream, house.config.write_stall));
    let mut connection = std::pin::pin!(house.builder.serve_connection(stream, answer));
    // A child of its own: all connections would meet at the one token's lock with every piece they send.
    let soft = house.lifecycle.soft.child_token();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = visit.over(house.config.first_head_timeout) => Ok(()),
        () = soft.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = house.lifecycle.hard.cancelled() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(place);
}

/// Bytes of a head as it came, but for spaces it need not have.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    let host = request.uri().authority().map_or(0, |host| host.as_str().len());
    let line = request.method().as_str().len() + target + host + " HTTP/1.1\r\n ".len();
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + headers.sum::<usize>() + "\r\n".len()
}
