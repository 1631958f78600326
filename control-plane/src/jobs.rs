//! Long work started through the API: pulls and installs, one per target.
//!
//! Asking twice for the same target gives the same job, so a page that is reloaded or a script that is run
//! again follows the work instead of doubling it. A job's result stays for a while after its end. What the
//! work is, this module does not know.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::events::Events;
use crate::host::clock::{rfc3339, unix_millis};
use crate::progress::{Progress, ProgressSender};

/// Time between two progress events of one job.
const EVENT_EVERY: Duration = Duration::from_millis(500);

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Downloads a model.
    ModelPull,
    /// Installs an engine build.
    EngineInstall,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// At work.
    Running,
    /// Ended well; `result` holds what came of it.
    Done,
    /// Ended badly or was cancelled; `error` says why.
    Failed,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobError {
    /// Stable code.
    pub code: String,
    /// For people.
    pub message: String,
    /// The cure, where there is one.
    pub hint: Option<String>,
}

/// A job as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Uuid,
    /// What it does.
    pub kind: JobKind,
    /// What it does it to: a model source, an engine and its build.
    pub target: String,
    /// Where it stands.
    pub state: JobState,
    /// How far it is.
    pub progress: Progress,
    /// What came of it.
    pub result: Option<Value>,
    /// Why it failed.
    pub error: Option<JobError>,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
}

/// Too many jobs are at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} jobs are at work already, which is the most there may be")]
pub struct Busy(usize);

#[derive(Debug)]
struct Ended {
    result: Result<Value, JobError>,
    at: i64,
}

#[derive(Debug)]
struct Job {
    id: Uuid,
    kind: JobKind,
    target: String,
    created_at: i64,
    progress: watch::Receiver<Progress>,
    ended: watch::Sender<Option<Ended>>,
    cancel: CancellationToken,
}

impl Job {
    fn view(&self) -> JobView {
        let ended = self.ended.borrow();
        let (state, result, error) = match ended.as_ref().map(|ended| &ended.result) {
            None => (JobState::Running, None, None),
            Some(Ok(result)) => (JobState::Done, Some(result.clone()), None),
            Some(Err(error)) => (JobState::Failed, None, Some(error.clone())),
        };
        JobView {
            id: self.id,
            kind: self.kind,
            target: self.target.clone(),
            state,
            progress: self.progress.borrow().clone(),
            result,
            error,
            created_at: rfc3339(self.created_at),
            ended_at: ended.as_ref().map(|ended| rfc3339(ended.at)),
        }
    }

    fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

/// A job whose task dies must not look as if it ran on for ever, or its target could never be tried again.
struct EndsItsJob(Arc<Job>);

impl Drop for EndsItsJob {
    fn drop(&mut self) {
        self.0.ended.send_if_modified(|ended| {
            let died = ended.is_none();
            if died {
                let error = JobError { code: "internal".into(), message: "the job died; the log says why".into(), hint: None };
                *ended = Some(Ended { result: Err(error), at: unix_millis() });
            }
            died
        });
    }
}

/// All jobs of this run, the oldest first.
#[derive(Debug)]
pub struct Jobs {
    all: Mutex<VecDeque<Arc<Job>>>,
    running_limit: usize,
    ended_limit: usize,
    events: Arc<Events>,
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Jobs {
    /// None yet. `token` ends all of them.
    pub fn new(running_limit: usize, ended_limit: usize, events: Arc<Events>, tracker: TaskTracker, token: CancellationToken) -> Self {
        Self { all: Mutex::default(), running_limit, ended_limit, events, tracker, token }
    }

    /// Starts work for a target, or finds the job that does it already.
    pub fn start<W, F>(&self, kind: JobKind, target: &str, work: W) -> Result<JobView, Busy>
    where
        W: FnOnce(ProgressSender) -> F,
        F: Future<Output = Result<Value, JobError>> + Send + 'static,
    {
        let mut jobs = self.all.lock();
        if let Some(job) = jobs.iter().find(|job| job.kind == kind && job.target == target && job.is_running()) {
            return Ok(job.view());
        }
        if jobs.iter().filter(|job| job.is_running()).count() >= self.running_limit {
            return Err(Busy(self.running_limit));
        }
        let (sender, progress) = ProgressSender::channel();
        let job = Arc::new(Job {
            id: Uuid::now_v7(),
            kind,
            target: target.to_owned(),
            created_at: unix_millis(),
            progress,
            ended: watch::Sender::new(None),
            cancel: self.token.child_token(),
        });
        jobs.push_back(Arc::clone(&job));
        while jobs.iter().filter(|job| !job.is_running()).count() > self.ended_limit {
            if let Some(oldest) = jobs.iter().position(|job| !job.is_running()) {
                jobs.remove(oldest);
            }
        }
        let view = job.view();
        self.tracker.spawn(run(job, Arc::clone(&self.events), work(sender)));
        Ok(view)
    }

    /// All jobs, the oldest first.
    pub fn list(&self) -> Vec<JobView> {
        self.all.lock().iter().map(|job| job.view()).collect()
    }

    /// One job.
    pub fn find(&self, id: Uuid) -> Option<JobView> {
        self.all.lock().iter().find(|job| job.id == id).map(|job| job.view())
    }

    /// Breaks a job off; what it has fetched so far stays. False if there is no such job.
    pub fn cancel(&self, id: Uuid) -> bool {
        let jobs = self.all.lock();
        let job = jobs.iter().find(|job| job.id == id);
        job.inspect(|job| job.cancel.cancel()).is_some()
    }
}

async fn run(job: Arc<Job>, events: Arc<Events>, work: impl Future<Output = Result<Value, JobError>>) {
    let _ends = EndsItsJob(Arc::clone(&job));
    let tell = || events.publish("job.changed", &job.view());
    tell();
    let mut work = std::pin::pin!(work);
    let mut shown = job.progress.borrow().clone();
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            () = job.cancel.cancelled() => {
                break Err(JobError { code: "cancelled".into(), message: "the job was cancelled".into(), hint: None });
            }
            () = tokio::time::sleep(EVENT_EVERY) => {
                let now = job.progress.borrow().clone();
                if now != shown {
                    shown = now;
                    tell();
                }
            }
        }
    };
    if let Err(error) = &result {
        tracing::warn!(job.id = %job.id, job.target = job.target, error = error.message, "a job failed");
    }
    job.ended.send_replace(Some(Ended { result, at: unix_millis() }));
    tell();
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    fn jobs(running: usize, ended: usize) -> Jobs {
        Jobs::new(running, ended, Arc::new(Events::new(16)), TaskTracker::new(), CancellationToken::new())
    }

    async fn done(jobs: &Jobs, id: Uuid) -> JobView {
        let job = jobs.all.lock().iter().find(|job| job.id == id).cloned().unwrap();
        job.ended.subscribe().wait_for(Option::is_some).await.unwrap();
        job.view()
    }

    #[tokio::test]
    async fn the_same_target_is_worked_on_once_and_anew_after_its_end() {
        let jobs = jobs(4, 4);
        let (finish, finished) = oneshot::channel::<()>();
        let first = jobs
            .start(JobKind::ModelPull, "hf:a/b", |progress| async move {
                progress.step("downloading", Some(10), true);
                finished.await.unwrap();
                Ok(json!({"bytes": 10}))
            })
            .unwrap();
        let second = jobs.start(JobKind::ModelPull, "hf:a/b", |_| async { unreachable!("it runs already") }).unwrap();
        assert_eq!(first.id, second.id);
        finish.send(()).unwrap();
        let ended = done(&jobs, first.id).await;
        assert_eq!((ended.state, ended.result), (JobState::Done, Some(json!({"bytes": 10}))));
        assert_eq!(ended.progress.step, "downloading");
        let third = jobs.start(JobKind::ModelPull, "hf:a/b", |_| async { Ok(Value::Null) }).unwrap();
        assert_ne!(first.id, third.id);
    }

    #[tokio::test]
    async fn there_is_a_limit_to_jobs_at_work_and_to_results_kept() {
        let jobs = jobs(1, 2);
        let running = jobs.start(JobKind::ModelPull, "first", |_| std::future::pending()).unwrap();
        assert_eq!(jobs.start(JobKind::ModelPull, "second", |_| async { Ok(Value::Null) }), Err(Busy(1)));
        assert!(jobs.cancel(running.id));
        let ended = done(&jobs, running.id).await;
        assert_eq!(ended.error.map(|error| error.code).as_deref(), Some("cancelled"));
        for target in ["a", "b", "c", "d"] {
            let job = jobs.start(JobKind::EngineInstall, target, |_| async { Ok(Value::Null) }).unwrap();
            done(&jobs, job.id).await;
        }
        let kept: Vec<_> = jobs.list().into_iter().map(|job| job.target).collect();
        assert_eq!(kept, ["b", "c", "d"], "two ended ones beside the newest");
        assert!(!jobs.cancel(Uuid::nil()));
    }

    #[tokio::test]
    async fn the_end_of_a_job_is_an_event() {
        let events = Arc::new(Events::new(16));
        let jobs = Jobs::new(4, 4, Arc::clone(&events), TaskTracker::new(), CancellationToken::new());
        let job = jobs.start(JobKind::ModelPull, "x", |_| async { Ok(json!(1)) }).unwrap();
        done(&jobs, job.id).await;
        let mut feed = events.follow(None);
        while !events.latest(1).iter().any(|event| event.data.get().contains("\"done\"")) {
            feed.live.recv().await.unwrap();
        }
    }
}
