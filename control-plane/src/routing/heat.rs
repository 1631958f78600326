//! How hot a pool is, and what that does to the price of computing.
//!
//! Two mildly smoothed shares: of slots taken or asked for, and of the prompt tokens its rows can read. A cool pool is
//! ruled by time to first token alone; a hot one also pays for every token it computes, because there each costs somebody
//! else's time. Going hot takes more than staying hot, and neither lasts less than a few seconds.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a pool chooses its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The shortest time to the first token.
    #[default]
    Ttft,
    /// The least computing, the more so the hotter the pool.
    Throughput,
    /// Always the row a conversation began on, as long as it is there.
    Sticky,
    /// `ttft` while cool, `throughput` while hot.
    Hybrid,
}

impl Mode {
    /// The mode of that name; the default for any other.
    pub fn named(name: &str) -> Self {
        [Self::Throughput, Self::Sticky, Self::Hybrid].into_iter().find(|mode| mode.as_str() == name).unwrap_or_default()
    }

    /// The name used in the API, the headers and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Throughput => "throughput",
            Self::Sticky => "sticky",
            Self::Hybrid => "hybrid",
        }
    }
}

/// Above this a cool pool turns hot.
pub const ENTER: f64 = 0.85;
/// Below this a hot pool turns cool.
pub const LEAVE: f64 = 0.65;
/// Seconds a state lasts at least.
pub const DWELL: f64 = 5.0;
/// Seconds over which the price rises to its full height.
const RAMP: f64 = 2.0;
/// Seconds of memory of the share of slots.
const SLOTS_MEMORY: f64 = 5.0;
/// Seconds of memory of the share of reading.
const READING_MEMORY: f64 = 10.0;
/// Heat beyond which the price rises no more.
const MOST: f64 = 0.95;

/// The heat of one pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heat {
    slots: f64,
    reading: f64,
    seen: f64,
    hot: bool,
    since: f64,
    /// Times it turned hot or cool.
    pub switches: u64,
}

impl Heat {
    /// A cold pool.
    pub const fn new(now: f64) -> Self {
        Self { slots: 0.0, reading: 0.0, seen: now, hot: false, since: f64::NEG_INFINITY, switches: 0 }
    }

    /// Share of slots taken or asked for, smoothed.
    pub const fn slots(&self) -> f64 {
        self.slots
    }

    /// Share of the prompt tokens its rows can read, smoothed.
    pub const fn reading(&self) -> f64 {
        self.reading
    }

    /// The heat: the larger of the two.
    pub const fn value(&self) -> f64 {
        self.slots.max(self.reading)
    }

    /// Whether it is hot.
    pub const fn is_hot(&self) -> bool {
        self.hot
    }

    /// Takes in the share of slots taken or asked for since the last call.
    pub fn observe(&mut self, share: f64, now: f64) {
        let passed = (now - self.seen).max(0.0);
        self.seen = now;
        self.slots += (share - self.slots) * (1.0 - (-passed / SLOTS_MEMORY).exp());
        self.reading *= (-passed / READING_MEMORY).exp();
        let turn = if self.hot { self.value() < LEAVE } else { self.value() > ENTER };
        if turn && now - self.since >= DWELL {
            self.hot = !self.hot;
            self.since = now;
            self.switches += 1;
        }
    }

    /// Prompt tokens were sent to rows that read `capacity` of them per second.
    pub fn dispatched(&mut self, tokens: f64, capacity: f64) {
        self.reading += tokens / (capacity.max(1.0) * READING_MEMORY);
    }

    /// Seconds that a second of computing is charged with in this mode.
    pub fn price(&self, mode: Mode, now: f64) -> f64 {
        let load = self.value().min(MOST);
        let full = load / (1.0 - load);
        match mode {
            Mode::Throughput => full,
            Mode::Hybrid if self.hot => full * ((now - self.since) / RAMP).clamp(0.0, 1.0),
            Mode::Ttft | Mode::Sticky | Mode::Hybrid => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(heat: &mut Heat, share: f64, from: f64, seconds: u32) -> f64 {
        (1..=seconds * 10).for_each(|step| heat.observe(share, from + f64::from(step) / 10.0));
        from + f64::from(seconds)
    }

    #[test]
    fn it_turns_hot_above_the_upper_edge_and_cool_below_the_lower_one() {
        let mut heat = Heat::new(0.0);
        let now = after(&mut heat, 1.0, 0.0, 30);
        assert!(heat.is_hot());
        let now = after(&mut heat, 0.75, now, 60);
        assert!(heat.is_hot());
        after(&mut heat, 0.4, now, 60);
        assert!(!heat.is_hot());
        assert_eq!(heat.switches, 2);
    }

    #[test]
    fn a_flickering_load_does_not_make_it_flicker() {
        let mut heat = Heat::new(0.0);
        for second in 0..900 {
            heat.observe(if second % 2 == 0 { 1.3 } else { 0.2 }, f64::from(second));
        }
        assert!(heat.switches <= 1, "{}", heat.switches);
    }

    #[test]
    fn reading_much_makes_it_hot_with_few_slots_taken() {
        let mut heat = Heat::new(0.0);
        for step in 0..300 {
            heat.dispatched(1000.0, 1000.0);
            heat.observe(0.2, f64::from(step));
        }
        assert!(heat.is_hot() && heat.slots() < 0.3);
    }

    #[test]
    fn only_throughput_and_a_hot_hybrid_charge_for_computing_and_the_charge_rises_slowly() {
        let mut heat = Heat::new(0.0);
        after(&mut heat, 0.9, 0.0, 60);
        let turned = heat.since;
        assert!(heat.price(Mode::Ttft, 60.0) <= 0.0 && heat.price(Mode::Sticky, 60.0) <= 0.0);
        assert!(heat.price(Mode::Hybrid, turned) < heat.price(Mode::Hybrid, turned + 1.0));
        assert!((heat.price(Mode::Hybrid, turned + 2.0) - heat.price(Mode::Throughput, 60.0)).abs() < 1e-9);
        assert!((heat.price(Mode::Throughput, 60.0) - 9.0).abs() < 0.1);
    }
}
