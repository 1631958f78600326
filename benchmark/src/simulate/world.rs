//! The world of a simulation: a clock that jumps, rows, one strategy, conversations that go on when they are answered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use lifeboat::sim_engine::model::{Engine, EngineSetup, Happening, Request, Runs, Step};
use tokio::time::Instant;

use super::load::{Conversation, Load};
use crate::strategy::{Dispatch, Outcome, Part, Question, Strategy};

/// Decode steps a row takes at once; an arrival cuts that short.
const MOST_STEPS: u32 = 1024;
/// Requests of a run whose times are not counted, because nothing is held yet: the part of the time they arrive in.
const WARM_UP: f64 = 0.1;

/// What a run measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// Seconds from each arrival after the warm-up to its first token.
    pub first_tokens: Vec<f64>,
    /// Prompt tokens.
    pub prompt: f64,
    /// Of them found in a cache.
    pub cached: f64,
    /// Requests that arrived.
    pub requests: usize,
    /// Requests answered within the time of arrivals.
    pub answered: usize,
    /// Requests without a first token at the end.
    pub unanswered: usize,
    /// Real seconds the strategy took.
    pub decision_seconds: f64,
}

/// In order of time; of the same time in order of their making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    nanos: u64,
    order: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The next conversation begins.
    Begin,
    /// The next turn of one is sent.
    Turn(u64),
    /// The step of a row ends, unless it was planned anew since.
    Step(usize, u64),
    /// The strategy wants to be asked.
    Wake,
}

struct Row {
    engine: Engine<Runs, u64>,
    step: Option<Step>,
    began: f64,
    version: u64,
}

struct Talk {
    conversation: Conversation,
    turn: usize,
    parts: Vec<Part>,
}

struct Pending {
    talk: u64,
    arrived: f64,
    prompt: Option<Runs>,
    output: u32,
    first: bool,
}

struct World {
    rows: Vec<Row>,
    strategy: Box<dyn Strategy<Runs>>,
    load: Load,
    events: BinaryHeap<Reverse<Event>>,
    talks: HashMap<u64, Talk>,
    /// In the order of their arrival, so that a run ends the same way each time.
    pending: BTreeMap<u64, Pending>,
    upcoming: Option<Conversation>,
    next: u64,
    now: f64,
    end: f64,
    woken_at: Option<f64>,
    measured: Measured,
}

/// Runs until everything has arrived; what is unanswered then counts as it stands.
pub fn run(rows: usize, setup: &EngineSetup, strategy: Box<dyn Strategy<Runs>>, load: Load) -> Measured {
    let row = || Row { engine: Engine::new(setup), step: None, began: 0.0, version: 0 };
    let end = load.end();
    let mut world = World {
        rows: (0..rows).map(|_| row()).collect(),
        strategy,
        load,
        events: BinaryHeap::new(),
        talks: HashMap::new(),
        pending: BTreeMap::new(),
        upcoming: None,
        next: 0,
        now: 0.0,
        end,
        woken_at: None,
        measured: Measured::default(),
    };
    world.announce();
    while let Some(Reverse(event)) = world.events.pop() {
        world.now = event.nanos as f64 / 1e9;
        if world.now > end {
            break;
        }
        world.happen(event.what);
    }
    world.finish()
}

impl World {
    fn at(&mut self, time: f64, what: What) {
        self.next += 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of a simulation are positive and small")]
        let nanos = (time * 1e9).ceil() as u64;
        self.events.push(Reverse(Event { nanos, order: self.next, what }));
    }

    fn announce(&mut self) {
        self.upcoming = self.load.next();
        if let Some(begins) = self.upcoming.as_ref().map(|conversation| conversation.begins) {
            self.at(begins, What::Begin);
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Begin => {
                if let Some(conversation) = self.upcoming.take() {
                    self.next += 1;
                    let id = self.next;
                    let parts = conversation.system.into_iter().collect();
                    self.talks.insert(id, Talk { conversation, turn: 0, parts });
                    self.send_turn(id);
                }
                self.announce();
            }
            What::Turn(talk) => self.send_turn(talk),
            What::Step(row, version) if self.rows[row].version == version => self.end_step(row),
            What::Step(..) => {}
            What::Wake => {
                self.woken_at = None;
                let now = self.now;
                self.decide(|strategy, sent| strategy.woken(now, sent));
            }
        }
    }

    fn send_turn(&mut self, id: u64) {
        let Some(talk) = self.talks.get_mut(&id) else { return };
        let Some(turn) = talk.conversation.turns.get(talk.turn).copied() else { return };
        talk.parts.push(turn.message);
        let mut prompt = Runs::default();
        for part in &talk.parts {
            prompt.push(part.id, part.tokens);
        }
        prompt.answered_by(turn.answer.id);
        let parts = talk.parts.clone();
        self.next += 1;
        let request = self.next;
        let output = turn.answer.tokens;
        self.measured.requests += 1;
        self.pending.insert(request, Pending { talk: id, arrived: self.now, prompt: Some(prompt.clone()), output, first: false });
        let now = self.now;
        let question = Question { id: request, prompt: &prompt, parts: &parts, session: id, output };
        self.decide(|strategy, sent| strategy.arrive(&question, now, sent));
    }

    /// Asks the strategy something and does what it says.
    fn decide(&mut self, ask: impl FnOnce(&mut dyn Strategy<Runs>, &mut Vec<Dispatch>)) {
        let mut sent = Vec::new();
        let began = Instant::now();
        ask(self.strategy.as_mut(), &mut sent);
        self.measured.decision_seconds += began.elapsed().as_secs_f64();
        for dispatch in sent {
            self.dispatch(dispatch);
        }
        if let Some(wake) = self.strategy.wake()
            && self.woken_at.is_none_or(|at| wake < at)
        {
            self.woken_at = Some(wake);
            self.at(wake.max(self.now), What::Wake);
        }
    }

    fn dispatch(&mut self, dispatch: Dispatch) {
        let Some(pending) = self.pending.get_mut(&dispatch.id) else { return };
        let Some(prompt) = pending.prompt.take() else { return };
        let (limit, wanted) = (pending.output, dispatch.slot);
        let row = &mut self.rows[dispatch.row];
        row.engine.submit(Request { prompt, limit, wanted, reuse: true, completes: true, job: dispatch.id });
        match &mut row.step {
            None => self.begin_step(dispatch.row),
            Some(step) => {
                // What arrives is looked at after the token that is being decoded.
                let before = step.micros;
                Engine::<Runs, u64>::shorten(step, (self.now - row.began) * 1e6);
                if step.micros < before {
                    row.version += 1;
                    let (ends, version) = (row.began + step.micros / 1e6, row.version);
                    self.at(ends, What::Step(dispatch.row, version));
                }
            }
        }
    }

    fn begin_step(&mut self, at: usize) {
        let row = &mut self.rows[at];
        row.engine.assign();
        let step = row.engine.plan(MOST_STEPS, |_| true);
        row.version += 1;
        row.began = self.now;
        if step.is_empty() {
            row.step = None;
            return;
        }
        let (ends, version) = (self.now + step.micros / 1e6, row.version);
        row.step = Some(step);
        self.at(ends, What::Step(at, version));
    }

    fn end_step(&mut self, at: usize) {
        let row = &mut self.rows[at];
        let Some(step) = row.step.take() else { return };
        let mut happened = Vec::new();
        row.engine.perform(&step, &mut happened);
        let mut ended = Vec::new();
        for what in happened {
            let row = &mut self.rows[at];
            match what {
                Happening::Progress(_) | Happening::Token(..) => {}
                Happening::Read(slot) => {
                    if let Some(id) = row.engine.active(slot).map(|(id, ..)| *id) {
                        self.first_token(id);
                    }
                }
                Happening::Complete(slot) => {
                    let cost = row.engine.active(slot).map(|(_, cost, _)| cost);
                    if let (Some(cost), Some(id)) = (cost, row.engine.end(slot)) {
                        ended.push((
                            id,
                            Outcome {
                                prompt: cost.prompt,
                                cached: cost.cached,
                                output: cost.given,
                                prefill_seconds: cost.prompt_micros as f64 / 1e6,
                                decode_seconds: cost.decode_micros as f64 / 1e6,
                            },
                        ));
                    }
                }
            }
        }
        self.begin_step(at);
        for (id, outcome) in ended {
            self.done(id, &outcome);
        }
    }

    fn first_token(&mut self, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        pending.first = true;
        if pending.arrived >= self.end * WARM_UP {
            self.measured.first_tokens.push(self.now - pending.arrived);
        }
        self.strategy.first_token(id, self.now);
    }

    fn done(&mut self, id: u64, outcome: &Outcome) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.measured.answered += 1;
        self.measured.prompt += f64::from(outcome.prompt);
        self.measured.cached += f64::from(outcome.cached);
        let now = self.now;
        self.decide(|strategy, sent| strategy.done(id, outcome, now, sent));
        let Some(talk) = self.talks.get_mut(&pending.talk) else { return };
        if let Some(turn) = talk.conversation.turns.get(talk.turn) {
            talk.parts.push(turn.answer);
        }
        talk.turn += 1;
        match talk.conversation.turns.get(talk.turn).map(|turn| turn.pause) {
            Some(pause) => self.at(now + pause, What::Turn(pending.talk)),
            None => drop(self.talks.remove(&pending.talk)),
        }
    }

    fn finish(mut self) -> Measured {
        for pending in self.pending.values().filter(|pending| !pending.first) {
            self.measured.unanswered += 1;
            if pending.arrived >= self.end * WARM_UP {
                self.measured.first_tokens.push(self.end - pending.arrived);
            }
        }
        self.measured
    }
}

#[cfg(test)]
mod tests {
    use lifeboat::sim_engine::model::{CacheSetup, SlotRules, Speed};

    use super::super::load::Shape;
    use super::*;
    use crate::strategy::Kind;

    fn engine() -> EngineSetup {
        EngineSetup {
            slots: 4,
            cache: CacheSetup::Slots(SlotRules { host_tokens: 60_000, ..SlotRules::default() }),
            speed: Speed { prefill_micros: 1e6 / 1500.0, decode_micros: 20_000.0, batch_slowdown: 0.1, copy_micros: 0.0 },
        }
    }

    fn measure(kind: Kind, rate: f64) -> Measured {
        let strategy = kind.simulated(4, &engine()).unwrap();
        run(4, &engine(), strategy, Load::new(Shape::Chat, rate, 200.0, 1))
    }

    #[test]
    fn a_run_can_be_repeated_and_answers_everybody_at_a_low_rate() {
        let (one, two) = (measure(Kind::LeastConnections, 0.1), measure(Kind::LeastConnections, 0.1));
        assert_eq!(one.first_tokens, two.first_tokens);
        assert!(one.unanswered <= 2 && one.answered > 50, "{one:?}");
    }

    #[test]
    fn who_knows_the_caches_reads_less_than_who_does_not() {
        let share = |kind| {
            let measured = measure(kind, 0.15);
            measured.cached / measured.prompt
        };
        let (blind, knowing, own) = (share(Kind::RoundRobin), share(Kind::Oracle), share(Kind::Lifeboat));
        assert!(knowing > blind + 0.1, "{blind} {knowing}");
        assert!(own > blind + 0.1, "{blind} {own}");
    }
}
