//! The engine's output in files that never grow without bound.
//!
//! Rotation happens between lines. A disk that is full loses lines, never the engine: whatever happens here, the
//! pipe goes on being read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::{LOG_FILE, MARK};

/// Longest line kept, bytes; the rest of a longer one is dropped.
const MAX_LINE: usize = 16 << 10;
/// Written where a line was cut.
const CUT: &[u8] = b" [cut]";

/// A log that rotates.
#[derive(Debug)]
pub struct RotatedLog {
    dir: PathBuf,
    rotate_bytes: u64,
    keep: u32,
    file: Option<File>,
    size: u64,
}

impl RotatedLog {
    /// Appends to `engine.log` in a folder that is there.
    pub fn open(dir: PathBuf, rotate_bytes: u64, keep: u32) -> Self {
        let mut log = Self { dir, rotate_bytes, keep, file: None, size: 0 };
        log.reopen();
        log
    }

    fn reopen(&mut self) {
        self.file = OpenOptions::new().create(true).append(true).mode(0o600).open(self.dir.join(LOG_FILE)).ok();
        self.size = self.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
    }

    /// Writes one line, its newline included.
    pub fn write_line(&mut self, line: &[u8]) {
        if self.size > 0 && self.size.saturating_add(line.len() as u64) > self.rotate_bytes {
            self.rotate();
        }
        if self.file.is_none() {
            self.reopen();
        }
        if let Some(file) = &mut self.file {
            match file.write_all(line) {
                Ok(()) => self.size = self.size.saturating_add(line.len() as u64),
                // Most likely a full disk: this line is lost, the next one tries again.
                Err(_) => self.file = None,
            }
        }
    }

    /// Writes a line of the guard's own.
    pub fn mark(&mut self, text: &str) {
        let now = jiff::Timestamp::from_millisecond(crate::host::clock::unix_millis()).unwrap_or_default();
        self.write_line(format!("{MARK}{text}, {now:.3}\n").as_bytes());
    }

    /// `engine.log` becomes `engine.log.1`, and so on; the oldest is dropped. Failures leave a longer log, no more.
    fn rotate(&mut self) {
        let numbered = |number: u32| self.dir.join(format!("{LOG_FILE}.{number}"));
        for number in (1..self.keep).rev() {
            let _ = fs::rename(numbered(number), numbered(number + 1));
        }
        let current = self.dir.join(LOG_FILE);
        let _ = if self.keep == 0 { fs::remove_file(current) } else { fs::rename(current, numbered(1)) };
        self.reopen();
    }
}

/// Copies the engine's output to the log until nobody holds the other end any more.
pub fn pump(mut output: impl Read, log: &parking_lot::Mutex<RotatedLog>) {
    let mut buffer = vec![0; 32 << 10];
    let mut line = Vec::with_capacity(1 << 10);
    let mut cut = false;
    loop {
        let count = match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut log = log.lock();
        for piece in buffer.get(..count).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE.saturating_sub(line.len());
            cut |= piece.len() > room;
            line.extend_from_slice(piece.get(..room).unwrap_or(piece));
            if piece.ends_with(b"\n") {
                finish(&mut line, &mut cut);
                log.write_line(&line);
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        finish(&mut line, &mut cut);
        log.lock().write_line(&line);
    }
}

fn finish(line: &mut Vec<u8>, cut: &mut bool) {
    if std::mem::take(cut) {
        line.extend_from_slice(CUT);
    }
    if !line.ends_with(b"\n") {
        line.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pumped(output: &[u8], rotate_bytes: u64, keep: u32) -> (tempfile::TempDir, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let log = parking_lot::Mutex::new(RotatedLog::open(dir.path().to_owned(), rotate_bytes, keep));
        pump(output, &log);
        let mut names: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        (dir, names)
    }

    #[test]
    fn old_logs_are_kept_up_to_their_number_and_lines_stay_whole() {
        let output = (0..100).map(|number| format!("line {number:04}\n")).collect::<Vec<_>>().concat();
        let (dir, names) = pumped(output.as_bytes(), 50, 2);
        assert_eq!(names, ["engine.log", "engine.log.1", "engine.log.2"]);
        let kept: String =
            ["engine.log.2", "engine.log.1", "engine.log"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap()).concat();
        assert!(output.ends_with(&kept), "{kept}");
        assert!(names.iter().all(|name| fs::metadata(dir.path().join(name)).unwrap().len() <= 50));
    }

    #[test]
    fn without_old_logs_the_current_one_starts_again() {
        let (dir, names) = pumped(b"aaaaaaaaaa\nbbbbbbbbbb\n", 12, 0);
        assert_eq!(names, ["engine.log"]);
        assert_eq!(fs::read(dir.path().join("engine.log")).unwrap(), b"bbbbbbbbbb\n");
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_whole() {
        let mut output = vec![b'x'; 5 * MAX_LINE];
        output.extend_from_slice(b"\nnext\nlast without newline");
        let (dir, _) = pumped(&output, 1 << 20, 1);
        let text = fs::read_to_string(dir.path().join("engine.log")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("x [cut]") && lines[0].len() == MAX_LINE + CUT.len());
        assert_eq!(lines[1..], ["next", "last without newline"]);
    }

    #[test]
    fn a_log_folder_that_cannot_be_written_does_not_stop_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let log = parking_lot::Mutex::new(RotatedLog::open(dir.path().join("is not there"), 100, 1));
        pump(&b"one\ntwo\n"[..], &log);
        assert!(!dir.path().join("is not there").exists());
    }
}
