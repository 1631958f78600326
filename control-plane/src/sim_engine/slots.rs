//! The engine of [`super::model`] with clients: replies on their way, faults, counters.
//!
//! A client that reads slower than it is given to is left out of the batch; one that has gone gives its slot back.

use std::time::Duration;

use tokio::sync::mpsc;

use super::args::Settings;
use super::faults::{Fault, FaultKind};
use super::model::{Cost, Engine, Happening, Request, Step, Text};

/// Requests that may wait for a slot. llama-server has no bound here.
const MAX_WAITING: usize = 10_000;
/// Events that one step may mean for one client.
const EVENTS_OF_A_STEP: usize = 4;

/// One request on its way through the engine.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the request")]
pub struct Job {
    /// The whole prompt.
    pub prompt: String,
    /// Tokens to give.
    pub limit: u32,
    /// The slot the caller wants.
    pub id_slot: Option<u32>,
    /// Whether the slot's memory may be used.
    pub reuse: bool,
    /// Whether it is to be answered (an embedding is not).
    pub completes: bool,
    /// Whether the client wants to know how much of the prompt is read.
    pub progress: bool,
    /// Whether the reply is streamed.
    pub streamed: bool,
    /// What shall go wrong with it.
    pub fault: Option<Fault>,
    /// Where the reply is written. A closed channel means that the client has gone.
    pub out: mpsc::Sender<Event>,
}

/// What a request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has a slot.
    Begun,
    /// A part of the prompt is read.
    Progress(Usage),
    /// The prompt is read.
    Started(Usage),
    /// The next word.
    Word(&'static str),
    /// The answer is complete.
    Done(Usage),
    /// The connection breaks.
    Cut,
    /// The rest of the reply is rubbish.
    Garbage,
    /// The engine failed (HTTP 500).
    Failed,
    /// Too many requests wait (HTTP 503).
    Busy,
}

/// What a request has cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The slot that serves it.
    pub slot: u32,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u32,
    /// Tokens of it that were held already.
    pub cached_tokens: u32,
    /// Tokens of it that are read or were held.
    pub read_tokens: u32,
    /// Tokens given.
    pub completion_tokens: u32,
    /// Microseconds of steps that read its prompt.
    pub prompt_micros: u64,
    /// Microseconds of steps that decoded for it.
    pub predicted_micros: u64,
}

impl Usage {
    fn new(slot: usize, cost: Cost) -> Self {
        Self {
            slot: u32::try_from(slot).unwrap_or_default(),
            prompt_tokens: cost.prompt,
            cached_tokens: cost.cached,
            read_tokens: cost.read,
            completion_tokens: cost.given,
            prompt_micros: cost.prompt_micros,
            predicted_micros: cost.decode_micros,
        }
    }
}

/// What the caller's part of a request is once its prompt is handed over.
#[derive(Debug)]
struct Client {
    progress: bool,
    streamed: bool,
    fault: Option<Fault>,
    out: mpsc::Sender<Event>,
}

impl Client {
    fn tell(&self, event: Event) {
        // Room was checked when the step was planned; a client that went since is noticed by `Slots::assign`.
        let _gone = self.out.try_send(event);
    }

    /// The fault that comes after so many tokens.
    fn due(&self, given: u32) -> Option<FaultKind> {
        self.fault.filter(|fault| given >= fault.at_token).map(|fault| fault.kind)
    }
}

/// What `/slots` tells about one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotView {
    /// What the request in it, if any, has cost so far, and how many tokens it may still get.
    pub serving: Option<(Usage, u32)>,
}

/// What `/metrics` tells about a pool of blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolView {
    /// Part of it that running requests use.
    pub usage: f64,
    /// Blocks.
    pub blocks: usize,
    /// Tokens of one.
    pub block_tokens: usize,
    /// Tokens looked up.
    pub queried: u64,
    /// Tokens of them found.
    pub found: u64,
}

/// Counters of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Prompt tokens read, cached ones not counted.
    pub prompt_tokens: u64,
    /// Prompt tokens that were held already.
    pub cached_tokens: u64,
    /// Time of steps that read prompts, summed over requests.
    pub prompt_micros: u64,
    /// Tokens given.
    pub predicted_tokens: u64,
    /// Time of steps that decoded, summed over requests.
    pub predicted_micros: u64,
    /// Steps.
    pub steps: u64,
    /// Busy slots, summed over steps.
    pub busy_slots: u64,
    /// Requests that got a slot.
    pub requests: u64,
}

/// A fault that concerns the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFault(pub FaultKind);

/// All slots of the engine.
#[derive(Debug)]
pub struct Slots {
    engine: Engine<Text, Client>,
    deaf: bool,
    early_head: bool,
    happened: Vec<Happening<&'static str>>,
    /// Counters since the start.
    pub totals: Totals,
}

impl Slots {
    /// Empty slots, as after a load.
    pub fn new(settings: &Settings) -> Self {
        Self {
            engine: Engine::new(&settings.engine()),
            deaf: settings.deaf_to_unstreamed,
            early_head: settings.early_head,
            happened: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Requests without a slot.
    pub fn deferred(&self) -> usize {
        self.engine.waiting()
    }

    /// No request anywhere.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Each slot, in order.
    pub fn view(&self) -> Vec<SlotView> {
        let serving = |slot| {
            let (_, cost, limit) = self.engine.active(slot)?;
            Some((Usage::new(slot, cost), limit.saturating_sub(cost.given)))
        };
        (0..self.engine.slots()).map(|slot| SlotView { serving: serving(slot) }).collect()
    }

    /// The pool of blocks, where there is one.
    pub fn pool(&self) -> Option<PoolView> {
        self.engine.pool().map(|pool| {
            let (blocks, block_tokens) = pool.size();
            PoolView { usage: pool.usage(), blocks, block_tokens, queried: pool.queried, found: pool.found }
        })
    }

    /// The reply channels of all requests.
    pub fn clients(&self) -> impl Iterator<Item = &mpsc::Sender<Event>> {
        self.engine.jobs().map(|client| &client.out)
    }

    /// Takes a request: it waits until [`Slots::assign`] finds it a slot.
    pub fn submit(&mut self, job: Job) {
        if self.engine.waiting() >= MAX_WAITING {
            // A client that has gone needs no refusal.
            let _gone = job.out.try_send(Event::Busy);
            return;
        }
        let Job { prompt, limit, id_slot, reuse, completes, progress, streamed, fault, out } = job;
        self.engine.submit(Request {
            prompt: Text::new(prompt),
            limit,
            wanted: id_slot.map(|slot| slot as usize),
            reuse,
            completes,
            job: Client { progress, streamed, fault, out },
        });
    }

    /// Drops the requests whose clients have gone and gives free slots to those that wait.
    pub fn assign(&mut self) {
        // llama-server looks for a client that is not streamed to only after a second in which nobody got anything.
        let deaf = self.deaf && self.engine.busy() > 1;
        self.engine.retain(|client| !client.out.is_closed() || (deaf && !client.streamed));
        for (slot, cached) in self.engine.assign() {
            let Some((client, cost, _)) = self.engine.active(slot) else { continue };
            // A failure that has a status of its own comes before the head.
            if self.early_head && client.streamed && client.due(0) != Some(FaultKind::Error) {
                client.tell(Event::Begun);
            }
            if client.progress {
                client.tell(Event::Progress(Usage::new(slot, cost)));
            }
            let prompt = cost.prompt;
            self.totals.requests += 1;
            self.totals.cached_tokens += u64::from(cached);
            self.totals.prompt_tokens += u64::from(prompt - cached);
        }
    }

    /// What the next step does and how long it takes. Clients that do not read are left out.
    pub fn plan(&self) -> Step {
        self.engine.plan(1, |client| client.out.capacity() >= EVENTS_OF_A_STEP || client.out.is_closed())
    }

    /// Makes the step happen. A fault of the process is handed to the caller, who has the process.
    pub fn perform(&mut self, step: &Step) -> Result<(), ProcessFault> {
        let micros = duration(step).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.totals.steps += 1;
        self.totals.busy_slots += self.engine.busy() as u64;
        let mut happened = std::mem::take(&mut self.happened);
        self.engine.perform(step, &mut happened);
        let result = happened.iter().try_for_each(|what| self.tell(what, micros));
        happened.clear();
        self.happened = happened;
        result
    }

    /// Hands on what happened to a request, or the fault that was due instead.
    fn tell(&mut self, what: &Happening<&'static str>, micros: u64) -> Result<(), ProcessFault> {
        let (Happening::Progress(slot) | Happening::Read(slot) | Happening::Token(slot, _) | Happening::Complete(slot)) = *what;
        // A fault earlier in this step may have ended it.
        let Some((client, cost, limit)) = self.engine.active(slot) else { return Ok(()) };
        let usage = Usage::new(slot, cost);
        let before = match what {
            Happening::Token(..) => cost.given - 1,
            // A fault after the last token strikes at the end.
            Happening::Complete(_) => u32::MAX,
            Happening::Progress(_) | Happening::Read(_) => 0,
        };
        let begins = matches!(what, Happening::Progress(_) | Happening::Read(_));
        let fault = client.due(before).filter(|_| !begins);
        let last_word = match fault {
            Some(FaultKind::Abort) => Some(Event::Cut),
            Some(FaultKind::WrongBytes) => Some(Event::Garbage),
            Some(FaultKind::Error) => Some(Event::Failed),
            Some(kind @ (FaultKind::Crash | FaultKind::ExitZero | FaultKind::Hang)) => return Err(ProcessFault(kind)),
            None => None,
        };
        if last_word.is_none() {
            match what {
                Happening::Progress(_) => {
                    self.totals.prompt_micros += micros;
                    if client.progress {
                        client.tell(Event::Progress(usage));
                    }
                }
                Happening::Read(_) => {
                    self.totals.prompt_micros += micros;
                    if client.due(0).is_none() {
                        if client.progress {
                            client.tell(Event::Progress(Usage { completion_tokens: 0, ..usage }));
                        }
                        client.tell(Event::Started(Usage { completion_tokens: 0, ..usage }));
                    }
                }
                Happening::Token(_, word) => {
                    client.tell(Event::Word(word));
                    self.totals.predicted_tokens += 1;
                    if cost.given > 1 {
                        self.totals.predicted_micros += micros;
                    }
                }
                Happening::Complete(_) => {}
            }
        }
        let complete = matches!(what, Happening::Complete(_)) && cost.given >= limit;
        if let Some(event) = last_word.or_else(|| complete.then_some(Event::Done(usage))) {
            client.tell(event);
            self.engine.end(slot);
        }
        Ok(())
    }
}

/// How long a step takes.
pub fn duration(step: &Step) -> Duration {
    Duration::from_secs_f64(step.micros.max(0.0) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn slots(flags: &[&str]) -> Slots {
        let arguments = ["sim-engine", "--prefill-us-per-char", "10", "--decode-us-per-token", "1000", "--batch-slowdown", "0.5"];
        Slots::new(&Settings::try_parse_from(arguments.iter().chain(flags)).unwrap())
    }

    fn job(prompt: &str, limit: u32) -> (Job, mpsc::Receiver<Event>) {
        let (out, events) = mpsc::channel(64);
        let prompt = prompt.into();
        let job = Job { prompt, limit, id_slot: None, reuse: true, completes: true, progress: false, streamed: true, fault: None, out };
        (job, events)
    }

    /// Runs until nothing is left; the sum of the steps.
    fn run(slots: &mut Slots) -> Duration {
        let mut time = Duration::ZERO;
        loop {
            slots.assign();
            let step = slots.plan();
            if step.is_empty() {
                return time;
            }
            time += duration(&step);
            slots.perform(&step).unwrap();
        }
    }

    fn usage(events: &mut mpsc::Receiver<Event>) -> Usage {
        loop {
            match events.try_recv().unwrap() {
                Event::Done(usage) => return usage,
                Event::Begun | Event::Progress(_) | Event::Started(_) | Event::Word(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn time_is_the_prompt_by_its_bytes_plus_one_step_a_token() {
        let mut slots = slots(&["--slots", "1"]);
        let (job, mut events) = job(&"x".repeat(400), 5);
        slots.submit(job);
        // The first token comes with the prompt's own step.
        assert_eq!(run(&mut slots), Duration::from_millis(4 + 4));
        let usage = usage(&mut events);
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (100, 0, 5));
    }

    #[test]
    fn only_what_a_prompt_adds_is_paid_for() {
        let mut slots = slots(&["--slots", "2"]);
        let prompt = "a".repeat(400);
        let (first, mut events) = job(&prompt, 1);
        slots.submit(first);
        run(&mut slots);
        usage(&mut events);
        let (second, mut events) = job(&format!("{prompt}bbbb"), 1);
        slots.submit(second);
        assert_eq!(run(&mut slots), Duration::from_micros(4 * 10));
        let usage = usage(&mut events);
        assert_eq!((usage.slot, usage.prompt_tokens, usage.cached_tokens), (1, 101, 100));
    }

    #[test]
    fn a_prompt_held_in_full_still_costs_one_token() {
        let mut slots = slots(&["--slots", "1"]);
        for expected_cached in [0, 99] {
            let (job, mut events) = job(&"a".repeat(400), 0);
            slots.submit(job);
            run(&mut slots);
            assert_eq!(usage(&mut events).cached_tokens, expected_cached);
        }
    }

    #[test]
    fn an_answer_is_remembered_with_its_prompt() {
        let mut slots = slots(&["--slots", "1"]);
        let (first, mut events) = job("question", 2);
        slots.submit(first);
        run(&mut slots);
        let mut words = String::new();
        while let Ok(event) = events.try_recv() {
            if let Event::Word(word) = event {
                words.push_str(word);
            }
        }
        let (second, mut events) = job(&format!("question{words}next"), 0);
        slots.submit(second);
        run(&mut slots);
        // The last word was said, but never put through the model.
        assert_eq!(usage(&mut events).cached_tokens, 3);
    }

    #[test]
    fn a_similar_prompt_returns_to_its_slot_and_a_new_one_takes_the_slot_idle_longest() {
        let mut slots = slots(&["--slots", "3"]);
        let mut slot_of = |prompt: &str| {
            let (job, mut events) = job(prompt, 0);
            slots.submit(job);
            run(&mut slots);
            usage(&mut events).slot
        };
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|letter| letter.repeat(24));
        assert_eq!([slot_of(&a), slot_of(&b), slot_of(&c)], [2, 1, 0]);
        assert_eq!(slot_of(&format!("{b}x")), 1);
        assert_eq!(slot_of(&d), 2);
        // 24 of 32 bytes are 75%: not similar enough.
        assert_eq!(slot_of(&format!("{c}xxxxxxxx")), 0);
        assert_eq!(slot_of(&format!("{b}xxxxxxxx")), 1);
    }

    #[test]
    fn a_wanted_slot_is_waited_for_while_others_pass() {
        let mut slots = slots(&["--slots", "2"]);
        let (mut first, _first_events) = job("one", 2);
        let (mut second, mut second_events) = job("two", 2);
        let (third, mut third_events) = job("three", 2);
        first.id_slot = Some(1);
        second.id_slot = Some(1);
        for job in [first, second, third] {
            slots.submit(job);
        }
        slots.assign();
        assert_eq!((slots.engine.busy(), slots.deferred()), (2, 1));
        run(&mut slots);
        assert_eq!((usage(&mut second_events).slot, usage(&mut third_events).slot), (1, 0));
    }

    #[test]
    fn requests_beyond_the_slots_wait_in_order() {
        let mut slots = slots(&["--slots", "1"]);
        let kept: Vec<_> = (0..3)
            .map(|number| {
                let (job, events) = job(&format!("{number}"), 1);
                slots.submit(job);
                events
            })
            .collect();
        slots.assign();
        assert_eq!((slots.engine.busy(), slots.deferred()), (1, 2));
        run(&mut slots);
        for mut events in kept {
            usage(&mut events);
        }
    }

    #[test]
    fn slots_share_a_decode_step_that_grows_with_their_number() {
        let mut slots = slots(&["--slots", "3"]);
        let kept: Vec<_> = (0..3)
            .map(|number| {
                let (job, events) = job(&format!("{number}"), 9);
                slots.submit(job);
                events
            })
            .collect();
        slots.assign();
        slots.perform(&slots.plan()).unwrap();
        assert_eq!(duration(&slots.plan()), Duration::from_millis(1 + 1));
        drop(kept);
    }

    #[test]
    fn a_client_that_has_gone_frees_its_slot_and_its_place_in_the_queue() {
        let mut slots = slots(&["--slots", "1"]);
        let (first, first_events) = job("one", 100);
        let (second, second_events) = job("two", 100);
        let (third, _third_events) = job("three", 100);
        for job in [first, second, third] {
            slots.submit(job);
        }
        slots.assign();
        drop((first_events, second_events));
        slots.assign();
        assert_eq!((slots.engine.busy(), slots.deferred()), (1, 0));
    }

    #[test]
    fn a_client_that_does_not_read_is_left_out_of_the_batch() {
        let mut slots = slots(&["--slots", "1"]);
        let (job, mut events) = job("one", 1000);
        slots.submit(job);
        run(&mut slots);
        assert!(!slots.is_idle(), "the reply fits no channel of 64");
        while events.try_recv().is_ok() {}
        assert!(!slots.plan().is_empty());
    }

    #[test]
    fn a_fault_strikes_at_its_token_and_at_the_end_of_a_shorter_answer() {
        for (at_token, limit, words) in [(0, 9, 0), (3, 9, 3), (7, 2, 2)] {
            let mut slots = slots(&["--slots", "1"]);
            let (mut job, mut events) = job("one", limit);
            job.fault = Some(Fault { kind: FaultKind::Abort, at_token });
            slots.submit(job);
            run(&mut slots);
            let mut told = Vec::new();
            while let Ok(event) = events.try_recv() {
                told.push(event);
            }
            assert_eq!(told.iter().filter(|event| matches!(event, Event::Word(_))).count(), words);
            assert_eq!(told.last(), Some(&Event::Cut));
            assert_eq!(told.iter().any(|event| matches!(event, Event::Started(_))), at_token > 0);
        }
    }

    #[test]
    fn a_fault_of_the_process_is_handed_up() {
        let mut slots = slots(&["--slots", "1"]);
        let (mut job, _events) = job("one", 1);
        job.fault = Some(Fault { kind: FaultKind::Crash, at_token: 0 });
        slots.submit(job);
        slots.assign();
        let step = slots.plan();
        assert_eq!(slots.perform(&step), Err(ProcessFault(FaultKind::Crash)));
    }
}
