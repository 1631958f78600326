//! What one routing decision costs: the code the gateway runs, without the gateway.
//!
//! Half of all slots are taken, and as many conversations as half the slots rest in the others and go on in turn. Their
//! prompts are 30 to 34 KiB in messages of 2 KiB and share their first 20 blocks; after eight turns one ends and another
//! begins, so seven of eight requests are found by their conversation and one by the beginning it shares. `request` is
//! everything the router ever does for a request: hash its prompt, place it, hear of its first byte and of its end. `place`
//! is that without the hash, `hash` the hash alone, and `wait` a request that finds all slots taken and joins and leaves
//! the line. Nothing here is compared with a limit: docs/BENCHMARKS.md holds the aims.

#![expect(clippy::panic, clippy::expect_used, reason = "a measurement of something else than intended must not go on")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use lifeboat::routing::{Arrival, Ask, CacheModel, FlightId, Observation, Outcome, PrefixBuilder, Router, RowSetup, Settings};

/// Bytes that all prompts have in common: 20 of the router's blocks.
const SHARED: usize = 20 * 512;
/// Bytes of the first prompt of a conversation.
const FIRST: usize = 30 << 10;
/// Bytes a turn adds: the last answer and the next message.
const TURN: usize = 512;
/// Turns of a conversation.
const TURNS: usize = 8;
/// Bytes of a message.
const MESSAGE: usize = 2 << 10;
/// Requests that may wait.
const ROOM: usize = 1 << 20;

/// One engine.
struct Engine {
    name: &'static str,
    slots: u32,
    cache: CacheModel,
}

const ENGINES: [Engine; 2] = [
    Engine { name: "slots", slots: 4, cache: CacheModel::Slots { host_tokens: 60_000 } },
    Engine { name: "pool", slots: 64, cache: CacheModel::Pool { tokens: 400_000 } },
];

/// One conversation.
struct Talk {
    text: Vec<u8>,
    turn: usize,
}

impl Talk {
    fn new(number: u64) -> Self {
        let mut text: Vec<u8> = (0..FIRST + TURNS * TURN).map(|at| b'a' + u8::try_from(at % 23).unwrap_or_default()).collect();
        text[SHARED..SHARED + 8].copy_from_slice(&number.to_le_bytes());
        Self { text, turn: 0 }
    }

    /// The next prompt, or the first one of another conversation once this one is over.
    fn next(&mut self, numbers: &mut u64) -> &[u8] {
        if self.turn == TURNS {
            *numbers += 1;
            self.text[SHARED..SHARED + 8].copy_from_slice(&numbers.to_le_bytes());
            self.turn = 0;
        }
        self.turn += 1;
        &self.text[..FIRST + self.turn * TURN]
    }
}

fn ask(text: &[u8], now: f64) -> Ask {
    let mut builder = PrefixBuilder::new(b"model");
    for message in text.chunks(MESSAGE) {
        builder.push(message);
        builder.end_message();
    }
    Ask { prefix: builder.finish(), weight: 1, band: 1, output_tokens: Some(200), deadline: now + 120.0, ..Ask::default() }
}

/// A pool at work.
struct World {
    router: Router,
    name: Arc<str>,
    talks: Vec<Talk>,
    numbers: u64,
    at: usize,
    /// Seconds between two requests: those that run take five.
    every: f64,
    now: f64,
}

impl World {
    fn new(rows: usize, engine: &Engine) -> Self {
        let name: Arc<str> = Arc::from("model");
        let mut router = Router::new(Settings::default());
        for _ in 0..rows {
            let setup = RowSetup { slots: engine.slots, context: 0, cache: engine.cache };
            router.row_up(&[Arc::clone(&name)], setup, 0.0).expect("a thousand rows fit");
        }
        let slots = rows * engine.slots as usize;
        let half = slots / 2;
        let mut world = Self { router, name, talks: Vec::new(), numbers: 0, at: 0, every: 5.0 / half as f64, now: 0.0 };
        // Those that keep decoding while the others are measured.
        for _ in 0..half {
            world.numbers += 1;
            let mut talk = Talk::new(world.numbers);
            let asked = ask(talk.next(&mut world.numbers), world.now);
            let flight = world.start(&asked);
            world.router.first_byte(flight, world.now);
        }
        // No more than an index of the default size can tell apart.
        for count in 0..half.min(2000) {
            world.numbers += 1;
            world.talks.push(Talk { turn: count % TURNS, ..Talk::new(world.numbers) });
        }
        for _ in 0..2 * TURNS * world.talks.len() {
            let asked = world.next();
            world.request(&asked);
        }
        world
    }

    fn next(&mut self) -> Ask {
        self.at = (self.at + 1) % self.talks.len();
        ask(self.talks[self.at].next(&mut self.numbers), self.now)
    }

    fn start(&mut self, asked: &Ask) -> FlightId {
        self.now += self.every;
        match self.router.arrive(&self.name, asked, ROOM, self.now) {
            Arrival::Placed(placement) => placement.flight,
            other => panic!("half of all slots are free, yet: {other:?}"),
        }
    }

    /// All that happens to a request.
    fn request(&mut self, asked: &Ask) {
        let flight = self.start(asked);
        self.router.first_byte(flight, self.now + 0.1 * self.every);
        let tokens = asked.prefix.bytes / 4;
        let seen = Observation {
            prompt_tokens: Some(tokens),
            cached_tokens: Some(tokens.saturating_sub(128)),
            output_tokens: Some(100),
            prefill_seconds: Some(0.1),
            decode_seconds: Some(2.0),
        };
        self.router.ended(flight, Outcome::Good, &seen, 0.5, self.now + 0.9 * self.every);
    }

    /// Takes the slots that are left, with requests that have nothing in common with any. A shared pool has as many as
    /// it was learned to take.
    fn fill(&mut self) {
        let stranger = Ask { weight: 1, band: 1, deadline: self.now + 120.0, ..Ask::default() };
        loop {
            match self.router.arrive(&self.name, &stranger, ROOM, self.now) {
                Arrival::Placed(_) => {}
                Arrival::Waiting(ticket) => {
                    assert!(self.router.left(&self.name, ticket));
                    return;
                }
                Arrival::Full => panic!("the line is full"),
            }
        }
    }
}

fn cases(group: &mut BenchmarkGroup<'_, WallTime>, engine: &Engine, rows: usize) {
    let id = |what: &str| BenchmarkId::new(format!("{what}/{}", engine.name), rows);
    let mut world = World::new(rows, engine);
    group.bench_function(id("request"), |bench| {
        bench.iter(|| {
            let asked = world.next();
            world.request(&asked);
        });
    });
    // Prompts hashed beforehand, each as often as it comes round.
    let asks: Vec<Ask> = (0..world.talks.len() * TURNS).map(|_| world.next()).collect();
    let mut at = 0;
    group.bench_function(id("place"), |bench| {
        bench.iter(|| {
            at = (at + 1) % asks.len();
            world.request(&asks[at]);
        });
    });
    world.fill();
    group.bench_function(id("wait"), |bench| {
        bench.iter(|| {
            at = (at + 1) % asks.len();
            match world.router.arrive(&world.name, &asks[at], ROOM, world.now) {
                Arrival::Waiting(ticket) => assert!(world.router.left(&world.name, ticket)),
                other => panic!("all slots are taken, yet: {other:?}"),
            }
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("decision");
    let mut talk = Talk::new(1);
    let mut numbers = 1;
    group.bench_function("hash", |bench| bench.iter(|| black_box(ask(talk.next(&mut numbers), 0.0))));
    for engine in &ENGINES {
        for rows in [8, 64, 1000] {
            cases(&mut group, engine, rows);
        }
    }
    group.finish();
    criterion.final_summary();
}
