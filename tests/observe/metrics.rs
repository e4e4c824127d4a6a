//! A recorder of the `metrics` facade.

use crate::scenario::{Found, LATE, STAY, Scenario, TIMEOUT, listen_for_what_is_not_checked};
use crate::support::keys::{Fragile, Hook, with_fuse};
use crate::support::{
    FragileClock, NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, quietly, within,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use request_purgatory::{
    Purgatory, Timer, Waits, future::block_on, purgatory::WeakRef, threads::Reaper,
};
use request_purgatory_tracker::{Requests, Tracker};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// What `build` builds, and where it tells.
fn recorded<T>(build: impl FnOnce() -> T) -> (T, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let built = with_local_recorder(&recorder, build);
    (built, recorder.snapshotter())
}

/// What was told since the last reading (by which this recorder forgets it), by purgatory and metric.
fn told(snapshotter: &Snapshotter) -> BTreeMap<(String, String), DebugValue> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    all.map(|(key, _, _, value)| {
        let labels = key.key().labels().collect::<Vec<_>>();
        let [label] = labels[..] else {
            panic!("one label, not {labels:?}");
        };
        assert_eq!(label.key(), "purgatory");
        let name = (label.value().to_owned(), key.key().name().to_owned());
        (name, value)
    })
    .collect()
}

/// By how much both gauges of each purgatory changed since the last reading.
fn changes<const N: usize>(snapshotter: &Snapshotter, names: [&str; N]) -> [(f64, f64); N] {
    let told = told(snapshotter);
    let change = |purgatory: &str, gauge: &str| match told[&(purgatory.into(), gauge.into())] {
        DebugValue::Gauge(value) => value.into_inner(),
        ref other => panic!("{other:?}"),
    };
    names.map(|name| {
        (
            change(name, "purgatory_num_delayed_operations"),
            change(name, "purgatory_size"),
        )
    })
}

fn seconds(durations: &[Duration]) -> DebugValue {
    let seconds = durations.iter().map(|time| time.as_secs_f64().into());
    DebugValue::Histogram(seconds.collect())
}

#[test]
fn everything_is_told_once() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    scenario.run();
    assert_eq!(scenario.assert_complete(), 1);
    let stats = scenario.purgatory.stats();
    let zero = Duration::ZERO;
    let mut park_times = vec![STAY, zero, TIMEOUT + LATE, TIMEOUT];
    // Cancelled, panicked, three cancelled again, shut down.
    park_times.extend([zero; 6]);
    let counters = [
        ("completed_at_once", stats.completed_at_once),
        ("completed", stats.completed),
        ("expired", stats.expired),
        ("cancelled", stats.cancelled),
        ("shut_down", stats.shut_down),
        ("aborted", stats.aborted),
        ("panicked", stats.panicked),
        ("rejected", stats.rejected),
        ("missed_checks", stats.missed_checks),
        ("extended", stats.extended),
    ];
    let counters = counters.map(|(name, count)| {
        (
            format!("purgatory_{name}_total"),
            DebugValue::Counter(count),
        )
    });
    let mut expected = Vec::from(counters);
    let gauge = || DebugValue::Gauge(0.0.into());
    expected.extend([
        ("purgatory_size".to_owned(), gauge()),
        ("purgatory_num_delayed_operations".to_owned(), gauge()),
        (
            "purgatory_park_time_seconds".to_owned(),
            seconds(&park_times),
        ),
        (
            "purgatory_lateness_seconds".to_owned(),
            seconds(&[LATE, zero]),
        ),
    ]);
    let expected = expected.into_iter();
    let expected = expected.map(|(name, value)| (("fetch".to_owned(), name), value));
    assert_eq!(told(&snapshotter), expected.collect());
}

/// Also those of one deadline.
#[test]
fn each_expired_operation_has_a_lateness_of_its_own() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    (0..3).for_each(|key| scenario.park(&Probe::new(), &[key]));
    scenario.clock.advance(TIMEOUT + LATE);
    assert_eq!(scenario.purgatory.advance(), 3);
    let lateness = ("fetch".into(), "purgatory_lateness_seconds".into());
    assert_eq!(told(&snapshotter)[&lateness], seconds(&[LATE; 3]));
}

/// Not from the call that parks it.
#[test]
fn g10_the_park_time_counts_from_the_arrival() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    let arrival = request_purgatory::time::Timestamp::from_origin(Duration::ZERO);
    scenario.clock.advance(STAY);
    let op = Op::new(TIMEOUT).arrived(arrival);
    let parked = scenario.purgatory.try_complete_else_watch(op, [1]);
    let parked = parked.expect("there is room").into_handle();
    let cancelled = parked.expect("it cannot complete yet").cancel();
    assert!(cancelled.is_some());
    let park_time = ("fetch".into(), "purgatory_park_time_seconds".into());
    assert_eq!(told(&snapshotter)[&park_time], seconds(&[STAY]));
}

#[test]
fn a_listeners_missed_check_is_told_once() {
    for found in [Found::ByARecheck, Found::AtTheDeadline] {
        let (waits, snapshotter) = recorded(|| listen_for_what_is_not_checked("news", found));
        let counter = ("news".into(), "purgatory_missed_checks_total".into());
        assert_eq!(
            told(&snapshotter)[&counter],
            DebugValue::Counter(1),
            "{found:?}"
        );
        assert_eq!(waits.stats().missed_checks, 1);
    }
}

#[test]
fn a_deadline_that_is_put_off_is_told() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    scenario.extend();
    let told = told(&snapshotter);
    let counter = |name: &str| &told[&("fetch".into(), format!("purgatory_{name}_total"))];
    let [once, never] = [1, 0].map(DebugValue::Counter);
    assert_eq!((counter("extended"), counter("cancelled")), (&once, &once));
    assert_eq!(counter("expired"), &never);
    assert_eq!(scenario.purgatory.stats().extended, 1);
}

#[test]
fn the_gauges_are_kafkas() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    assert_eq!(changes(&snapshotter, ["fetch"]), [(0.0, 0.0)]);
    scenario.park(&Probe::new(), &[1, 2, 3]);
    scenario.park(&Probe::new(), &[3]);
    assert_eq!(changes(&snapshotter, ["fetch"]), [(2.0, 4.0)]);
    assert_eq!(scenario.purgatory.cancel_for_key(&1).len(), 1);
    assert_eq!(changes(&snapshotter, ["fetch"]), [(-1.0, -3.0)]);
    drop(scenario);
    assert_eq!(changes(&snapshotter, ["fetch"]), [(-1.0, -1.0)]);
}

/// A park that is refused by its second key, or by a key that panics, leaves the gauges as they were.
#[test]
fn a_park_that_is_refused_half_way_leaves_no_entry_in_the_gauges() {
    let build = || {
        let builder = Purgatory::<Op<Fragile>>::builder("fetch").reaper(Reaper::Manual);
        builder.max_watchers_per_key(1).build()
    };
    let (purgatory, snapshotter) = recorded(build);
    let purgatory = purgatory.expect("no threads to refuse");
    let park = |keys: [u32; 3]| {
        let op = Op::new(NEVER_IN_A_TEST);
        purgatory.try_complete_else_watch(op, keys.map(Fragile))
    };
    assert!(park([1, 2, 3]).is_ok());
    assert_eq!(changes(&snapshotter, ["fetch"]), [(1.0, 3.0)]);
    assert!(park([4, 1, 5]).is_err());
    let panicked = with_fuse(5, Hook::Hash, || park([4, 5, 6]).is_err());
    assert!(panicked.is_err(), "it goes to the caller");
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (1, 3));
    assert_eq!(changes(&snapshotter, ["fetch"]), [(0.0, 0.0)]);
}

#[test]
fn each_metric_says_its_unit_and_what_it_is() {
    let (_scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    let all = snapshotter.snapshot().into_vec();
    assert_eq!(all.len(), 14);
    for (key, unit, says, _) in all {
        let expected = match key.kind() {
            MetricKind::Histogram => Unit::Seconds,
            MetricKind::Counter | MetricKind::Gauge => Unit::Count,
        };
        assert_eq!(unit, Some(expected), "{key:?}");
        assert!(says.is_some_and(|says| !says.is_empty()), "{key:?}");
    }
}

#[test]
fn purgatories_are_told_apart_by_their_names() {
    let ((fetch, produce), snapshotter) =
        recorded(|| (Scenario::new("fetch"), Scenario::new("produce")));
    fetch.park(&Probe::new(), &[1]);
    produce.park(&Probe::new(), &[1, 2]);
    let gauges = changes(&snapshotter, ["fetch", "produce"]);
    assert_eq!(gauges, [(1.0, 1.0), (1.0, 2.0)]);
}

#[test]
fn purgatories_of_one_name_tell_the_sum() {
    let twin = || {
        let twin = Scenario::new("twin");
        twin.park(&Probe::new(), &[1, 2]);
        twin
    };
    let (_twins, snapshotter) = recorded(|| [twin(), twin()]);
    assert_eq!(changes(&snapshotter, ["twin"]), [(2.0, 4.0)]);
}

#[test]
fn timers_trackers_and_requests_tell_nothing() {
    let build = || {
        let tracker = Tracker::<u8, u8>::new("tracker", |_, _, _| {});
        let timer = Timer::<u8>::new("timer", |_| {});
        (timer, tracker, Requests::<u8, u8>::new("requests"))
    };
    let ((timer, tracker, requests), snapshotter) = recorded(build);
    assert!(tracker.track(1, 1, Duration::MAX).is_ok());
    assert!(requests.request(1, Duration::MAX).is_ok());
    timer.start(Duration::ZERO, 1).expect("there is room");
    eventually("the timer fires", || timer.stats().expired == 1);
    assert!(snapshotter.snapshot().into_vec().is_empty());
}

/// Does something whenever it is told something.
struct Doing<F>(Arc<F>);

impl<F: Fn() + Send + Sync + 'static> Recorder for Doing<F> {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Doing(self.0.clone())))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Doing(self.0.clone())))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Doing(self.0.clone())))
    }
}

impl<F: Fn() + Send + Sync> CounterFn for Doing<F> {
    fn increment(&self, _: u64) {
        (self.0)();
    }
    fn absolute(&self, _: u64) {
        (self.0)();
    }
}

impl<F: Fn() + Send + Sync> GaugeFn for Doing<F> {
    fn increment(&self, _: f64) {
        (self.0)();
    }
    fn decrement(&self, _: f64) {
        (self.0)();
    }
    fn set(&self, _: f64) {
        (self.0)();
    }
}

impl<F: Fn() + Send + Sync> HistogramFn for Doing<F> {
    fn record(&self, _: f64) {
        (self.0)();
    }
}

#[test]
fn g12_a_recorder_that_panics_harms_no_operation() {
    quietly();
    let recorder = Doing(Arc::new(|| std::panic::panic_any("intended")));
    let scenario = with_local_recorder(&recorder, || Scenario::new("loud"));
    scenario.run();
    // Once for each time that it was told something, and for the one that the scenario has of its own.
    assert!(scenario.assert_complete() > 20);
}

/// It is read for the park time. The gauges tell of the end all the same.
#[test]
fn g12_a_clock_that_panics_at_an_end_keeps_nothing_in_the_gauges() {
    quietly();
    let clock = FragileClock::default();
    let builder = Purgatory::builder("fetch").clock(clock.clone());
    let (purgatory, snapshotter) = recorded(|| builder.reaper(Reaper::Manual).build());
    let purgatory = purgatory.expect("no threads to refuse");
    let parked = purgatory.try_complete_else_watch(Op::<u64>::new(NEVER_IN_A_TEST), [1, 2]);
    assert!(parked.is_ok_and(|admission| admission.is_parked()));
    assert_eq!(changes(&snapshotter, ["fetch"]), [(1.0, 2.0)]);
    clock.set_broken(true);
    assert_eq!(purgatory.force_complete_for_key(&1), 1);
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.completed, stats.panicked), (0, 1, 1));
    assert_eq!(changes(&snapshotter, ["fetch"]), [(-1.0, -2.0)]);
}

/// What was taken is given back when its guard is dropped, in no call of the purgatory.
#[test]
fn g12_a_panic_in_the_drop_of_a_guard_is_told() {
    quietly();
    let builder = Waits::<u64>::builder("takes").reaper(Reaper::Manual);
    let (waits, snapshotter) = recorded(|| builder.build());
    let waits = waits.expect("no threads to refuse");
    let give_back = |_| std::panic::panic_any("intended");
    let take = waits.take([1], NEVER_IN_A_TEST, |_| Some(7), give_back);
    drop(block_on(take).expect("it takes at once"));
    assert_eq!(waits.stats().panicked, 1);
    let panicked = ("takes".to_owned(), "purgatory_panicked_total".to_owned());
    assert_eq!(told(&snapshotter)[&panicked], DebugValue::Counter(1));
}

#[test]
fn g12_a_recorder_that_panics_does_not_end_the_reaper() {
    quietly();
    let recorder = Doing(Arc::new(|| std::panic::panic_any("intended")));
    let purgatory = with_local_recorder(&recorder, || Purgatory::<Op>::new("loud"));
    for round in 1..=3 {
        let op = Op::new(Duration::from_millis(1));
        drop(purgatory.try_complete_else_watch(op, [1]));
        eventually("it expires", || purgatory.stats().expired == round);
    }
    assert_eq!(purgatory.stats().parked, 0);
}

#[test]
fn g12_a_recorder_that_panics_from_the_start_hears_nothing() {
    struct Refusing;
    impl Recorder for Refusing {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            std::panic::panic_any("intended")
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }
    let scenario = with_local_recorder(&Refusing, || Scenario::new("refused"));
    scenario.run();
    assert_eq!(scenario.assert_complete(), 2);
}

/// Whatever it is told, it calls back into the purgatory: all of these would wait for a lock of ours for ever.
#[test]
fn g03_a_recorder_may_call_the_purgatory() {
    type Weak = WeakRef<Purgatory<Op>>;
    within(PATIENCE, || {
        let place = Arc::new(OnceLock::<Weak>::new());
        let calls = Arc::new(AtomicU64::new(0));
        let recorder = Doing(Arc::new({
            let (place, calls) = (place.clone(), calls.clone());
            move || {
                let Some(purgatory) = place.get().and_then(Weak::upgrade) else {
                    return;
                };
                // A check from in here examines others, and so is told again: it must end somewhere.
                if calls.fetch_add(1, Ordering::SeqCst) % 8 == 0 {
                    purgatory.check_and_complete(&77);
                    purgatory.cancel_for_key(&77);
                }
                purgatory.snapshot();
                purgatory.next_deadline();
                purgatory.check_later(77);
            }
        }));
        let scenario = with_local_recorder(&recorder, || Scenario::new("re-entrant"));
        let weak = place.set(scenario.purgatory.downgrade());
        assert!(weak.is_ok());
        scenario.run();
        scenario.assert_complete();
        assert!(calls.load(Ordering::SeqCst) > 20);
    });
}

/// The recorder takes a lock of the user's, under which others call what may be called under any lock.
#[test]
fn g03_a_recorder_may_take_the_users_locks() {
    within(PATIENCE, || {
        let users = Arc::new(Mutex::new(0_u64));
        let recorder = Doing(Arc::new({
            let users = users.clone();
            move || *lock(&users) += 1
        }));
        let purgatory = with_local_recorder(&recorder, || Purgatory::<Op>::new("locks"));
        let others = thread::spawn({
            let (purgatory, users) = (purgatory.clone(), users.clone());
            move || {
                for _ in 0..2_000 {
                    let users = lock(&users);
                    purgatory.check_later(1);
                    purgatory.stats();
                    drop(users);
                }
            }
        });
        for _ in 0..2_000 {
            drop(purgatory.try_complete_else_watch(Op::new(Duration::from_millis(1)), [1]));
            purgatory.check_and_complete(&1);
        }
        others.join().expect("it does not panic");
        eventually("all have expired", || purgatory.is_empty());
        assert!(*lock(&users) > 2_000);
    });
}
