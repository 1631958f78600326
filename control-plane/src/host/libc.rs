//! The C library that engine builds will find here, whatever this program itself was linked with.
//!
//! Read from the library's own version line, because asking it takes either a foreign call or a program that small
//! systems lack.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use lifeboat_engines::host::Libc;

/// Stands before the version in every GNU libc.
const BANNER: &[u8] = b"GNU C Library";
/// Stands right before the number, in the same line.
const VERSION: &[u8] = b"release version ";
/// The banner is looked for in pieces of this size.
const PIECE: usize = 64 << 10;
/// Longest line the banner begins.
const LINE: usize = 256;

/// Looks for the library. `root` is `/` but for tests.
pub fn libc(root: &Path) -> Libc {
    let candidates = mapped_here(root).into_iter().chain(folders(root).into_iter().map(|folder| folder.join("libc.so.6")));
    if let Some((major, minor)) = candidates.filter_map(|path| File::open(path).ok()).find_map(version_in) {
        return Libc::Glibc { major, minor };
    }
    if is_musl(root) { Libc::Musl } else { Libc::Other }
}

/// The one this program runs with, where it is not linked statically.
fn mapped_here(root: &Path) -> Option<PathBuf> {
    let maps = fs::read_to_string(root.join("proc/self/maps")).ok()?;
    let path = maps.lines().find_map(|line| line.get(line.find('/')?..).filter(|path| path.ends_with("/libc.so.6")))?;
    Some(root.join(path.trim_start_matches('/')))
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let arch = std::env::consts::ARCH;
    [
        format!("lib/{arch}-linux-gnu"),
        format!("usr/lib/{arch}-linux-gnu"),
        "lib64".into(),
        "usr/lib64".into(),
        "lib".into(),
        "usr/lib".into(),
    ]
    .iter()
    .map(|folder| root.join(folder))
    .collect()
}

fn is_musl(root: &Path) -> bool {
    let names = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).any(|name| name.starts_with("ld-musl-"))
}

/// The version in the banner of a library.
fn version_in(mut library: impl Read) -> Option<(u32, u32)> {
    let mut window = Vec::with_capacity(PIECE + LINE);
    loop {
        let read = (&mut library).take(PIECE as u64).read_to_end(&mut window).ok()?;
        if let Some(found) = window.windows(BANNER.len()).position(|bytes| bytes == BANNER) {
            // What is still missing of the line comes with the next bytes.
            (&mut library).take(LINE as u64).read_to_end(&mut window).ok()?;
            return version_in_line(window.get(found..)?);
        }
        if read == 0 {
            return None;
        }
        // The banner may lie across two pieces.
        window.drain(..window.len().saturating_sub(BANNER.len()));
    }
}

fn version_in_line(line: &[u8]) -> Option<(u32, u32)> {
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let start = line.windows(VERSION.len()).position(|bytes| bytes == VERSION)? + VERSION.len();
    let text = std::str::from_utf8(line.get(start..)?).ok()?;
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_wherever_its_line_lies() {
        let banner = b"GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright";
        for before in [0, 5, PIECE - 20, PIECE - 3, PIECE, 3 * PIECE + 7] {
            let mut library = vec![0; before];
            library.extend_from_slice(banner);
            library.extend_from_slice(&[0; 500]);
            assert_eq!(version_in(library.as_slice()), Some((2, 36)), "after {before} bytes");
        }
    }

    #[test]
    fn other_files_have_no_version() {
        for library in [&b""[..], b"musl libc", b"GNU C Library without a number\n", b"GNU C Library release version x.y"] {
            assert_eq!(version_in(library), None);
        }
    }

    #[test]
    fn musl_is_known_by_its_loader_and_anything_else_is_other() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(libc(root.path()), Libc::Other);
        fs::create_dir(root.path().join("lib")).unwrap();
        fs::write(root.path().join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(libc(root.path()), Libc::Musl);
    }
}
