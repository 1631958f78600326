//! Lifeboat's own decisions: the code that runs in the gateway, driven by the simulation.

use std::collections::HashMap;
use std::sync::Arc;

use lifeboat::routing::{
    Arrival, Ask, CacheModel, FlightId, Mode, Observation, Outcome as End, Placement, PrefixBuilder, Router, RowIndex, RowSetup, Settings,
    Ticket,
};
use lifeboat::sim_engine::model::{CacheSetup, EngineSetup, Runs};

use super::{Dispatch, Outcome, Question, Strategy};

/// Requests that may wait.
const ROOM: usize = 1 << 20;
/// Seconds within which a request is to be served; nothing is given up in the simulation.
const DEADLINE: f64 = 3600.0;
/// Bytes of a pretended token.
const BYTES_PER_TOKEN: usize = 4;
/// What a pretended text consists of, after the part that tells it from others.
const FILLER: [u8; 4096] = [b'x'; 4096];

/// Lifeboat.
#[derive(Debug)]
pub struct Lifeboat {
    router: Router,
    name: Arc<str>,
    rows: HashMap<RowIndex, usize>,
    keyed: bool,
    flights: HashMap<u64, FlightId>,
    waiting: HashMap<Ticket, u64>,
}

impl Lifeboat {
    /// For rows of engines like this one.
    pub fn new(rows: usize, engine: &EngineSetup, mode: Mode, keyed: bool) -> Self {
        let name: Arc<str> = Arc::from("simulated");
        let slots = u32::try_from(engine.slots).unwrap_or(u32::MAX);
        let cache = match engine.cache {
            CacheSetup::Slots(rules) => CacheModel::Slots { host_tokens: rules.host_tokens as u64 },
            CacheSetup::Pool { tokens, .. } => CacheModel::Pool { tokens: tokens as u64 },
        };
        let mut router = Router::new(Settings::default());
        let setup = RowSetup { slots, context: 0, cache };
        let rows = (0..rows).filter_map(|row| Some((router.row_up(&[Arc::clone(&name)], setup, 0.0)?, row))).collect();
        router.set_mode(&name, mode, 0.0);
        Self { router, name, rows, keyed, flights: HashMap::new(), waiting: HashMap::new() }
    }

    fn send(&mut self, id: u64, placement: &Placement, sent: &mut Vec<Dispatch>) {
        self.flights.insert(id, placement.flight);
        let row = self.rows.get(&placement.row).copied().unwrap_or_default();
        sent.push(Dispatch { id, row, slot: placement.slot.map(|slot| slot as usize) });
    }

    fn hand_out(&mut self, now: f64, sent: &mut Vec<Dispatch>) {
        for grant in self.router.hand_out(&self.name, now) {
            if let Some(id) = self.waiting.remove(&grant.ticket) {
                self.send(id, &grant.placement, sent);
            }
        }
    }
}

impl Strategy<Runs> for Lifeboat {
    fn arrive(&mut self, question: &Question<'_, Runs>, now: f64, sent: &mut Vec<Dispatch>) {
        let mut builder = PrefixBuilder::new(b"simulated");
        for part in question.parts {
            builder.push(&part.id.to_le_bytes());
            let mut left = (part.tokens as usize * BYTES_PER_TOKEN).saturating_sub(size_of::<u64>());
            while left > 0 {
                let piece = left.min(FILLER.len());
                builder.push(&FILLER[..piece]);
                left -= piece;
            }
            builder.end_message();
        }
        let deadline = now + DEADLINE;
        let ask = Ask {
            prefix: builder.finish(),
            session: self.keyed.then_some(question.session),
            weight: 1,
            band: 1,
            output_tokens: Some(question.output),
            deadline,
            ..Ask::default()
        };
        match self.router.arrive(&self.name, &ask, ROOM, now) {
            Arrival::Placed(placement) => self.send(question.id, &placement, sent),
            Arrival::Waiting(ticket) => {
                self.waiting.insert(ticket, question.id);
                // Whoever arrives may be worth more to a free row than those who wait for another one.
                self.hand_out(now, sent);
            }
            Arrival::Full => {}
        }
    }

    fn first_token(&mut self, id: u64, now: f64) {
        if let Some(flight) = self.flights.get(&id) {
            self.router.first_byte(*flight, now);
        }
    }

    fn done(&mut self, id: u64, outcome: &Outcome, now: f64, sent: &mut Vec<Dispatch>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let seen = Observation {
            prompt_tokens: Some(u64::from(outcome.prompt)),
            cached_tokens: Some(u64::from(outcome.cached)),
            output_tokens: Some(u64::from(outcome.output)),
            prefill_seconds: Some(outcome.prefill_seconds),
            decode_seconds: Some(outcome.decode_seconds),
        };
        self.router.ended(flight, End::Good, &seen, 0.5, now);
        self.hand_out(now, sent);
    }

    fn wake(&self) -> Option<f64> {
        Some(self.router.look_at()).filter(|at| at.is_finite())
    }

    fn woken(&mut self, now: f64, sent: &mut Vec<Dispatch>) {
        if self.router.look_at() <= now {
            self.hand_out(now, sent);
        }
    }
}
