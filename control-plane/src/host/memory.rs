//! How much memory a new engine could take, as the kernel and the control group see it.

use std::fs;
use std::path::Path;

use lifeboat_engines::host::MemoryFacts;

use super::cgroup;

/// Reads it afresh. `root` is `/` but for tests.
pub fn memory(root: &Path) -> MemoryFacts {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let (total_bytes, free_bytes) = match (meminfo(&text, "MemTotal:"), meminfo(&text, "MemAvailable:")) {
        (Some(total), Some(available)) => (total, available),
        _ => asked_of_the_system(),
    };
    match cgroup::memory_limit(root).filter(|limit| limit.limit_bytes < total_bytes) {
        Some(limit) if limit.free_bytes < free_bytes => {
            MemoryFacts { total_bytes, available_bytes: limit.free_bytes, limit_bytes: Some(limit.limit_bytes), source: limit.source }
        }
        limit => MemoryFacts {
            total_bytes,
            available_bytes: free_bytes,
            limit_bytes: limit.map(|limit| limit.limit_bytes),
            source: "/proc/meminfo MemAvailable".into(),
        },
    }
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let kibibytes = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())?;
    Some(kibibytes.saturating_mul(1024))
}

/// For systems without /proc/meminfo as we know it.
fn asked_of_the_system() -> (u64, u64) {
    let Ok(mut system) = sysinfo::System::new() else { return (0, 0) };
    system.refresh_memory();
    (system.total_memory(), system.available_memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24576000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\nBuffers:  1 kB\n";

    fn machine(limit: &str, used: &str) -> MemoryFacts {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/memory.max", limit),
            ("sys/fs/cgroup/memory.current", used),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory(root.path())
    }

    #[test]
    fn the_tighter_of_machine_and_control_group_counts() {
        let (gigabyte, available) = (1_000_000_000_u64, 20_000_000 * 1024);
        // (limit, used, what is available, the limit shown)
        let table = [
            ("max", 0, available, None),
            ("8000000000", 3 * gigabyte, 5 * gigabyte, Some(8 * gigabyte)),
            ("8000000000", 9 * gigabyte, 0, Some(8 * gigabyte)),
            ("24000000000", gigabyte, available, Some(24 * gigabyte)),
            ("99000000000000", 0, available, None),
        ];
        for (limit, used, expected, shown) in table {
            let facts = machine(limit, &used.to_string());
            assert_eq!((facts.available_bytes, facts.limit_bytes), (expected, shown), "{limit} {used}");
            assert_eq!(facts.total_bytes, 24_576_000 * 1024);
        }
    }
}
