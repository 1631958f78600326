//! A model check of the hand-off: the code of the admission under thousands of schedules that shuttle chooses.
//!
//! Tasks take turns at the places named in `interleave` and nowhere else, and a schedule that fails is printed so that it
//! can be replayed. A forgotten waiter leaves nobody who can run, which shuttle reports as a deadlock; the clock stands still
//! unless a task moves it, so no deadline can hide one.

use std::pin::pin;

use futures_util::future::{Either, select};
use shuttle::rand::Rng;

use super::*;
use crate::gateway::testing::{endpoint, row};
use crate::registry::RowState;

/// Schedules of each check.
const SCHEDULES: usize = 3000;
/// Stack of a task, in bytes: unoptimised code needs more than shuttle's default.
const STACK: usize = 512 << 10;
/// Where the random choices begin, so that a run can be repeated.
const SEED: u64 = 20_261_201;

struct World {
    registry: Arc<Registry>,
    admission: Arc<Admission>,
}

impl World {
    fn new() -> Self {
        let registry = Arc::new(Registry::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&registry)));
        let config = GatewayConfig { queue_wait: WAIT, total: 4 * WAIT, prefix_index_bytes: 64 << 10, ..GatewayConfig::default() };
        let admission = Admission::new(Arc::clone(&registry), Activator::default(), metrics, config);
        Self { registry, admission }
    }

    fn ready(&self, slots: u32) -> RowView {
        let view = RowView { endpoint: Some(endpoint(1, slots)), ..row("m", RowState::Ready) };
        self.show(&view);
        view
    }

    /// What the follower of the registry does after a change.
    fn show(&self, view: &RowView) {
        self.registry.publish(view.clone());
        self.admission.rows_changed();
    }

    fn ask(&self, weight: u32, then: impl FnOnce(Result<Permit, Refusal>) + 'static) -> shuttle::future::JoinHandle<()> {
        let admission = Arc::clone(&self.admission);
        shuttle::future::spawn_local(async move {
            then(admit(&admission, weight).await);
        })
    }

    fn assert_at_rest(&self, rows: &[RowView]) {
        assert!(self.admission.is_at_rest(), "something was not given back");
        for row in rows {
            assert_eq!(row.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight()), 0, "a slot was not given back");
        }
    }
}

const WAIT: Duration = Duration::from_secs(10);

async fn admit(admission: &Arc<Admission>, weight: u32) -> Result<Permit, Refusal> {
    let ask = Ask { weight, band: 1, ..Ask::default() };
    let claim = Claim { name: "m", class: Class::Generation, ask: &ask, avoid: &[], arrived: Instant::now() };
    admission.admit(claim).await
}

/// Keeps the slot for a while, and looks whether the engine has more than it can take.
fn hold(permit: Permit) {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..3) {
        let load = permit.endpoint.load.in_flight();
        assert!(load <= permit.endpoint.slots, "{load} requests on {} slots", permit.endpoint.slots);
        interleave::point();
    }
    drop(permit);
}

fn served(answer: Result<Permit, Refusal>) {
    hold(answer.expect("nothing stands against it"));
}

/// Runs a scenario under all schedules, on a clock that stands still.
fn check(scenario: impl Fn(&tokio::runtime::Handle) + Send + Sync + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let handle = runtime.handle().clone();
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(SEED, SCHEDULES);
    interleave::CHECKING.set(true);
    shuttle::Runner::new(scheduler, config).run(move || scenario(&handle));
    interleave::CHECKING.set(false);
}

/// Lets others run, some times.
async fn pause(most: u32) {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..=most) {
        shuttle::future::yield_now().await;
    }
}

#[test]
fn every_waiter_is_served_whatever_the_order_and_whoever_leaves() {
    check(|_| {
        let world = World::new();
        let rows = [world.ready(1), world.ready(2)];
        let mut tasks: Vec<_> = [1, 1, 2, 1, 1].into_iter().map(|weight| world.ask(weight, served)).collect();
        for _ in 0..2 {
            let admission = Arc::clone(&world.admission);
            // Leaves at any moment: in the line, with a slot on its way to it, or holding one.
            tasks.push(shuttle::future::spawn_local(async move {
                if let Either::Left((answer, _)) = select(pin!(admit(&admission, 1)), pin!(pause(8))).await {
                    served(answer);
                }
            }));
        }
        for task in tasks {
            shuttle::future::block_on(task).unwrap();
        }
        world.assert_at_rest(&rows);
    });
}

#[test]
fn a_deadline_that_meets_a_free_slot_loses_neither() {
    check(|runtime| {
        let world = World::new();
        let rows = [world.ready(1)];
        let in_time = |answer: Result<Permit, Refusal>| match answer {
            Ok(permit) => hold(permit),
            Err(refusal) => assert!(matches!(refusal, Refusal::TooLong { .. }), "{refusal:?}"),
        };
        let mut tasks: Vec<_> = (0..4).map(|_| world.ask(1, in_time)).collect();
        let runtime = runtime.clone();
        tasks.push(shuttle::future::spawn_local(async move {
            for _ in 0..3 {
                pause(6).await;
                runtime.block_on(tokio::time::advance(WAIT / 2));
            }
        }));
        for task in tasks {
            shuttle::future::block_on(task).unwrap();
        }
        world.assert_at_rest(&rows);
        // Whoever comes now finds the slot free.
        let last = world.ask(1, served);
        shuttle::future::block_on(last).unwrap();
        world.assert_at_rest(&rows);
    });
}

#[test]
fn an_engine_that_closes_and_comes_back_loses_nobody() {
    check(|_| {
        let world = World::new();
        let mut rows = [world.ready(1), world.ready(1)];
        let tasks: Vec<_> = (0..4).map(|_| world.ask(1, served)).collect();
        // The gate is shut before anybody hears of it, as the supervisor does it.
        let closed = rows[0].endpoint.clone().unwrap();
        closed.load.close();
        interleave::point();
        rows[0].status.state = RowState::Starting;
        rows[0].endpoint = None;
        world.show(&rows[0]);
        interleave::point();
        rows[0].status.state = RowState::Ready;
        rows[0].endpoint = Some(endpoint(2, 1));
        world.show(&rows[0]);
        for task in tasks {
            shuttle::future::block_on(task).unwrap();
        }
        assert_eq!(closed.load.in_flight(), 0);
        world.assert_at_rest(&rows);
    });
}
