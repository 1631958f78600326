//! The search for slots, context and placement. Pure, small, and the only place that decides what fits.

use super::need::{Plan, Shape, cells, need};
use super::show::{parts, size};
use super::{Free, Placement, Pool, Shortage, SizingError};
use crate::model::ModelFacts;
use crate::spec::{EngineSpec, Task};

/// A context that is long enough for most talks: slots are given up before it is, and it before slots are 1.
const COMFORTABLE: u32 = 8192;
/// "auto" never goes below this (nor below the model's own context).
const FLOOR: u32 = 4096;
/// Where a model's header does not tell its context.
const UNKNOWN_NATIVE: u32 = 4096;

/// The outcome, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Requests at once.
    pub slots: u32,
    /// Why.
    pub slots_reason: String,
    /// Tokens of context of a slot.
    pub context: u32,
    /// Why.
    pub context_reason: String,
    /// Where the model goes.
    pub placement: Placement,
}

/// How much of the free memory may be used, in tenths.
#[derive(Debug, Clone, Copy)]
struct Share(u64);
const CAREFUL: Share = Share(9);
const ALL: Share = Share(10);

struct Search<'a> {
    spec: &'a EngineSpec,
    model: &'a ModelFacts,
    shape: Shape,
    free: Free,
}

/// Finds slots, context and placement, or says by how much it does not fit and what would.
pub fn choose(spec: &EngineSpec, model: &ModelFacts, shape: Shape, threads: u32, free: Free) -> Result<Chosen, SizingError> {
    let search = Search { spec, model, shape, free };
    let native = if model.native_context == 0 { UNKNOWN_NATIVE } else { model.native_context };
    let ideal = if shape.task == Task::Chat { native } else { native.min(super::need::MAX_VECTOR_BATCH) };
    let start = auto_slots(threads, free);
    let halves: Vec<u32> = match spec.slots {
        Some(slots) => vec![slots],
        None => std::iter::successors(Some(start), |slots| (*slots > 1).then_some(slots / 2)).collect(),
    };
    for placement in search.placements() {
        for share in [CAREFUL, ALL] {
            // The row's own numbers may use all there is at once; a choice of ours tries the careful share first.
            let fits = |plan: Plan| search.fits(plan, placement, share);
            let found = match spec.context {
                Some(context) => halves.iter().map(|slots| Plan { slots: *slots, context }).find(|plan| fits(*plan)),
                None => pick_context(&halves, ideal, fits),
            };
            if let Some(plan) = found {
                return Ok(search.chosen(plan, placement, native, start, threads));
            }
        }
    }
    Err(search.refusal(halves.last().copied().unwrap_or(1), ideal))
}

/// Requests at once before memory has its say.
fn auto_slots(threads: u32, free: Free) -> u32 {
    match (free.device_count, free.devices / 1_000_000_000, threads) {
        (0, _, ..4) => 2,
        (0, ..) | (_, ..24, _) => 4,
        (_, ..80, _) => 8,
        _ => 16,
    }
}

/// The most slots whose talks are comfortable, then the longest context for them.
fn pick_context(halves: &[u32], ideal: u32, fits: impl Fn(Plan) -> bool) -> Option<Plan> {
    let comfortable = ideal.min(COMFORTABLE);
    let slots = halves.iter().copied().find(|slots| fits(Plan { slots: *slots, context: comfortable })).or(halves.last().copied())?;
    largest_context(ideal.min(FLOOR), ideal, |context| fits(Plan { slots, context })).map(|context| Plan { slots, context })
}

/// The largest context in `least..=most` that fits, in steps of 256 (but `most` itself as it is).
fn largest_context(least: u32, most: u32, fits: impl Fn(u32) -> bool) -> Option<u32> {
    if fits(most) {
        return Some(most);
    }
    if !fits(least) {
        return None;
    }
    let (mut low, mut high) = (least.div_ceil(256), cells(most) / 256);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle * 256) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((low * 256).clamp(least, most))
}

impl Search<'_> {
    /// Placements to try, best first.
    fn placements(&self) -> Vec<Placement> {
        match (self.free.device_count, self.spec.gpu_layers) {
            (0, _) | (_, Some(0)) => vec![Placement::Host],
            (_, Some(layers)) if layers >= super::all_layers(self.model) => vec![Placement::Devices],
            (_, Some(layers)) => vec![Placement::Layers(layers)],
            (_, None) if self.free.shared => vec![Placement::Devices, Placement::Host],
            (_, None) => vec![Placement::Devices, Placement::Split],
        }
    }

    fn fits(&self, plan: Plan, placement: Placement, share: Share) -> bool {
        if u64::from(cells(plan.context)) * u64::from(plan.slots) > i32::MAX.unsigned_abs().into() {
            return false; // more tokens than the engine can count
        }
        let (host, devices) = self.split(plan, placement);
        let room = |free: u64| free / 10 * share.0 + free % 10 * share.0 / 10;
        match placement {
            // Where the engine splits, only the sum is known.
            Placement::Split => host.saturating_add(devices) <= room(self.free.host).saturating_add(room(self.free.devices)),
            _ => host <= room(self.free.host) && devices <= room(self.free.devices),
        }
    }

    /// Bytes on the host and on the devices.
    fn split(&self, plan: Plan, placement: Placement) -> (u64, u64) {
        let need = need(self.model, self.shape, plan);
        let total = need.total_bytes();
        match placement {
            Placement::Host | Placement::Split => (total, 0),
            Placement::Devices => (super::need::PROCESS_BYTES, total.saturating_sub(super::need::PROCESS_BYTES)),
            Placement::Layers(layers) => {
                let all = u64::from(super::all_layers(self.model)).max(1);
                let per_layer = need.weights_bytes.saturating_add(need.kv_bytes).div_ceil(all);
                let devices = per_layer.saturating_mul(layers.into()).saturating_add(need.compute_bytes);
                (total.saturating_sub(devices).saturating_add(need.compute_bytes), devices)
            }
        }
    }

    fn chosen(&self, plan: Plan, placement: Placement, native: u32, start: u32, threads: u32) -> Chosen {
        let slots_reason = match self.spec.slots {
            Some(_) => "as the row says".to_owned(),
            None if plan.slots < start => format!("{start} would not leave enough context for each in the memory free"),
            None if self.free.device_count > 0 => format!("for {} free on the devices", size(self.free.devices)),
            None => format!("for {threads} threads"),
        };
        let context_reason = match self.spec.context {
            Some(context) if context > native => format!("as the row says; the model was trained for {native}"),
            Some(_) => "as the row says".to_owned(),
            None if plan.context == native => "the model's own".to_owned(),
            None if self.shape.task != Task::Chat && plan.context == super::need::MAX_VECTOR_BATCH => {
                format!("the largest batch; the model's own is {native}")
            }
            None => format!("the most that fits; the model's own is {native}"),
        };
        Chosen { slots: plan.slots, slots_reason, context: plan.context, context_reason, placement }
    }

    /// The sum that does not fit, and a change that does.
    fn refusal(&self, slots: u32, ideal: u32) -> SizingError {
        let context = self.spec.context.unwrap_or(ideal.min(FLOOR));
        let plan = Plan { slots, context };
        let placement = self.placements().pop().unwrap_or(Placement::Host);
        let need = need(self.model, self.shape, plan);
        let room = match placement {
            Placement::Host => format!("{} free", size(self.free.host)),
            Placement::Devices => format!("{} free on the devices", size(self.free.devices)),
            Placement::Layers(layers) => {
                format!("{} free on the devices for {layers} layers and {} on the host", size(self.free.devices), size(self.free.host))
            }
            Placement::Split => format!("{} free on the devices and {} on the host", size(self.free.devices), size(self.free.host)),
        };
        let arithmetic = format!("{} = {} > {room} (context {context} x slots {slots})", parts(&need), size(need.total_bytes()));
        SizingError::DoesNotFit { arithmetic, hint: self.cure(plan, placement, ideal), short: self.short(plan, placement) }
    }

    fn short(&self, plan: Plan, placement: Placement) -> Shortage {
        let (host, devices) = self.split(plan, placement);
        if placement == Placement::Split {
            let free = self.free.host.saturating_add(self.free.devices);
            return Shortage { bytes: host.saturating_add(devices).saturating_sub(free), of: Pool::Either };
        }
        let (host, devices) = (host.saturating_sub(self.free.host), devices.saturating_sub(self.free.devices));
        let of = if self.free.shared && self.free.device_count > 0 {
            Pool::Either
        } else if devices > host {
            Pool::Devices
        } else {
            Pool::Host
        };
        Shortage { bytes: host.max(devices), of }
    }

    fn cure(&self, plan: Plan, placement: Placement, ideal: u32) -> String {
        let fits = |plan: Plan| self.fits(plan, placement, ALL);
        let mut cures = Vec::new();
        let shorter = plan.context.saturating_sub(1).min(ideal.max(256));
        if let Some(context) = largest_context(256, shorter.max(256), |context| fits(Plan { context, ..plan })) {
            cures.push(format!("context {context}"));
        }
        let fewer = std::iter::successors(Some(plan.slots / 2), |slots| Some(slots / 2)).take_while(|slots| *slots > 0);
        if let Some(slots) = { fewer }.find(|slots| fits(Plan { slots: *slots, ..plan })) {
            cures.push(format!("slots {slots}"));
        }
        if matches!(placement, Placement::Devices | Placement::Layers(_)) {
            cures.push("fewer gpu_layers".into());
        }
        if cures.is_empty() {
            return "needs a smaller quantisation or a smaller model on this host".into();
        }
        // Each of them alone is enough.
        format!("fits with {} or a smaller quantisation", cures.join(" or "))
    }
}
