//! Measures this machine into `lifeboat_engines::host::HostFacts`.

use lifeboat_engines::host::HostFacts;

/// The machine as it is now. Memory and devices are read afresh on each call; blocking, a few milliseconds.
pub fn measure() -> HostFacts {
    todo!()
}
