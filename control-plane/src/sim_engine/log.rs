//! The one door of this process to its log, which is stderr as with llama-server.

use std::io::Write;
use std::sync::LazyLock;

use tokio::time::Instant;

/// When the first line was written; the prefix counts from there.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Writes `minutes.seconds.milliseconds.microseconds I component message`. A log nobody reads is not a reason to stop.
pub fn line(component: &str, message: &str) {
    let since = START.elapsed();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let _unwritable = writeln!(
        std::io::stderr().lock(),
        "{}.{:02}.{:03}.{:03} I {component:<4} {message}",
        seconds / 60,
        seconds % 60,
        micros / 1000,
        micros % 1000
    );
}
