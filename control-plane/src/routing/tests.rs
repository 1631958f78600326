//! Decisions of the whole router: cases by name, and properties over arbitrary orders of events.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const MODEL: &str = "m";

fn name() -> Arc<str> {
    Arc::from(MODEL)
}

/// A conversation's prompt at some turn: a system text, then user texts and answers.
fn prompt(system: &str, conversation: u32, turns: u32) -> Prefix {
    let mut builder = PrefixBuilder::new(MODEL.as_bytes());
    builder.push(system.as_bytes());
    builder.end_message();
    for turn in 0..turns {
        builder.push(format!("user {conversation} says {turn}: {}", "words ".repeat(60)).as_bytes());
        builder.end_message();
        if turn + 1 < turns {
            builder.push(format!("answer {conversation} {turn}: {}", "more ".repeat(20)).as_bytes());
            builder.end_message();
        }
    }
    builder.finish()
}

fn ask(prefix: Prefix) -> Ask {
    Ask { prefix, weight: 1, band: 1, deadline: f64::MAX, ..Ask::default() }
}

const fn slots(count: u32) -> RowSetup {
    RowSetup { slots: count, context: 0, cache: CacheModel::Slots { host_tokens: 10_000 } }
}

const fn pool(count: u32) -> RowSetup {
    RowSetup { slots: count, context: 0, cache: CacheModel::Pool { tokens: 100_000 } }
}

struct World {
    router: Router,
    rows: Vec<RowIndex>,
    now: f64,
}

impl World {
    fn new(setups: &[RowSetup]) -> Self {
        let mut router = Router::new(Settings { index_bytes: 1 << 20, ..Settings::default() });
        let rows = setups.iter().map(|setup| router.row_up(&[name()], *setup, 0.0).unwrap()).collect();
        Self { router, rows, now: 0.0 }
    }

    fn arrive(&mut self, ask: &Ask) -> Arrival {
        self.now += 0.001;
        self.router.arrive(&name(), ask, 1000, self.now)
    }

    fn place(&mut self, ask: &Ask) -> Placement {
        match self.arrive(ask) {
            Arrival::Placed(placement) => placement,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, placement: &Placement) {
        self.now += 1.0;
        self.router.first_byte(placement.flight, self.now);
        let seen = Observation { prompt_tokens: Some(200), output_tokens: Some(20), prefill_seconds: Some(0.2), ..Observation::default() };
        self.router.ended(placement.flight, Outcome::Good, &seen, 0.5, self.now);
    }

    fn turn(&mut self, prefix: Prefix) -> Placement {
        let placement = self.place(&ask(prefix));
        self.end(&placement);
        placement
    }
}

#[test]
fn a_conversation_comes_back_to_its_slot_without_any_key() {
    let mut world = World::new(&[slots(2), slots(2)]);
    let first: Vec<_> = (0..4).map(|conversation| world.turn(prompt("sys", conversation, 1))).collect();
    let places: HashSet<_> = first.iter().map(|placement| (placement.row, placement.slot)).collect();
    assert_eq!(places.len(), 4, "each conversation has a slot of its own: {first:?}");
    for turn in 2..6 {
        for conversation in [2, 0, 3, 1] {
            let placement = world.turn(prompt("sys", conversation, turn));
            assert_eq!((placement.row, placement.slot), (first[conversation as usize].row, first[conversation as usize].slot));
            assert_eq!(placement.reason, Reason::Conversation);
            assert!(placement.cached_tokens > 0.0);
        }
    }
    assert_eq!(world.router.cold_moves, 0);
}

#[test]
fn a_stranger_with_the_same_long_beginning_does_not_take_a_living_conversations_slot() {
    let system = "the same long system text ".repeat(100);
    let mut world = World::new(&[slots(3)]);
    let first = world.turn(prompt(&system, 1, 3));
    let second = world.turn(prompt(&system, 2, 1));
    assert_ne!(first.slot, second.slot);
    assert_eq!(world.turn(prompt(&system, 1, 4)).slot, first.slot);
}

#[test]
fn a_session_goes_home_even_where_its_history_was_rewritten() {
    let mut world = World::new(&[slots(2), slots(2)]);
    let keyed = |prefix, session| Ask { session: Some(session), ..ask(prefix) };
    let first = world.place(&keyed(prompt("sys", 1, 4), 7));
    world.end(&first);
    world.turn(prompt("sys", 2, 1));
    let again = world.place(&keyed(prompt("a summary of it all", 9, 1), 7));
    assert_eq!((again.row, again.reason), (first.row, Reason::Session));
}

#[test]
fn two_requests_of_one_conversation_at_once_wait_or_part_but_never_share_a_slot() {
    let mut world = World::new(&[slots(2)]);
    let first = world.place(&ask(prompt("sys", 1, 2)));
    match world.arrive(&ask(prompt("sys", 1, 2))) {
        Arrival::Placed(second) => assert_ne!(second.slot, first.slot),
        Arrival::Waiting(ticket) => {
            world.end(&first);
            let grants = world.router.hand_out(&name(), world.now);
            assert_eq!(grants[0].ticket, ticket);
        }
        Arrival::Full => panic!("full"),
    }
}

#[test]
fn unique_prompts_spread_over_the_rows() {
    let mut world = World::new(&[slots(4), slots(4), pool(4)]);
    for conversation in 0..12 {
        world.place(&ask(prompt(&format!("unique {conversation}"), conversation, 1)));
    }
    for row in world.rows.clone() {
        assert_eq!(world.router.row_view(row, world.now).unwrap().in_flight, 4);
    }
}

#[test]
fn a_burst_between_two_replies_spreads_too() {
    let mut world = World::new(&[pool(64), pool(64)]);
    for conversation in 0..16 {
        world.place(&ask(prompt(&format!("unique {conversation}"), conversation, 1)));
    }
    let counts: Vec<_> = world.rows.iter().map(|row| world.router.row_view(*row, 0.0).unwrap().in_flight).collect();
    assert_eq!(counts, [8, 8]);
}

#[test]
fn a_request_for_a_busy_home_waits_only_as_long_as_that_is_worth_it() {
    let mut world = World::new(&[pool(1), pool(1)]);
    let long = prompt(&"a very long history ".repeat(20_000), 1, 1);
    let home = world.turn(long.clone());
    let other = world.place(&ask(prompt("short", 2, 1)));
    assert_ne!(other.row, home.row);
    // Home is free: at once. Home is busy, the other one free: it waits, because reading 400 kB anew takes far longer.
    let busy = world.place(&ask(prompt("short", 3, 1)));
    assert_eq!(busy.row, home.row);
    world.end(&other);
    let Arrival::Waiting(ticket) = world.arrive(&ask(long)) else { panic!("it should wait") };
    assert!(world.router.hand_out(&name(), world.now).is_empty());
    world.end(&busy);
    let grants = world.router.hand_out(&name(), world.now);
    assert_eq!((grants[0].ticket, grants[0].placement.row), (ticket, home.row));
}

#[test]
fn a_request_that_waited_too_long_for_its_home_takes_what_is_free() {
    let mut world = World::new(&[pool(1), pool(1)]);
    let long = prompt(&"a very long history ".repeat(20_000), 1, 1);
    let home = world.turn(long.clone());
    let busy = world.place(&ask(long.clone()));
    assert_eq!(busy.row, home.row);
    let Arrival::Waiting(ticket) = world.arrive(&ask(long)) else { panic!("it should wait") };
    assert!(world.router.hand_out(&name(), world.now + 29.0).is_empty());
    world.now += 31.0;
    let grants = world.router.hand_out(&name(), world.now);
    assert_eq!((grants[0].ticket, grants[0].placement.reason), (ticket, Reason::Overdue));
    assert_ne!(grants[0].placement.row, home.row);
}

#[test]
fn a_twin_takes_the_free_slot_rather_than_wait_for_the_other_one() {
    let mut world = World::new(&[slots(2)]);
    for conversation in 0..4 {
        world.turn(prompt("sys", conversation, 1));
    }
    let one = world.place(&ask(prompt("sys", 9, 1)));
    let twin = world.place(&ask(prompt("sys", 9, 1)));
    assert_ne!(twin.slot, one.slot);
}

#[test]
fn nobody_waits_longer_for_its_slot_than_reading_anew_in_a_free_one_takes() {
    let mut world = World::new(&[slots(2)]);
    // Replies take a second here, and reading this one anew takes about ten.
    for conversation in 0..8 {
        world.turn(prompt("sys", conversation, 1));
    }
    let long = prompt(&"a long history ".repeat(2_000), 99, 1);
    let home = world.turn(long.clone());
    let running = world.place(&ask(long.clone()));
    assert_eq!(running.slot, home.slot);
    let Arrival::Waiting(ticket) = world.arrive(&ask(long)) else { panic!("it should wait for a second") };
    let until = world.router.look_at();
    assert!((1.0..30.0).contains(&(until - world.now)), "{}", until - world.now);
    // The reply goes on and on.
    assert!(world.router.hand_out(&name(), until - 0.1).is_empty());
    assert_eq!(world.router.due(until), [name()]);
    let grants = world.router.hand_out(&name(), until);
    assert_eq!(grants[0].ticket, ticket);
    assert_ne!(grants[0].placement.slot, home.slot);
    assert!(world.router.look_at().is_infinite());
}

#[test]
fn a_row_that_came_back_holds_nothing_it_held_before() {
    let mut world = World::new(&[slots(2)]);
    world.turn(prompt("sys", 1, 3));
    world.router.row_gone(world.rows[0]);
    let again = world.router.row_up(&[name()], slots(2), world.now).unwrap();
    assert_eq!(again, world.rows[0]);
    let placement = world.turn(prompt("sys", 1, 4));
    assert!(placement.cached_tokens <= 0.0);
}

#[test]
fn a_failed_row_is_avoided_and_one_that_keeps_failing_is_left_alone() {
    let mut world = World::new(&[slots(4), slots(4)]);
    let placement = world.place(&ask(prompt("sys", 1, 1)));
    let avoid = vec![world.router.incarnation(placement.row).unwrap()];
    world.router.ended(placement.flight, Outcome::Failed, &Observation::default(), 1.0, world.now);
    let again = world.place(&Ask { avoid, ..ask(prompt("sys", 1, 1)) });
    assert_ne!(again.row, placement.row);
    for conversation in 10..15 {
        let other = vec![world.router.incarnation(again.row).unwrap()];
        let failing = world.place(&Ask { avoid: other, ..ask(prompt("sys", conversation, 1)) });
        world.router.ended(failing.flight, Outcome::Failed, &Observation::default(), 1.0, world.now);
        if world.router.breaker(placement.row, world.now) != Some(BreakerState::Closed) {
            break;
        }
    }
    assert_eq!(world.router.breaker(placement.row, world.now), Some(BreakerState::Open));
    assert_eq!(world.place(&ask(prompt("sys", 20, 1))).row, again.row);
}

#[test]
fn a_heavy_request_takes_all_its_slots_and_gives_them_back() {
    let mut world = World::new(&[slots(4)]);
    let heavy = world.place(&Ask { weight: 3, ..ask(prompt("sys", 1, 1)) });
    assert_eq!(world.router.row_view(heavy.row, 0.0).unwrap().in_flight, 3);
    world.place(&ask(prompt("sys", 2, 1)));
    assert!(matches!(world.arrive(&ask(prompt("sys", 3, 1))), Arrival::Waiting(_)));
    world.end(&heavy);
    assert_eq!(world.router.hand_out(&name(), world.now).len(), 1);
}

#[test]
fn sticky_waits_for_the_home_row_whatever_it_costs() {
    let mut world = World::new(&[pool(1), pool(1)]);
    world.router.set_mode(&name(), Mode::Sticky, 0.0);
    let home = world.turn(prompt("sys", 1, 1));
    let busy = world.place(&ask(prompt("sys", 1, 2)));
    assert_eq!(busy.row, home.row);
    assert!(matches!(world.arrive(&ask(prompt("sys", 1, 2))), Arrival::Waiting(_)));
    assert!(world.router.look_at().is_infinite(), "the other row is no way out");
}

#[test]
fn a_popular_beginning_may_live_on_more_rows_than_a_rare_one() {
    let mut world = World::new(&[pool(64), pool(64), pool(64), pool(64)]);
    let popular = "everybody begins like this ".repeat(60);
    let mut used = HashSet::new();
    for conversation in 0..40 {
        used.insert(world.place(&ask(prompt(&popular, conversation, 1))).row);
    }
    assert!(used.len() > 1, "one row must not take all of them");
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Event {
    Arrive { conversation: u32, turns: u32, session: Option<u64>, tenant: u64, band: u8, weight: u32, patience: f64 },
    FirstByte(prop::sample::Index),
    End(prop::sample::Index, u8),
    Leave(prop::sample::Index),
    Up(bool),
    Closing(prop::sample::Index),
    Gone(prop::sample::Index),
    Mode(u8),
    Pass(f64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..6_u32, 1..4_u32, proptest::option::of(0..4_u64), 0..3_u64, 0..4_u8, prop_oneof![8 => Just(1_u32), 1 => 1..4_u32], 1.0..200.0_f64)
            .prop_map(|(conversation, turns, session, tenant, band, weight, patience)| Event::Arrive { conversation, turns, session, tenant, band, weight, patience }),
        3 => any::<prop::sample::Index>().prop_map(Event::FirstByte),
        5 => (any::<prop::sample::Index>(), 0..4_u8).prop_map(|(which, how)| Event::End(which, how)),
        1 => any::<prop::sample::Index>().prop_map(Event::Leave),
        1 => any::<bool>().prop_map(Event::Up),
        1 => any::<prop::sample::Index>().prop_map(Event::Closing),
        1 => any::<prop::sample::Index>().prop_map(Event::Gone),
        1 => (0..4_u8).prop_map(Event::Mode),
        2 => (0.0..40.0_f64).prop_map(Event::Pass),
    ]
}

#[derive(Debug, Default)]
struct Truth {
    /// Requests running, with row, incarnation, weight and slot.
    running: Vec<(Placement, u64, u32)>,
    waiting: HashMap<Ticket, u32>,
}

impl Truth {
    fn check(&self, world: &World, sizes: &HashMap<u64, u32>) {
        let mut taken: HashMap<u64, u32> = HashMap::new();
        let mut places = HashSet::new();
        for (placement, incarnation, weight) in &self.running {
            *taken.entry(*incarnation).or_default() += weight.min(&sizes[incarnation]);
            if let Some(slot) = placement.slot {
                assert!(slot < sizes[incarnation]);
                assert!(places.insert((*incarnation, slot)), "a slot was given twice");
            }
        }
        for (incarnation, count) in &taken {
            assert!(count <= &sizes[incarnation], "more requests than slots");
        }
        for row in &world.rows {
            if let Some(incarnation) = world.router.incarnation(*row) {
                assert_eq!(world.router.row_view(*row, world.now).unwrap().in_flight, taken.get(&incarnation).copied().unwrap_or(0));
            }
        }
        assert_eq!(world.router.waiting(MODEL), self.waiting.len());
    }

    fn took(&mut self, world: &World, placement: Placement, weight: u32) {
        let incarnation = world.router.incarnation(placement.row).unwrap();
        self.running.push((placement, incarnation, weight));
    }

    fn hand_out(&mut self, world: &mut World) {
        for grant in world.router.hand_out(&name(), world.now) {
            let weight = self.waiting.remove(&grant.ticket).expect("a grant for somebody who waits");
            self.took(world, grant.placement, weight);
        }
    }
}

#[test]
fn a_row_that_queues_inside_is_sent_less_until_it_does_not_say_so_any_more() {
    let mut world = World::new(&[pool(8)]);
    let row = world.rows[0];
    let says = |world: &mut World, waiting| {
        world.router.reported(row, Some(lifeboat_engines::queue::EngineQueue { waiting, cache_used: None }), world.now);
    };
    let placed: Vec<_> = (0..8).map(|number| world.arrive(&ask(prompt("s", number, 1)))).collect();
    assert!(placed.iter().all(|arrival| matches!(arrival, Arrival::Placed(_))));
    (0..4).for_each(|_| says(&mut world, 6));
    let view = world.router.row_view(row, world.now).unwrap();
    assert_eq!((view.limit, view.engine_waiting, view.in_flight), (2, Some(6), 8));
    // Those it has go on; the next one waits for the third of two to end.
    assert!(matches!(world.arrive(&ask(prompt("s", 9, 1))), Arrival::Waiting(_)));
    for (count, arrival) in placed.into_iter().enumerate() {
        let Arrival::Placed(placement) = arrival else { panic!("seen above") };
        world.router.ended(placement.flight, Outcome::Good, &Observation::default(), 0.5, world.now);
        assert_eq!(world.router.hand_out(&name(), world.now).len(), usize::from(count == 6), "after {count} had ended");
    }
    says(&mut world, 0);
    world.router.reported(row, None, world.now);
    assert_eq!(world.router.row_view(row, world.now).unwrap().limit, 8);
    // One that wants more than the limit waits for the row to itself, and no longer.
    (0..6).for_each(|_| says(&mut world, 8));
    assert!(matches!(world.arrive(&Ask { weight: 4, ..ask(prompt("s", 20, 1)) }), Arrival::Waiting(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_no_slot_is_given_twice_and_every_count_comes_back(events in proptest::collection::vec(event(), 1..120)) {
        let mut world = World::new(&[slots(2), pool(3)]);
        let mut sizes: HashMap<u64, u32> = [(0, 2), (1, 3)].map(|(at, size)| (world.router.incarnation(world.rows[at]).unwrap(), size)).into();
        let mut truth = Truth::default();
        for event in events {
            world.now += 0.01;
            match event {
                Event::Arrive { conversation, turns, session, tenant, band, weight, patience } => {
                    let request = Ask { session, tenant, band, weight, deadline: world.now + patience, ..ask(prompt("sys", conversation, turns)) };
                    match world.router.arrive(&name(), &request, 20, world.now) {
                        Arrival::Placed(placement) => truth.took(&world, placement, weight),
                        Arrival::Waiting(ticket) => _ = truth.waiting.insert(ticket, weight),
                        Arrival::Full => {}
                    }
                }
                Event::FirstByte(which) if !truth.running.is_empty() => {
                    let flight = which.get(&truth.running).0.flight;
                    world.router.first_byte(flight, world.now);
                }
                Event::End(which, how) if !truth.running.is_empty() => {
                    let at = which.index(truth.running.len());
                    let (placement, ..) = truth.running.swap_remove(at);
                    let outcome = [Outcome::Good, Outcome::Neutral, Outcome::Failed, Outcome::NoConnection][usize::from(how)];
                    let seen = Observation { prompt_tokens: Some(100), cached_tokens: Some(40), output_tokens: Some(9), ..Observation::default() };
                    world.router.ended(placement.flight, outcome, &seen, 0.3, world.now);
                }
                Event::Leave(which) if !truth.waiting.is_empty() => {
                    let mut tickets: Vec<_> = truth.waiting.keys().copied().collect();
                    tickets.sort_unstable();
                    let ticket = *which.get(&tickets);
                    truth.waiting.remove(&ticket);
                    prop_assert!(world.router.left(&name(), ticket));
                }
                Event::Up(steered) if world.rows.len() < 5 => {
                    let row = world.router.row_up(&[name()], if steered { slots(2) } else { pool(2) }, world.now).unwrap();
                    sizes.insert(world.router.incarnation(row).unwrap(), 2);
                    if !world.rows.contains(&row) {
                        world.rows.push(row);
                    }
                }
                Event::Closing(which) if !world.rows.is_empty() => world.router.row_closing(*which.get(&world.rows)),
                Event::Gone(which) if !world.rows.is_empty() => {
                    let at = which.index(world.rows.len());
                    let row = world.rows.swap_remove(at);
                    world.router.row_gone(row);
                }
                Event::Mode(mode) => {
                    world.router.set_mode(&name(), [Mode::Ttft, Mode::Throughput, Mode::Sticky, Mode::Hybrid][usize::from(mode)], world.now);
                }
                Event::Pass(seconds) => world.now += seconds,
                _ => {}
            }
            truth.hand_out(&mut world);
            truth.check(&world, &sizes);
        }
        for ticket in truth.waiting.keys() {
            prop_assert!(world.router.left(&name(), *ticket));
        }
        for (placement, ..) in &truth.running {
            world.router.ended(placement.flight, Outcome::Good, &Observation::default(), 0.5, world.now);
        }
        prop_assert!(world.router.is_at_rest(), "{:?}", world.router);
    }

    #[test]
    fn whoever_waits_is_served_within_its_patience_once_slots_come_free(order in proptest::collection::vec((0..6_u32, 1..3_u32, 0..3_u64), 1..40)) {
        let mut world = World::new(&[slots(1), pool(1)]);
        let mut running = Vec::new();
        let mut waiting = HashSet::new();
        for (conversation, turns, tenant) in order {
            let request = Ask { tenant, deadline: world.now + 600.0, ..ask(prompt("sys", conversation, turns)) };
            match world.router.arrive(&name(), &request, 1000, world.now) {
                Arrival::Placed(placement) => running.push(placement),
                Arrival::Waiting(ticket) => _ = waiting.insert(ticket),
                Arrival::Full => prop_assert!(false, "full"),
            }
        }
        // Every slot is given back after a second; nobody may be left when all had their turn and patience is over.
        for _ in 0..200 {
            for placement in std::mem::take(&mut running) {
                world.end(&placement);
            }
            for grant in world.router.hand_out(&name(), world.now) {
                prop_assert!(waiting.remove(&grant.ticket));
                running.push(grant.placement);
            }
            world.now += 1.0;
        }
        prop_assert!(waiting.is_empty(), "{waiting:?}");
    }
}
