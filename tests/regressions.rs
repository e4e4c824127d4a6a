//! Faults that were found by trying to break the library, each by the test that found it.
//!
//! Some are among the tests of promises by now: the clock that panics at a park (G12), the last clone that is dropped
//! in a callback (G15), and an operation that a completion parks with a timeout of zero (G8). `tests/model` compares
//! the next deadline while operations are due already.

use request_purgatory::purgatory::Builder;
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, Timestamp, WakeFn};
use request_purgatory::{Completion, Handle, Purgatory};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::keys::{Fragile, Hook, with_fuse};
use support::spans;
use support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, busy, eventually, manual, threads_named, within,
};
use testing as support;

const SOON: Duration = Duration::from_millis(5);

/// The handle, unless it has expired by now.
fn park<K>(purgatory: &Purgatory<Op<K>>, op: Op<K>, key: K) -> Option<Handle<Op<K>>>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
{
    let admission = purgatory.try_complete_else_watch(op, [key]);
    admission.expect("there is room").into_handle()
}

fn build(builder: Builder<Purgatory<Op>>) -> Purgatory<Op> {
    builder.build().expect("threads are to be had")
}

/// The panicking park never got as far as the second key, but took itself off its list all the same, which made that
/// list believe that it was empty one watcher too early.
#[test]
fn a_key_whose_clone_panics_costs_no_other_operation_its_watch() {
    // Lists of each kind: of one, of few, of many, and of several chunks.
    for leaves in [0, 1, 5, 300] {
        let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
        let stays = Probe::new();
        park(&purgatory, stays.op(NEVER_IN_A_TEST), Fragile(2));
        let leaving = (0..leaves).map(|_| park(&purgatory, Op::new(NEVER_IN_A_TEST), Fragile(2)));
        let leaving = leaving.collect::<Vec<_>>();
        // (A key that is watched already is not cloned.)
        let unwound = with_fuse(1, Hook::Clone, || {
            let keys = [Fragile(1), Fragile(2)];
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), keys)
        });
        assert!(unwound.is_err(), "it goes to the caller");
        assert_eq!(purgatory.watched_keys(), 1);
        for handle in leaving {
            let handle = handle.expect("it is parked");
            handle.cancel().expect("no thread is examining it");
        }
        stays.satisfy();
        assert_eq!(purgatory.check_and_complete(&Fragile(2)), 1, "{leaves}");
        assert_eq!(purgatory.watched_keys(), 0);
    }
}

/// No call ever took the keys out again.
#[test]
fn a_shut_down_purgatory_keeps_no_keys_to_be_checked() {
    let (purgatory, _clock) = manual::<Arc<str>>(|builder| builder);
    let (before, after) = (Arc::<str>::from("before"), Arc::<str>::from("after"));
    purgatory.check_later(before.clone());
    purgatory.shutdown();
    purgatory.check_later(after.clone());
    assert_eq!(Arc::strong_count(&after), 1, "queued after the shutdown");
    assert_eq!(Arc::strong_count(&before), 1, "queued before the shutdown");
}

/// A clock that panics once, at the reading of this number from now; 0 is never.
#[derive(Clone, Default)]
struct Faulty(ManualClock, Arc<AtomicUsize>);

impl Clock for Faulty {
    fn now(&self) -> Timestamp {
        let fuse = self.1.load(Ordering::SeqCst);
        if fuse > 0 {
            self.1.store(fuse - 1, Ordering::SeqCst);
            assert!(fuse > 1, "the clock is broken");
        }
        self.0.now()
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        self.0.time_until(deadline)
    }

    fn subscribe(&self, waker: WakeFn) {
        self.0.subscribe(waker);
    }
}

/// The alarm had been reset, the panic kept it from being set again, and everything parked hung.
#[test]
fn a_clock_that_panics_once_does_not_put_the_reaper_to_sleep_for_ever() {
    within(PATIENCE, || {
        for fuse in 1..6 {
            let clock = Faulty::default();
            let purgatory = build(Purgatory::builder("faulty").clock(clock.clone()));
            let probe = Probe::new();
            park(&purgatory, probe.op(SOON), 1);
            // Let the reaper go to sleep on that deadline first.
            thread::sleep(Duration::from_millis(20));
            clock.1.store(fuse, Ordering::SeqCst);
            clock.0.advance(SOON);
            eventually("the expiry after the panic", || probe.ending().is_some());
        }
    });
}

/// One caller read the alarm between the moment another had reset it and the moment it set it again.
#[test]
fn the_next_deadline_is_seen_by_all_threads_that_ask_at_once() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        park(&purgatory, Op::new(SOON), 1);
        let ask = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) {
                let next = purgatory.next_deadline();
                assert!(next.is_some(), "something is parked all the time");
            }
        };
        thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(ask)));
    });
}

/// A thread's name has no nul, and this purgatory's has.
#[test]
fn a_name_that_no_thread_can_have_is_accepted() {
    let builder = || Purgatory::<Op>::builder("nul\0nul");
    for builder in [builder(), builder().threads_at_once()] {
        let (purgatory, probe) = (build(builder), Probe::new());
        park(&purgatory, probe.op(SOON), 1);
        eventually("its expiry", || probe.ending().is_some());
    }
}

/// The last tick before the end of all clocks begins after it: the reaper was told to sleep for no time, over and over.
#[test]
fn a_deadline_beyond_the_end_of_time_does_not_keep_the_reaper_awake() {
    within(PATIENCE, || {
        let clock = ManualClock::starting_at(spans::LAST_READING - Duration::from_secs(12));
        let builder = Purgatory::builder("eternal").clock(clock.clone());
        let purgatory = build(builder.tick(Duration::from_secs(5)));
        for secs in [1, 11] {
            park(&purgatory, Op::new(Duration::from_secs(secs)), 1);
        }
        clock.advance(Duration::MAX);
        eventually("the expiry of the first", || purgatory.stats().expired == 1);
        let reapers = || threads_named("eternal-reaper");
        eventually("the start of the reaper", || !reapers().is_empty());
        let reaper = reapers()[0];
        thread::sleep(Duration::from_millis(50));
        let before = busy(reaper);
        thread::sleep(Duration::from_millis(400));
        let spent = busy(reaper) - before;
        assert!(spent < 5, "{spent} ticks of 400 ms, which are 40");
    });
}

/// Each made the other examine again, for as long as both examined.
#[test]
fn two_operations_that_check_each_other_come_to_rest() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("mutual");
        let examinations = Tally::new();
        for key in [0, 1] {
            let (weak, examinations) = (purgatory.downgrade(), examinations.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                examinations.add();
                let purgatory = weak.upgrade();
                purgatory.map(|purgatory| purgatory.check_and_complete(&(1 - key)));
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(50) {}
                false
            });
            park(&purgatory, op, key);
        }
        thread::scope(|scope| {
            for key in [0, 1] {
                let purgatory = &purgatory;
                let check = move || assert_eq!(purgatory.check_and_complete(&key), 0);
                scope.spawn(move || (0..2_000).for_each(|_| check()));
            }
        });
        let total = examinations.count();
        assert!(total < 80_000, "{total} examinations for 4,000 checks");
    });
}

/// Each waits for the other's reaper, which waits for the other.
#[test]
fn two_purgatories_may_shut_each_other_down_from_their_callbacks() {
    within(PATIENCE, || {
        // It stands still while they park: a thread whose operation expires before it is parked ends that itself.
        let clock = ManualClock::new();
        let pair = [(); 2].map(|()| {
            let builder = Purgatory::builder("crossing").clock(clock.clone());
            build(builder.dispatch(Dispatch::Inline))
        });
        let meeting = Arc::new(Barrier::new(2));
        let (done, both) = mpsc::channel();
        for (mine, other) in [(0, 1), (1, 0)] {
            let (meeting, done) = (meeting.clone(), done.clone());
            let other = pair[other].downgrade();
            let op = Op::new(SOON).then(move |_| {
                meeting.wait();
                if let Some(other) = other.upgrade() {
                    other.shutdown();
                }
                // The test may be over.
                let _ = done.send(());
            });
            park(&pair[mine], op, 1);
        }
        clock.advance(SOON);
        for _ in 0..2 {
            if both.recv_timeout(PATIENCE / 2).is_err() {
                // Their destructors would hang as well.
                std::mem::forget(pair);
                panic!("they wait for each other");
            }
        }
    });
}

/// The lateness of a storm was taken when the storm began.
#[test]
fn lateness_counts_the_completions_that_came_before() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for key in 0..10 {
        let clock = clock.clone();
        let op = Op::new(SOON).when(move || {
            if clock.now().since_origin() >= SOON {
                clock.advance(Duration::from_millis(100));
            }
            false
        });
        park(&purgatory, op, key);
    }
    clock.advance(SOON);
    assert_eq!(purgatory.advance(), 10);
    // The tenth expired when nine others had taken 100 ms each.
    let stats = purgatory.stats();
    assert!(
        stats.lateness_max >= Duration::from_millis(900),
        "{stats:?}"
    );
}

/// Purgatories on one reaper do not suffer from one of them whose operations are always due.
#[test]
fn an_operation_that_is_due_again_at_once_does_not_starve_the_others_of_a_reaper() {
    fn again(purgatory: &Purgatory<Op>) {
        let weak = purgatory.downgrade();
        let op = Op::new(Duration::ZERO).then(move |completion| {
            if let (Some(purgatory), Completion::Expired) = (weak.upgrade(), completion) {
                again(&purgatory);
            }
        });
        // Refused once the purgatory is shut down.
        let _ = purgatory.try_complete_else_watch(op, [1]);
    }
    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("busy").expect("threads are to be had");
        let [restless, patient] = [(); 2].map(|()| {
            let builder = Purgatory::builder("shared").reaper(Reaper::Shared(reaper.clone()));
            build(builder.dispatch(Dispatch::Inline))
        });
        (0..100).for_each(|_| again(&restless));
        let [beside, among] = [(&patient, 1), (&restless, 2)].map(|(purgatory, key)| {
            let probe = Probe::new();
            park(purgatory, probe.op(Duration::from_millis(20)), key);
            probe
        });
        eventually("the expiry beside", || beside.ending().is_some());
        eventually("the expiry among", || among.ending().is_some());
        restless.shutdown();
    });
}
