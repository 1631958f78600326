//! Reads the logs that guards write: the last lines of a run, and new lines as they come.
//!
//! A log may be renamed and started again at any moment (rotation); a reader follows the file it has open to its
//! end before it turns to the new one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::guard::{LOG_FILE, MARK, STARTED};

/// How far back the last lines are looked for, bytes.
const LAST: u64 = 256 << 10;
/// The most a tail takes up at once, bytes.
const STEP: u64 = 256 << 10;

/// The last lines of the present run, oldest first, without the guard's own.
pub fn last_lines_of_run(log_dir: &Path, count: usize) -> Vec<String> {
    let lines = last_lines(log_dir, usize::MAX);
    let started = format!("{MARK}{STARTED}");
    let run = lines.iter().rposition(|line| line.starts_with(&started)).map_or(0, |index| index + 1);
    let run: Vec<String> = lines.into_iter().skip(run).filter(|line| !line.starts_with(MARK)).collect();
    let skipped = run.len().saturating_sub(count);
    run.into_iter().skip(skipped).collect()
}

/// The last lines of a log, oldest first; the rotated ones are asked when the current one is short.
pub fn last_lines(log_dir: &Path, count: usize) -> Vec<String> {
    let mut lines = end_of_file(&log_dir.join(LOG_FILE)).unwrap_or_default();
    if lines.len() < count
        && let Ok(mut older) = end_of_file(&log_dir.join(format!("{LOG_FILE}.1")))
    {
        older.append(&mut lines);
        lines = older;
    }
    lines.split_off(lines.len().saturating_sub(count))
}

fn end_of_file(path: &Path) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(LAST);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LAST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line is only whole if the file was read from its beginning.
    Ok(text.lines().skip(usize::from(start > 0)).map(str::to_owned).collect())
}

/// Follows a log. Reading is done in small blocking steps: call it from where a few milliseconds do not matter.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<File>,
    partial: Vec<u8>,
}

impl Tail {
    /// Follows from the end of the log as it is now.
    pub fn from_end(log_dir: &Path) -> Self {
        let path = log_dir.join(LOG_FILE);
        let file = File::open(&path).and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file)).ok();
        Self { path, file, partial: Vec::new() }
    }

    /// The lines that were finished since the last call.
    pub fn new_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        self.take_up(&mut lines);
        if self.was_replaced() {
            // What was written between the last look and the rename is still in the old file.
            self.take_up(&mut lines);
            self.file = File::open(&self.path).ok();
            self.take_up(&mut lines);
        }
        lines
    }

    fn was_replaced(&self) -> bool {
        let inode = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let now = std::fs::metadata(&self.path).map(inode).ok();
        let ours = self.file.as_ref().and_then(|file| file.metadata().map(inode).ok());
        now.is_some() && now != ours
    }

    fn take_up(&mut self, lines: &mut Vec<String>) {
        let Some(file) = &mut self.file else { return };
        let mut bytes = Vec::new();
        // An unreadable log gives no lines; the engine's fate does not hang on it.
        let _ = file.take(STEP).read_to_end(&mut bytes);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.push(String::from_utf8_lossy(&self.partial).trim_end_matches(['\n', '\r']).to_owned());
                self.partial.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_lines_are_those_of_the_present_run_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = format!("{MARK}{STARTED}: a, now\nold\n{MARK}engine ended: exit code 1, now\n{MARK}{STARTED}: a, now\none\ntwo\nthree\n");
        fs::write(dir.path().join(LOG_FILE), log).unwrap();
        assert_eq!(last_lines_of_run(dir.path(), 10), ["one", "two", "three"]);
        assert_eq!(last_lines_of_run(dir.path(), 2), ["two", "three"]);
        assert_eq!(last_lines(dir.path(), 2), ["two", "three"]);
    }

    #[test]
    fn a_short_log_is_completed_from_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(format!("{LOG_FILE}.1")), "one\ntwo\n").unwrap();
        fs::write(dir.path().join(LOG_FILE), "three\n").unwrap();
        assert_eq!(last_lines(dir.path(), 2), ["two", "three"]);
        assert_eq!(last_lines(dir.path(), 9), ["one", "two", "three"]);
        assert_eq!(last_lines(dir.path().join("none").as_path(), 2), Vec::<String>::new());
    }

    #[test]
    fn a_tail_follows_over_a_rotation_and_gives_whole_lines_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(LOG_FILE);
        fs::write(&log, "before\n").unwrap();
        let mut tail = Tail::from_end(dir.path());
        assert_eq!(tail.new_lines(), Vec::<String>::new());
        let append = |text: &str| {
            io::Write::write_all(&mut fs::OpenOptions::new().append(true).create(true).open(&log).unwrap(), text.as_bytes()).unwrap();
        };
        append("one\ntw");
        assert_eq!(tail.new_lines(), ["one"]);
        append("o\nthree\n");
        fs::rename(&log, dir.path().join(format!("{LOG_FILE}.1"))).unwrap();
        append("four\n");
        assert_eq!(tail.new_lines(), ["two", "three", "four"]);
    }
}
