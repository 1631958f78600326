//! The client against sockets that answer by a script.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::gateway::testing::endpoint;

/// An engine whose every connection is moved by hand, and a client of it.
struct Stage {
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
    client: Client,
    stopping: CancellationToken,
}

impl Stage {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stopping = CancellationToken::new();
        let client = Client::new(Duration::from_secs(5), TaskTracker::new(), stopping.clone());
        Self { listener, endpoint: endpoint(port, 1), client, stopping }
    }

    async fn send(&self, body: Segments) -> Result<Answer, Fault> {
        let outgoing = Outgoing::default();
        self.client.send(&self.endpoint, &outgoing, "/v1/chat/completions", body).await
    }

    async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// One call that is answered on the next new connection, which is returned as it is left.
    async fn answered(&self, reply: &[u8]) -> (Result<Answer, Fault>, TcpStream) {
        let engine = async {
            let mut stream = self.accept().await;
            read_request(&mut stream).await;
            stream.write_all(reply).await.unwrap();
            stream
        };
        tokio::join!(self.send(ask()), engine)
    }
}

fn ask() -> Segments {
    Segments::whole(Bytes::from_static(b"{}"))
}

/// Reads one request with the body `{}`.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n{}") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
    }
    String::from_utf8(read).unwrap()
}

async fn text(rest: &mut Rest) -> io::Result<String> {
    let mut all = Vec::new();
    while let Some(piece) = rest.piece().await {
        all.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8(all).unwrap())
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    for _ in 0..3 {
        let engine = async {
            read_request(&mut engine).await;
            engine.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await.unwrap();
        };
        let (answer, ()) = tokio::join!(stage.send(ask()), engine);
        assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn who_leaves_after_the_last_event_leaves_a_connection_that_can_be_used_again() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await;
    let mut rest = answer.unwrap().rest;
    assert_eq!(rest.piece().await.unwrap().unwrap(), "ok");
    engine.write_all(b"0\r\n\r\n").await.unwrap();
    // The end is here, though nobody has asked for it.
    let Some(Wire::Plain(stream)) = &rest.wire else { panic!("the reply has not ended") };
    stream.readable().await.unwrap();
    drop(rest);
    let (answer, ()) = tokio::join!(stage.send(ask()), async {
        read_request(&mut engine).await;
        engine.write_all(OK).await.unwrap();
    });
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
}

#[tokio::test]
async fn who_leaves_before_the_end_closes_the_connection() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await;
    let mut rest = answer.unwrap().rest;
    assert_eq!(rest.piece().await.unwrap().unwrap(), "ok");
    drop(rest);
    assert_eq!(engine.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_connection_that_died_idle_is_replaced_by_a_new_one() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    // It dies with the request on it, before a byte of an answer.
    let (answer, _new) = tokio::join!(stage.send(ask()), async {
        read_request(&mut engine).await;
        drop(engine);
        let mut new = stage.accept().await;
        read_request(&mut new).await;
        new.write_all(OK).await.unwrap();
        new
    });
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
}

#[tokio::test]
async fn a_new_connection_that_dies_is_told_and_not_tried_again() {
    let stage = Stage::new().await;
    let (answer, ()) = tokio::join!(stage.send(ask()), async {
        read_request(&mut stage.accept().await).await;
    });
    assert!(matches!(answer, Err(Fault::Closed(_))), "{answer:?}");
}

#[tokio::test]
async fn an_answer_that_began_on_an_old_connection_is_not_asked_for_twice() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    let (answer, ()) = tokio::join!(stage.send(ask()), async {
        read_request(&mut engine).await;
        engine.write_all(b"HTTP/1.1 200 OK\r\ncont").await.unwrap();
        drop(engine);
    });
    assert!(matches!(answer, Err(Fault::Closed(_))), "{answer:?}");
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_its_reply_said_so_or_was_followed_by_more() {
    let stage = Stage::new().await;
    for reply in [
        &b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"[..],
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        let (answer, mut engine) = stage.answered(reply).await;
        text(&mut answer.unwrap().rest).await.unwrap();
        assert_eq!(engine.read(&mut [0]).await.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn a_reply_that_breaks_off_is_no_whole_one() {
    let stage = Stage::new().await;
    for reply in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokXX",
    ] {
        let (answer, mut engine) = stage.answered(reply).await;
        engine.shutdown().await.unwrap();
        assert!(text(&mut answer.unwrap().rest).await.is_err());
    }
    let (answer, mut engine) = stage.answered(b"HTTP/1.1 200 OK\r\n\r\nok").await;
    engine.shutdown().await.unwrap();
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
}

#[tokio::test]
async fn a_refusal_that_comes_before_the_body_was_read_is_heard() {
    let stage = Stage::new().await;
    let large = Segments::whole(vec![b'x'; 64 << 20].into());
    let (answer, _engine) = tokio::join!(stage.send(large), async {
        let mut engine = stage.accept().await;
        engine.read_exact(&mut [0; 64]).await.unwrap();
        engine.write_all(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        engine
    });
    let mut answer = answer.unwrap();
    assert_eq!((answer.status.as_u16(), text(&mut answer.rest).await.unwrap().as_str()), (413, "ok"));
}

#[tokio::test]
async fn a_body_is_sent_whole_to_an_engine_that_answers_before_it_has_read_it() {
    let stage = Stage::new().await;
    let large = vec![b'x'; 16 << 20];
    let engine = async {
        let mut engine = stage.accept().await;
        engine.read_exact(&mut [0; 64]).await.unwrap();
        engine.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(&large) {
            assert_ne!(engine.read_buf(&mut read).await.unwrap(), 0, "after {} bytes", read.len());
        }
        engine.write_all(b"0\r\n\r\n").await.unwrap();
    };
    let ((), text) =
        tokio::join!(engine, async { text(&mut stage.send(Segments::whole(large.clone().into())).await.unwrap().rest).await.unwrap() });
    assert_eq!(text, "ok");
}

#[tokio::test]
async fn what_is_not_http_is_told_as_that() {
    let stage = Stage::new().await;
    let (answer, _engine) = stage.answered(b"SSH-2.0-OpenSSH_9.2\r\n").await;
    assert!(matches!(answer, Err(Fault::Garbled(_))), "{answer:?}");
}

#[tokio::test]
async fn what_fails_late_on_an_old_connection_is_told_and_not_asked_again() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    let (answer, ()) = tokio::join!(stage.send(ask()), async {
        read_request(&mut engine).await;
        tokio::time::pause();
        tokio::time::advance(2 * AT_ONCE).await;
        drop(engine);
    });
    assert!(matches!(answer, Err(Fault::Closed(_))), "{answer:?}");
}

#[tokio::test]
async fn a_query_that_is_too_long_with_the_engines_path_is_the_clients_fault() {
    let stage = Stage::new().await;
    let outgoing = Outgoing::new(Some(&"x".repeat(65_530)), &HeaderMap::new());
    let answer = stage.client.send(&stage.endpoint, &outgoing, "/v1/chat/completions", ask()).await;
    assert!(answer.as_ref().is_err_and(Fault::is_the_clients), "{answer:?}");
}

#[tokio::test]
async fn a_body_in_many_pieces_arrives_in_order() {
    let stage = Stage::new().await;
    let body: Bytes = (0..100_u8).collect::<Vec<_>>().into();
    // Two hundred pieces, and some megabytes of them.
    let edits = (0..100).map(|at| (at..at, Bytes::from(vec![b'a'; 50_000]))).collect();
    let body = Segments::edited(&body, edits);
    let expected = body.concat();
    let (answer, got) = tokio::join!(stage.send(body), async {
        let mut engine = stage.accept().await;
        let mut got = Vec::new();
        while !got.ends_with(&expected) {
            assert_ne!(engine.read_buf(&mut got).await.unwrap(), 0);
        }
        engine.write_all(OK).await.unwrap();
        got
    });
    assert_eq!(answer.unwrap().status, 200);
    assert!(got.ends_with(&expected));
}

#[tokio::test]
async fn nothing_is_kept_while_stopping() {
    let stage = Stage::new().await;
    stage.stopping.cancel();
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    assert_eq!(engine.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn idle_connections_end_with_the_stop() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    stage.stopping.cancel();
    assert_eq!(engine.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn an_idle_connection_is_given_up_before_its_engine_does() {
    let stage = Stage::new().await;
    let (answer, mut engine) = stage.answered(OK).await;
    assert_eq!(text(&mut answer.unwrap().rest).await.unwrap(), "ok");
    tokio::time::pause();
    let kept = tokio::time::Instant::now();
    assert_eq!(engine.read(&mut [0]).await.unwrap_or(0), 0);
    assert!((4..5).contains(&kept.elapsed().as_secs()), "{:?}", kept.elapsed());
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_is_told_as_that() {
    let stage = Stage::new().await;
    drop(stage.listener);
    let outgoing = Outgoing::default();
    let answer = stage.client.send(&stage.endpoint, &outgoing, "/v1/models", ask()).await;
    assert!(matches!(answer, Err(Fault::Connect(_))), "{answer:?}");
}
