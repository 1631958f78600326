//! Measures this machine into `lifeboat_engines::host::HostFacts`.
//!
//! Files are read rather than programs run, every look is bounded in time, and what is not there is a fact as well.

use std::path::Path;
use std::sync::OnceLock;

use lifeboat_engines::host::{HostFacts, Libc, Tools};

use super::{cpu, devices, libc, memory, tools};

/// The machine as it is now. Memory, processors and devices are read afresh on each call. Blocking: some tenths of a
/// second the first time, when the tools are asked for their versions, a few milliseconds later (up to some seconds
/// where an accelerator's driver does not answer).
pub fn measure() -> HostFacts {
    // Neither the C library nor the installed tools change under a running process in a way that matters.
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    let tools = TOOLS.get_or_init(|| tools::tools(&std::env::var_os("PATH").unwrap_or_default())).clone();
    HostFacts { tools, ..measure_for_launch() }
}

/// As [`measure`], without the tools, which no launch needs: a few milliseconds from the first call on.
pub fn measure_for_launch() -> HostFacts {
    static LIBC: OnceLock<Libc> = OnceLock::new();
    let root = Path::new("/");
    HostFacts {
        os: std::env::consts::OS.into(),
        arch: std::env::consts::ARCH.into(),
        libc: *LIBC.get_or_init(|| libc::libc(root)),
        cpu: cpu::cpu(root, &cpu::allowed_threads()),
        memory: memory::memory(root),
        devices: devices::devices(root),
        tools: Tools::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors_and_memory() {
        let facts = measure();
        assert!(facts.cpu.logical >= facts.cpu.physical && facts.cpu.physical >= facts.cpu.performance && facts.cpu.performance >= 1);
        assert!(facts.memory.total_bytes >= facts.memory.available_bytes && facts.memory.available_bytes > 0);
        assert!(!facts.cpu.features.is_empty() && !facts.memory.source.is_empty());
    }
}
