//! One installation: candidates in order, each made, asked, proved; the first that gives a token becomes active.
//!
//! A candidate that fails leaves its reason and, where the build itself was at fault, a record of it, so that the
//! next start does not fetch it again at once. What is installed already stays untouched until the new build has
//! proved itself.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use lifeboat_engines::catalog::{self, Candidate, Verdict};
use lifeboat_engines::diagnose::diagnose;
use lifeboat_engines::host::HostFacts;
use lifeboat_engines::spec::{Build, EngineKind};
use tokio::sync::OnceCell;

use super::Inner;
use super::error::{EnginesError, blocking};
use super::inspect::{self, Death, InspectError};
use super::make::{Made, Maker};
use super::prove::{self, NotProved, Passed};
use super::record::{Proof, Record, placed};
use super::shelf::tree_bytes;
use crate::causes::chain;
use crate::host::clock::unix_millis;
use crate::models::LocalModel;
use crate::progress::ProgressSender;

/// What is to be installed.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    /// Only candidates of this id or source; rejected and opt-in ones then too.
    pub only: Option<String>,
    /// This release instead of the newest one.
    pub tag: Option<String>,
    /// The operator's program.
    pub path: Option<PathBuf>,
    /// Also builds that failed here a short while ago.
    pub again: bool,
}

/// How a candidate ended.
enum Outcome {
    Installed(String),
    Skipped(String),
    /// No candidate can be tried at all, and why.
    Hopeless(String),
}

/// Does it, with the kind's lock held. The id of the build that is active now.
pub(super) async fn run(inner: &Arc<Inner>, kind: EngineKind, wish: &Wish, progress: &ProgressSender) -> Result<String, EnginesError> {
    inner.clean(kind).await?;
    let measure = inner.host;
    let host = blocking(measure).await?;
    let candidates = catalog::candidates(kind, &host);
    let chosen = choose(&candidates, wish)?;
    let maker = Maker {
        kind,
        shelf: &inner.shelf,
        downloads: &inner.downloads,
        sources: &inner.config.sources,
        host: &host,
        progress,
        tag: wish.tag.as_deref(),
        release: OnceCell::new(),
    };
    let attempt = Attempt { inner, maker, wish, model: OnceCell::new() };
    let mut tried = Vec::new();
    for candidate in chosen {
        if let (None, Verdict::Rejected(reason)) = (&wish.only, &candidate.verdict) {
            // What is for other machines would only hide what matters; `engine candidates` lists it.
            if !candidate.foreign {
                tried.push(format!("{}: {reason}", candidate.id));
            }
            continue;
        }
        match attempt.candidate(candidate).await? {
            Outcome::Installed(id) => return Ok(id),
            Outcome::Skipped(reason) => {
                tracing::info!(engine.candidate = candidate.id, reason, "an engine candidate is skipped");
                tried.push(format!("{}: {reason}", candidate.id));
            }
            Outcome::Hopeless(reason) => {
                tried.push(reason);
                break;
            }
        }
    }
    match (&wish.only, tried.as_slice()) {
        (Some(name), [only]) => {
            let reason = only.strip_prefix(&format!("{name}: ")).unwrap_or(only).to_owned();
            Err(EnginesError::CandidateFailed { candidate: name.clone(), reason })
        }
        _ => Err(EnginesError::NoneUsable { engine: kind, tried }),
    }
}

/// The candidates to try: those asked for by name, else all that are not opt-in.
fn choose<'a>(candidates: &'a [Candidate], wish: &Wish) -> Result<Vec<&'a Candidate>, EnginesError> {
    let Some(name) = &wish.only else {
        let wanted = |candidate: &&Candidate| !matches!(candidate.verdict, Verdict::OptIn(_));
        return Ok(candidates.iter().filter(wanted).collect());
    };
    if let Some(candidate) = candidates.iter().find(|candidate| candidate.id == *name) {
        return Ok(vec![candidate]);
    }
    let known = candidates.iter().map(|candidate| candidate.id.clone()).collect();
    Err(EnginesError::NoSuchCandidate { name: name.clone(), known })
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    maker: Maker<'a>,
    wish: &'a Wish,
    /// Found once, before the first build is fetched.
    model: OnceCell<Result<Arc<LocalModel>, String>>,
}

impl Attempt<'_> {
    async fn candidate(&self, candidate: &Candidate) -> Result<Outcome, EnginesError> {
        let outline = match self.maker.outline(&candidate.source, self.wish.path.as_deref()).await {
            Ok(outline) => outline,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        };
        let (kind, id) = (self.maker.kind, outline.id.clone());
        if let Some(record) = self.inner.find(kind, &id).await? {
            match &record.proof {
                Proof::Failed { at, cause, lasting: true } if !self.wish.again && self.is_recent(*at) => {
                    return Ok(Outcome::Skipped(format!(
                        "{cause} (tried at {at}; `lifeboat engine install {}` tries again)",
                        candidate.id
                    )));
                }
                Proof::Failed { .. } => {}
                Proof::Passed { .. } | Proof::NotNeeded => {
                    self.inner.activate(kind, &id).await?;
                    return Ok(Outcome::Installed(id));
                }
            }
        }
        let progress = self.maker.progress;
        let model = match self.model.get_or_init(|| prove::model(&self.inner.models, progress)).await {
            Ok(model) => Arc::clone(model),
            Err(reason) => return Ok(Outcome::Hopeless(reason.clone())),
        };
        let mut made = match self.maker.make(outline).await {
            Ok(made) => made,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        };
        progress.step(format!("proving {id} with {}", model.source), None, false);
        match self.prove(&mut made, candidate, &model).await? {
            Ok(passed) => {
                self.keep(made, passed).await?;
                self.inner.activate(kind, &id).await?;
                Ok(Outcome::Installed(id))
            }
            Err(Unproved::AtFault { cause, lasting }) => {
                tracing::warn!(engine.build = id, cause, "an engine build does not work here");
                self.bury(made, cause.clone(), lasting).await?;
                Ok(Outcome::Skipped(cause))
            }
            Err(Unproved::NotTried(reason)) => Ok(Outcome::Skipped(format!("it could not be tried: {reason}"))),
        }
    }

    fn is_recent(&self, at: Timestamp) -> bool {
        let age = unix_millis().saturating_sub(at.as_millisecond());
        u128::try_from(age).is_ok_and(|age| age < self.inner.config.sources.retry_failed_build.as_millis())
    }

    /// Asks the build about itself and for a token. Its flags, devices and version are filled in.
    async fn prove(&self, made: &mut Made, candidate: &Candidate, model: &LocalModel) -> Result<Result<Passed, Unproved>, EnginesError> {
        let (inner, host) = (self.inner, self.maker.host);
        let folder = made.staged.path().to_owned();
        let told = match inspect::ask(&made.build, &folder).await {
            Ok(told) => told,
            Err(InspectError::Died(death)) => return Ok(Err(Unproved::by(&death, &made.build, host))),
            Err(error @ InspectError::Tool(_)) => return Ok(Err(Unproved::at_fault(chain(&error)))),
        };
        (made.build.flags, made.build.devices) = (told.flags, told.devices);
        if made.build.version == super::make::UNKNOWN_VERSION
            && let Some(version) = told.version
        {
            made.build.version = version;
        }
        if candidate.accelerated && made.build.devices.is_empty() {
            let cause = "it sees no accelerator (the driver's libraries are missing, or too old for it)".to_owned();
            return Ok(Err(Unproved::at_fault(cause)));
        }
        let (folders, kind) = (inner.shelf.clone(), self.maker.kind);
        let traces = blocking(move || folders.proof_folder(kind)).await??;
        let build = placed(&made.build, &folder);
        Ok(match prove::run(&build, model, host, &inner.config, traces.path()).await {
            Ok(passed) => {
                made.build.takes_slot = passed.takes_slot;
                Ok(passed)
            }
            Err(NotProved::Died(death)) => Err(Unproved::by(&death, &build, host)),
            Err(NotProved::Broken(cause)) => Err(Unproved::at_fault(cause)),
            Err(NotProved::NotTried(reason)) => Err(Unproved::NotTried(reason)),
        })
    }

    async fn keep(&self, made: Made, passed: Passed) -> Result<(), EnginesError> {
        let milliseconds = u64::try_from(passed.took.as_millis()).unwrap_or(u64::MAX);
        let proof = Proof::Passed { at: now(), model: passed.model, milliseconds };
        let (folders, kind) = (self.inner.shelf.clone(), self.maker.kind);
        blocking(move || {
            let record = record(&made, tree_bytes(made.staged.path()), proof);
            folders.commit(made.staged, &record)?;
            folders.drop_downloads(kind);
            Ok(())
        })
        .await?
    }

    /// Writes down that a build failed, without its files.
    async fn bury(&self, made: Made, cause: String, lasting: bool) -> Result<(), EnginesError> {
        let (folders, kind) = (self.inner.shelf.clone(), self.maker.kind);
        blocking(move || {
            let empty = folders.stage(kind)?;
            let record = record(&made, 0, Proof::Failed { at: now(), cause, lasting });
            folders.commit(empty, &record)?;
            folders.drop_downloads(kind);
            Ok(())
        })
        .await?
    }
}

/// Why a build was not proved.
enum Unproved {
    /// The build does not work here. `lasting`: nor will it, as long as the host stays what it is.
    AtFault { cause: String, lasting: bool },
    /// Nothing is known about the build.
    NotTried(String),
}

impl Unproved {
    fn at_fault(cause: String) -> Self {
        Self::AtFault { cause, lasting: true }
    }

    fn by(death: &Death, build: &Build, host: &HostFacts) -> Self {
        let found = diagnose(death.code, death.signal, &death.lines, build, host);
        let cause = if found.hint.is_empty() {
            format!("{} (run it by hand to see what it says)", found.cause)
        } else {
            format!("{} ({})", found.cause, found.hint)
        };
        Self::AtFault { cause, lasting: found.wrong_build }
    }
}

fn now() -> Timestamp {
    Timestamp::from_millisecond(unix_millis()).unwrap_or_default()
}

fn record(made: &Made, size_bytes: u64, proof: Proof) -> Record {
    Record {
        build: made.build.clone(),
        source: made.source,
        origin: made.origin.clone(),
        sha256: made.sha256.clone(),
        installed_at: now(),
        size_bytes,
        proof,
    }
}

/// Candidates of a kind as the host is now.
pub(super) async fn candidates(measure: fn() -> HostFacts, kind: EngineKind) -> Result<Vec<Candidate>, EnginesError> {
    blocking(move || catalog::candidates(kind, &measure())).await
}
