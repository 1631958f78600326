//! The engine store: finds, fetches, proves and keeps builds of engines.
//!
//! A build counts only after it has generated a token on this host, and the one before stays until then. Sources are
//! tried in order (an operator's program, official releases, pip packages; a source build on request), each that
//! does not work is skipped with its reason, and nothing that fails there touches a build that is installed. Where a
//! build is active, `ensure` asks no network, starts no process and does not measure the host.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lifeboat_engines::host::HostFacts;
use lifeboat_engines::spec::{Build, EngineKind};
use parking_lot::Mutex;

use crate::config::Config;
use crate::download::{Downloads, SharedWork};
use crate::engine_process::child::EngineChild;
use crate::models::Models;
use crate::progress::ProgressSender;

pub use error::EnginesError;
pub use record::{BuildSource, Proof};
pub use view::{CandidateView, InstallRequest, InstalledBuild};

use error::blocking;
use install::Wish;
use record::Record;
use shelf::Shelf;

mod compile;
mod error;
mod inspect;
mod install;
mod make;
mod prove;
mod record;
mod release;
mod shelf;
mod unpack;
mod view;

/// The id of the simulated engine's build, which is this program itself.
pub const SIM_BUILD: &str = "sim-builtin";
/// The candidate that stands for the operator's own program.
const PATH_CANDIDATE: &str = "path";
/// The candidate that is compiled here.
const SOURCE_CANDIDATE: &str = "source";
/// Kinds whose builds are installed.
const INSTALLED_KINDS: [EngineKind; 1] = [EngineKind::LlamaCpp];

/// The engine store of one data directory. Clones share it.
#[derive(Debug, Clone)]
pub struct Engines(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Shelf,
    config: Arc<Config>,
    downloads: Downloads,
    models: Models,
    /// Measures this machine. Blocking.
    host: fn() -> HostFacts,
    /// Held while a build of a kind is installed, switched or removed.
    locks: HashMap<EngineKind, tokio::sync::Mutex<()>>,
    /// Installations that rows wait for, by kind.
    ensuring: SharedWork<EngineKind, Result<Arc<Build>, EnginesError>>,
    /// Builds that were handed out, by id, so that a launch reads no file twice.
    known: Mutex<HashMap<String, Arc<Build>>>,
}

impl Engines {
    /// The store of a data directory. Touches nothing yet. `host` measures this machine and may block.
    pub fn new(config: Arc<Config>, downloads: Downloads, models: Models, host: fn() -> HostFacts) -> Self {
        let locks = INSTALLED_KINDS.into_iter().map(|kind| (kind, tokio::sync::Mutex::default())).collect();
        Self(Arc::new(Inner {
            shelf: Shelf::new(&config.data_dir),
            config,
            downloads,
            models,
            host,
            locks,
            ensuring: SharedWork::default(),
            known: Mutex::default(),
        }))
    }

    /// Removes what an installation left behind that was killed, its engine included. Called once at start.
    pub async fn clean(&self) {
        for kind in INSTALLED_KINDS {
            let Ok(_lock) = self.0.lock(kind).await else { continue };
            if let Err(error) = self.0.clean(kind).await {
                tracing::warn!(%error, "could not clean up the engine store");
            }
        }
    }

    /// The build to launch: the pinned one, else the active one, else the best candidate is installed,
    /// proved and activated first. Concurrent callers share one installation.
    pub async fn ensure(&self, engine: EngineKind, pinned: Option<&str>, progress: &ProgressSender) -> Result<Arc<Build>, EnginesError> {
        if engine == EngineKind::Sim {
            return self.0.simulated().map(Arc::new);
        }
        if let Some(id) = pinned {
            return self.0.usable(engine, id).await;
        }
        if self.0.untried_program(engine).await?.is_none()
            && let Some(build) = self.0.active_build(engine).await?
        {
            return Ok(build);
        }
        let inner = Arc::clone(&self.0);
        let work = |progress| async move { inner.install_best(engine, &progress).await };
        self.0.ensuring.run(engine, progress, work).await
    }

    /// Every build that is here, failed ones included.
    pub async fn list(&self) -> Result<Vec<InstalledBuild>, EnginesError> {
        let inner = Arc::clone(&self.0);
        let mut builds = blocking(move || {
            INSTALLED_KINDS
                .into_iter()
                .flat_map(|kind| inner.shelf.list(kind).into_iter().map(|record| inner.show(record)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        })
        .await?;
        builds.push(InstalledBuild {
            build: self.0.simulated()?,
            source: BuildSource::Builtin,
            origin: "part of lifeboat".to_owned(),
            sha256: None,
            installed_at: None,
            size_bytes: 0,
            active: true,
            previous: false,
            proof: Proof::NotNeeded,
        });
        Ok(builds)
    }

    /// Every way to get a build of a kind, best first, each that is not taken with its reason. Asks no network.
    pub async fn candidates(&self, engine: EngineKind) -> Result<Vec<CandidateView>, EnginesError> {
        Ok(install::candidates(self.0.host, engine).await?.into_iter().map(|candidate| self.0.view(candidate)).collect())
    }

    /// Installs a build, proves it and makes it the active one. One that is here already is only made active.
    pub async fn install(&self, request: InstallRequest, progress: &ProgressSender) -> Result<InstalledBuild, EnginesError> {
        let kind = request.engine.unwrap_or(EngineKind::LlamaCpp);
        let only = match (&request.path, request.from_source) {
            (Some(_), _) => Some(PATH_CANDIDATE.to_owned()),
            (None, true) => Some(SOURCE_CANDIDATE.to_owned()),
            (None, false) => request.candidate,
        };
        let path = request.path.or_else(|| self.0.config.sources.llama_server.clone());
        let wish = Wish { only, tag: request.version, path, again: true };
        let _lock = self.0.lock(kind).await?;
        let id = install::run(&self.0, kind, &wish, progress).await?;
        self.0.installed(kind, &id).await
    }

    /// Makes an installed build the active one of its kind.
    pub async fn activate(&self, id: &str) -> Result<InstalledBuild, EnginesError> {
        let kind = self.0.kind_of(id).await?;
        let _lock = self.0.lock(kind).await?;
        self.0.usable(kind, id).await?;
        self.0.activate(kind, id).await?;
        self.0.installed(kind, id).await
    }

    /// Goes back to the build that was active before; called twice, it returns to where it was.
    pub async fn rollback(&self, engine: EngineKind) -> Result<InstalledBuild, EnginesError> {
        let _lock = self.0.lock(engine).await?;
        let inner = Arc::clone(&self.0);
        let previous = blocking(move || inner.shelf.active(engine).previous).await?;
        let id = previous.ok_or(EnginesError::NoPrevious { engine })?;
        self.0.usable(engine, &id).await?;
        self.0.activate(engine, &id).await?;
        self.0.installed(engine, &id).await
    }

    /// Deletes a build, or the record of a failed one. The active one and one that a row pins stay; `pinned_by` names
    /// the rows that pin it.
    pub async fn remove(&self, id: &str, pinned_by: &[String]) -> Result<(), EnginesError> {
        let kind = self.0.kind_of(id).await?;
        let _lock = self.0.lock(kind).await?;
        if let Some(row) = pinned_by.first() {
            return Err(EnginesError::InUse { id: id.to_owned(), by: format!("pinned by the row `{row}`") });
        }
        let (inner, id) = (Arc::clone(&self.0), id.to_owned());
        blocking(move || {
            let mut active = inner.shelf.active(kind);
            if active.active.as_ref() == Some(&id) {
                let by = "the active one; `lifeboat engine use` or `rollback` first".to_owned();
                return Err(EnginesError::InUse { id, by });
            }
            if active.previous.as_ref() == Some(&id) {
                active.previous = None;
                inner.shelf.set_active(kind, &active)?;
            }
            inner.known.lock().remove(&id);
            inner.shelf.remove(kind, &id)
        })
        .await?
    }
}

impl Inner {
    async fn lock(&self, kind: EngineKind) -> Result<tokio::sync::MutexGuard<'_, ()>, EnginesError> {
        Ok(self.locks.get(&kind).ok_or(EnginesError::NotManaged { engine: kind })?.lock().await)
    }

    fn simulated(&self) -> Result<Build, EnginesError> {
        let program = self.config.supervisor.guard_program.clone().map_or_else(crate::guard::own_program, Ok);
        let program = program.map_err(EnginesError::io("find", std::path::Path::new("this program")))?;
        Ok(Build {
            id: SIM_BUILD.to_owned(),
            engine: EngineKind::Sim,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program,
            prefix_args: vec!["sim-engine".to_owned()],
            env: vec![],
            flags: vec![],
            devices: vec![],
            takes_slot: true,
        })
    }

    async fn find(self: &Arc<Self>, kind: EngineKind, id: &str) -> Result<Option<Record>, EnginesError> {
        let (inner, id) = (Arc::clone(self), id.to_owned());
        blocking(move || inner.shelf.find(kind, &id)).await
    }

    /// A build that may be launched.
    async fn usable(self: &Arc<Self>, kind: EngineKind, id: &str) -> Result<Arc<Build>, EnginesError> {
        if let Some(build) = self.known.lock().get(id).filter(|build| build.engine == kind) {
            return Ok(Arc::clone(build));
        }
        let record = self.find(kind, id).await?.ok_or_else(|| EnginesError::NotInstalled { id: id.to_owned() })?;
        if let Proof::Failed { cause, .. } = record.proof {
            return Err(EnginesError::NotUsable { id: id.to_owned(), cause });
        }
        let build = Arc::new(record.build);
        self.known.lock().insert(id.to_owned(), Arc::clone(&build));
        Ok(build)
    }

    /// The active build, if there is one that may be launched.
    async fn active_build(self: &Arc<Self>, kind: EngineKind) -> Result<Option<Arc<Build>>, EnginesError> {
        let inner = Arc::clone(self);
        let Some(id) = blocking(move || inner.shelf.active(kind).active).await? else { return Ok(None) };
        match self.usable(kind, &id).await {
            Ok(build) => Ok(Some(build)),
            Err(error) => {
                tracing::warn!(engine.build = id, %error, "the active engine build is gone");
                Ok(None)
            }
        }
    }

    /// The operator's own program, if it is set and has never been tried as it is now.
    async fn untried_program(self: &Arc<Self>, kind: EngineKind) -> Result<Option<PathBuf>, EnginesError> {
        let Some(program) = self.config.sources.llama_server.clone().filter(|_| kind == EngineKind::LlamaCpp) else { return Ok(None) };
        let folders = self.shelf.clone();
        blocking(move || {
            let known = make::path_build_id(kind, &program).is_ok_and(|id| folders.find(kind, &id).is_some());
            (!known).then_some(program)
        })
        .await
    }

    /// The operator's program first, where it is new; then what is active; then the best of all candidates.
    async fn install_best(self: &Arc<Self>, kind: EngineKind, progress: &ProgressSender) -> Result<Arc<Build>, EnginesError> {
        let _lock = self.lock(kind).await?;
        let mut tried = Vec::new();
        if let Some(path) = self.untried_program(kind).await? {
            let wish = Wish { only: Some(PATH_CANDIDATE.to_owned()), path: Some(path), ..Wish::default() };
            match install::run(self, kind, &wish, progress).await {
                Ok(id) => return self.usable(kind, &id).await,
                Err(error) => {
                    tracing::warn!(%error, "the operator's own engine (sources.llama_server) does not work");
                    tried.push(error.to_string());
                }
            }
        }
        // It may also have been installed by somebody else while this one waited for the lock.
        if let Some(build) = self.active_build(kind).await? {
            return Ok(build);
        }
        match install::run(self, kind, &Wish::default(), progress).await {
            Ok(id) => self.usable(kind, &id).await,
            Err(EnginesError::NoneUsable { engine, tried: others }) => {
                tried.extend(others);
                Err(EnginesError::NoneUsable { engine, tried })
            }
            Err(error) => Err(error),
        }
    }

    async fn activate(self: &Arc<Self>, kind: EngineKind, id: &str) -> Result<(), EnginesError> {
        let (inner, id) = (Arc::clone(self), id.to_owned());
        blocking(move || {
            let active = inner.shelf.active(kind);
            let next = active.switched_to(&id);
            if next == active { Ok(()) } else { inner.shelf.set_active(kind, &next) }
        })
        .await?
    }

    /// Ends engines of proofs that a kill interrupted and removes unfinished folders. With the kind's lock held.
    async fn clean(self: &Arc<Self>, kind: EngineKind) -> Result<(), EnginesError> {
        let inner = Arc::clone(self);
        for run in blocking(move || inner.shelf.unfinished_proofs(kind)).await? {
            if let Some(engine) = EngineChild::adopt(&prove::run_folder(&run)).await {
                engine.kill().await;
            }
        }
        let inner = Arc::clone(self);
        blocking(move || inner.shelf.clean(kind)).await
    }

    async fn kind_of(self: &Arc<Self>, id: &str) -> Result<EngineKind, EnginesError> {
        for kind in INSTALLED_KINDS {
            if self.find(kind, id).await?.is_some() {
                return Ok(kind);
            }
        }
        Err(EnginesError::NotInstalled { id: id.to_owned() })
    }

    async fn installed(self: &Arc<Self>, kind: EngineKind, id: &str) -> Result<InstalledBuild, EnginesError> {
        let record = self.find(kind, id).await?.ok_or_else(|| EnginesError::NotInstalled { id: id.to_owned() })?;
        let inner = Arc::clone(self);
        blocking(move || inner.show(record)).await
    }
}
