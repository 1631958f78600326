//! Makes a build out of a recipe, in a folder of its own that nobody sees yet: fetch, verify, unpack, describe.
//!
//! What comes out has every file it needs and says how it is started; whether it runs here is the next question.

use std::fs;
use std::path::{Path, PathBuf};

use lifeboat_engines::catalog::{PipStart, Source, SourceBuild, pick_asset};
use lifeboat_engines::host::HostFacts;
use lifeboat_engines::spec::{Build, EngineKind};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::compile;
use super::error::{EnginesError, blocking};
use super::record::{BuildSource, HERE};
use super::release::{Asset, LookupError, Release, ReleaseSite};
use super::shelf::Shelf;
use super::unpack::{CAPS, unpack};
use crate::causes::chain;
use crate::config::SourcesConfig;
use crate::download::{Download, Downloads};
use crate::host::pip::{Pip, PipRequirement};
use crate::progress::ProgressSender;

/// The program inside the wheel of the library kind.
const LAUNCHER: &str = include_str!("launcher.py");
/// The program we look for in an archive.
const SERVER: &str = "llama-server";
/// Until the build has told its own.
pub(super) const UNKNOWN_VERSION: &str = "unknown";
/// How deep it may lie.
const DEPTH: u32 = 6;
/// An archive of binaries unpacks to about three times its size.
const UNPACKED_TIMES: u64 = 3;
/// Disk that a wheel and its unpacked copy take together, bytes; the largest known one is 70 MB packed.
const WHEEL_BYTES: u64 = 400 << 20;

/// A build that was made and has not proved itself.
#[derive(Debug)]
pub(super) struct Made {
    pub staged: TempDir,
    /// With placeholders; `flags` and `devices` are not known yet.
    pub build: Build,
    pub source: BuildSource,
    pub origin: String,
    pub sha256: Option<String>,
}

/// What making needs of the rest.
#[derive(Debug)]
pub(super) struct Maker<'a> {
    pub kind: EngineKind,
    pub shelf: &'a Shelf,
    pub downloads: &'a Downloads,
    pub sources: &'a SourcesConfig,
    pub host: &'a HostFacts,
    pub progress: &'a ProgressSender,
    /// The release that was asked for; the newest one otherwise.
    pub tag: Option<&'a str>,
    /// Looked up once for all candidates of one installation.
    pub release: OnceCell<Result<Release, LookupError>>,
}

/// What will be made, as far as it can be told before anything is fetched.
#[derive(Debug)]
pub(super) struct Outline {
    /// Id of the build to be.
    pub id: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Path { program: PathBuf },
    Release { tag: String, asset: Asset, companion: Option<Asset> },
    Pip { requirement: PipRequirement, start: PipStart },
    Source(SourceBuild),
}

impl Maker<'_> {
    /// Finds out what a source means today. Asks the network only for releases. `path` is the operator's program.
    pub async fn outline(&self, source: &Source, path: Option<&Path>) -> Result<Outline, String> {
        let kind = self.kind;
        match source {
            Source::Path => {
                let given = path.ok_or("no program was named")?.to_owned();
                let (program, stamp) = lost(blocking(move || identify(&given)).await)??;
                Ok(Outline { id: format!("{kind}-path-{stamp}"), what: What::Path { program } })
            }
            Source::Release(source) => {
                let site = ReleaseSite::new(self.downloads.http().clone(), self.sources);
                let found = self.release.get_or_init(|| {
                    self.progress.step("looking up llama.cpp releases", None, false);
                    site.find(self.tag)
                });
                let release = found.await.as_ref().map_err(|error| chain(error))?;
                let picked = pick_asset(source, &release.tag, release.assets.iter().map(|asset| asset.name.as_str()))?;
                let asset = named(release, &picked.asset)?;
                let companion = picked.companion.map(|name| named(release, &name)).transpose()?;
                let id = format!("{kind}-release-{}-{}", release.tag, variant(&asset.name));
                Ok(Outline { id, what: What::Release { tag: release.tag.clone(), asset, companion } })
            }
            Source::Pip(pip) => {
                let sha256s = pip.sha256s().map(str::to_owned).collect();
                let requirement = PipRequirement { name: pip.package.clone(), version: pip.version.clone(), sha256s };
                let id = format!("{kind}-pip-{}-{}", pip.package, pip.version);
                Ok(Outline { id, what: What::Pip { requirement, start: pip.start } })
            }
            Source::Source(build) => Ok(Outline { id: format!("{kind}-source-{}", build.version), what: What::Source(build.clone()) }),
            Source::BuiltIn => Err("it is a part of Lifeboat and needs no installation".to_owned()),
        }
    }

    /// Makes it.
    pub async fn make(&self, outline: Outline) -> Result<Made, String> {
        let (folders, kind) = (self.shelf.clone(), self.kind);
        let staged = lost(blocking(move || folders.stage(kind)).await)?.map_err(|error| chain(&error))?;
        let Outline { id, what } = outline;
        match what {
            What::Path { program } => {
                let beside = program.parent().map(Path::to_owned).unwrap_or_default();
                let origin = program.display().to_string();
                let build = self.describe(id, UNKNOWN_VERSION, program, vec![], library_path(&beside.to_string_lossy()));
                Ok(Made { staged, build, source: BuildSource::Path, origin, sha256: None })
            }
            What::Release { tag, asset, companion } => self.make_release(id, staged, tag, asset, companion).await,
            What::Pip { requirement, start } => self.make_pip(id, staged, requirement, start).await,
            What::Source(source) => self.make_source(id, staged, source).await,
        }
    }

    async fn make_release(&self, id: String, staged: TempDir, tag: String, asset: Asset, companion: Option<Asset>) -> Result<Made, String> {
        let (folders, kind) = (self.shelf.clone(), self.kind);
        let folder = lost(blocking(move || folders.downloads(kind)).await)?.map_err(|error| chain(&error))?;
        let sizes = asset.size.saturating_add(companion.as_ref().map_or(0, |companion| companion.size));
        self.check_space(&folder, sizes.saturating_mul(1 + UNPACKED_TIMES)).await?;
        let (origin, sha256) = (asset.name.clone(), asset.sha256.clone());
        let archive = self.fetch(&folder, &asset).await?;
        let runtime = match &companion {
            Some(companion) => Some(self.fetch(&folder, companion).await?),
            None => None,
        };
        self.progress.step(format!("unpacking {origin}"), None, false);
        let root = staged.path().to_owned();
        let program = lost(blocking(move || lay_out(&archive, runtime.as_deref(), &root)).await)??;
        let home = program.parent().map(|folder| Path::new(HERE).join(folder)).unwrap_or_default();
        let env = library_path(&home.to_string_lossy());
        let build = self.describe(id, &tag, Path::new(HERE).join(&program), vec![], env);
        Ok(Made { staged, build, source: BuildSource::Release, origin, sha256 })
    }

    async fn make_pip(&self, id: String, staged: TempDir, requirement: PipRequirement, start: PipStart) -> Result<Made, String> {
        self.check_space(staged.path(), WHEEL_BYTES).await?;
        let pip = Pip::find(self.sources).await.map_err(|error| chain(&error))?;
        pip.install(&requirement, &staged.path().join("lib"), self.progress).await.map_err(|error| chain(&error))?;
        let build = match start {
            PipStart::Launcher => {
                let script = staged.path().join("launcher.py");
                tokio::fs::write(&script, LAUNCHER).await.map_err(|error| format!("cannot write {}: {error}", script.display()))?;
                let arguments = ["-I", "-B", &format!("{HERE}/launcher.py")].map(str::to_owned).to_vec();
                self.describe(id, &requirement.version, pip.python, arguments, vec![])
            }
            PipStart::Program => {
                let root = staged.path().to_owned();
                let program = lost(blocking(move || find_server(&root)).await)??;
                let home = program.parent().map(|folder| Path::new(HERE).join(folder)).unwrap_or_default();
                let env = library_path(&home.to_string_lossy());
                self.describe(id, &requirement.version, Path::new(HERE).join(&program), vec![], env)
            }
        };
        Ok(Made { staged, build, source: BuildSource::Pip, origin: requirement.label(), sha256: None })
    }

    async fn make_source(&self, id: String, staged: TempDir, source: SourceBuild) -> Result<Made, String> {
        self.check_space(staged.path(), compile::DISK_BYTES).await?;
        let pip = Pip::find(self.sources).await.map_err(|error| chain(&error))?;
        let work = staged.path().join("work");
        tokio::fs::create_dir(&work).await.map_err(|error| format!("cannot create {}: {error}", work.display()))?;
        let requirement =
            PipRequirement { name: source.package.clone(), version: source.version.clone(), sha256s: vec![source.sha256.clone()] };
        let archive = pip.download_source(&requirement, &work, self.progress).await.map_err(|error| chain(&error))?;
        let program = compile::run(&source, &archive, &work, self.host, self.sources.tool_stall, self.progress).await?;
        let target = staged.path().join("bin");
        let kept = target.join(SERVER);
        // Off the async threads: the tree of a compilation has thousands of files.
        lost(
            blocking(move || {
                fs::create_dir(&target)
                    .and_then(|()| fs::rename(&program, &kept))
                    .and_then(|()| fs::remove_dir_all(&work))
                    .map_err(|error| format!("cannot keep {}: {error}", program.display()))
            })
            .await,
        )??;
        let build = self.describe(id, &source.version, Path::new(HERE).join("bin").join(SERVER), vec![], vec![]);
        Ok(Made { staged, build, source: BuildSource::Source, origin: requirement.label(), sha256: Some(source.sha256) })
    }

    fn describe(&self, id: String, version: &str, program: PathBuf, prefix_args: Vec<String>, env: Vec<(String, String)>) -> Build {
        Build {
            id,
            engine: self.kind,
            version: version.to_owned(),
            program,
            prefix_args,
            env,
            flags: vec![],
            devices: vec![],
            takes_slot: true,
        }
    }

    async fn fetch(&self, folder: &Path, asset: &Asset) -> Result<PathBuf, String> {
        let Some(sha256) = &asset.sha256 else {
            return Err(format!("the release gives no digest for {}, so it cannot be verified", asset.name));
        };
        let target = folder.join(&asset.name);
        let mut download = Download::new(&asset.url, &target);
        download.sha256 = Some(sha256.clone());
        download.expected_size = Some(asset.size);
        self.downloads.fetch(&download, self.progress).await.map_err(|error| chain(&error))?;
        Ok(target)
    }

    async fn check_space(&self, folder: &Path, bytes: u64) -> Result<(), String> {
        self.downloads.check_space(folder, bytes).await.map_err(|error| chain(&error))
    }
}

fn lost<T>(result: Result<T, EnginesError>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// The asset of that name. A name becomes a path, so nothing but a plain file name is taken.
fn named(release: &Release, name: &str) -> Result<Asset, String> {
    let plain = !name.starts_with('.') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte));
    let asset = release.assets.iter().find(|asset| asset.name == name).filter(|_| plain);
    asset.cloned().ok_or_else(|| format!("release {} has a file with an unusable name", release.tag))
}

/// What tells an asset from its siblings: `ubuntu-x64` of `llama-b11434-bin-ubuntu-x64.tar.gz`.
fn variant(name: &str) -> &str {
    let bare = name.trim_end_matches(".tar.gz").trim_end_matches(".zip");
    bare.rsplit_once("-bin-").map_or(bare, |(_, variant)| variant)
}

/// Shared libraries that lie beside the program are found there whatever it was linked with.
fn library_path(folder: &str) -> Vec<(String, String)> {
    let name = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    vec![(name.to_owned(), folder.to_owned())]
}

/// The program itself, and eight characters that change when it does. Blocking.
fn identify(given: &Path) -> Result<(PathBuf, String), String> {
    let failed = |error| format!("{}: {error}", given.display());
    let program = given.canonicalize().map_err(failed)?;
    let metadata = program.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(format!("{} is no file; name the llama-server program itself", given.display()));
    }
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    let digest = Sha256::digest(format!("{}\0{}\0{}", program.display(), metadata.len(), changed.as_nanos()));
    let stamp = digest.first_chunk().copied().map_or(0, u32::from_be_bytes);
    Ok((program, format!("{stamp:08x}")))
}

/// The id that the operator's program has or would have. Blocking.
pub(super) fn path_build_id(kind: EngineKind, program: &Path) -> Result<String, String> {
    identify(program).map(|(_, stamp)| format!("{kind}-path-{stamp}"))
}

/// Unpacks the archive, and the runtime's libraries beside its programs; the server's path inside `root`. Blocking.
fn lay_out(archive: &Path, runtime: Option<&Path>, root: &Path) -> Result<PathBuf, String> {
    let unpack_into = |archive: &Path, name: &str| {
        let target = root.join(name);
        fs::create_dir(&target).map_err(|error| format!("cannot create {}: {error}", target.display()))?;
        unpack(archive, &target, CAPS).map_err(|error| chain(&error))?;
        Ok::<_, String>(target)
    };
    unpack_into(archive, "files")?;
    let program = find_server(root)?;
    if let Some(runtime) = runtime {
        let unpacked = unpack_into(runtime, "runtime")?;
        let beside = root.join(&program);
        let beside = beside.parent().unwrap_or(root);
        flatten(&unpacked, beside, DEPTH)
            .and_then(|()| fs::remove_dir_all(&unpacked))
            .map_err(|error| format!("cannot put the runtime's libraries beside the program: {error}"))?;
    }
    Ok(program)
}

/// Moves every file below `from` into `to`; what is there already stays.
fn flatten(from: &Path, to: &Path, depth: u32) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                flatten(&entry.path(), to, depth - 1)?;
            }
        } else if target.symlink_metadata().is_err() {
            fs::rename(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The server program below `root`, made executable; its path inside `root`. Blocking.
fn find_server(root: &Path) -> Result<PathBuf, String> {
    use std::os::unix::fs::PermissionsExt;
    let found = search(root, DEPTH).ok_or_else(|| format!("there is no {SERVER} in it"))?;
    fs::set_permissions(&found, fs::Permissions::from_mode(0o755)).map_err(|error| format!("{}: {error}", found.display()))?;
    found.strip_prefix(root).map(Path::to_owned).map_err(|error| error.to_string())
}

fn search(folder: &Path, depth: u32) -> Option<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
    let of_kind = |folder: bool| {
        entries.iter().filter(move |entry| entry.file_type().is_ok_and(|kind| if folder { kind.is_dir() } else { kind.is_file() }))
    };
    let here = of_kind(false).find(|entry| entry.file_name() == SERVER).map(fs::DirEntry::path);
    here.or_else(|| of_kind(true).filter(|_| depth > 0).find_map(|entry| search(&entry.path(), depth - 1)))
}
