//! Downloads against a hub on loopback.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::testing::{Hub, Remote, noise};
use super::{Download, DownloadError, Downloads};
use crate::config::SourcesConfig;
use crate::host::http::Http;
use crate::progress::ProgressSender;

const LENGTH: usize = 3_000_000;

struct Bench {
    hub: Hub,
    folder: TempDir,
    downloads: Downloads,
}

impl Bench {
    async fn new(file: Remote) -> Self {
        let hub = Hub::start().await;
        hub.put("/file", file);
        Self { hub, folder: tempfile::tempdir().unwrap(), downloads: downloads(1) }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn download(&self) -> Download {
        Download::new(self.hub.url("/file"), self.target())
    }

    async fn fetch(&self, download: &Download) -> Result<(), DownloadError> {
        self.downloads.fetch(download, &ProgressSender::ignored()).await
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_complete(&self, bytes: &[u8]) {
        assert!(fs::read(self.target()).unwrap() == bytes, "the file differs");
        assert_eq!(self.names(), ["file"], "something was left behind");
    }
}

fn downloads(attempts: usize) -> Downloads {
    let config = SourcesConfig {
        attempts,
        stall: Duration::from_secs(5),
        retry_backoff: Duration::from_millis(1),
        disk_margin_bytes: 0,
        ..SourcesConfig::default()
    };
    Downloads::new(Http::new(Duration::from_secs(5)), &config)
}

#[tokio::test]
async fn a_file_arrives_verified_and_leaves_nothing_beside_it() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(remote.clone()).await;
    let download = Download { sha256: Some(remote.sha256()), expected_size: Some(LENGTH as u64), ..bench.download() };
    let (progress, seen) = ProgressSender::channel();
    bench.downloads.fetch(&download, &progress).await.unwrap();
    bench.assert_complete(&remote.bytes);
    assert_eq!((seen.borrow().done, seen.borrow().total, seen.borrow().bytes), (LENGTH as u64, Some(LENGTH as u64), true));
    // A file that is there and right is not asked for again.
    bench.fetch(&download).await.unwrap();
    assert_eq!(bench.hub.seen("/file").len(), 1);
}

#[tokio::test]
async fn a_transfer_cut_at_any_byte_goes_on_from_there() {
    for cut in [0, 1, 4_095, 65_536, 1_000_003, LENGTH - 1] {
        for digest in [true, false] {
            let remote = Remote::new(noise(LENGTH));
            let bench = Bench::new(Remote { cut: Some(cut), ..remote.clone() }).await;
            let download = Download { sha256: digest.then(|| remote.sha256()), ..bench.download() };
            let error = bench.fetch(&download).await.unwrap_err();
            assert!(error.is_transient(), "{error:?}");
            let had = fs::metadata(bench.folder.path().join("file.part")).unwrap().len();
            bench.hub.change("/file", |file| file.cut = None);
            bench.fetch(&download).await.unwrap();
            bench.assert_complete(&remote.bytes);
            let second = bench.hub.seen("/file").pop().unwrap();
            if had > 0 {
                assert_eq!(second.range, Some(format!("bytes={had}-")), "cut at {cut}");
                assert_eq!(second.if_range.as_deref(), Some("\"one\""));
            } else {
                assert_eq!(second.range, None);
            }
        }
    }
}

#[tokio::test]
async fn a_dropped_transfer_goes_on_where_it_was() {
    let gate = Arc::new(Semaphore::new(0));
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(Remote { gate: Some((2_000_000, Arc::clone(&gate))), ..remote.clone() }).await;
    let download = Download { sha256: Some(remote.sha256()), ..bench.download() };
    let (progress, mut seen) = ProgressSender::channel();
    tokio::select! {
        result = bench.downloads.fetch(&download, &progress) => panic!("ended early: {result:?}"),
        _ = seen.wait_for(|progress| progress.done == 2_000_000) => {}
    }
    gate.add_permits(100);
    bench.fetch(&download).await.unwrap();
    bench.assert_complete(&remote.bytes);
    let range = bench.hub.seen("/file").pop().unwrap().range.unwrap();
    assert_eq!(range, "bytes=2000000-");
}

#[tokio::test]
async fn sixteen_callers_make_one_request() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(remote.clone()).await;
    let download = Download { sha256: Some(remote.sha256()), ..bench.download() };
    let results = futures_util::future::join_all((0..16).map(|_| bench.fetch(&download))).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    bench.assert_complete(&remote.bytes);
    assert_eq!(bench.hub.seen("/file").len(), 1);
}

#[tokio::test]
async fn two_downloaders_as_in_two_processes_make_one_request() {
    let gate = Arc::new(Semaphore::new(0));
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(Remote { gate: Some((1_000, Arc::clone(&gate))), ..remote.clone() }).await;
    let (download, other) = (bench.download(), downloads(1));
    let (progress, mut seen) = ProgressSender::channel();
    let first = bench.downloads.fetch(&download, &progress);
    let second = async {
        seen.wait_for(|progress| progress.done == 1_000).await.unwrap();
        let (progress, mut seen) = ProgressSender::channel();
        let waiting = other.fetch(&download, &progress);
        let release = async {
            seen.wait_for(|progress| progress.step.starts_with("another process")).await.unwrap();
            gate.add_permits(1);
        };
        tokio::join!(waiting, release).0
    };
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    second.unwrap();
    bench.assert_complete(&remote.bytes);
    assert_eq!(bench.hub.seen("/file").len(), 1);
}

#[tokio::test]
async fn a_server_that_ignores_ranges_is_started_over_cleanly() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(Remote { cut: Some(1_000_000), ..remote.clone() }).await;
    let download = Download { sha256: Some(remote.sha256()), ..bench.download() };
    bench.fetch(&download).await.unwrap_err();
    bench.hub.change("/file", |file| (file.cut, file.ranges) = (None, false));
    bench.fetch(&download).await.unwrap();
    bench.assert_complete(&remote.bytes);
}

#[tokio::test]
async fn a_file_that_changed_meanwhile_is_started_over() {
    // Once the server notices by If-Range, once it serves the range of the new file as if nothing had happened.
    for if_range in [true, false] {
        let bench = Bench::new(Remote { cut: Some(1_000_000), ..Remote::new(noise(LENGTH)) }).await;
        bench.fetch(&bench.download()).await.unwrap_err();
        let newer = noise(LENGTH + 5)[5..].to_vec();
        bench.hub.put("/file", Remote { etag: Some("\"two\""), if_range, ..Remote::new(newer.clone()) });
        downloads(2).fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap();
        bench.assert_complete(&newer);
    }
}

#[tokio::test]
async fn a_part_that_nothing_can_vouch_for_is_not_continued() {
    let remote = Remote { etag: None, ..Remote::new(noise(LENGTH)) };
    let bench = Bench::new(Remote { cut: Some(1_000_000), ..remote.clone() }).await;
    bench.fetch(&bench.download()).await.unwrap_err();
    bench.hub.put("/file", remote.clone());
    bench.fetch(&bench.download()).await.unwrap();
    assert_eq!(bench.hub.seen("/file").pop().unwrap().range, None);
    bench.assert_complete(&remote.bytes);
}

#[tokio::test]
async fn a_wrong_digest_is_refused_and_the_bytes_are_thrown_away() {
    let bench = Bench::new(Remote::new(noise(LENGTH))).await;
    let download = Download { sha256: Some("00".repeat(32)), ..bench.download() };
    assert!(matches!(bench.fetch(&download).await, Err(DownloadError::Digest { .. })));
    assert!(!bench.target().exists());
    assert_eq!(fs::metadata(bench.folder.path().join("file.part")).unwrap().len(), 0);
}

#[tokio::test]
async fn a_damaged_first_piece_is_found_by_the_digest_and_fetched_again() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(Remote { cut: Some(1_000_000), ..remote.clone() }).await;
    let download = Download { sha256: Some(remote.sha256()), ..bench.download() };
    bench.fetch(&download).await.unwrap_err();
    let part = bench.folder.path().join("file.part");
    let mut bytes = fs::read(&part).unwrap();
    bytes[10] ^= 1;
    fs::write(&part, bytes).unwrap();
    bench.hub.change("/file", |file| file.cut = None);
    downloads(2).fetch(&download, &ProgressSender::ignored()).await.unwrap();
    bench.assert_complete(&remote.bytes);
}

#[tokio::test]
async fn a_damaged_target_is_fetched_again() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(remote.clone()).await;
    fs::write(bench.target(), b"damaged").unwrap();
    bench.fetch(&Download { sha256: Some(remote.sha256()), ..bench.download() }).await.unwrap();
    bench.assert_complete(&remote.bytes);
}

#[tokio::test]
async fn a_complete_part_is_finished_without_its_bytes_being_sent_again() {
    let remote = Remote::new(noise(1_000));
    for (sha256, length) in [(Some(remote.sha256()), 1_000), (None, 1_000), (Some(remote.sha256()), 1_500)] {
        let bench = Bench::new(remote.clone()).await;
        let mut bytes = remote.bytes.to_vec();
        bytes.resize(length, 0);
        fs::write(bench.folder.path().join("file.part"), bytes).unwrap();
        let note = serde_json::json!({"etag": "\"one\"", "last_modified": null, "size": null, "sha256": sha256});
        fs::write(bench.folder.path().join("file.part.json"), note.to_string()).unwrap();
        let download = Download { sha256, ..bench.download() };
        downloads(2).fetch(&download, &ProgressSender::ignored()).await.unwrap();
        bench.assert_complete(&remote.bytes);
        let statuses = bench.hub.seen("/file").len();
        assert_eq!(statuses, if length == 1_000 { 1 } else { 2 }, "an answer of 416 settles a complete part and restarts any other");
    }
}

#[tokio::test]
async fn a_source_that_lies_about_the_length_is_refused() {
    let bench = Bench::new(Remote::new(noise(LENGTH))).await;
    let download = Download { expected_size: Some(17), ..bench.download() };
    assert!(matches!(bench.fetch(&download).await, Err(DownloadError::Size { expected: 17, .. })));
    assert!(!bench.target().exists());
}

#[tokio::test]
async fn an_answer_that_always_breaks_off_fails_after_the_configured_tries() {
    let bench = Bench::new(Remote { cut: Some(0), ..Remote::new(noise(LENGTH)) }).await;
    let error = downloads(3).fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Request { .. }), "{error:?}");
    assert_eq!(bench.hub.seen("/file").len(), 3);
}

#[tokio::test]
async fn tries_that_bring_new_bytes_do_not_count_against_the_limit() {
    let remote = Remote::new(noise(4 * LENGTH));
    let bench = Bench::new(Remote { cut: Some(2 << 20), ..remote.clone() }).await;
    downloads(2).fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap();
    bench.assert_complete(&remote.bytes);
    let tries = bench.hub.seen("/file").len();
    assert!(tries > 4, "{tries}");
}

#[tokio::test]
async fn a_server_that_goes_silent_is_given_up_and_what_came_is_kept() {
    let remote = Remote::new(noise(LENGTH));
    let bench = Bench::new(Remote { gate: Some((500_000, Arc::new(Semaphore::new(0)))), ..remote.clone() }).await;
    let mut patient = downloads(1);
    patient.limits.stall = Duration::from_secs(1);
    let error = patient.fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Stalled { .. }), "{error:?}");
    assert_eq!(fs::metadata(bench.folder.path().join("file.part")).unwrap().len(), 500_000);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_a_missing_file_is_not() {
    let remote = Remote::new(noise(1_000));
    let bench = Bench::new(Remote { failures: vec![429, 503], ..remote.clone() }).await;
    downloads(3).fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap();
    bench.assert_complete(&remote.bytes);

    let absent = Download::new(bench.hub.url("/absent"), bench.folder.path().join("absent"));
    let error = downloads(3).fetch(&absent, &ProgressSender::ignored()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Status { status: 404, .. }), "{error:?}");
    assert_eq!(bench.hub.seen("/absent").len(), 1);
}

#[tokio::test]
async fn a_token_goes_to_the_host_it_is_for_and_stays_behind_on_a_redirect() {
    let (elsewhere, remote) = (Hub::start().await, Remote::new(noise(1_000)));
    elsewhere.put("/blob?signature=1", remote.clone());
    let bench = Bench::new(Remote { token: Some("secret"), redirect: Some(elsewhere.url("/blob?signature=1")), ..remote.clone() }).await;
    let error = bench.fetch(&bench.download()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Status { status: 401, .. }), "{error}");
    bench.fetch(&Download { token: Some("secret".into()), ..bench.download() }).await.unwrap();
    bench.assert_complete(&remote.bytes);
    assert_eq!(bench.hub.seen("/file")[1].authorization.as_deref(), Some("Bearer secret"));
    assert_eq!(elsewhere.seen("/blob?signature=1")[0].authorization, None);
}

#[tokio::test]
async fn no_byte_is_written_where_the_file_does_not_fit() {
    let bench = Bench::new(Remote::new(noise(LENGTH))).await;
    let mut cramped = downloads(3);
    cramped.limits.free_space = |_| Ok(LENGTH as u64 - 1);
    let error = cramped.fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap_err();
    assert!(matches!(error, DownloadError::DiskFull { need, .. } if need == LENGTH as u64), "{error:?}");
    assert_eq!(fs::metadata(bench.folder.path().join("file.part")).unwrap().len(), 0);
    assert!(matches!(cramped.check_space(bench.folder.path(), LENGTH as u64).await, Err(DownloadError::DiskFull { .. })));
    cramped.limits.free_space = |_| Ok(LENGTH as u64);
    cramped.fetch(&bench.download(), &ProgressSender::ignored()).await.unwrap();
}

#[test]
fn a_download_shown_in_a_log_has_no_token() {
    let download = Download { token: Some("secret".into()), ..Download::new("https://host/file?signature=hidden", "/x") };
    let shown = format!("{download:?}");
    assert!(!shown.contains("secret") && !shown.contains("hidden"), "{shown}");
}
