//! Whether somebody still wants the engine: the control plane named in a file lives, or was gone for less than the
//! lease.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::host::process::Identity;

/// Counts how long no control plane has been there.
#[derive(Debug)]
pub struct Lease {
    length: Duration,
    gone_since: Option<Instant>,
}

impl Lease {
    /// A lease of this length; zero = for ever.
    pub const fn new(length: Duration) -> Self {
        Self { length, gone_since: None }
    }

    /// Takes one look; true once the lease has ended.
    pub fn has_ended(&mut self, control_plane_lives: bool, now: Instant) -> bool {
        if control_plane_lives || self.length.is_zero() {
            self.gone_since = None;
            return false;
        }
        now.saturating_duration_since(*self.gone_since.get_or_insert(now)) >= self.length
    }
}

/// The control plane of a data directory, as its file names it.
#[derive(Debug, Deserialize)]
struct Holder {
    #[serde(flatten)]
    identity: Identity,
    serves: bool,
}

/// Reads the file afresh: a control plane that took over has written its own name there. One that only carries out a
/// command keeps what it started itself, `parent` being who started this guard, and no engine of a server that is gone.
pub fn control_plane_lives(control_file: &Path, parent: Option<u32>) -> bool {
    let text = std::fs::read(control_file).unwrap_or_default();
    serde_json::from_slice::<Holder>(&text)
        .is_ok_and(|holder| (holder.serves || parent == Some(holder.identity.pid)) && holder.identity.lives())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_ends_only_after_its_whole_length_without_a_control_plane() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut lease = Lease::new(second * 3);
        // (seconds after start, control plane lives, lease has ended)
        for (at, lives, ended) in [(0, true, false), (1, false, false), (3, false, false), (4, false, true)] {
            assert_eq!(lease.has_ended(lives, start + second * at), ended, "at {at}");
        }
    }

    #[test]
    fn a_control_plane_that_returns_renews_the_lease() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut lease = Lease::new(second * 3);
        assert!(!lease.has_ended(false, start));
        assert!(!lease.has_ended(true, start + second * 2));
        assert!(!lease.has_ended(false, start + second * 4));
        assert!(!lease.has_ended(false, start + second * 6));
        assert!(lease.has_ended(false, start + second * 7));
    }

    #[test]
    fn a_command_keeps_what_it_started_and_a_server_everything() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("control-plane.json");
        let me = Identity::current().unwrap();
        for (serves, parent, lives) in [(true, None, true), (false, None, false), (false, Some(1), false), (false, Some(me.pid), true)] {
            let mut text = serde_json::to_value(&me).unwrap();
            text["serves"] = serves.into();
            std::fs::write(&file, text.to_string()).unwrap();
            assert_eq!(control_plane_lives(&file, parent), lives, "{serves} {parent:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(!control_plane_lives(&file, Some(me.pid)));
    }

    #[test]
    fn a_lease_of_zero_never_ends() {
        let start = Instant::now();
        let mut lease = Lease::new(Duration::ZERO);
        assert!(!lease.has_ended(false, start));
        assert!(!lease.has_ended(false, start + Duration::from_secs(1_000_000)));
    }
}
