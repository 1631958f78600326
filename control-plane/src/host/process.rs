//! Processes as /proc shows them: who is alive, what it used, who descends from whom; and signals to them.
//!
//! A process is named by its id, its start time and the boot it belongs to, because ids are used again. Nothing
//! here starts a process.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::hex::hex;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::unix::AsyncFd;

/// One process, for as long as it runs: another process never has the same identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks after boot (field 22 of /proc/pid/stat).
    pub start: u64,
    /// The kernel's boot id: start times begin again with each boot.
    pub boot: String,
}

impl Identity {
    /// The process that has this id now.
    pub fn of(pid: u32) -> Option<Self> {
        let start = stat(pid)?.start;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Some(Self { pid, start, boot })
    }

    /// This process.
    pub fn current() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Whether it still runs. A process that has ended and waits to be collected does not.
    pub fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self) && stat(self.pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    }
}

/// What /proc/pid/stat tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R` running, `S` sleeping, `D` waiting for a device, `T` stopped by a signal, `t` by a debugger, `Z` ended.
    pub state: char,
    /// Parent's id.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Session.
    pub session: u32,
    /// CPU time used, clock ticks, all threads.
    pub cpu_ticks: u64,
    /// Start time, clock ticks after boot.
    pub start: u64,
    /// Resident memory, pages.
    pub resident_pages: u64,
}

/// Reads the state of a process; `None` if there is none.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads one line of /proc/pid/stat. The name in parentheses may hold spaces and parentheses itself.
fn parse_stat(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        cpu_ticks: number(11)?.saturating_add(number(12)?),
        start: number(19)?,
        resident_pages: number(21)?,
    })
}

/// Every process there is.
fn all() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, stat(pid)?))
    })
}

/// All live descendants of a process, parents before children.
pub fn descendants(root: u32) -> Vec<u32> {
    let processes: Vec<(u32, Stat)> = all().filter(|(_, stat)| stat.state != 'Z').collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        found.extend(processes.iter().filter(|(pid, stat)| stat.parent == parent && *pid != root).map(|(pid, _)| *pid));
    }
    found.split_off(1)
}

/// All live processes of a session. Its number is not used again while there is one.
pub fn session_members(session: u32) -> Vec<u32> {
    all().filter(|(_, stat)| stat.session == session && stat.state != 'Z').map(|(pid, _)| pid).collect()
}

/// What a process group has used so far. Any change means that something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time, clock ticks (100 a second on Linux).
    pub cpu_ticks: u64,
    /// Resident memory, pages.
    pub resident_pages: u64,
    /// Bytes read, from wherever.
    pub read_bytes: u64,
    /// At least one of them was stopped by a signal.
    pub stopped: bool,
}

/// Adds up a process group.
pub fn group_usage(group: u32) -> Usage {
    all().filter(|(_, stat)| stat.group == group).fold(Usage::default(), |sum, (pid, stat)| {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let read: u64 = io.lines().filter_map(|line| line.strip_prefix("rchar: ")?.trim().parse::<u64>().ok()).sum();
        Usage {
            cpu_ticks: sum.cpu_ticks.saturating_add(stat.cpu_ticks),
            resident_pages: sum.resident_pages.saturating_add(stat.resident_pages),
            read_bytes: sum.read_bytes.saturating_add(read),
            stopped: sum.stopped || stat.state == 'T',
        }
    })
}

/// A digest of the command line a process shows.
pub fn command_line_digest(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
    Some(hex(&Sha256::digest(line)))
}

/// Sends a signal to one process. One that is gone is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = typed(pid) {
        // The only failures are "gone" and "not ours", and neither leaves anything to do.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to a whole process group. One that is gone is no error.
pub fn signal_group(group: u32, signal: Signal) {
    if let Some(group) = typed(group) {
        // As above.
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// Ids 0 and 1 mean "my own group" and "everybody" to the kernel, and are never what is meant here.
fn typed(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)
}

/// Waits for the end of a process, a child of ours or not.
#[derive(Debug)]
pub struct Watch {
    identity: Identity,
    // None on kernels before 5.3.
    descriptor: Option<AsyncFd<OwnedFd>>,
}

/// How often a process is looked at on kernels that cannot tell when it ends.
const POLL: Duration = Duration::from_millis(200);

impl Watch {
    /// Watches a process. Needs a running tokio runtime.
    pub fn open(identity: Identity) -> io::Result<Self> {
        let descriptor = match typed(identity.pid).map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
            // Between two looks the id may have gone to another process, which is then not waited for.
            Some(Ok(descriptor)) if Identity::of(identity.pid).as_ref() == Some(&identity) => Some(registered(descriptor)?),
            _ => None,
        };
        Ok(Self { identity, descriptor })
    }

    /// Returns once it has ended, and collects it if it was our child. Cancel-safe, may be called again.
    pub async fn ended(&self) {
        if let Some(descriptor) = &self.descriptor
            && descriptor.readable().await.is_ok()
        {
            // A process that is not our child has another collector.
            let _ =
                rustix::process::waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(descriptor)), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            return;
        }
        while self.identity.lives() {
            tokio::time::sleep(POLL).await;
        }
        if let Some(pid) = typed(self.identity.pid) {
            let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

#[expect(deprecated, reason = "its successor is an unsafe function whose contract, an owned and open descriptor, holds here by type")]
fn registered(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = "4321 (llama (old) srv) S 77 4321 4321 0 -1 4194304 900 0 3 0 150 25 0 0 20 0 9 0 123456 700000000 5120 18446744073709551615 1 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, Stat { state: 'S', parent: 77, group: 4321, session: 4321, cpu_ticks: 175, start: 123_456, resident_pages: 5120 });
    }

    #[test]
    fn a_short_or_foreign_line_is_nobody() {
        for line in ["", "12", "12 (sh)", "12 (sh) S 1 2", "no parentheses at all"] {
            assert_eq!(parse_stat(line), None, "{line:?}");
        }
    }

    #[test]
    fn this_process_lives_and_another_start_time_does_not() {
        let me = Identity::current().unwrap();
        assert!(me.lives());
        assert!(!Identity { start: me.start + 1, ..me.clone() }.lives());
        assert!(!Identity { boot: "another boot".into(), ..me }.lives());
    }

    #[test]
    fn ids_with_a_meaning_of_their_own_are_never_signalled() {
        assert_eq!(typed(0), None);
        assert_eq!(typed(1), None);
        assert_eq!(typed(u32::MAX), None);
        assert!(typed(2).is_some());
    }
}
