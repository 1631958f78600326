//! Accelerators: those that answer, and those that are there and do not.

mod amd;
mod nvidia;
mod pci;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use lifeboat_engines::host::{Device, Vendor};

/// Longest wait for the NVIDIA driver. It answers in milliseconds, or in a second where it was not loaded; a driver in
/// trouble does not answer at all.
const DRIVER_WITHIN: Duration = Duration::from_secs(5);

/// All accelerators. `root` is `/` but for tests.
pub fn devices(root: &Path) -> Vec<Device> {
    let mut found = if nvidia::may_be_here(root) { asked_within(DRIVER_WITHIN) } else { Vec::new() };
    found.extend(amd::devices(root));
    // Hardware on the bus that no driver told of.
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        if !found.iter().any(|device| device.vendor == vendor) {
            found.extend(pci::without_driver(root, vendor));
        }
    }
    found
}

/// Asks the NVIDIA driver in a thread that is left to itself if it does not come back.
fn asked_within(within: Duration) -> Vec<Device> {
    static ASKING: AtomicBool = AtomicBool::new(false);
    let silent = || vec![nvidia::unreachable(format!("the driver does not answer within {} s", within.as_secs()))];
    if ASKING.swap(true, Ordering::AcqRel) {
        return silent();
    }
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = tx.send(nvidia::devices(Path::new("/")));
        ASKING.store(false, Ordering::Release);
    });
    rx.recv_timeout(within).unwrap_or_else(|_| silent())
}
