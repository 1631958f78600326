//! Progress of long work (a download, a build, a load), as a watch of the latest value.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

/// Where a piece of work stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// What is being done, for people: `downloading SmolLM2-135M-Instruct.Q4_1.gguf`.
    pub step: String,
    /// Units done of the step (bytes for downloads, steps for builds).
    pub done: u64,
    /// Units in all, where known.
    pub total: Option<u64>,
    /// Whether the units are bytes.
    pub bytes: bool,
}

/// Writes progress; readers see the latest value only. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct ProgressSender(watch::Sender<Progress>);

impl ProgressSender {
    /// A sender and its first reader.
    pub fn channel() -> (Self, watch::Receiver<Progress>) {
        let (tx, rx) = watch::channel(Progress::default());
        (Self(tx), rx)
    }

    /// For callers that show nothing.
    pub fn ignored() -> Self {
        Self::channel().0
    }

    /// Another reader.
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.0.subscribe()
    }

    /// Starts a step. `bytes` tells whether its units are bytes.
    pub fn step(&self, step: impl Into<String>, total: Option<u64>, bytes: bool) {
        self.0.send_replace(Progress { step: step.into(), done: 0, total, bytes });
    }

    /// Takes over the progress of work that somebody else reports.
    pub fn replace(&self, progress: Progress) {
        self.0.send_replace(progress);
    }

    /// Sets the units done of the current step.
    pub fn set(&self, done: u64) {
        self.0.send_modify(|progress| progress.done = done);
    }
}
