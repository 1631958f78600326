//! How far pip has got.

use std::path::Path;

use crate::host::tool::ToolEvent;
use crate::progress::ProgressSender;

/// Turns pip's output and the size of its temporary file into progress. pip itself tells only the
/// size it is about to fetch; how much has arrived is seen in the file that grows.
pub(super) struct Meter<'a> {
    folder: &'a Path,
    progress: &'a ProgressSender,
    /// The file that is arriving.
    file: Option<String>,
    arrived: u64,
    /// Bytes of everything below the folder: pip at work, whatever it does.
    touched: u64,
}

impl<'a> Meter<'a> {
    pub fn new(folder: &'a Path, package: &str, progress: &'a ProgressSender) -> Self {
        progress.step(format!("looking up {package}"), None, false);
        Self { folder, progress, file: None, arrived: 0, touched: 0 }
    }

    pub fn hear(&mut self, event: ToolEvent<'_>) -> bool {
        match event {
            ToolEvent::Line(line) => {
                let line = line.trim();
                if let Some((file, size)) = announced(line) {
                    self.progress.step(format!("downloading {file}"), size, true);
                    (self.file, self.arrived) = (Some(file), 0);
                } else if let Some(step) = later_step(line) {
                    self.progress.step(step, None, false);
                    self.file = None;
                }
                true
            }
            ToolEvent::Tick => {
                let seen = Seen::below(self.folder, self.file.as_deref());
                if let Some(arrived) = seen.file.filter(|arrived| *arrived != self.arrived) {
                    self.arrived = arrived;
                    self.progress.set(arrived);
                }
                std::mem::replace(&mut self.touched, seen.all) != seen.all
            }
        }
    }
}

/// What pip says it does once it has its file.
fn later_step(line: &str) -> Option<String> {
    if let Some(names) = line.strip_prefix("Installing collected packages:") {
        return Some(format!("unpacking{names}"));
    }
    let preparing = ["Installing build dependencies", "Getting requirements to build", "Preparing metadata"];
    preparing.iter().any(|start| line.starts_with(start)).then(|| "reading the package's description".to_owned())
}

/// Reads `Downloading name.whl (33.8 MB)`: the file's name and its size in bytes, as near as pip tells.
fn announced(line: &str) -> Option<(String, Option<u64>)> {
    let rest = line.strip_prefix("Downloading ")?;
    let (file, size) = rest.split_once(" (").unwrap_or((rest, ""));
    let file = file.rsplit('/').next().unwrap_or(file);
    Some((file.to_owned(), parse_size(size.trim_end_matches(')'))))
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let scale: u64 = match unit {
        "bytes" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u64 = tenths.get(..1)?.parse().ok()?;
    Some(whole.parse::<u64>().ok()?.checked_mul(scale)? + tenths * scale / 10)
}

/// Sizes in pip's temporary folders (`pip-unpack-…` and others, one level deep).
struct Seen {
    /// Of the file that is arriving.
    file: Option<u64>,
    /// Of all files.
    all: u64,
}

impl Seen {
    fn below(folder: &Path, file: Option<&str>) -> Self {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut seen = Self { file: None, all: 0 };
        for entry in entries(folder).flat_map(|folder| entries(&folder.path())) {
            let Some(metadata) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            seen.all += metadata.len();
            if file.is_some_and(|file| entry.file_name() == file) {
                seen.file = Some(metadata.len());
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_gives_the_file_and_its_size() {
        for (line, file, size) in [
            ("Downloading a-1-py3-none-any.whl (33.8 MB)", "a-1-py3-none-any.whl", Some(33_800_000)),
            ("Downloading https://host/path/a-1.tar.gz (915 kB)", "a-1.tar.gz", Some(915_000)),
            ("Downloading a.whl (12 bytes)", "a.whl", Some(12)),
            ("Downloading a.whl", "a.whl", None),
            ("Downloading a.whl (many MB)", "a.whl", None),
        ] {
            assert_eq!(announced(line), Some((file.to_owned(), size)), "{line}");
        }
        assert_eq!(announced("Collecting a"), None);
    }
}
