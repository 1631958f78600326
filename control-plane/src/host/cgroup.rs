//! Limits of the control groups this process lives in, version 1, version 2 and both at once.
//!
//! A limit may stand on any level, so each hierarchy is walked from our group up to where it is mounted, and the
//! tightest limit counts. Inside a container the path in /proc/self/cgroup may lie outside what is mounted: then the
//! mount itself is our group.

use std::fs;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as a huge number, rounded down to a page.
const NO_LIMIT: u64 = 0x7FFF_FFFF_FFFF_F000;

/// A memory limit that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub limit_bytes: u64,
    /// What is left of it, reclaimable cache counted as free.
    pub free_bytes: u64,
    /// Where it stands: `cgroup v2 /sys/fs/cgroup/…/memory.max`.
    pub source: String,
}

/// One hierarchy: the folders from our group up to the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: u8,
    levels: Vec<PathBuf>,
}

/// The memory limit that leaves the least free. `root` is `/` but for tests.
pub fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let limits = hierarchies(root, "memory").into_iter().flat_map(|hierarchy| {
        let version = hierarchy.version;
        hierarchy.levels.into_iter().flat_map(move |level| memory_limits_of(version, &level))
    });
    limits.min_by_key(|limit| limit.free_bytes)
}

fn memory_limits_of(version: u8, level: &Path) -> Vec<MemoryLimit> {
    let (limits, usage, reclaimable): (&[&str], _, _) = if version == 2 {
        (&["memory.max", "memory.high"], "memory.current", "inactive_file ")
    } else {
        (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file ")
    };
    let number = |name: &str| fs::read_to_string(level.join(name)).ok()?.trim().parse::<u64>().ok();
    let cache = fs::read_to_string(level.join("memory.stat"))
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix(reclaimable)?.trim().parse::<u64>().ok()));
    let used = number(usage).unwrap_or(0).saturating_sub(cache.unwrap_or(0));
    let limit = |name: &&str| {
        let limit_bytes = number(name).filter(|limit| *limit < NO_LIMIT)?;
        let source = format!("cgroup v{version} {}", level.join(name).display());
        Some(MemoryLimit { limit_bytes, free_bytes: limit_bytes.saturating_sub(used), source })
    };
    limits.iter().filter_map(limit).collect()
}

/// The CPU time limit, in cores.
pub fn cpu_quota(root: &Path) -> Option<f64> {
    let quotas = hierarchies(root, "cpu").into_iter().flat_map(|hierarchy| {
        let version = hierarchy.version;
        hierarchy.levels.into_iter().filter_map(move |level| cpu_quota_of(version, &level))
    });
    quotas.min_by(f64::total_cmp)
}

fn cpu_quota_of(version: u8, level: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(level.join(name)).ok();
    let (quota, period) = if version == 2 {
        let text = read("cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        (quota.to_owned(), period.to_owned())
    } else {
        (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
    };
    // "max" and -1 are no limit, and no unsigned numbers either.
    let (quota, period) = (quota.trim().parse::<u32>().ok()?, period.trim().parse::<u32>().ok()?);
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

/// The hierarchies that may limit a resource: the one of version 2, and the one of this controller in version 1.
fn hierarchies(root: &Path, controller: &str) -> Vec<Hierarchy> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let version = if controllers.is_empty() { 2 } else { 1 };
            if version == 1 && !controllers.split(',').any(|name| name == controller) {
                return None;
            }
            let (mounted, mount_point) = mounts.lines().find_map(|mount| mount_of(mount, version, controller))?;
            Some(Hierarchy { version, levels: levels(root, mount_point, mounted, path) })
        })
        .collect()
}

/// The part of the hierarchy that is mounted and where, if this line of mountinfo is that mount.
fn mount_of<'a>(line: &'a str, version: u8, controller: &str) -> Option<(&'a str, &'a str)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (mounted, mount_point) = (fields.next()?, fields.next()?);
    let mut fields = filesystem.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let found = match version {
        2 => kind == "cgroup2",
        _ => kind == "cgroup" && options.split(',').any(|option| option == controller),
    };
    found.then_some((mounted, mount_point))
}

fn levels(root: &Path, mount_point: &str, mounted: &str, path: &str) -> Vec<PathBuf> {
    let top = root.join(mount_point.trim_start_matches('/'));
    let below = Path::new(path).strip_prefix(mounted).unwrap_or(Path::new(""));
    let own = if below.components().any(|part| part == std::path::Component::ParentDir) { top.clone() } else { top.join(below) };
    own.ancestors().take_while(|level| level.starts_with(&top)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine made of files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_2_takes_the_tightest_level_and_counts_cache_as_free() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/user.slice/app.scope\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/app.scope/memory.high", "max\n"),
            ("sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "9000\n"),
            ("sys/fs/cgroup/user.slice/memory.high", "8000\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "5000\n"),
            ("sys/fs/cgroup/user.slice/memory.stat", "anon 10\ninactive_file 1500\nactive_file 7\n"),
            ("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
        ]);
        let limit = memory_limit(root.path()).unwrap();
        assert_eq!((limit.limit_bytes, limit.free_bytes), (8000, 4500));
        assert!(limit.source.starts_with("cgroup v2 ") && limit.source.ends_with("user.slice/memory.high"), "{}", limit.source);
        assert_eq!(cpu_quota(root.path()), Some(1.5));
    }

    #[test]
    fn version_1_finds_its_controllers_and_knows_its_huge_no_limit() {
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "700\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
        ];
        let root = machine(&files);
        let limit = memory_limit(root.path()).unwrap();
        assert_eq!((limit.limit_bytes, limit.free_bytes), (1000, 500));
        assert_eq!(cpu_quota(root.path()), Some(0.5));

        fs::write(root.path().join("sys/fs/cgroup/memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(memory_limit(root.path()), None);
    }

    #[test]
    fn a_path_outside_the_mount_means_the_mount_itself() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/../../elsewhere\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "5000\n"),
        ]);
        assert_eq!(memory_limit(root.path()).unwrap().free_bytes, 5000);
    }

    #[test]
    fn no_control_groups_no_limits() {
        let root = machine(&[]);
        assert_eq!((memory_limit(root.path()), cpu_quota(root.path())), (None, None));
    }
}
