//! Model facts + host facts -> slots, context, threads, offload and memory, with the arithmetic shown.
//!
//! Arithmetic instead of a table (ENGINES 6.3): weights + KV cache + compute buffers + host cache against the
//! memory that is free by the control group and the devices. The rules, in order:
//!
//! 1. What the row says is never changed. If it does not fit, the row is refused with the sum and a cure.
//! 2. Threads: performance cores, within the whole cores of the CPU quota, at least 1.
//! 3. Slots: on the CPU 2 below 4 threads, else 4; on a device 4, 8 from 24 GB free, 16 from 80 GB. Halved
//!    while the cache for `min(native, 8192)` tokens a slot does not fit.
//! 4. Context of a slot: the model's own, else the largest multiple of 256 that fits, never below
//!    `min(4096, native)`.
//! 5. Host cache and rewind points from what is left; nothing when little is left.
//!
//! Choices of ours leave 10% of the free memory alone, so that the estimate may be a little wrong; only when
//! nothing fits otherwise is that tenth used. What is chosen here is a promise to the engine's launch: the
//! numbers go to it as explicit flags. This module must never look at the machine itself.

pub mod choose;
pub mod need;
pub mod show;

use crate::host::HostFacts;
use crate::model::ModelFacts;
use crate::spec::{EngineSpec, MemoryNeed, Resolved, Task};
use choose::{Chosen, choose};
use need::{Extras, Plan, Shape, checkpoint_bytes, extras, need};
use show::size;

/// Memory that a launch is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes missing for the least that the row would do with; 0 = memory is not what it lacks.
    pub bytes: u64,
    /// Where they are missing.
    pub of: Pool,
}

/// Which memory is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The host's.
    Host,
    /// That of the devices.
    Devices,
    /// Both count: they are one, or the engine may split the model between them.
    Either,
}

/// A launch that cannot be sized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// Does not fit; the message shows the arithmetic.
    #[error("{arithmetic}")]
    DoesNotFit {
        /// `weights 8.1 GB + KV 1.2 GB + compute 0.5 GB > 7.4 GB free`
        arithmetic: String,
        /// `fits with context 4096 or a smaller quantisation`
        hint: String,
        /// By how much.
        short: Shortage,
    },
    /// The model cannot be served by this engine.
    #[error("{0}")]
    NotServable(String),
}

/// Bytes free on the host and on the devices the row may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Host memory a new process can take.
    pub host: u64,
    /// Memory of the devices together, after the runtime's own share of each; 0 = no device.
    pub devices: u64,
    /// Number of devices.
    pub device_count: u32,
    /// The devices work in the host's memory: both numbers are of one pool.
    pub shared: bool,
}

/// Where the model goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Everything in host memory.
    Host,
    /// Everything on the devices.
    Devices,
    /// This many layers on the devices, the rest on the host.
    Layers(u32),
    /// More than the devices hold: the engine splits it (experts to the host first).
    Split,
}

/// The usual way to make one vector of many, where the header names none: without one the engine answers an error.
const DEFAULT_POOLING: &str = "mean";

/// Turns every "auto" of a llama.cpp row into a number.
pub fn resolve(spec: &EngineSpec, model: &ModelFacts, host: &HostFacts) -> Result<Resolved, SizingError> {
    let free = free_memory(spec, host);
    check_devices(spec, free)?;
    let task = spec.task.unwrap_or(model.task);
    let threads = spec.threads.unwrap_or_else(|| auto_threads(host));
    let shape = Shape {
        task,
        key: spec.cache_type_k.unwrap_or_default(),
        value: spec.cache_type_v.unwrap_or_default(),
        devices: free.device_count,
    };
    let chosen = choose(spec, model, shape, threads, free)?;
    let plan = Plan { slots: chosen.slots, context: chosen.context };
    let base = need(model, shape, plan);
    let extras = extras(model, shape, plan, host_left(base, chosen.placement, free), free.host);
    let memory = MemoryNeed { host_cache_bytes: extras.bytes(), ..base };
    Ok(Resolved {
        task,
        context: chosen.context,
        slots: chosen.slots,
        threads,
        gpu_layers: match chosen.placement {
            Placement::Host => Some(0),
            Placement::Devices => Some(spec.gpu_layers.unwrap_or_else(|| all_layers(model))),
            Placement::Layers(layers) => Some(layers),
            Placement::Split => None,
        },
        cache_type_k: shape.key,
        cache_type_v: shape.value,
        host_cache_mib: extras.cache_mib,
        context_checkpoints: extras.checkpoints,
        pooling: (task == Task::Embedding && !model.pooling).then(|| DEFAULT_POOLING.to_owned()),
        memory,
        arithmetic: explain(spec, model, host, free, shape, &chosen, memory, &extras, threads),
    })
}

/// The number that puts every layer, and the output beside them, on the devices.
pub(crate) fn all_layers(model: &ModelFacts) -> u32 {
    model.layers.saturating_add(model.speculative_layers).saturating_add(1)
}

/// Performance cores within the whole cores of the CPU quota, at least 1: a thread that is stopped by the quota
/// holds up all the others at the next barrier.
pub fn auto_threads(host: &HostFacts) -> u32 {
    let cores = host.cpu.performance.max(1);
    let quota = host.cpu.quota_cores.map_or(u32::MAX, |quota| (1..=cores).rev().find(|cores| f64::from(*cores) <= quota).unwrap_or(1));
    cores.min(quota)
}

/// Memory the runtime of a device takes before the first weight (ENGINES 6.3: 300 to 600 MiB for CUDA).
const DEVICE_RUNTIME: u64 = 450 << 20;

fn free_memory(spec: &EngineSpec, host: &HostFacts) -> Free {
    let host_free = host.memory.available_bytes;
    let wanted = |index: usize| match &spec.devices {
        None => true,
        Some(names) => names.iter().any(|name| device_index(name) == Some(index)),
    };
    let used: Vec<_> = host.reachable_devices().enumerate().filter(|(index, _)| wanted(*index)).map(|(_, device)| device).collect();
    if spec.gpu_layers == Some(0) || used.is_empty() {
        return Free { host: host_free, devices: 0, device_count: 0, shared: false };
    }
    let own: u64 = used
        .iter()
        .filter(|device| device.memory_total_bytes > 0)
        .map(|device| device.memory_free_bytes.saturating_sub(DEVICE_RUNTIME))
        .sum();
    // A device without memory of its own works in the host's; a quarter of that stays with the system.
    let devices = if own > 0 { own } else { host_free / 4 * 3 };
    Free { host: host_free, devices, device_count: u32::try_from(used.len()).unwrap_or(u32::MAX), shared: own == 0 }
}

/// What the row says of devices is refused where there is none, not quietly dropped.
fn check_devices(spec: &EngineSpec, free: Free) -> Result<(), SizingError> {
    let wants_layers = spec.gpu_layers.is_some_and(|layers| layers > 0);
    let wants_devices = spec.gpu_layers != Some(0) && spec.devices.as_ref().is_some_and(|names| names.iter().any(|name| name != "none"));
    if free.device_count > 0 || !(wants_layers || wants_devices) {
        return Ok(());
    }
    let field = if wants_layers { "gpu_layers" } else { "devices" };
    Err(SizingError::DoesNotFit {
        arithmetic: format!("{field} asks for a device, and this host has none that the engine build can use"),
        hint: format!("leave `{field}` out, or install a build for the device (`lifeboat engine candidates`)"),
        short: Shortage { bytes: 0, of: Pool::Devices },
    })
}

/// `CUDA1` -> 1: engines number their devices in the order they are found.
fn device_index(name: &str) -> Option<usize> {
    name.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().ok()
}

/// Host memory left once the launch has taken its share.
fn host_left(base: MemoryNeed, placement: Placement, free: Free) -> u64 {
    let total = base.total_bytes();
    let on_host = match placement {
        Placement::Devices if !free.shared => need::PROCESS_BYTES,
        Placement::Host | Placement::Layers(_) | Placement::Devices => total,
        Placement::Split => total.saturating_sub(free.devices),
    };
    (free.host / 10 * 9).saturating_sub(on_host)
}

#[expect(clippy::too_many_arguments, reason = "one line per decision, and each decision has its own inputs")]
fn explain(
    spec: &EngineSpec,
    model: &ModelFacts,
    host: &HostFacts,
    free: Free,
    shape: Shape,
    chosen: &Chosen,
    memory: MemoryNeed,
    extras: &Extras,
    threads: u32,
) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(if spec.threads.is_some() {
        format!("threads {threads}: as the row says")
    } else {
        let quota = host.cpu.quota_cores.map_or_else(|| "no CPU quota".to_owned(), |quota| format!("CPU quota {quota:.1}"));
        format!("threads {threads}: {} performance cores of {} threads, {quota}", host.cpu.performance, host.cpu.logical)
    });
    lines.push(format!("slots {}: {}", chosen.slots, chosen.slots_reason));
    lines.push(format!("context {} per slot: {}", chosen.context, chosen.context_reason));
    let plan = Plan { slots: chosen.slots, context: chosen.context };
    lines.push(format!(
        "KV {} = {} x {} tokens, {} keys and {} values",
        size(memory.kv_bytes),
        plan.slots,
        need::cells(plan.context),
        shape.key.as_str(),
        shape.value.as_str(),
    ));
    let point = checkpoint_bytes(model, shape, plan);
    lines.push(match (extras.cache_mib, extras.checkpoints) {
        (0, 0) => "host cache 0: too little memory is left".into(),
        (mib, 0) => format!("host cache {}: an eighth of the memory free, at most 2.1 GB, of what is left", size(u64::from(mib) << 20)),
        (mib, points) => {
            format!(
                "host cache {} and {points} rewind points of {} for each slot, of what is left",
                size(u64::from(mib) << 20),
                size(point)
            )
        }
    });
    if free.device_count > 0 {
        lines.push(match chosen.placement {
            Placement::Devices => {
                format!("devices: all layers, {} of {} free", size(memory.total_bytes() - memory.host_cache_bytes), size(free.devices))
            }
            Placement::Layers(layers) => format!("devices: {layers} layers, as the row says"),
            Placement::Split => format!("devices: {} free is less than needed, so the engine places what fits", size(free.devices)),
            Placement::Host => "devices: not used".into(),
        });
    }
    let (room, place) = match chosen.placement {
        Placement::Devices => (free.devices, "on the devices"),
        Placement::Host => (free.host, "free"),
        Placement::Layers(_) | Placement::Split => (free.host.saturating_add(free.devices), "free in host and devices"),
    };
    lines.push(format!("memory: {} of {} {place} ({})", show::sum(&memory), size(room), host.memory.source));
    if task_is_vectors(shape.task) {
        lines.push(format!("batch {}: an input must fit one batch to become a vector", shape.ubatch(plan.context)));
    }
    lines
}

fn task_is_vectors(task: Task) -> bool {
    task != Task::Chat
}

#[cfg(test)]
pub(crate) mod tests;
