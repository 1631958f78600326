//! Slots, lines and deadlines, on paused time.

use std::sync::LazyLock;

use super::*;
use crate::gateway::testing::{endpoint, row};
use crate::registry::RowState;
use lifeboat_engines::spec::DesiredState;

struct World {
    registry: Arc<Registry>,
    admission: Arc<Admission>,
    activator: Activator,
}

fn world(config: GatewayConfig) -> World {
    let registry = Arc::new(Registry::default());
    let activator = Activator::default();
    let metrics = Arc::new(Metrics::new(Arc::clone(&registry)));
    let admission = Admission::new(Arc::clone(&registry), activator.clone(), metrics, config);
    let follower = Arc::clone(&admission).follow(CancellationToken::new());
    #[expect(clippy::disallowed_methods, reason = "a test has no tracker")]
    tokio::spawn(follower);
    World { registry, admission, activator }
}

impl World {
    fn ready(&self, name: &str, slots: u32) -> RowView {
        let view = RowView { endpoint: Some(endpoint(1, slots)), ..row(name, RowState::Ready) };
        self.registry.publish(view.clone());
        view
    }

    async fn admit(&self, name: &str) -> Result<Permit, Refusal> {
        self.admission.admit(claim(name, &[])).await
    }

    /// A request that waits in its own task.
    fn join(&self, name: &'static str) -> tokio::task::JoinHandle<Result<Permit, Refusal>> {
        let admission = Arc::clone(&self.admission);
        #[expect(clippy::disallowed_methods, reason = "a test has no tracker")]
        tokio::spawn(async move { admission.admit(claim(name, &[])).await })
    }

    async fn until_waiting(&self, name: &str, count: usize) {
        while self.admission.state().generation.router.waiting(name) != count {
            tokio::task::yield_now().await;
        }
    }
}

/// A request without a prompt, which weighs one slot.
static PLAIN: LazyLock<Ask> = LazyLock::new(|| Ask { weight: 1, band: 1, ..Ask::default() });

fn claim<'a>(name: &'a str, avoid: &'a [Arc<Endpoint>]) -> Claim<'a> {
    Claim { name, class: Class::Generation, ask: &PLAIN, avoid, arrived: Instant::now() }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn slots_are_handed_to_waiters_in_the_order_they_came() {
    let world = world(GatewayConfig::default());
    world.ready("m", 1);
    let mut held = world.admit("m").await.unwrap();
    let mut waiters = Vec::new();
    for count in 1..=3 {
        waiters.push(world.join("m"));
        world.until_waiting("m", count).await;
    }
    for (index, waiter) in waiters.into_iter().enumerate() {
        drop(held);
        held = waiter.await.unwrap().unwrap();
        assert_eq!(held.endpoint.load.in_flight(), 1);
        assert_eq!(world.admission.state().generation.router.waiting("m"), 2 - index);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_who_left_is_passed_over_and_an_alias_shares_the_slots() {
    let world = world(GatewayConfig::default());
    let view = RowView { aliases: vec!["other".into()], ..world.ready("m", 1) };
    world.registry.publish(view.clone());
    let held = world.admit("m").await.unwrap();
    let (leaves, stays) = (world.join("m"), world.join("other"));
    world.until_waiting("m", 2).await;
    leaves.abort();
    world.until_waiting("m", 1).await;
    drop(held);
    assert_eq!(stays.await.unwrap().unwrap().row.id, view.id);
    assert_eq!(view.endpoint.unwrap().load.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_by_another_name_of_the_same_row() {
    let world = world(GatewayConfig { queue_per_slot: 2, ..GatewayConfig::default() });
    let view = RowView { aliases: vec!["other".into()], ..world.ready("m", 1) };
    world.registry.publish(view);
    let held = world.admit("m").await.unwrap();
    let first = world.join("other");
    world.until_waiting("m", 1).await;
    let second = world.join("m");
    world.until_waiting("m", 2).await;
    for name in ["m", "other"] {
        assert!(matches!(world.admit(name).await, Err(Refusal::Full { waiting: 2, .. })), "they share one line: {name}");
    }
    drop(held);
    let held = first.await.unwrap().unwrap();
    assert!(!second.is_finished());
    drop(held);
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn of_two_lines_that_share_a_row_the_one_that_has_waited_longer_gets_its_slot() {
    let world = world(GatewayConfig::default());
    for name in ["m", "n"] {
        let view = RowView { aliases: vec!["any".into()], ..world.ready(name, 1) };
        world.registry.publish(view);
    }
    let (one, _other) = (world.admit("m").await.unwrap(), world.admit("n").await.unwrap());
    let older = world.join("any");
    world.until_waiting("any", 1).await;
    let newer = world.join("m");
    world.until_waiting("m", 1).await;
    drop(one);
    let one = older.await.unwrap().unwrap();
    assert!(!newer.is_finished());
    drop(one);
    assert!(newer.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn once_a_cold_model_serves_its_line_waits_no_longer_than_any_other() {
    let config = GatewayConfig { queue_wait: 10 * SECOND, cold_start_wait: 600 * SECOND, ..GatewayConfig::default() };
    let world = world(config);
    let mut view = row("m", RowState::Starting);
    world.registry.publish(view.clone());
    let before = Instant::now();
    let waiters = [world.join("m"), world.join("m")];
    world.until_waiting("m", 2).await;
    // Longer than a wait for a slot may take, and nobody is sent away for that.
    tokio::time::sleep(100 * SECOND).await;
    view.status.state = RowState::Ready;
    view.endpoint = Some(endpoint(1, 1));
    world.registry.publish(view);
    let [first, second] = waiters;
    let _held = first.await.unwrap().unwrap();
    let refused = second.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refusal::TooLong { .. }), "{refused:?}");
    assert_eq!(before.elapsed().as_secs(), 110);
}

#[tokio::test(start_paused = true)]
async fn a_permit_granted_to_one_who_leaves_goes_to_the_next() {
    let world = world(GatewayConfig::default());
    world.ready("m", 1);
    let held = world.admit("m").await.unwrap();
    let (first, second) = (world.join("m"), world.join("m"));
    world.until_waiting("m", 2).await;
    // Granted, but its task never gets to run again.
    drop(held);
    first.abort();
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_full_line_and_a_wait_that_cannot_fit_are_refused_at_once() {
    let world = world(GatewayConfig { queue_per_slot: 2, queue_wait: 10 * SECOND, ..GatewayConfig::default() });
    world.ready("m", 1);
    let mut held = world.admit("m").await.unwrap();
    let waiters = [world.join("m"), world.join("m")];
    world.until_waiting("m", 2).await;
    assert!(matches!(world.admit("m").await, Err(Refusal::Full { waiting: 2, .. })));
    // Once a request is known to take 8 s, the second in line would wait 16 s.
    for waiter in waiters {
        waiter.abort();
    }
    world.until_waiting("m", 0).await;
    tokio::time::advance(8 * SECOND).await;
    held.done();
    drop(held);
    let _held = world.admit("m").await.unwrap();
    let _first = world.join("m");
    world.until_waiting("m", 1).await;
    let Err(Refusal::Full { waiting: 1, retry_after }) = world.admit("m").await else { panic!("admitted") };
    assert!(retry_after > 15 * SECOND && retry_after < 17 * SECOND, "{retry_after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline() {
    let world = world(GatewayConfig { queue_wait: 10 * SECOND, ..GatewayConfig::default() });
    world.ready("m", 1);
    let _held = world.admit("m").await.unwrap();
    let before = Instant::now();
    assert!(matches!(world.admit("m").await, Err(Refusal::TooLong { .. })));
    assert_eq!(before.elapsed().as_secs(), 10);
    assert_eq!(world.admission.state().generation.router.waiting("m"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_row_is_asked_for_until_it_serves() {
    let world = world(GatewayConfig::default());
    let asleep = RowView { desired_state: DesiredState::OnDemand, ..row("m", RowState::Sleeping) };
    world.registry.publish(asleep.clone());
    let waiter = world.join("m");
    world.activator.woken().await;
    assert_eq!(asleep.demand.waiting(), 1);
    let mut starting = asleep.clone();
    starting.status.state = RowState::Starting;
    world.registry.publish(starting.clone());
    // Longer than a wait for a slot may take.
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(asleep.demand.waiting(), 1);
    starting.status.state = RowState::Ready;
    starting.endpoint = Some(endpoint(1, 1));
    world.registry.publish(starting);
    assert!(waiter.await.unwrap().is_ok());
    assert_eq!(asleep.demand.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_the_gate_shut_waits_for_the_next_engine() {
    let world = world(GatewayConfig::default());
    let mut view = RowView { desired_state: DesiredState::OnDemand, ..world.ready("m", 1) };
    world.registry.publish(view.clone());
    assert!(view.endpoint.as_ref().unwrap().load.close_if_idle());
    let waiter = world.join("m");
    world.activator.woken().await;
    assert_eq!(view.demand.waiting(), 1);
    let closed = view.endpoint.replace(endpoint(2, 1)).unwrap();
    world.registry.publish(view);
    let permit = waiter.await.unwrap().unwrap();
    assert!(!Arc::ptr_eq(&permit.endpoint, &closed));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_in_vain_are_told_why_at_once() {
    let world = world(GatewayConfig::default());
    let mut view = row("m", RowState::Starting);
    world.registry.publish(view.clone());
    let waiter = world.join("m");
    world.until_waiting("m", 1).await;
    view.status.state = RowState::Failed;
    view.status.state_reason = Some("out of memory".into());
    world.registry.publish(view.clone());
    assert_eq!(waiter.await.unwrap().unwrap_err(), Refusal::Hopeless("failed: out of memory".into()));
    assert!(matches!(world.admit("m").await, Err(Refusal::Hopeless(_))));
    world.registry.remove(view.id);
    assert!(matches!(world.admit("m").await, Err(Refusal::UnknownModel)));
}

#[tokio::test(start_paused = true)]
async fn a_failed_engine_is_waited_out_only_as_long_as_its_death_may_go_unnoticed() {
    let world = world(GatewayConfig { retry_notice: 2 * SECOND, ..GatewayConfig::default() });
    let mut view = world.ready("m", 1);
    let avoid = [view.endpoint.clone().unwrap()];
    let before = Instant::now();
    assert_eq!(world.admission.admit(claim("m", &avoid)).await.unwrap_err(), Refusal::NoOther);
    assert_eq!(before.elapsed().as_secs(), 2);
    // Seen dead in time, it is waited for until it is back.
    let asking = world.admission.admit(claim("m", &avoid));
    let restarting = async {
        tokio::time::sleep(SECOND).await;
        view.status.state = RowState::Starting;
        view.endpoint = None;
        world.registry.publish(view.clone());
        tokio::time::sleep(60 * SECOND).await;
        view.status.state = RowState::Ready;
        view.endpoint = Some(endpoint(2, 1));
        world.registry.publish(view.clone());
    };
    let (permit, ()) = tokio::join!(asking, restarting);
    assert!(permit.is_ok());
}

#[tokio::test(start_paused = true)]
async fn light_calls_do_not_wait_for_a_slot() {
    let world = world(GatewayConfig { light_per_row: 1, ..GatewayConfig::default() });
    let view = world.ready("m", 1);
    let _held = world.admit("m").await.unwrap();
    let light = Claim { class: Class::Light, ..claim("m", &[]) };
    let permit = world.admission.admit(light).await.unwrap();
    assert!(tokio::time::timeout(SECOND, world.admission.admit(light)).await.is_err());
    drop(permit);
    assert!(world.admission.admit(light).await.is_ok());
    assert_eq!(view.endpoint.unwrap().load.light(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_row_ever_has_more_requests_than_slots_whoever_comes_and_goes() {
    let world = world(GatewayConfig { queue_per_slot: 1000, ..GatewayConfig::default() });
    let rows = [world.ready("m", 2), world.ready("m", 3)];
    let tasks: Vec<_> = (0..400)
        .map(|number| {
            let admission = Arc::clone(&world.admission);
            #[expect(clippy::disallowed_methods, reason = "a test has no tracker")]
            tokio::spawn(async move {
                let asking = admission.admit(claim("m", &[]));
                if number % 5 == 0 {
                    // These leave at any moment, granted or not.
                    return drop(tokio::time::timeout(Duration::from_micros(number * 7), asking).await);
                }
                let permit = asking.await.unwrap();
                assert!(permit.endpoint.load.in_flight() <= permit.endpoint.slots);
                tokio::task::yield_now().await;
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(30 * SECOND, task).await.expect("a waiter was forgotten").unwrap();
    }
    assert!(rows.iter().all(|row| row.endpoint.as_ref().unwrap().load.in_flight() == 0));
    assert!(world.admission.is_at_rest());
}
