//! A scripted engine: a bare HTTP/1.1 server that records what it gets, byte for byte, and does what it is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Request line and headers.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
    /// How many came on the same connection before.
    pub earlier: usize,
}

impl Received {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// Its path and query.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }
}

/// One thing to do for a request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Send one piece of a chunked body.
    Piece(String),
    /// End a chunked body.
    End,
    /// Wait until the engine is let go, or the caller leaves.
    Hold,
    /// Take this long, as a real engine does.
    Pause(Duration),
    /// Close the connection at once.
    Cut,
}

impl Step {
    /// A whole JSON reply.
    pub fn json(status: u16, body: &str) -> Vec<Self> {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {length}\r\nServer: secret\r\n\r\n"
        );
        vec![Self::Send([head.as_bytes(), body.as_bytes()].concat())]
    }

    /// The head of a stream of events.
    pub fn stream() -> Self {
        Self::Send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec())
    }
}

type Script = dyn Fn(&Received) -> Vec<Step> + Send + Sync;

struct Shared {
    script: Box<Script>,
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    /// Requests being answered now, and the most there ever were.
    busy: AtomicUsize,
    most: AtomicUsize,
    /// Callers that left while they were held.
    left: watch::Sender<usize>,
    arrived: watch::Sender<usize>,
    go: watch::Sender<bool>,
}

/// A running scripted engine; stops with its drop.
pub struct Engine {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Engine {
    /// Starts one that does what `script` says for each request.
    pub async fn start(script: impl Fn(&Received) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            received: Mutex::default(),
            connections: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            left: watch::Sender::new(0),
            arrived: watch::Sender::new(0),
            go: watch::Sender::new(false),
        });
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).unwrap();
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move { serve(stream, &shared).await });
                }
            }
        });
        Self { address, shared, accepting }
    }

    /// What came so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().clone()
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The most requests it ever had at once.
    pub fn most(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }

    /// Lets all held requests go on, now and from now on.
    pub fn go(&self) {
        self.shared.go.send_replace(true);
    }

    /// Waits until so many requests have come.
    pub async fn until_received(&self, count: usize) {
        let mut arrived = self.shared.arrived.subscribe();
        super::world::soon(async { drop(arrived.wait_for(|arrived| *arrived >= count).await.unwrap()) }).await;
    }

    /// Waits until so many callers have left while held.
    pub async fn until_left(&self, count: usize) {
        let mut left = self.shared.left.subscribe();
        super::world::soon(async { drop(left.wait_for(|left| *left >= count).await.unwrap()) }).await;
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) {
    for earlier in 0.. {
        let Some((head, body)) = read(&mut stream).await else { return };
        let received = Received { head, body, earlier };
        let steps = (shared.script)(&received);
        shared.received.lock().push(received);
        let busy = shared.busy.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(busy, Ordering::SeqCst);
        shared.arrived.send_modify(|count| *count += 1);
        let goes_on = play(&mut stream, steps, shared).await;
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        if !goes_on {
            return;
        }
    }
}

async fn play(stream: &mut TcpStream, steps: Vec<Step>, shared: &Shared) -> bool {
    for step in steps {
        let sent = match step {
            Step::Send(bytes) => stream.write_all(&bytes).await,
            Step::Piece(text) => stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await,
            Step::End => stream.write_all(b"0\r\n\r\n").await,
            Step::Cut => return false,
            Step::Pause(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Step::Hold => {
                let mut go = shared.go.subscribe();
                tokio::select! {
                    _ = go.wait_for(|go| *go) => Ok(()),
                    _ = stream.read_u8() => {
                        shared.left.send_modify(|left| *left += 1);
                        return false;
                    }
                }
            }
        };
        if sent.is_err() {
            shared.left.send_modify(|left| *left += 1);
            return false;
        }
    }
    true
}

async fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes.split_off(end + 4);
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim().parse().unwrap())
        .expect("a request without a length");
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, body))
}
