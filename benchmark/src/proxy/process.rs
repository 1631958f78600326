//! CPU and memory of a process and its children, by `/proc`.

use std::collections::HashMap;
use std::fs;

use anyhow::Context;

/// Clock ticks of a second in `/proc`; the kernel shows 100 to programs on every machine.
const TICKS: f64 = 100.0;

/// A process, and its children if they belong to it.
#[derive(Debug)]
pub struct Tree {
    root: u32,
    children: bool,
}

/// One line of `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// Of itself.
    ticks: u64,
    /// Of its children that have ended.
    reaped: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name is in brackets and may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self { parent: u32::try_from(number(1)?).ok()?, ticks: number(11)? + number(12)?, reaped: number(13)? + number(14)? })
    }
}

impl Tree {
    /// This process; `children` = with all that descend from it.
    pub const fn new(root: u32, children: bool) -> Self {
        Self { root, children }
    }

    fn members(&self) -> anyhow::Result<Vec<(u32, Stat)>> {
        let read = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|text| Stat::parse(&text));
        let root = read(self.root).with_context(|| format!("process {} is not there", self.root))?;
        let mut members = vec![(self.root, root)];
        if !self.children {
            return Ok(members);
        }
        let pids = fs::read_dir("/proc").context("no /proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut by_parent: HashMap<u32, Vec<(u32, Stat)>> = HashMap::new();
        for pid in pids {
            if let Some(stat) = read(pid) {
                by_parent.entry(stat.parent).or_default().push((pid, stat));
            }
        }
        let mut next = 0;
        while let Some((pid, _)) = members.get(next) {
            let children = by_parent.remove(pid).unwrap_or_default();
            members.extend(children);
            next += 1;
        }
        Ok(members)
    }

    /// Microseconds of CPU so far.
    pub fn cpu_micros(&self) -> anyhow::Result<f64> {
        let ticks: u64 = self.members()?.iter().map(|(_, stat)| stat.ticks + if self.children { stat.reaped } else { 0 }).sum();
        Ok(ticks as f64 / TICKS * 1e6)
    }

    /// The highest resident memory of each, summed, in MiB.
    pub fn peak_mib(&self) -> anyhow::Result<f64> {
        let peak = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        Ok(self.members()?.iter().filter_map(|(pid, _)| peak(pid)).sum::<f64>() / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_of_the_program() {
        let line = "42 (a) b) S 7 42 42 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(Stat::parse(line), Some(Stat { parent: 7, ticks: 120, reaped: 7 }));
        assert_eq!(Stat::parse("42 (a"), None);
    }

    #[test]
    fn this_process_takes_time_and_memory() {
        let tree = Tree::new(std::process::id(), true);
        let before = tree.cpu_micros().unwrap();
        let mut sum = 0_u64;
        while tree.cpu_micros().unwrap() <= before {
            sum = (0..100_000_u64).fold(sum, u64::wrapping_add);
        }
        assert!(tree.peak_mib().unwrap() > 0.5);
    }
}
