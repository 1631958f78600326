//! A download of 100 MB whose control plane is killed on the way: nothing is lost, nothing half-done counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, StatusCode, header};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{STEP, TestApp, eventually};

/// Bytes of the one tensor.
const WEIGHTS: usize = 100 << 20;
/// Bytes of one piece of a reply.
const PIECE: usize = 256 << 10;
/// Pause between two pieces: about 85 MB/s, so that there is a middle to be killed in.
const PAUSE: Duration = Duration::from_millis(3);

/// A site with one file. It honours ranges and counts the bytes it gives out.
struct Site {
    file: Bytes,
    sent: AtomicU64,
}

async fn serve(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let size = site.file.len();
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).and_then(|text| text.strip_prefix("bytes="));
    let (start, end) = match range.and_then(|range| range.split_once('-')) {
        Some((start, "")) => (start.parse().unwrap(), size),
        Some((start, last)) => (start.parse().unwrap(), last.parse::<usize>().unwrap().min(size - 1) + 1),
        None => (0, size),
    };
    let reply = Response::builder().header(header::ETAG, "\"one\"").header(header::ACCEPT_RANGES, "bytes");
    let reply = match range {
        Some(_) => reply.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1)),
        None => reply,
    };
    let pieces = stream::unfold(start, move |at| {
        let site = Arc::clone(&site);
        async move {
            let piece = site.file.slice(at..end.min(at + PIECE));
            if piece.is_empty() {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
            site.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Some((Ok::<_, std::io::Error>(piece.clone()), at + piece.len()))
        }
    });
    reply.header(header::CONTENT_LENGTH, end - start).body(Body::from_stream(pieces)).unwrap()
}

/// A GGUF file with one tensor of `weights` bytes: enough for a model store, not for an engine.
fn gguf(weights: usize) -> Vec<u8> {
    fn text(into: &mut Vec<u8>, text: &str) {
        into.extend((text.len() as u64).to_le_bytes());
        into.extend(text.as_bytes());
    }
    let texts = [("general.architecture", "llama"), ("general.type", "model"), ("general.name", "Large")];
    let numbers = [
        ("llama.block_count", 2_u32),
        ("llama.context_length", 2048),
        ("llama.embedding_length", 64),
        ("llama.feed_forward_length", 128),
        ("llama.attention.head_count", 4),
    ];
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend(1_u64.to_le_bytes());
    file.extend(((texts.len() + numbers.len()) as u64).to_le_bytes());
    for (key, value) in texts {
        text(&mut file, key);
        file.extend(8_u32.to_le_bytes());
        text(&mut file, value);
    }
    for (key, value) in numbers {
        text(&mut file, key);
        file.extend(4_u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    text(&mut file, "token_embd.weight");
    file.extend(1_u32.to_le_bytes());
    file.extend((weights as u64 / 4).to_le_bytes());
    file.extend(0_u32.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend((0..weights).map(|index| (index.wrapping_mul(0x9e37_79b1) >> 13).to_le_bytes()[0]));
    file
}

async fn job(app: &TestApp, source: &str) -> Value {
    let (status, job) = app.call(Method::POST, "/api/models", Some(&json!({"source": source}))).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{job}");
    job
}

async fn done_of(app: &TestApp, job: &Value) -> (String, u64, Value) {
    let (status, job) = app.call(Method::GET, &format!("/api/jobs/{}", job["id"].as_str().unwrap()), None).await;
    assert_eq!(status, StatusCode::OK, "{job}");
    (job["state"].as_str().unwrap().to_owned(), job["progress"]["done"].as_u64().unwrap_or_default(), job)
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "the test's runtime ends the site")]
async fn a_pull_survives_kills_of_the_control_plane_and_fetches_no_more_than_it_must() {
    let site = Arc::new(Site { file: gguf(WEIGHTS).into(), sent: AtomicU64::new(0) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source = format!("http://{}/large.gguf", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(serve).with_state(Arc::clone(&site));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let mut app = TestApp::start().await;
    for part in [10, 35, 60, 85] {
        let pull = job(&app, &source).await;
        eventually("the pull has come that far", STEP, async || {
            let (state, done, job) = done_of(&app, &pull).await;
            assert_eq!(state, "running", "{job}");
            (done * 100 > part * WEIGHTS as u64).then_some(())
        })
        .await;
        app.kill();
        app.serve().await;
        let (_, models) = app.call(Method::GET, "/api/models", None).await;
        assert_eq!(models["data"], json!([]), "half a model counts as none");
    }
    let pull = job(&app, &source).await;
    eventually("the pull is complete", Duration::from_secs(120), async || {
        let (state, _, job) = done_of(&app, &pull).await;
        assert_ne!(state, "failed", "{job}");
        (state == "done" || state == "succeeded").then_some(())
    })
    .await;
    let (_, models) = app.call(Method::GET, "/api/models", None).await;
    let path = models["data"][0]["path"].as_str().unwrap_or_else(|| panic!("{models}"));
    assert!(std::fs::read(path).unwrap() == site.file, "every byte is as served");
    let (sent, size) = (site.sent.load(Ordering::Relaxed), site.file.len() as u64);
    println!("{sent} bytes were sent for a file of {size}, killed four times");
    assert!(sent < size + size / 2, "{sent} bytes were sent for {size}");
}
