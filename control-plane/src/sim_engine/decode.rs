//! The decode loop: one task that owns the slots and spends the time.
//!
//! Time is kept as the moment the current step ends, not as pauses between steps, so that the rate is right even
//! though a timer is a millisecond coarse. Requests for `/slots` and `/metrics` wait for the step, as they do in
//! llama-server, and for ever once the loop hangs.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::args::Settings;
use super::faults::{self, FaultKind};
use super::log;
use super::slots::{Job, PoolView, ProcessFault, SlotView, Slots, Totals, duration};

/// Messages on their way to the loop; more senders wait.
const COMMANDS: usize = 1024;
/// A loop this far behind its own time (a busy machine) gives up catching up.
const MAX_LAG: Duration = Duration::from_millis(100);
/// Pause while no client reads.
const NOBODY_READS: Duration = Duration::from_millis(1);
/// From the last request's end to the end of the process, so that replies leave the sockets.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// What the loop is asked.
#[derive(Debug)]
pub enum Command {
    /// Serve this.
    Run(Job),
    /// Tell what is going on.
    Report(oneshot::Sender<Report>),
}

/// What is going on.
#[derive(Debug, Clone)]
pub struct Report {
    /// Each slot.
    pub slots: Vec<SlotView>,
    /// Requests without one.
    pub deferred: usize,
    /// The pool of blocks, where there is one.
    pub pool: Option<PoolView>,
    /// Counters.
    pub totals: Totals,
}

/// Speaks to the loop.
#[derive(Debug, Clone)]
pub struct Handle(mpsc::Sender<Command>);

impl Handle {
    /// Hands over a request. False if the loop has ended.
    pub async fn run(&self, job: Job) -> bool {
        self.0.send(Command::Run(job)).await.is_ok()
    }

    /// Asks for a report; `None` if the loop has ended.
    pub async fn report(&self) -> Option<Report> {
        let (reply, report) = oneshot::channel();
        self.0.send(Command::Report(reply)).await.ok()?;
        report.await.ok()
    }
}

/// The loop, not yet running, and the handle to it.
pub fn channel(settings: &Settings) -> (DecodeLoop, Handle) {
    let (sender, commands) = mpsc::channel(COMMANDS);
    (DecodeLoop { slots: Slots::new(settings), commands }, Handle(sender))
}

/// The loop's state.
#[derive(Debug)]
pub struct DecodeLoop {
    slots: Slots,
    commands: mpsc::Receiver<Command>,
}

impl DecodeLoop {
    /// Runs until `stop`, then waits for the clients to go.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut step_ends = Instant::now();
        while !stop.is_cancelled() {
            if self.slots.is_idle() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    command = self.commands.recv() => match command {
                        Some(command) => self.take(command),
                        None => break,
                    },
                }
                step_ends = Instant::now();
            }
            while let Ok(command) = self.commands.try_recv() {
                self.take(command);
            }
            self.slots.assign();
            let batch = self.slots.plan();
            if batch.is_empty() {
                tokio::time::sleep(NOBODY_READS).await;
                continue;
            }
            let now = Instant::now();
            step_ends = step_ends.max(now.checked_sub(MAX_LAG).unwrap_or(now)) + duration(&batch);
            if step_ends > now {
                tokio::time::sleep_until(step_ends).await;
            } else {
                tokio::task::yield_now().await;
            }
            if let Err(fault) = self.slots.perform(&batch) {
                strike(fault).await;
            }
        }
        for client in self.slots.clients() {
            client.closed().await;
        }
        tokio::time::sleep(LAST_WORDS).await;
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Run(job) => self.slots.submit(job),
            Command::Report(reply) => {
                let report = Report {
                    slots: self.slots.view(),
                    deferred: self.slots.deferred(),
                    pool: self.slots.pool(),
                    totals: self.slots.totals,
                };
                // Whoever asked may have gone.
                let _gone = reply.send(report);
            }
        }
    }
}

/// Does to the process what the fault says. Returns for none of them.
async fn strike(ProcessFault(kind): ProcessFault) {
    match kind {
        FaultKind::Crash => faults::crash(),
        FaultKind::ExitZero => faults::exit_zero(),
        FaultKind::Hang | FaultKind::Abort | FaultKind::WrongBytes | FaultKind::Error => {
            log::line("sim", "simulated hang: decoding has stopped for good");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_engine::slots::Event;
    use clap::Parser;

    fn started(flags: &[&str], stop: &CancellationToken) -> (Handle, tokio_util::task::TaskTracker) {
        let settings = Settings::try_parse_from(["sim-engine"].iter().chain(flags)).unwrap();
        let (decode, handle) = channel(&settings);
        let tracker = tokio_util::task::TaskTracker::new();
        tracker.spawn(decode.run(stop.clone()));
        tracker.close();
        (handle, tracker)
    }

    fn job(limit: u32) -> (Job, mpsc::Receiver<Event>) {
        let (out, events) = mpsc::channel(64);
        let prompt = "12345678".into();
        let job = Job { prompt, limit, id_slot: None, reuse: true, completes: true, progress: false, streamed: true, fault: None, out };
        (job, events)
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_at_the_pace_of_the_settings() {
        let stop = CancellationToken::new();
        let (handle, _tracker) = started(&["--prefill-us-per-char", "1000", "--decode-us-per-token", "250"], &stop);
        let start = Instant::now();
        let (job, mut events) = job(41);
        assert!(handle.run(job).await);
        while let Some(event) = events.recv().await {
            if matches!(event, Event::Done(_)) {
                break;
            }
        }
        // 8 ms for the prompt, 40 further tokens at 0.25 ms; timers are a millisecond coarse.
        let took = start.elapsed();
        assert!((Duration::from_millis(18)..=Duration::from_millis(20)).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_the_clients_and_decodes_no_more() {
        let stop = CancellationToken::new();
        let (handle, tracker) = started(&[], &stop);
        let (job, mut events) = job(1000);
        assert!(handle.run(job).await);
        assert!(matches!(events.recv().await, Some(Event::Started(_))));
        stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(60), tracker.wait());
        assert!(ended.await.is_err(), "the client is still there");
        drop(events);
        tokio::time::timeout(Duration::from_secs(1), tracker.wait()).await.expect("the loop ends once the client has gone");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_loop_reports_and_stops_at_once() {
        let stop = CancellationToken::new();
        let (handle, tracker) = started(&["--slots", "3"], &stop);
        let report = handle.report().await.unwrap();
        assert_eq!((report.slots.len(), report.deferred), (3, 0));
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(1), tracker.wait()).await.unwrap();
        assert!(handle.report().await.is_none());
    }
}
