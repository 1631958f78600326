//! Compiles llama.cpp's server from a source archive that pip fetched, for exactly this processor.
//!
//! One program without shared libraries of its own comes out; the tree and everything made on the way are thrown
//! away. Nothing is fetched during the build (ENGINES 1.3: the web interface would be, so it is left out).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lifeboat_engines::catalog::SourceBuild;
use lifeboat_engines::host::HostFacts;

use super::error::blocking;
use super::unpack::{CAPS, unpack};
use crate::causes::chain;
use crate::host::spawn;
use crate::host::tool::{self, ToolEvent};
use crate::progress::ProgressSender;

/// Disk that archive, tree, objects and pip's own copies take together, bytes (measured on llama.cpp b11434 with
/// gcc 12: 37 + 179 + 84 MB, and the archive once more unpacked by pip).
pub(super) const DISK_BYTES: u64 = 700 << 20;
/// Memory that one compiler takes at its worst, bytes (measured in the same build: 643 MB).
const COMPILER_BYTES: u64 = 700 << 20;

/// Beyond the catalog's options: one program that needs nothing beside it.
const SETTINGS: [&str; 2] = ["-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_EXE_LINKER_FLAGS=-s"];

/// Unpacks the archive into `work`, configures and compiles; the program's path.
pub(super) async fn run(
    source: &SourceBuild,
    archive: &Path,
    work: &Path,
    host: &HostFacts,
    stall: Duration,
    progress: &ProgressSender,
) -> Result<PathBuf, String> {
    let tree = work.join("tree");
    progress.step("unpacking the source", None, false);
    let (archive, unpacked, folder) = (archive.to_owned(), tree.clone(), source.folder.clone());
    let sources = blocking(move || {
        fs::create_dir(&unpacked).map_err(|error| format!("cannot create {}: {error}", unpacked.display()))?;
        unpack(&archive, &unpacked, CAPS).map_err(|error| chain(&error))?;
        find_tree(&unpacked, &folder).ok_or_else(|| format!("there is no folder {folder} with a build file in the archive"))
    })
    .await
    .map_err(|error| error.to_string())??;

    let build = work.join("build");
    progress.step("configuring llama.cpp", None, false);
    let mut configure = spawn::watched("cmake");
    configure.arg("-S").arg(&sources).arg("-B").arg(&build).args(["-G", "Ninja"]).args(&source.options).args(SETTINGS).current_dir(work);
    step("cmake", configure, stall, |_| ()).await?;

    let mut compile = spawn::watched("ninja");
    compile.arg("-C").arg(&build).arg("-j").arg(jobs(host).to_string()).arg(&source.target).current_dir(work);
    let mut known = None;
    step("ninja", compile, stall, |line| {
        if let Some((done, total)) = counted(line) {
            if known != Some(total) {
                progress.step("compiling llama.cpp", Some(total), false);
                known = Some(total);
            }
            progress.set(done);
        }
    })
    .await?;
    let program = build.join("bin").join(&source.target);
    if program.is_file() { Ok(program) } else { Err(format!("the build ended well and left no {}", source.target)) }
}

async fn step(name: &str, command: tokio::process::Command, stall: Duration, mut hear: impl FnMut(&str)) -> Result<(), String> {
    let output = tool::run(command, stall, |event| {
        if let ToolEvent::Line(line) = event {
            hear(line);
        }
        false
    })
    .await
    .map_err(|error| chain(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let telling = output.last_lines.iter().find(|line| line.contains("rror:")).or(output.last_lines.last());
    Err(format!("{name} failed ({}): {}", output.status, telling.map_or("it said nothing", String::as_str)))
}

/// As many compilers as there are cores, and as fit into the free memory.
fn jobs(host: &HostFacts) -> u64 {
    let cores = u64::from(host.cpu.physical.max(1));
    cores.min(host.memory.available_bytes / COMPILER_BYTES).max(1)
}

/// Reads `[12/218] Building …`.
fn counted(line: &str) -> Option<(u64, u64)> {
    let (numbers, _) = line.strip_prefix('[')?.split_once(']')?;
    let (done, total) = numbers.split_once('/')?;
    Some((done.trim().parse().ok()?, total.trim().parse().ok()?))
}

/// The folder `name` inside the archive's one top folder.
fn find_tree(unpacked: &Path, name: &str) -> Option<PathBuf> {
    let tops = fs::read_dir(unpacked).ok()?.flatten();
    tops.map(|top| top.path().join(name)).find(|tree| tree.join("CMakeLists.txt").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_build_are_counted() {
        for (line, expected) in [
            ("[12/218] Building CXX object x.o", Some((12, 218))),
            ("[1/1] Linking", Some((1, 1))),
            ("FAILED: [code=1] x", None),
            ("[warning] x", None),
            ("", None),
        ] {
            assert_eq!(counted(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn a_failed_tool_is_told_with_its_own_error() {
        let mut shell = spawn::watched("/bin/sh");
        shell.args(["-c", "echo one; echo 'x.cpp:1: error: no such thing'; echo tail; exit 2"]);
        let failure = step("ninja", shell, Duration::from_secs(20), |_| ()).await.unwrap_err();
        assert!(failure.starts_with("ninja failed") && failure.ends_with("error: no such thing"), "{failure}");
    }
}
