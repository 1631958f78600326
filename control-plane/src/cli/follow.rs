//! Shows the progress of long work: a bar on a terminal, a plain line every few seconds elsewhere.
//!
//! Progress goes to the error stream, so that the output stream holds the result alone.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use tokio::time::Instant;

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::output;
use crate::progress::Progress;
use lifeboat_engines::sizing::show::size;

/// Time between two plain lines of one step.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks at a job.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Shows one piece of work, step by step.
#[derive(Debug)]
pub struct Meter {
    bar: Option<ProgressBar>,
    step: String,
    started: Instant,
    started_at: u64,
    said: Option<Instant>,
}

impl Meter {
    /// Nothing shown yet. Bars only where the error stream is a terminal.
    pub fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        Self { bar, step: String::new(), started: Instant::now(), started_at: 0, said: None }
    }

    /// Shows the latest value.
    pub fn show(&mut self, progress: &Progress) {
        if progress.step.is_empty() {
            return;
        }
        let new_step = progress.step != self.step;
        if new_step {
            self.step.clone_from(&progress.step);
            self.started = Instant::now();
            self.started_at = progress.done;
            self.said = None;
        }
        match &self.bar {
            Some(bar) => draw(bar, progress, new_step),
            None => self.say(progress),
        }
    }

    /// Takes the bar away, so that other text can follow.
    pub fn clear(&mut self) {
        self.step.clear();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            bar.reset();
        }
    }

    fn say(&mut self, progress: &Progress) {
        let complete = progress.total.is_some_and(|total| total > 0 && progress.done >= total);
        if self.said.is_some_and(|said| said.elapsed() < LINE_EVERY && !(complete && said > self.started)) {
            return;
        }
        output::remark(plain_line(progress, self.started_at, self.started.elapsed()));
        self.said = Some(Instant::now());
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

fn draw(bar: &ProgressBar, progress: &Progress, new_step: bool) {
    if new_step {
        let template = match (progress.total, progress.bytes) {
            (Some(_), true) => "{msg} [{bar:30}] {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
            (Some(_), false) => "{msg} [{bar:30}] {percent}%",
            (None, true) => "{spinner} {msg} {decimal_bytes}, {decimal_bytes_per_sec}",
            (None, false) => "{spinner} {msg} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.reset();
        bar.set_message(progress.step.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    match progress.total {
        Some(total) => bar.set_length(total),
        None => bar.unset_length(),
    }
    bar.set_position(progress.done);
    if new_step {
        // What an earlier run had fetched already must not count as speed.
        bar.reset_eta();
    }
}

/// One line of a step that began `elapsed` ago with `started_at` units done.
fn plain_line(progress: &Progress, started_at: u64, elapsed: Duration) -> String {
    let step = &progress.step;
    let rate = progress.done.saturating_sub(started_at).checked_div(elapsed.as_secs()).unwrap_or_default();
    let known_rate = rate > 0;
    let left = |total: u64| Duration::from_secs(total.saturating_sub(progress.done) / rate.max(1));
    match (progress.total, progress.bytes) {
        (Some(total), true) if known_rate => {
            format!("{step}: {} of {}, {}/s, {} left", size(progress.done), size(total), size(rate), output::duration(left(total)))
        }
        (Some(total), true) => format!("{step}: {} of {}", size(progress.done), size(total)),
        (None, true) if progress.done > 0 => format!("{step}: {}", size(progress.done)),
        (Some(total), false) if total > 0 => format!("{step}: {}%{}", progress.done.saturating_mul(100) / total, so_far(elapsed)),
        _ => format!("{step}{}", so_far(elapsed)),
    }
}

/// How long a step has gone on, once that is worth a word.
fn so_far(elapsed: Duration) -> String {
    if elapsed < LINE_EVERY { String::new() } else { format!(" ({} so far)", output::duration(elapsed)) }
}

/// Follows a job of the API to its end and gives its result. Ctrl-C stops following, not the job.
pub async fn job(api: &ApiClient, mut job: Value) -> anyhow::Result<Value> {
    let mut meter = Meter::new();
    loop {
        match job["state"].as_str() {
            Some("done") => {
                meter.clear();
                return Ok(job["result"].clone());
            }
            Some("failed") => {
                meter.clear();
                return Err(job_failure(&job["error"]).into());
            }
            _ => {}
        }
        if let Ok(progress) = serde_json::from_value::<Progress>(job["progress"].clone()) {
            meter.show(&progress);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c() => {
                meter.clear();
                return Err(Failure::new(Kind::Interrupted, "interrupted")
                    .hint("run the same command again: a server that runs goes on with it, and what was fetched stays")
                    .into());
            }
        }
        job = api.get(&format!("/api/jobs/{}", output::text(&job["id"]))).await?;
    }
}

fn job_failure(error: &Value) -> Failure {
    let message = error["message"].as_str().unwrap_or("it failed without a reason");
    let failure = Failure::new(Kind::Failed, message);
    match error["hint"].as_str() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_tells_bytes_rate_and_time_left() {
        let progress = Progress { step: "downloading m.gguf".into(), done: 30_000_000, total: Some(90_000_000), bytes: true };
        assert_eq!(plain_line(&progress, 10_000_000, Duration::from_secs(10)), "downloading m.gguf: 30 MB of 90 MB, 2 MB/s, 30 s left");
        assert_eq!(plain_line(&progress, 30_000_000, Duration::from_secs(10)), "downloading m.gguf: 30 MB of 90 MB");
    }

    #[test]
    fn a_plain_line_tells_percent_where_units_are_steps_and_the_time_where_it_takes_long() {
        let progress = Progress { step: "building".into(), done: 3, total: Some(4), bytes: false };
        assert_eq!(plain_line(&progress, 0, Duration::from_secs(10)), "building: 75% (10 s so far)");
        let progress = Progress { step: "loading".into(), done: 0, total: None, bytes: false };
        assert_eq!(plain_line(&progress, 0, Duration::ZERO), "loading");
    }
}
