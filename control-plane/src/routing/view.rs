//! What people are shown of the router's state.

use serde::Serialize;
use utoipa::ToSchema;

use super::heat::Mode;
use super::router::Router;
use super::row::Cache;
use super::{BreakerState, RowIndex, Ticket};

/// One pool.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LineView {
    /// Mode set by the operator.
    pub mode: Mode,
    /// What it comes to now (`hybrid` is `ttft` while cool, `throughput` while hot).
    pub effective_mode: Mode,
    /// 0 = idle, 1 = all slots taken or all reading speed used; above 1 requests wait.
    pub heat: f64,
    /// The part of the heat that comes from slots.
    pub heat_slots: f64,
    /// The part of the heat that comes from reading prompts.
    pub heat_reading: f64,
    /// Times `hybrid` turned hot or cool.
    pub switches: u64,
    /// Requests waiting.
    pub waiting: usize,
    /// Conversations that had to be read anew on another row, over all pools.
    pub cold_moves: u64,
    /// Conversations whose row is known, over all pools: by the end of their prompt, and by the client's key.
    pub conversations: [usize; 2],
    /// Seconds a request that came now would wait for a slot if all are taken; not known before the first replies.
    pub predicted_wait_seconds: Option<f64>,
}

impl LineView {
    /// A pool nobody has asked for yet.
    pub const fn idle(mode: Mode) -> Self {
        Self {
            mode,
            effective_mode: match mode {
                Mode::Hybrid => Mode::Ttft,
                mode => mode,
            },
            heat: 0.0,
            heat_slots: 0.0,
            heat_reading: 0.0,
            switches: 0,
            waiting: 0,
            cold_moves: 0,
            conversations: [0; 2],
            predicted_wait_seconds: None,
        }
    }
}

/// The load and speed of one row.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RowLoadView {
    /// Slots taken.
    pub in_flight: u32,
    /// Slots it may use now: fewer right after it failed, and where its engine was seen to queue what it was given.
    pub limit: u32,
    /// Requests that wait inside its engine, where that says so.
    pub engine_waiting: Option<u32>,
    /// Waiting requests that wait for this row.
    pub waiters: u32,
    /// Prompt tokens it has been sent and has not read yet.
    pub pending_tokens: f64,
    /// Prompt tokens it reads per second.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second of one stream.
    pub decode_tokens_per_second: f64,
    /// Seconds a request keeps its slot.
    pub service_seconds: f64,
    /// Tokens of conversations that it is thought to hold.
    pub resident_tokens: f64,
    /// `closed` (in use), `open` (left alone after failures) or `half_open` (being tried).
    pub breaker: &'static str,
    /// Seconds until an open breaker lets a request through.
    pub breaker_opens_in_seconds: f64,
}

impl Router {
    /// One pool, where there is one.
    pub fn line_view(&self, name: &str) -> Option<LineView> {
        let line = self.lines.get(name)?;
        Some(LineView {
            mode: line.mode,
            effective_mode: line.effective_mode(),
            heat: line.heat.value(),
            heat_slots: line.heat.slots(),
            heat_reading: line.heat.reading(),
            switches: line.heat.switches,
            waiting: line.queue.len(),
            cold_moves: self.cold_moves,
            conversations: [self.tails.len(), self.sessions.len()],
            predicted_wait_seconds: self.predicted_wait(name, line.queue.len() + 1),
        })
    }

    /// Where the first who waits for that name stands among the first of other names; `None` = nobody waits.
    pub fn first_waiting(&self, name: &str) -> Option<(u8, Ticket)> {
        self.lines.get(name)?.queue.first()
    }

    /// One row, while it is up.
    pub fn row_view(&self, index: RowIndex, now: f64) -> Option<RowLoadView> {
        let row = self.row(index)?;
        Some(RowLoadView {
            in_flight: row.in_flight,
            limit: row.limit(now),
            engine_waiting: row.learned.waiting(),
            waiters: row.waiters,
            pending_tokens: row.pending,
            prefill_tokens_per_second: row.speed.prefill,
            decode_tokens_per_second: 1.0 / row.speed.decode,
            service_seconds: row.speed.service,
            resident_tokens: row.resident(),
            breaker: row.breaker.state(now).as_str(),
            breaker_opens_in_seconds: row.breaker.opens_in(now),
        })
    }

    /// The state of a row's breaker.
    pub fn breaker(&self, index: RowIndex, now: f64) -> Option<BreakerState> {
        self.row(index).map(|row| row.breaker.state(now))
    }

    /// Whether every count is back where it was before the first request; for tests and soaks.
    pub fn is_at_rest(&self) -> bool {
        let rows = self.rows_up().all(|row| {
            let slots = match &row.cache {
                Cache::Slots(shadow) => shadow.busy() == 0,
                Cache::Pool(_) => true,
            };
            slots && row.in_flight == 0 && row.requests == 0 && row.waiters == 0 && row.pending.abs() < 1e-6
        });
        rows && self.in_flight() == 0 && self.lines.values().all(|line| line.queue.is_empty())
    }
}
