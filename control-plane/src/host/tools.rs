//! Tools that a source of builds may need, found on the search path without running them: starting Python alone takes
//! longer than a cached start of an engine may.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lifeboat_engines::host::Tools;

/// Looks through a search path.
pub fn tools(search_path: &OsStr) -> Tools {
    let find = |names: &[&str]| names.iter().find_map(|name| find(search_path, name));
    Tools {
        python: find(&["python3", "python"]).and_then(|path| python_with_pip(&path)),
        cmake: find(&["cmake"]).map(|path| shown(&path)),
        ninja: find(&["ninja", "ninja-build"]).map(|path| shown(&path)),
        cxx: find(&["c++", "g++", "clang++"]).map(|path| shown(&path)),
    }
}

/// The first program of that name on a search path.
pub fn find(search_path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    std::env::split_paths(search_path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(is_program)
}

/// Where it really is: the name behind the links mostly tells the version (`g++-12`, `python3.11`).
fn shown(path: &Path) -> String {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// A Python whose pip lies where it belongs. A launcher script (pyenv, asdf) hides where that is, and gets the benefit
/// of the doubt: pip itself will say.
fn python_with_pip(path: &Path) -> Option<String> {
    let program = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if is_script(&program) || has_pip(path) || has_pip(&program) {
        return Some(program.display().to_string());
    }
    None
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start)).is_ok() && start == *b"#!"
}

fn has_pip(program: &Path) -> bool {
    let Some(prefix) = program.parent().and_then(Path::parent) else { return false };
    let libraries = ["lib", "lib64", "local/lib"].map(|folder| prefix.join(folder));
    let versions = libraries.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let pythons =
        versions.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("python3"))).map(|entry| entry.path());
    pythons.into_iter().any(|folder| ["site-packages/pip", "dist-packages/pip"].iter().any(|pip| folder.join(pip).is_dir()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn program(path: &Path, content: &[u8], mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_program_on_the_path_is_found_and_shown_by_its_real_name() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        program(&one.join("cmake"), b"\x7fELF", 0o644);
        program(&two.join("cmake"), b"\x7fELF", 0o755);
        program(&two.join("g++-12"), b"\x7fELF", 0o755);
        symlink(two.join("g++-12"), two.join("c++")).unwrap();
        fs::create_dir(two.join("ninja")).unwrap();
        let found = tools(&std::env::join_paths([&one, &two]).unwrap());
        let real = fs::canonicalize(&two).unwrap();
        assert_eq!(found.cmake, Some(real.join("cmake").display().to_string()));
        assert_eq!(found.cxx, Some(real.join("g++-12").display().to_string()));
        assert_eq!((found.ninja, found.python), (None, None));
    }

    #[test]
    fn python_counts_only_with_pip_unless_a_launcher_hides_it() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        program(&bin.join("python3.11"), b"\x7fELF", 0o755);
        symlink(bin.join("python3.11"), bin.join("python3")).unwrap();
        assert_eq!(tools(bin.as_os_str()).python, None);
        fs::create_dir_all(root.path().join("lib/python3.11/site-packages/pip")).unwrap();
        assert!(tools(bin.as_os_str()).python.is_some_and(|path| path.ends_with("python3.11")));

        let shims = root.path().join("shims");
        program(&shims.join("python3"), b"#!/bin/sh\n", 0o755);
        assert!(tools(shims.as_os_str()).python.is_some_and(|path| path.ends_with("shims/python3")));
    }
}
