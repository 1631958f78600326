//! Tools that a source of builds may need, each with its version.
//!
//! They are asked, not guessed at: what lies on the search path is often a launcher of something else (pyenv, ccache),
//! and only the tool itself knows. That takes longer than a cached start of an engine may, so nothing on that path asks.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lifeboat_engines::host::Tools;
use tokio::time::Instant;

use super::pip::{interpreters, is_new_enough};
use super::spawn;

/// Longest wait for one answer.
const WITHIN: Duration = Duration::from_secs(10);
/// Longest answer read, bytes.
const ANSWER: u64 = 4096;
/// Between two looks whether it has come.
const LOOK: Duration = Duration::from_millis(2);
/// Prints the version if pip is there.
const PYTHON_WITH_PIP: &str = "import sys, importlib.util as u; print('%d.%d.%d' % sys.version_info[:3] if u.find_spec('pip') else '')";

/// Looks through a search path and asks what it finds. Blocking, some tenths of a second.
pub fn tools(search_path: &OsStr) -> Tools {
    let ask = |names: &[&str], arguments: &[&str]| {
        let program = names.iter().find_map(|name| find(search_path, name))?;
        version_in(&answer(&program, arguments)?)
    };
    Tools {
        python: python(search_path),
        cmake: ask(&["cmake"], &["--version"]),
        ninja: ask(&["ninja", "ninja-build"], &["--version"]),
        cxx: ask(&["c++", "g++", "clang++"], &["--version"]),
    }
}

/// The version of the Python that [`super::pip::Pip::find`] is going to take.
fn python(search_path: &OsStr) -> Option<String> {
    let mut old = None;
    for program in interpreters(search_path) {
        match answer(&program, &["-c", PYTHON_WITH_PIP]).as_deref().and_then(version_in) {
            Some(version) if is_new_enough(&version) => return Some(version),
            Some(version) => old = old.or(Some(version)),
            None => {}
        }
    }
    old
}

/// The first program of that name on a search path.
fn find(search_path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    std::env::split_paths(search_path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(is_program)
}

/// What a program prints; nothing if it fails or does not come to an end.
fn answer(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut child = spawn::question(program).args(arguments).spawn().ok()?;
    let deadline = Instant::now() + WITHIN;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            _ => {
                // Whether it could be killed or not, its answer is not waited for.
                let _ = child.kill().and_then(|()| child.wait());
                break None;
            }
        }
    };
    let mut text = Vec::new();
    child.stdout?.take(ANSWER).read_to_end(&mut text).ok().filter(|_| status.is_some_and(|status| status.success()))?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The last word of the first line that begins like a version.
fn version_in(answer: &str) -> Option<String> {
    let is_version = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit()) && word.contains('.');
    // Compilers name their packager in parentheses first.
    answer.lines().next()?.split_whitespace().rfind(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(folder: &Path, name: &str, text: &str, mode: u32) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn versions_are_found_in_what_tools_print() {
        for (answer, expected) in [
            ("3.11.7\n", Some("3.11.7")),
            ("cmake version 3.25.1\n\nCMake suite\n", Some("3.25.1")),
            ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022\n", Some("12.2.0")),
            ("Apple clang version 15.0.0 (clang-1500.1)\n", Some("15.0.0")),
            ("1.11.1.git.kitware\n", Some("1.11.1.git.kitware")),
            ("\n", None),
            ("", None),
            ("nothing of the kind\n3.4\n", None),
        ] {
            assert_eq!(version_in(answer).as_deref(), expected, "{answer:?}");
        }
    }

    #[test]
    fn the_first_program_on_the_path_is_asked_and_one_that_fails_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        script(&one, "cmake", "echo not a program", 0o644);
        script(&two, "cmake", "echo cmake version 3.25.1", 0o755);
        script(&two, "c++", "echo 12.2.0; exit 1", 0o755);
        script(&one, "python3", "[ \"$1\" = -c ] && echo 3.9.2", 0o755);
        script(&two, "python3", "exit 1", 0o755);
        script(&two, "python3.12", "[ \"$1\" = -c ] && echo 3.12.1", 0o755);
        fs::create_dir(two.join("ninja")).unwrap();
        let found = tools(&std::env::join_paths([&one, &two]).unwrap());
        let expected = Tools { python: Some("3.12.1".into()), cmake: Some("3.25.1".into()), ninja: None, cxx: None };
        assert_eq!(found, expected);
    }
}
