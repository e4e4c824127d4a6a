//! A recorder of the `metrics` facade.

use crate::scenario::{Found, LATE, STAY, Scenario, TIMEOUT, assert_the_reaper_goes_on, panics};
use crate::scenario::{listen_for_what_is_not_checked, listener_that_calls_back, waits_by_hand};
use crate::support::keys::{Fragile, Hook, with_fuse};
use crate::support::{
    FragileClock, NEVER_IN_A_TEST, Op, PATIENCE, eventually, lock, quietly, within,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use request_purgatory::{Purgatory, Timer, future::block_on, threads::Reaper, time::Timestamp};
use request_purgatory_tracker::{Requests, Tracker};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What `build` builds, and where it tells.
fn recorded<T>(build: impl FnOnce() -> T) -> (T, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let built = with_local_recorder(&recorder, build);
    (built, recorder.snapshotter())
}

type Told = BTreeMap<(String, String), DebugValue>;

/// What was told since the last reading (by which this recorder forgets it), by purgatory and metric.
fn told(snapshotter: &Snapshotter) -> Told {
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

fn of<'a>(told: &'a Told, purgatory: &str, metric: &str) -> &'a DebugValue {
    &told[&(purgatory.to_owned(), format!("purgatory_{metric}"))]
}

/// By how much both gauges of each purgatory changed since the last reading.
fn changes(snapshotter: &Snapshotter, names: &[&str]) -> Vec<(f64, f64)> {
    let told = told(snapshotter);
    let change = |name, gauge| match of(&told, name, gauge) {
        DebugValue::Gauge(value) => value.into_inner(),
        other => panic!("{other:?}"),
    };
    let changes = names.iter().map(|name| {
        let parked = change(*name, "num_delayed_operations");
        (parked, change(*name, "size"))
    });
    changes.collect()
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
    let (counter, gauge) = (DebugValue::Counter, || DebugValue::Gauge(0.0.into()));
    let expected = [
        ("completed_at_once_total", counter(stats.completed_at_once)),
        ("completed_total", counter(stats.completed)),
        ("expired_total", counter(stats.expired)),
        ("cancelled_total", counter(stats.cancelled)),
        ("shut_down_total", counter(stats.shut_down)),
        ("aborted_total", counter(stats.aborted)),
        ("panicked_total", counter(stats.panicked)),
        ("rejected_total", counter(stats.rejected)),
        ("missed_checks_total", counter(stats.missed_checks)),
        ("extended_total", counter(stats.extended)),
        ("size", gauge()),
        ("num_delayed_operations", gauge()),
        ("park_time_seconds", seconds(&park_times)),
        ("lateness_seconds", seconds(&[LATE, zero])),
    ];
    let name = |metric| ("fetch".to_owned(), format!("purgatory_{metric}"));
    let expected = expected.map(|(metric, value)| (name(metric), value));
    assert_eq!(told(&snapshotter), Told::from(expected));
}

/// Also those of one deadline.
#[test]
fn each_expired_operation_has_a_lateness_of_its_own() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    (0..3).for_each(|key| _ = scenario.park(&[key]));
    scenario.advance(TIMEOUT + LATE, 3);
    let told = told(&snapshotter);
    assert_eq!(of(&told, "fetch", "lateness_seconds"), &seconds(&[LATE; 3]));
}

/// Not from the call that parks it.
#[test]
fn g10_the_park_time_counts_from_the_arrival() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    scenario.clock.advance(STAY);
    let op = Op::new(TIMEOUT).arrived(Timestamp::from_origin(Duration::ZERO));
    assert!(scenario.purgatory.try_complete_else_watch(op, [1]).is_ok());
    scenario.cancel(1);
    let told = told(&snapshotter);
    assert_eq!(of(&told, "fetch", "park_time_seconds"), &seconds(&[STAY]));
}

#[test]
fn a_listeners_missed_check_is_told_once() {
    for found in [Found::ByARecheck, Found::AtTheDeadline] {
        let (waits, snapshotter) = recorded(|| listen_for_what_is_not_checked("news", found));
        let told = told(&snapshotter);
        let counter = of(&told, "news", "missed_checks_total");
        assert_eq!(counter, &DebugValue::Counter(1), "{found:?}");
        assert_eq!(waits.stats().missed_checks, 1);
    }
}

#[test]
fn a_deadline_that_is_put_off_is_told() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    scenario.extend();
    let told = told(&snapshotter);
    for (counter, count) in [("extended", 1), ("cancelled", 1), ("expired", 0)] {
        let value = of(&told, "fetch", &format!("{counter}_total"));
        assert_eq!(value, &DebugValue::Counter(count), "{counter}");
    }
    assert_eq!(scenario.purgatory.stats().extended, 1);
}

#[test]
fn the_gauges_are_kafkas() {
    let (scenario, snapshotter) = recorded(|| Scenario::new("fetch"));
    let change = || changes(&snapshotter, &["fetch"]);
    assert_eq!(change(), [(0.0, 0.0)]);
    scenario.park(&[1, 2, 3]);
    scenario.park(&[3]);
    assert_eq!(change(), [(2.0, 4.0)]);
    scenario.cancel(1);
    assert_eq!(change(), [(-1.0, -3.0)]);
    drop(scenario);
    assert_eq!(change(), [(-1.0, -1.0)]);
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
    assert_eq!(changes(&snapshotter, &["fetch"]), [(1.0, 3.0)]);
    assert!(park([4, 1, 5]).is_err());
    let panicked = with_fuse(5, Hook::Hash, || park([4, 5, 6]).is_err());
    assert!(panicked.is_err(), "it goes to the caller");
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (1, 3));
    assert_eq!(changes(&snapshotter, &["fetch"]), [(0.0, 0.0)]);
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
fn purgatories_are_told_apart_by_their_names_and_those_of_one_name_added() {
    for (second, told) in [
        ("produce", vec![(1.0, 1.0), (1.0, 2.0)]),
        ("fetch", vec![(2.0, 3.0)]),
    ] {
        let build = || (Scenario::new("fetch"), Scenario::new(second));
        let ((one, other), snapshotter) = recorded(build);
        one.park(&[1]);
        other.park(&[1, 2]);
        let names = &["fetch", second][..told.len()];
        assert_eq!(changes(&snapshotter, names), told, "{second}");
    }
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

/// Does something whenever it is told something, and something else when a metric is made.
struct Doing<F> {
    told: Arc<F>,
    made: fn(),
}

impl<F: Fn() + Send + Sync + 'static> Doing<F> {
    fn new(told: F) -> Self {
        let told = Arc::new(told);
        Self { told, made: || () }
    }

    fn make(&self) -> Arc<Meter<F>> {
        (self.made)();
        Arc::new(Meter(self.told.clone()))
    }
}

struct Meter<F>(Arc<F>);

impl<F: Fn() + Send + Sync + 'static> Recorder for Doing<F> {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.make())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.make())
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.make())
    }
}

impl<F: Fn() + Send + Sync> CounterFn for Meter<F> {
    fn increment(&self, _: u64) {
        (self.0)();
    }
    fn absolute(&self, _: u64) {
        (self.0)();
    }
}

impl<F: Fn() + Send + Sync> GaugeFn for Meter<F> {
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

impl<F: Fn() + Send + Sync> HistogramFn for Meter<F> {
    fn record(&self, _: f64) {
        (self.0)();
    }
}

#[test]
fn g12_a_recorder_that_panics_harms_no_operation() {
    let scenario = with_local_recorder(&Doing::new(panics), || Scenario::new("loud"));
    scenario.run();
    // Once for each time that it was told something, and for the one that the scenario has of its own.
    assert!(scenario.assert_complete() > 20);
}

#[test]
fn g12_a_recorder_that_panics_from_the_start_hears_nothing() {
    let told = Arc::new(|| panic!("it hears"));
    let refusing = Doing { told, made: panics };
    let scenario = with_local_recorder(&refusing, || Scenario::new("refused"));
    scenario.run();
    assert_eq!(scenario.assert_complete(), 2);
}

#[test]
fn g12_a_recorder_that_panics_does_not_end_the_reaper() {
    quietly();
    let purgatory = with_local_recorder(&Doing::new(panics), || Purgatory::new("loud"));
    assert_the_reaper_goes_on(&purgatory);
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
    assert_eq!(changes(&snapshotter, &["fetch"]), [(1.0, 2.0)]);
    clock.set_broken(true);
    assert_eq!(purgatory.force_complete_for_key(&1), 1);
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.completed, stats.panicked), (0, 1, 1));
    assert_eq!(changes(&snapshotter, &["fetch"]), [(-1.0, -2.0)]);
}

/// What was taken is given back when its guard is dropped, in no call of the purgatory.
#[test]
fn g12_a_panic_in_the_drop_of_a_guard_is_told() {
    quietly();
    let ((waits, _clock), snapshotter) = recorded(|| waits_by_hand("takes"));
    let give_back = |_| panics();
    let take = waits.take([1], NEVER_IN_A_TEST, |_| Some(7), give_back);
    drop(block_on(take).expect("it takes at once"));
    assert_eq!(waits.stats().panicked, 1);
    let told = told(&snapshotter);
    let counter = of(&told, "takes", "panicked_total");
    assert_eq!(counter, &DebugValue::Counter(1));
}

#[test]
fn g03_a_recorder_may_call_the_purgatory() {
    within(PATIENCE, || {
        listener_that_calls_back(8, |listener, run| {
            let recorder = Doing::new(listener);
            run(&with_local_recorder(&recorder, || {
                Scenario::new("re-entrant")
            }));
        });
    });
}

/// The recorder takes a lock of the user's, under which others call what may be called under any lock.
#[test]
fn g03_a_recorder_may_take_the_users_locks() {
    within(PATIENCE, || {
        let users = Arc::new(Mutex::new(0_u64));
        let taken = users.clone();
        let recorder = Doing::new(move || *lock(&taken) += 1);
        let purgatory = with_local_recorder(&recorder, || Purgatory::<Op>::new("locks"));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let users = lock(&users);
                    purgatory.check_later(1);
                    purgatory.stats();
                    drop(users);
                }
            });
            for _ in 0..2_000 {
                drop(purgatory.try_complete_else_watch(Op::new(Duration::from_millis(1)), [1]));
                purgatory.check_and_complete(&1);
            }
        });
        eventually("all have expired", || purgatory.is_empty());
        assert!(*lock(&users) > 2_000);
    });
}
