//! Whether an engine can serve a model on this host, asked of the same sizing that a launch uses.

use lifeboat_engines::adapter;
use lifeboat_engines::host::HostFacts;
use lifeboat_engines::model::ModelFacts;
use lifeboat_engines::sizing::SizingError;
use lifeboat_engines::spec::{EngineKind, EngineSpec, Resolved};

use super::ModelsError;

/// Part of the memory that the rest of the system is taken to need when nothing else is loaded.
const SYSTEM_SHARE: u64 = 10;

/// What a row with everything on auto would become now.
pub(super) fn now(facts: &ModelFacts, host: &HostFacts) -> Result<Resolved, SizingError> {
    adapter(EngineKind::LlamaCpp).resolve(&EngineSpec::new("model", EngineKind::LlamaCpp), Some(facts), host)
}

/// Refuses a model that could not be served here even if nothing else was loaded: what another engine holds now
/// is no reason not to fetch.
pub(super) fn could_ever_serve(source: &str, facts: &ModelFacts, host: &HostFacts) -> Result<(), ModelsError> {
    let refused = |reason, hint| ModelsError::NotServable { source_text: source.to_owned(), reason, hint };
    match now(facts, &idle(host)) {
        Ok(_) => Ok(()),
        Err(SizingError::DoesNotFit { arithmetic, hint, .. }) => Err(refused(arithmetic, Some(hint))),
        Err(other) => Err(refused(other.to_string(), None)),
    }
}

/// The host with nothing loaded.
fn idle(host: &HostFacts) -> HostFacts {
    let mut idle = host.clone();
    let memory = &mut idle.memory;
    let all = memory.limit_bytes.map_or(memory.total_bytes, |limit| limit.min(memory.total_bytes));
    memory.available_bytes = memory.available_bytes.max(all - all / SYSTEM_SHARE);
    for device in &mut idle.devices {
        device.memory_free_bytes = device.memory_free_bytes.max(device.memory_total_bytes - device.memory_total_bytes / SYSTEM_SHARE);
    }
    idle
}
