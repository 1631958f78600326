//! The slots and the model of time, without a clock: who gets which slot, what a step costs, what it yields.
//!
//! A step is one batch, as in llama-server: it reads up to [`BATCH_BYTES`] of the prompts that are not read yet
//! and gives one token to every slot whose prompt is. Reading costs by the byte the slot does not hold already;
//! decoding costs once for all slots, a little more for each.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;

use super::args::Settings;
use super::faults::{Fault, FaultKind};
use super::text::{Answer, BYTES_PER_TOKEN, common_prefix, tokens_of};

/// Bytes of prompt read in one step: llama-server's batch of 2048 tokens.
const BATCH_BYTES: usize = 2048 * BYTES_PER_TOKEN;
/// Requests that may wait for a slot. llama-server has no bound here.
const MAX_DEFERRED: usize = 10_000;

/// One request on its way through the engine.
#[derive(Debug)]
pub struct Job {
    /// The whole prompt.
    pub prompt: String,
    /// Tokens to give.
    pub limit: u32,
    /// The slot the caller wants.
    pub id_slot: Option<u32>,
    /// Whether the slot's memory may be used.
    pub reuse: bool,
    /// What shall go wrong with it.
    pub fault: Option<Fault>,
    /// Where the reply is written. A closed channel means that the client has gone.
    pub out: mpsc::Sender<Event>,
}

/// What a request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
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
    /// Tokens of it that the slot held already.
    pub cached_tokens: u32,
    /// Tokens given.
    pub completion_tokens: u32,
    /// Microseconds of steps that read its prompt.
    pub prompt_micros: u64,
    /// Microseconds of steps that decoded for it.
    pub predicted_micros: u64,
}

/// A request in its slot.
#[derive(Debug)]
struct Active {
    job: Job,
    answer: Answer,
    usage: Usage,
    /// Bytes of the prompt that the slot holds.
    read: usize,
}

impl Active {
    fn is_read(&self) -> bool {
        self.read == self.job.prompt.len()
    }

    /// Whether the client can take what one more step may yield.
    fn has_room(&self) -> bool {
        self.job.out.capacity() >= 3
    }

    fn fault_is_due(&self) -> Option<FaultKind> {
        let fault = self.job.fault?;
        let given = self.usage.completion_tokens;
        (given >= fault.at_token || given >= self.job.limit).then_some(fault.kind)
    }
}

/// One slot: what it remembers and whom it serves.
#[derive(Debug, Default)]
struct Slot {
    held: Vec<u8>,
    last_used: u64,
    active: Option<Active>,
}

/// What `/slots` tells about one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotView {
    /// What the request in it, if any, has cost so far, and how many tokens it may still get.
    pub serving: Option<(Usage, u32)>,
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

/// What one step will do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Bytes to read, by slot.
    reads: Vec<(usize, usize)>,
    /// Slots that get a token.
    decodes: Vec<usize>,
    /// How long it takes.
    pub duration: Duration,
}

impl Step {
    /// Nothing can be done now.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.decodes.is_empty()
    }
}

/// A fault that concerns the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFault(pub FaultKind);

/// All slots of the engine.
#[derive(Debug)]
pub struct Slots {
    all: Vec<Slot>,
    waiting: VecDeque<Job>,
    tick: u64,
    similarity: f64,
    prefill_us_per_byte: u64,
    decode_us: u64,
    slowdown: f64,
    /// Counters since the start.
    pub totals: Totals,
}

impl Slots {
    /// Empty slots, as after a load.
    pub fn new(settings: &Settings) -> Self {
        Self {
            all: (0..settings.slots).map(|_| Slot::default()).collect(),
            waiting: VecDeque::new(),
            tick: 0,
            similarity: settings.slot_prompt_similarity,
            prefill_us_per_byte: settings.prefill_us_per_char,
            decode_us: settings.decode_us_per_token,
            slowdown: settings.batch_slowdown,
            totals: Totals::default(),
        }
    }

    /// Requests without a slot.
    pub fn deferred(&self) -> usize {
        self.waiting.len()
    }

    /// Requests in a slot.
    pub fn processing(&self) -> usize {
        self.all.iter().filter(|slot| slot.active.is_some()).count()
    }

    /// No request anywhere.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.processing() == 0
    }

    /// Each slot, in order.
    pub fn view(&self) -> Vec<SlotView> {
        self.all
            .iter()
            .map(|slot| SlotView {
                serving: slot.active.as_ref().map(|active| (active.usage, active.job.limit.saturating_sub(active.usage.completion_tokens))),
            })
            .collect()
    }

    /// The reply channels of all requests.
    pub fn clients(&self) -> impl Iterator<Item = &mpsc::Sender<Event>> {
        let active = self.all.iter().filter_map(|slot| slot.active.as_ref().map(|active| &active.job.out));
        active.chain(self.waiting.iter().map(|job| &job.out))
    }

    /// Takes a request: it waits until [`Slots::assign`] finds it a slot.
    pub fn submit(&mut self, job: Job) {
        if self.waiting.len() < MAX_DEFERRED {
            self.waiting.push_back(job);
        } else {
            // A client that has gone needs no refusal.
            let _gone = job.out.try_send(Event::Busy);
        }
    }

    /// Drops the requests whose clients have gone and gives free slots to those that wait, oldest first.
    pub fn assign(&mut self) {
        self.waiting.retain(|job| !job.out.is_closed());
        for slot in &mut self.all {
            if slot.active.as_ref().is_some_and(|active| active.job.out.is_closed()) {
                slot.active = None;
            }
        }
        let mut index = 0;
        while index < self.waiting.len() && self.processing() < self.all.len() {
            let Some(slot) = self.choose(&self.waiting[index]) else {
                index += 1;
                continue;
            };
            if let Some(job) = self.waiting.remove(index) {
                self.place(slot, job);
            }
        }
    }

    /// The slot for a request: the wanted one, else the idle one that holds most of it, else the one idle longest.
    fn choose(&self, job: &Job) -> Option<usize> {
        if let Some(wanted) = job.id_slot.map(|id| id as usize).filter(|id| *id < self.all.len()) {
            return self.all[wanted].active.is_none().then_some(wanted);
        }
        let idle = || self.all.iter().enumerate().filter(|(_, slot)| slot.active.is_none());
        let similar = idle()
            .map(|(id, slot)| (id, common_prefix(&slot.held, job.prompt.as_bytes())))
            .filter(|(_, held)| *held as f64 > self.similarity * job.prompt.len() as f64)
            .max_by_key(|(id, held)| (*held, std::cmp::Reverse(*id)));
        similar.map(|(id, _)| id).or_else(|| idle().min_by_key(|(_, slot)| slot.last_used).map(|(id, _)| id))
    }

    fn place(&mut self, id: usize, job: Job) {
        self.tick += 1;
        let slot = &mut self.all[id];
        slot.last_used = self.tick;
        let length = job.prompt.len();
        let known = if job.reuse { common_prefix(&slot.held, job.prompt.as_bytes()) } else { 0 };
        // A prompt known in full still costs one token, as the engine needs its logits.
        let read = known.min(length.saturating_sub(BYTES_PER_TOKEN));
        slot.held.truncate(read);
        let usage = Usage {
            slot: u32::try_from(id).unwrap_or_default(),
            prompt_tokens: tokens_of(length),
            cached_tokens: u32::try_from(read / BYTES_PER_TOKEN).unwrap_or(u32::MAX),
            ..Usage::default()
        };
        self.totals.requests += 1;
        self.totals.cached_tokens += u64::from(usage.cached_tokens);
        self.totals.prompt_tokens += u64::from(usage.prompt_tokens - usage.cached_tokens);
        slot.active = Some(Active { answer: Answer::to(&job.prompt), job, usage, read });
    }

    /// What the next step does and how long it takes. Clients that do not read are left out.
    pub fn plan(&self) -> Step {
        let mut step = Step::default();
        let mut room = BATCH_BYTES;
        for (id, slot) in self.all.iter().enumerate() {
            let Some(active) = &slot.active else { continue };
            if !active.is_read() {
                let bytes = room.min(active.job.prompt.len() - active.read);
                if bytes > 0 {
                    room -= bytes;
                    step.reads.push((id, bytes));
                }
            } else if active.has_room() {
                step.decodes.push(id);
            }
        }
        let read: usize = step.reads.iter().map(|(_, bytes)| bytes).sum();
        step.duration = Duration::from_micros(self.prefill_us_per_byte.saturating_mul(read as u64));
        if let Some(others) = step.decodes.len().checked_sub(1) {
            let factor = 1.0 + self.slowdown.max(0.0) * others as f64;
            step.duration += Duration::from_micros(self.decode_us).mul_f64(factor);
        }
        step
    }

    /// Makes the step happen. A fault of the process is handed to the caller, who has the process.
    pub fn perform(&mut self, step: &Step) -> Result<(), ProcessFault> {
        let micros = u64::try_from(step.duration.as_micros()).unwrap_or(u64::MAX);
        self.totals.steps += 1;
        self.totals.busy_slots += self.processing() as u64;
        for (id, bytes) in &step.reads {
            let slot = &mut self.all[*id];
            let Some(active) = &mut slot.active else { continue };
            slot.held.extend_from_slice(&active.job.prompt.as_bytes()[active.read..active.read + bytes]);
            active.read += bytes;
            active.usage.prompt_micros += micros;
            self.totals.prompt_micros += micros;
            if active.is_read() {
                if active.fault_is_due().is_none() {
                    tell(active, Event::Started(active.usage));
                }
                self.give(*id)?;
            }
        }
        for id in &step.decodes {
            if let Some(active) = &mut self.all[*id].active {
                active.usage.predicted_micros += micros;
                self.totals.predicted_micros += micros;
                self.give(*id)?;
            }
        }
        Ok(())
    }

    /// Gives one token to a slot whose prompt is read, and ends the request where it is complete.
    fn give(&mut self, id: usize) -> Result<(), ProcessFault> {
        let slot = &mut self.all[id];
        let Some(active) = &mut slot.active else { return Ok(()) };
        let last_word = match active.fault_is_due() {
            Some(FaultKind::Abort) => Some(Event::Cut),
            Some(FaultKind::WrongBytes) => Some(Event::Garbage),
            Some(FaultKind::Error) => Some(Event::Failed),
            Some(kind @ (FaultKind::Crash | FaultKind::ExitZero | FaultKind::Hang)) => return Err(ProcessFault(kind)),
            None => {
                if active.usage.completion_tokens < active.job.limit {
                    let word = active.answer.next_word();
                    slot.held.extend_from_slice(word.as_bytes());
                    active.usage.completion_tokens += 1;
                    self.totals.predicted_tokens += 1;
                    tell(active, Event::Word(word));
                }
                let complete = active.usage.completion_tokens >= active.job.limit && active.fault_is_due().is_none();
                complete.then_some(Event::Done(active.usage))
            }
        };
        if let Some(event) = last_word {
            tell(active, event);
            self.tick += 1;
            slot.last_used = self.tick;
            slot.active = None;
        }
        Ok(())
    }
}

/// Room was checked when the step was planned; a client that went since is noticed by [`Slots::assign`].
fn tell(active: &Active, event: Event) {
    let _gone = active.job.out.try_send(event);
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
        (Job { prompt: prompt.into(), limit, id_slot: None, reuse: true, fault: None, out }, events)
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
            time += step.duration;
            slots.perform(&step).unwrap();
        }
    }

    fn usage(events: &mut mpsc::Receiver<Event>) -> Usage {
        loop {
            match events.try_recv().unwrap() {
                Event::Done(usage) => return usage,
                Event::Started(_) | Event::Word(_) => {}
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
        assert_eq!((usage.slot, usage.prompt_tokens, usage.cached_tokens), (0, 101, 100));
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
        assert_eq!(usage(&mut events).cached_tokens, 4);
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
        assert_eq!([slot_of("aaaaaaaaaaaa"), slot_of("bbbbbbbbbbbb"), slot_of("cccccccccccc")], [0, 1, 2]);
        assert_eq!(slot_of("bbbbbbbbbbbbx"), 1);
        assert_eq!(slot_of("dddddddddddd"), 0);
        // 12 of 16 bytes are 75%: not similar enough.
        assert_eq!(slot_of("ccccccccccccxxxx"), 2);
        assert_eq!(slot_of("bbbbbbbbbbbbxxxx"), 1);
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
        assert_eq!((slots.processing(), slots.deferred()), (2, 1));
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
        assert_eq!((slots.processing(), slots.deferred()), (1, 2));
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
        assert_eq!(slots.plan().duration, Duration::from_millis(1 + 1));
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
        assert_eq!((slots.processing(), slots.deferred()), (1, 0));
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
