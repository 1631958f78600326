//! Processors: what they can do, how many of them this process may use, and which are the fast ones.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lifeboat_engines::host::CpuFacts;
use rustix::thread::CpuSet;

use super::cgroup;

/// A core with less than this share of the fastest core's capacity or frequency is not a performance core. Cores of
/// one kind differ by a tenth at most; efficiency cores reach three quarters at best.
const PERFORMANCE_SHARE: f64 = 0.8;

/// Reads it afresh. `root` is `/` but for tests; `allowed` are the hardware threads this process may run on.
pub fn cpu(root: &Path, allowed: &BTreeSet<u32>) -> CpuFacts {
    let info = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let cores = cores(root, allowed);
    let fast = performance_threads(root, allowed);
    let count = |cores: usize| u32::try_from(cores).unwrap_or(u32::MAX);
    CpuFacts {
        model: model(root, &info),
        features: features(&info),
        logical: count(allowed.len()),
        physical: count(cores.len()),
        performance: count(cores.iter().filter(|core| core.iter().any(|thread| fast.contains(thread))).count()),
        quota_cores: cgroup::cpu_quota(root),
    }
}

/// The hardware threads this process may run on.
pub fn allowed_threads() -> BTreeSet<u32> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let allowed: BTreeSet<u32> =
        (0..CpuSet::MAX_CPU).filter(|thread| set.is_set(*thread)).filter_map(|thread| u32::try_from(thread).ok()).collect();
    if allowed.is_empty() {
        // More threads than the set holds, or a system that does not tell.
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return (0..u32::try_from(count).unwrap_or(1)).collect();
    }
    allowed
}

/// x86 writes `flags`, arm writes `Features`, risc-v `isa`. All threads are alike in what programs may use.
fn features(info: &str) -> BTreeSet<String> {
    field(info, &["flags", "Features"]).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn model(root: &Path, info: &str) -> String {
    let board = || fs::read_to_string(root.join("proc/device-tree/model")).ok().map(|text| text.trim_end_matches('\0').to_owned());
    field(info, &["model name", "Model"]).map(str::to_owned).or_else(board).unwrap_or_else(|| "unknown".into())
}

fn field<'a>(info: &'a str, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| {
        info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == *name).then(|| value.trim())
        })
    })
}

/// The allowed threads, grouped by the physical core they share.
fn cores(root: &Path, allowed: &BTreeSet<u32>) -> BTreeSet<BTreeSet<u32>> {
    let siblings = |thread: &u32| {
        let topology = cpu_folder(root, *thread).join("topology");
        let text = ["core_cpus_list", "thread_siblings_list"].iter().find_map(|name| fs::read_to_string(topology.join(name)).ok());
        let shared: BTreeSet<u32> = text.map(|text| cpu_list(&text)).unwrap_or_default().intersection(allowed).copied().collect();
        if shared.is_empty() { BTreeSet::from([*thread]) } else { shared }
    };
    allowed.iter().map(siblings).collect()
}

/// The allowed threads on performance cores; all of them where cores are alike or nothing is known.
fn performance_threads(root: &Path, allowed: &BTreeSet<u32>) -> BTreeSet<u32> {
    // Intel names them.
    if let Ok(text) = fs::read_to_string(root.join("sys/devices/cpu_core/cpus")) {
        let fast: BTreeSet<u32> = cpu_list(&text).intersection(allowed).copied().collect();
        if !fast.is_empty() {
            return fast;
        }
    }
    for measure in ["cpu_capacity", "cpufreq/cpuinfo_max_freq"] {
        let speeds: Vec<(u32, u32)> = allowed
            .iter()
            .filter_map(|thread| Some((*thread, fs::read_to_string(cpu_folder(root, *thread).join(measure)).ok()?.trim().parse().ok()?)))
            .collect();
        let Some(fastest) = speeds.iter().map(|(_, speed)| *speed).max() else { continue };
        let fast = |speed: u32| f64::from(speed) >= f64::from(fastest) * PERFORMANCE_SHARE;
        if speeds.len() == allowed.len() && speeds.iter().any(|(_, speed)| !fast(*speed)) {
            return speeds.into_iter().filter(|(_, speed)| fast(*speed)).map(|(thread, _)| thread).collect();
        }
    }
    allowed.clone()
}

fn cpu_folder(root: &Path, thread: u32) -> std::path::PathBuf {
    root.join(format!("sys/devices/system/cpu/cpu{thread}"))
}

/// Reads the kernel's way to write a set: `0-3,8,10-11`. Nonsense is skipped; more than 65,536 threads is nonsense.
fn cpu_list(text: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        (last <= 0xFFFF).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(String, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn thread(number: u32, file: &str) -> String {
        format!("sys/devices/system/cpu/cpu{number}/{file}")
    }

    #[test]
    fn sets_are_read_as_the_kernel_writes_them() {
        for (text, expected) in
            [("0-3,8\n", vec![0, 1, 2, 3, 8]), ("5", vec![5]), ("", vec![]), ("x,2-1,3", vec![3]), ("0-4000000000", vec![])]
        {
            assert_eq!(cpu_list(text).into_iter().collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn two_threads_of_a_core_are_one_core_and_affinity_counts() {
        let files: Vec<(String, &str)> = (0..4)
            .map(|number| (thread(number, "topology/thread_siblings_list"), if number % 2 == 0 { "0,2\n" } else { "1,3\n" }))
            .collect();
        let root = machine(&files);
        for (allowed, physical) in [(vec![0, 1, 2, 3], 2), (vec![0, 2], 1), (vec![0, 1], 2), (vec![3], 1)] {
            let facts = cpu(root.path(), &allowed.iter().copied().collect());
            assert_eq!((facts.logical as usize, facts.physical, facts.performance), (allowed.len(), physical, physical), "{allowed:?}");
        }
    }

    #[test]
    fn intel_names_its_performance_cores() {
        let root = machine(&[
            ("sys/devices/cpu_core/cpus".into(), "0-3\n"),
            (thread(0, "topology/core_cpus_list"), "0-1\n"),
            (thread(1, "topology/core_cpus_list"), "0-1\n"),
            (thread(2, "topology/core_cpus_list"), "2-3\n"),
            (thread(3, "topology/core_cpus_list"), "2-3\n"),
        ]);
        let facts = cpu(root.path(), &(0..8).collect());
        assert_eq!((facts.logical, facts.physical, facts.performance), (8, 6, 2));
        assert_eq!(cpu(root.path(), &(4..8).collect()).performance, 4, "only efficiency cores allowed: they are the best there are");
    }

    #[test]
    fn capacity_and_frequency_tell_fast_cores_where_they_differ_enough() {
        let speeds = |measure: &str, values: [&'static str; 4]| -> Vec<(String, &'static str)> {
            (0..4).zip(values).map(|(number, value)| (thread(number, measure), value)).collect()
        };
        let table = [
            (speeds("cpu_capacity", ["446", "446", "1024", "1024"]), 2),
            (speeds("cpu_capacity", ["1024", "1024", "1024", "1024"]), 4),
            (speeds("cpufreq/cpuinfo_max_freq", ["5200000", "5000000", "5000000", "4900000"]), 4),
            (speeds("cpufreq/cpuinfo_max_freq", ["5100000", "5100000", "3300000", "3300000"]), 2),
            (speeds("cpufreq/cpuinfo_max_freq", ["nonsense", "1", "9", "9"]), 4),
        ];
        for (files, expected) in table {
            assert_eq!(cpu(machine(&files).path(), &(0..4).collect()).performance, expected, "{files:?}");
        }
    }

    #[test]
    fn model_and_features_are_read_on_x86_and_on_arm() {
        let x86 = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: fpu\n";
        let facts = cpu(machine(&[("proc/cpuinfo".into(), x86)]).path(), &BTreeSet::from([0]));
        assert_eq!(facts.model, "Intel(R) Xeon(R)");
        assert_eq!(facts.features.into_iter().collect::<Vec<_>>(), ["avx2", "avx512f", "fpu"]);

        let arm = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0b\n";
        let root = machine(&[("proc/cpuinfo".into(), arm), ("proc/device-tree/model".into(), "Raspberry Pi 5 Model B Rev 1.0\0")]);
        let facts = cpu(root.path(), &BTreeSet::from([0]));
        assert_eq!(facts.model, "Raspberry Pi 5 Model B Rev 1.0");
        assert!(facts.features.contains("asimddp"));
    }

    #[test]
    fn this_process_may_run_somewhere() {
        assert!(!allowed_threads().is_empty());
    }
}
