//! What a decision needs to know of every row, kept side by side.
//!
//! A decision looks at all rows of a pool, and nearly all of them are as the last one left them. So what they would cost a
//! stranger is worked out when a row has changed, or some time has passed, and is read from one dense table; a row itself is
//! looked at only where the prompt, or a part of it, was seen.

/// Seconds for which a row that does not change is taken for the same: what its conversations are worth fades slowly.
const SAME_FOR: f64 = 0.25;
/// The same for each row of its pool, so that a large one is not worked out anew all the time.
const SAME_FOR_EACH: f64 = 0.001;

/// One row at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Glance {
    /// When it was worked out; minus infinity = to be done anew at the next look, because the row has changed or will by itself.
    pub at: f64,
    pub incarnation: u64,
    /// It takes new requests.
    pub open: bool,
    /// Its breaker lets one pass.
    pub allowed: bool,
    /// It keeps what it has read in one pool.
    pub pool: bool,
    /// Slots taken.
    pub in_flight: u32,
    /// Slots it has.
    pub slots: u32,
    /// Requests at once that its engine was seen to take.
    pub learned: u32,
    /// Slots it may use now.
    pub limit: u32,
    /// Tokens of context; 0 = not known.
    pub context: u32,
    /// Prompt tokens read per second.
    pub prefill: f64,
    pub tokens_per_byte: f64,
    /// Seconds of reading that is ahead of a new request.
    pub ahead: f64,
    /// Seconds to the first token, but for the reading of the prompt itself: in a free slot,
    pub first_when_free: f64,
    /// and once any slot comes free.
    pub first_when_full: f64,
    /// Seconds that others lose by a stranger in its best free slot; infinite = none of its slots rests.
    pub displaced: f64,
    /// Seconds of reading that its living conversations have taken.
    pub living: f64,
}

impl Glance {
    /// Of a row that nobody has looked at.
    pub const fn unseen() -> Self {
        Self {
            at: f64::NEG_INFINITY,
            incarnation: 0,
            open: false,
            allowed: false,
            pool: false,
            in_flight: 0,
            slots: 0,
            learned: 0,
            limit: 0,
            context: 0,
            prefill: 0.0,
            tokens_per_byte: 0.0,
            ahead: 0.0,
            first_when_free: 0.0,
            first_when_full: 0.0,
            displaced: 0.0,
            living: 0.0,
        }
    }

    /// The row has changed.
    pub const fn outdate(&mut self) {
        self.at = f64::NEG_INFINITY;
    }

    /// Whether it has to be worked out anew, in a pool of so many rows.
    pub fn is_outdated(&self, rows: usize, now: f64) -> bool {
        !(0.0..SAME_FOR.max(rows as f64 * SAME_FOR_EACH)).contains(&(now - self.at))
    }

    /// Part of its slots that is taken.
    pub fn share(&self) -> f64 {
        f64::from(self.in_flight) / f64::from(self.slots.max(1))
    }

    /// Whether so many slots are free.
    pub fn has_room(&self, weight: u32) -> bool {
        self.in_flight.saturating_add(weight.min(self.learned)) <= self.limit
    }
}

/// All rows of a pool together, as of the last look.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    /// Slots taken.
    pub taken: u32,
    /// Slots there are.
    pub slots: u32,
    /// Free slots of rows that take new requests.
    pub free: u32,
    /// Prompt tokens they read per second.
    pub prefill: f64,
    /// Rows that take new requests,
    pub open: usize,
    /// and of them those whose breaker is shut.
    pub shut: usize,
}

impl Sums {
    /// Adds a row.
    pub fn add(&mut self, row: &Glance) {
        self.taken += row.in_flight;
        self.slots += row.slots;
        self.prefill += row.prefill;
        if row.open {
            self.open += 1;
            self.shut += usize::from(!row.allowed);
            self.free += row.slots.saturating_sub(row.in_flight);
        }
    }
}
