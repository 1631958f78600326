//! The pip client: fetches pinned, hash-checked packages of an index into a folder of our own.
//!
//! pip is asked, not imitated, so that an operator's index, mirror, proxy and certificates (pip.conf,
//! `PIP_*`, `HTTPS_PROXY`) hold here too. Only packages whose version and digests are known beforehand
//! are fetched (`--require-hashes`), never their dependencies, and never into the system's Python.
//! Temporary files stay beside the target, so that what a kill leaves behind lies in a folder the
//! owner cleans.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::config::SourcesConfig;
use crate::host::spawn;
use crate::host::tool::{self, ToolError, ToolOutput};
use crate::progress::ProgressSender;

use meter::Meter;

mod meter;

/// Python 3.N for which packages are still published.
const OLDEST_MINOR: u32 = 10;
/// Longest a Python may take to say who it is.
const PROBE: Duration = Duration::from_secs(30);
/// Prefix of the temporary folders pip works in, so that the owner of the target's folder can clean them.
pub const TEMP_PREFIX: &str = ".pip-";

/// One package at one version, with the digests of the files that may be taken for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipRequirement {
    /// Name on the index.
    pub name: String,
    /// Exact version.
    pub version: String,
    /// SHA-256 (hex) of every file of that version that may be used: one per platform.
    pub sha256s: Vec<String>,
}

/// A Python 3 that has pip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pip {
    /// The interpreter itself, not a shim: it works without a search path.
    pub python: PathBuf,
    /// For example `3.11`.
    pub python_version: String,
    /// For example `23.2.1`.
    pub pip_version: String,
    stall: Duration,
}

/// Why pip gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum PipError {
    /// No Python 3 with pip on the search path.
    #[error("no Python 3 with pip on the search path ({}); install python3 and python3-pip", looked_at(tried))]
    NoPip {
        /// `program: reason` of each that was looked at.
        tried: Vec<String>,
    },
    /// Files around the call could not be written or read.
    #[error("could not prepare {path} for pip")]
    Files {
        /// Which.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// pip did not run to an end.
    #[error("pip did not finish")]
    Tool(#[from] ToolError),
    /// The index cannot be reached.
    #[error("the package index cannot be reached for {package}: {reason}")]
    Unreachable {
        /// Name and version.
        package: String,
        /// In pip's words.
        reason: String,
    },
    /// What was fetched is not what was pinned; nothing was installed.
    #[error("the package index served a {package} whose digest is not the pinned one; nothing was installed")]
    Digest {
        /// Name and version.
        package: String,
    },
    /// The index has no such file for this Python and platform.
    #[error("the package index has no {package} for Python {python} on this platform")]
    NoFile {
        /// Name and version.
        package: String,
        /// Version of the Python asked.
        python: String,
    },
    /// Anything else, in pip's words.
    #[error("pip failed on {package}: {reason}")]
    Failed {
        /// Name and version.
        package: String,
        /// Its error line.
        reason: String,
    },
}

fn looked_at(tried: &[String]) -> String {
    if tried.is_empty() { "none found".to_owned() } else { tried.join("; ") }
}

impl Pip {
    /// The first usable Python of [`interpreters`] that is new enough for what is published today, else the first one.
    pub async fn find(sources: &SourcesConfig) -> Result<Self, PipError> {
        let (mut tried, mut old) = (Vec::new(), None);
        for program in interpreters(&std::env::var_os("PATH").unwrap_or_default()) {
            match Self::probe(&program, sources.tool_stall).await {
                Ok(pip) if is_new_enough(&pip.python_version) => return Ok(pip),
                Ok(pip) => old = old.or(Some(pip)),
                Err(reason) => tried.push(format!("{}: {reason}", program.display())),
            }
        }
        old.ok_or(PipError::NoPip { tried })
    }

    async fn probe(program: &Path, stall: Duration) -> Result<Self, String> {
        const SCRIPT: &str = "import sys\nprint(sys.executable)\nprint('%d.%d' % sys.version_info[:2])\nimport pip\nprint(pip.__version__)";
        let mut command = python_command(program, Path::new("/"));
        command.arg("-c").arg(SCRIPT);
        let output = tool::run(command, PROBE, |_| false).await.map_err(|error| error.to_string())?;
        match output.last_lines.as_slice() {
            [executable, python_version, pip_version] if output.status.success() => Ok(Self {
                python: PathBuf::from(executable),
                python_version: python_version.clone(),
                pip_version: pip_version.clone(),
                stall,
            }),
            lines => Err(lines.last().map_or_else(|| output.status.to_string(), Clone::clone)),
        }
    }

    /// Installs the package into `target` (created; its parent must exist). On failure `target` may be
    /// half-filled: the caller removes it.
    pub async fn install(&self, requirement: &PipRequirement, target: &Path, progress: &ProgressSender) -> Result<(), PipError> {
        let parent = target.parent().unwrap_or_else(|| Path::new("."));
        let arguments = ["install", "--no-compile", "--only-binary", ":all:", "--target"].map(OsString::from);
        self.call(requirement, parent, arguments.into_iter().chain([target.as_os_str().to_owned()]), progress).await
    }

    /// Downloads the package's source archive into `folder` (which must exist) and returns its path.
    pub async fn download_source(
        &self,
        requirement: &PipRequirement,
        folder: &Path,
        progress: &ProgressSender,
    ) -> Result<PathBuf, PipError> {
        // By name, not `:all:`: pip runs the package's build backend to read its metadata, and would
        // otherwise build that backend's own tools (cmake, for one) from source too.
        let arguments = ["download", "--no-binary", &requirement.name, "--dest"].map(OsString::from);
        self.call(requirement, folder, arguments.into_iter().chain([folder.as_os_str().to_owned()]), progress).await?;
        let stem = format!("{}-{}", requirement.name.replace('-', "_"), requirement.version);
        for suffix in [".tar.gz", ".zip"] {
            for stem in [&stem, &stem.replace('_', "-")] {
                let path = folder.join(format!("{stem}{suffix}"));
                if path.is_file() {
                    return Ok(path);
                }
            }
        }
        Err(PipError::Failed { package: requirement.label(), reason: "pip left no source archive".to_owned() })
    }

    async fn call(
        &self,
        requirement: &PipRequirement,
        parent: &Path,
        arguments: impl Iterator<Item = OsString>,
        progress: &ProgressSender,
    ) -> Result<(), PipError> {
        let prepare = |path: &Path, source| PipError::Files { path: path.to_owned(), source };
        let temp = tempfile::Builder::new().prefix(TEMP_PREFIX).tempdir_in(parent).map_err(|source| prepare(parent, source))?;
        let file = temp.path().join("requirements.txt");
        std::fs::write(&file, requirement.line()).map_err(|source| prepare(&file, source))?;

        let mut command = python_command(&self.python, temp.path());
        command.arg("-m").arg("pip").args(arguments);
        command.args(["--no-deps", "--require-hashes", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]);
        command.args(["--progress-bar", "off", "--retries", "2", "-r"]).arg(&file);
        command.env("TMPDIR", temp.path());

        let mut meter = Meter::new(temp.path(), &requirement.label(), progress);
        let output = tool::run(command, self.stall, |event| meter.hear(event)).await?;
        if output.status.success() { Ok(()) } else { Err(self.explain(requirement, &output)) }
    }

    fn explain(&self, requirement: &PipRequirement, output: &ToolOutput) -> PipError {
        let package = requirement.label();
        let any = |needles: &[&str]| output.last_lines.iter().any(|line| needles.iter().any(|needle| line.contains(needle)));
        let error = output.last_lines.iter().rev().find_map(|line| line.strip_prefix("ERROR: ")).map(str::to_owned);
        if any(&["DO NOT MATCH THE HASHES"]) {
            return PipError::Digest { package };
        }
        if let Some(line) = output.last_lines.iter().find(|line| line.contains("Retrying (Retry(") || line.contains("Could not fetch URL"))
        {
            let reason = line.split_once("after connection broken by ").map_or(line.as_str(), |(_, reason)| reason);
            return PipError::Unreachable { package, reason: reason.to_owned() };
        }
        if any(&["No matching distribution found", "Could not find a version that satisfies"]) {
            return PipError::NoFile { package, python: self.python_version.clone() };
        }
        let reason = error.or_else(|| output.last_lines.last().cloned()).unwrap_or_else(|| output.status.to_string());
        PipError::Failed { package, reason }
    }
}

impl PipRequirement {
    /// `name version`, for messages.
    pub fn label(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    fn line(&self) -> String {
        let mut line = format!("{}=={}", self.name, self.version);
        for digest in &self.sha256s {
            line.push_str(" --hash=sha256:");
            line.push_str(digest);
        }
        line.push('\n');
        line
    }
}

/// Python with the environment of every helper program, and the operator's settings for pip.
fn python_command(program: &Path, folder: &Path) -> Command {
    let mut command = spawn::watched(program);
    command.current_dir(folder).envs(std::env::vars_os().filter(|(name, _)| passes(&name.to_string_lossy())));
    // An operator's settings for their own use of pip that would contradict a private target folder.
    command.env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0").env("PYTHONDONTWRITEBYTECODE", "1").env("LC_ALL", "C.UTF-8");
    command
}

/// Settings of pip pass, but for those that would say what to install where.
fn passes(name: &str) -> bool {
    const CONTRADICT: [&str; 8] =
        ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_NO_BINARY", "PIP_ONLY_BINARY", "PIP_REPORT"];
    name.starts_with("PIP_") && !CONTRADICT.contains(&name)
}

/// Whether packages of today run on a Python of this version.
pub(super) fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(3), Some(OLDEST_MINOR))
}

/// Every Python 3 on the search path, in the order to try them, each file once: `python3` in the order of the path, then
/// `python3.N`, newest first.
pub(super) fn interpreters(search_path: &OsStr) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(search_path).filter(|folder| folder.is_absolute()).collect();
    let names = std::iter::once("python3".to_owned()).chain((8..=20).rev().map(|minor| format!("python3.{minor}")));
    let mut seen = std::collections::HashSet::new();
    names
        .flat_map(|name| folders.iter().map(move |folder| folder.join(&name)).collect::<Vec<_>>())
        .filter(|program| program.is_file())
        .filter(|program| seen.insert(program.canonicalize().unwrap_or_else(|_| program.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_python_is_told_from_one_that_will_do() {
        for (version, new_enough) in [("3.9.2", false), ("3.10", true), ("3.12.1", true), ("2.7", false), ("", false)] {
            assert_eq!(is_new_enough(version), new_enough, "{version}");
        }
    }

    #[test]
    fn settings_of_pip_pass_but_for_those_that_say_what_to_install_where() {
        for name in ["PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_DEFAULT_TIMEOUT"] {
            assert!(passes(name), "{name}");
        }
        for name in ["HF_TOKEN", "PYTHONPATH", "LD_PRELOAD", "PIP_TARGET", "PIP_ROOT", "XPIP_CERT"] {
            assert!(!passes(name), "{name}");
        }
    }

    #[test]
    fn a_requirement_is_pinned_by_version_and_digests() {
        let requirement = PipRequirement { name: "a".into(), version: "1.2".into(), sha256s: vec!["00".into(), "ff".into()] };
        assert_eq!(requirement.line(), "a==1.2 --hash=sha256:00 --hash=sha256:ff\n");
    }

    fn output(code: i32, lines: &[&str]) -> ToolOutput {
        let status = std::os::unix::process::ExitStatusExt::from_raw(code << 8);
        ToolOutput { status, last_lines: lines.iter().map(|line| (*line).to_owned()).collect() }
    }

    #[test]
    fn failures_are_told_apart() {
        let pip = Pip { python: "/p".into(), python_version: "3.9".into(), pip_version: "23".into(), stall: Duration::from_secs(1) };
        let requirement = PipRequirement { name: "a".into(), version: "1".into(), sha256s: vec![] };
        let explain = |lines: &[&str]| pip.explain(&requirement, &output(1, lines));
        let broken = "WARNING: Retrying (Retry(total=1)) after connection broken by 'NameResolutionError(no name)': /simple/a/";
        assert!(
            matches!(explain(&[broken, "ERROR: No matching distribution found for a==1"]), PipError::Unreachable { reason, .. } if reason.starts_with("'NameRes"))
        );
        assert!(matches!(explain(&["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."]), PipError::Digest { .. }));
        assert!(matches!(explain(&["ERROR: No matching distribution found for a==1"]), PipError::NoFile { python, .. } if python == "3.9"));
        assert!(matches!(explain(&["ERROR: disk full", "tail"]), PipError::Failed { reason, .. } if reason == "disk full"));
    }

    #[tokio::test]
    async fn a_wheel_of_a_local_index_is_installed_and_a_changed_one_refused() {
        use sha2::Digest as _;
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("lifeboat_probe-1.0-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(std::fs::File::create(&wheel).unwrap());
        let files = [
            ("lifeboat_probe/__init__.py", "answer = 42\n"),
            ("lifeboat_probe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lifeboat-probe\nVersion: 1.0\n"),
            ("lifeboat_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("lifeboat_probe-1.0.dist-info/RECORD", ""),
        ];
        for (name, text) in files {
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        let digest: String = crate::host::hex::hex(&sha2::Sha256::digest(std::fs::read(&wheel).unwrap()));

        let pip = Pip::find(&SourcesConfig::default()).await.unwrap();
        let mut requirement = PipRequirement { name: "lifeboat-probe".into(), version: "1.0".into(), sha256s: vec![digest] };
        let target = folder.path().join("target");
        let local = ["install", "--no-index", "--find-links"].map(OsString::from);
        let arguments =
            |target: &Path| local.clone().into_iter().chain([folder.path().into(), "--target".into(), target.as_os_str().to_owned()]);
        pip.call(&requirement, folder.path(), arguments(&target), &ProgressSender::ignored()).await.unwrap();
        assert!(target.join("lifeboat_probe/__init__.py").is_file());

        requirement.sha256s = vec!["0".repeat(64)];
        let refused = pip.call(&requirement, folder.path(), arguments(&folder.path().join("other")), &ProgressSender::ignored()).await;
        assert!(matches!(refused, Err(PipError::Digest { .. })), "{refused:?}");
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(TEMP_PREFIX)), "{left:?}");
    }
}
