//! Faults that were found by trying to break the library, each by the test that found it.

use request_purgatory::{
    Completion, Purgatory, threads::Dispatch, threads::Reaper, threads::ReaperThread, time::Clock,
    time::ManualClock, time::Timestamp, time::WakeFn,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::keys::{Fragile, Hook, with_fuse};
use support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, within};
use testing as support;

/// The panicking park never got as far as the second key, but took itself off its list all the same, which made that
/// list believe that it was empty one watcher too early.
#[test]
fn a_key_whose_clone_panics_costs_no_other_operation_its_watch() {
    // Lists of each kind: of one, of few, of many, and of several chunks.
    for leaves in [0, 1, 5, 300] {
        let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
        let park = |probe: &Arc<Probe>| {
            purgatory
                .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Fragile(2)])
                .expect("there is room")
                .into_handle()
                .expect("it cannot complete yet")
        };
        let stays = Probe::new();
        park(&stays);
        let leaving = (0..leaves).map(|_| park(&Probe::new()));
        let leaving = leaving.collect::<Vec<_>>();
        // (A key that is watched already is not cloned.)
        let unwound = with_fuse(1, Hook::Clone, || {
            let keys = [Fragile(1), Fragile(2)];
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), keys)
        });
        assert!(unwound.is_err(), "it goes to the caller");
        assert_eq!(purgatory.watched_keys(), 1);
        for leaving in leaving {
            leaving.cancel().expect("no thread is examining it");
        }
        stays.satisfy();
        assert_eq!(purgatory.check_and_complete(&Fragile(2)), 1, "{leaves}");
        assert_eq!(purgatory.watched_keys(), 0);
    }
}

/// Operations that completions parked with a timeout of zero expired before those whose deadline had passed, without
/// end.
#[test]
fn operations_parked_by_completions_do_not_delay_expired_ones() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let (first, second) = (Tally::new(), Tally::new());
    for key in 0..100 {
        let (first, second, weak) = (first.clone(), second.clone(), purgatory.downgrade());
        let op = Op::new(Duration::from_millis(5)).then(move |_| {
            first.add();
            if let Some(purgatory) = weak.upgrade() {
                let again = Op::new(Duration::ZERO).then(move |_| second.add());
                purgatory
                    .try_complete_else_watch(again, [key])
                    .expect("there is room");
            }
        });
        purgatory
            .try_complete_else_watch(op, [key])
            .expect("there is room");
    }
    clock.advance(Duration::from_millis(5));
    let expired = purgatory.advance();
    assert_eq!(
        first.count(),
        100,
        "all whose deadline had passed when the call began"
    );
    assert_eq!((expired, second.count()), (100, 0), "and nothing else");
    assert_eq!(purgatory.advance(), 100);
    assert_eq!(second.count(), 100);
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

/// A clock that panics when told to.
#[derive(Clone, Default)]
struct Faulty {
    clock: ManualClock,
    /// The number of readings from now; 0 is never.
    fuse: Arc<AtomicUsize>,
}

impl Faulty {
    fn new() -> Self {
        Self::default()
    }
}

impl Clock for Faulty {
    fn now(&self) -> Timestamp {
        let fuse = self.fuse.load(Ordering::SeqCst);
        if fuse > 0 {
            self.fuse.store(fuse - 1, Ordering::SeqCst);
            assert!(fuse > 1, "the clock is broken");
        }
        self.clock.now()
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        self.clock.time_until(deadline)
    }

    fn subscribe(&self, waker: WakeFn) {
        self.clock.subscribe(waker);
    }
}

/// The alarm had been reset, the panic kept it from being set again, and everything parked hung.
#[test]
fn a_clock_that_panics_once_does_not_put_the_reaper_to_sleep_for_ever() {
    within(PATIENCE, || {
        for fuse in 1..6 {
            let clock = Faulty::new();
            let purgatory = Purgatory::<Op>::builder("faulty")
                .clock(clock.clone())
                .build()
                .expect("threads are to be had");
            let probe = Probe::new();
            purgatory
                .try_complete_else_watch(probe.op(Duration::from_millis(5)), [1])
                .expect("there is room");
            // Let the reaper go to sleep on that deadline first.
            thread::sleep(Duration::from_millis(20));
            clock.fuse.store(fuse, Ordering::SeqCst);
            clock.clock.advance(Duration::from_millis(5));
            eventually("the expiry after the panic", || probe.ending().is_some());
        }
    });
}

#[test]
fn a_clock_that_panics_at_a_park_costs_no_place() {
    let clock = Faulty::new();
    let purgatory = Purgatory::<Op>::builder("faulty")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .max_parked(1)
        .build()
        .expect("no threads to refuse");
    clock.fuse.store(1, Ordering::SeqCst);
    let parked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1])
    }));
    assert!(!matches!(parked, Ok(Ok(_))), "the clock was broken");
    clock.fuse.store(0, Ordering::SeqCst);
    let again = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(again.is_ok(), "the limit leaks: {again:?}");
}

/// One caller read the alarm between the moment another had reset it and the moment it set it again.
#[test]
fn the_next_deadline_is_seen_by_all_threads_that_ask_at_once() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        purgatory
            .try_complete_else_watch(Op::new(Duration::from_millis(5)), [1])
            .expect("there is room");
        let askers = [(); 3].map(|()| {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(500) {
                    let next = purgatory.next_deadline();
                    assert!(next.is_some(), "something is parked all the time");
                }
            })
        });
        for asker in askers {
            asker.join().expect("each call found a deadline");
        }
    });
}

#[test]
fn a_name_that_no_thread_can_have_is_accepted() {
    for at_once in [false, true] {
        let builder = Purgatory::<Op>::builder("nul\0nul");
        let builder = match at_once {
            true => builder.threads_at_once(),
            false => builder,
        };
        let purgatory = builder.build().expect("threads are to be had");
        let probe = Probe::new();
        let parked = purgatory.try_complete_else_watch(probe.op(Duration::from_millis(1)), [1]);
        assert!(parked.is_ok(), "{parked:?}");
        eventually("its expiry", || probe.ending().is_some());
    }
}

/// The last tick before the end of all clocks begins after it: the reaper was told to sleep for no time, over and over.
#[test]
fn a_deadline_beyond_the_end_of_time_does_not_keep_the_reaper_awake() {
    within(PATIENCE, || {
        let clock = ManualClock::starting_at(Duration::MAX - Duration::from_secs(2));
        let purgatory = Purgatory::<Op>::builder("eternal")
            .clock(clock.clone())
            .tick(Duration::from_secs(5))
            .build()
            .expect("threads are to be had");
        purgatory
            .try_complete_else_watch(Op::new(Duration::from_secs(1)), [1])
            .expect("there is room");
        clock.advance(Duration::MAX);
        eventually("the start of the reaper", || {
            !support::threads_named("eternal-reaper").is_empty()
        });
        let reapers = support::threads_named("eternal-reaper");
        thread::sleep(Duration::from_millis(50));
        let before = support::busy(reapers[0]);
        thread::sleep(Duration::from_millis(400));
        let spent = support::busy(reapers[0]) - before;
        assert!(spent < 5, "{spent} ticks of 400 ms, which are 40");
    });
}

/// Each made the other examine again, for as long as both examined.
#[test]
fn two_operations_that_check_each_other_come_to_rest() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("mutual");
        let examinations = [Tally::new(), Tally::new()];
        for key in [0, 1_u64] {
            let (weak, examinations) = (purgatory.downgrade(), examinations[key as usize].clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                examinations.add();
                let purgatory = weak.upgrade();
                purgatory.map(|purgatory| purgatory.check_and_complete(&(1 - key)));
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(50) {}
                false
            });
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
        }
        let checkers = [0, 1_u64].map(|key| {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                (0..2_000)
                    .map(|_| purgatory.check_and_complete(&key))
                    .sum::<usize>()
            })
        });
        for checker in checkers {
            assert_eq!(checker.join().expect("it only checks"), 0);
        }
        let total = examinations[0].count() + examinations[1].count();
        assert!(total < 80_000, "{total} examinations for 4,000 checks");
    });
}

/// Each waits for the other's reaper, which waits for the other.
#[test]
fn two_purgatories_may_shut_each_other_down_from_their_callbacks() {
    within(PATIENCE, || {
        // It stands still while they park: a thread whose operation expires before it is parked ends that itself.
        let clock = ManualClock::new();
        let pair = [0, 1].map(|_| {
            Purgatory::<Op>::builder("crossing")
                .clock(clock.clone())
                .dispatch(Dispatch::Inline)
                .build()
                .expect("threads are to be had")
        });
        let meeting = Arc::new(std::sync::Barrier::new(2));
        let (done, both) = mpsc::channel();
        for (mine, other) in [(0, 1), (1, 0)] {
            let (meeting, done) = (meeting.clone(), done.clone());
            let other = pair[other].downgrade();
            let op = Op::new(Duration::from_millis(5)).then(move |_| {
                meeting.wait();
                if let Some(other) = other.upgrade() {
                    other.shutdown();
                }
                // The test may be over.
                let _ = done.send(());
            });
            pair[mine]
                .try_complete_else_watch(op, [1])
                .expect("there is room");
        }
        clock.advance(Duration::from_millis(5));
        for _ in 0..2 {
            let ended = both.recv_timeout(PATIENCE / 2);
            if ended.is_err() {
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
        let op = Op::new(Duration::from_millis(5)).when(move || {
            if clock.now().since_origin() >= Duration::from_millis(5) {
                clock.advance(Duration::from_millis(100));
            }
            false
        });
        purgatory
            .try_complete_else_watch(op, [key])
            .expect("there is room");
    }
    clock.advance(Duration::from_millis(5));
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
    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("busy").expect("threads are to be had");
        let build = || {
            Purgatory::<Op>::builder("shared")
                .reaper(Reaper::Shared(reaper.clone()))
                .dispatch(Dispatch::Inline)
                .build()
                .expect("threads are to be had")
        };
        let (restless, patient) = (build(), build());
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
        (0..100).for_each(|_| again(&restless));
        let probe = Probe::new();
        patient
            .try_complete_else_watch(probe.op(Duration::from_millis(20)), [1])
            .expect("there is room");
        let neighbour = Probe::new();
        restless
            .try_complete_else_watch(neighbour.op(Duration::from_millis(20)), [2])
            .expect("there is room");
        eventually("the expiry beside", || probe.ending().is_some());
        eventually("the expiry among", || neighbour.ending().is_some());
        restless.shutdown();
    });
}

/// The last clone is dropped in a `try_complete` or an `on_complete`, on a thread of that purgatory.
#[test]
fn a_purgatory_whose_last_clone_is_dropped_in_any_callback_ends() {
    within(PATIENCE, || {
        for completions in [Dispatch::Inline, Dispatch::OwnThread] {
            for while_examined in [false, true] {
                let purgatory = Purgatory::<Op>::builder("parting")
                    .dispatch(completions.clone())
                    .build()
                    .expect("threads are to be had");
                let last = Arc::new(Mutex::new(None::<Purgatory<Op>>));
                let (examining, ending) = (last.clone(), last.clone());
                let start = Instant::now();
                let op = Op::new(Duration::from_millis(20))
                    .when(move || {
                        if while_examined && start.elapsed() >= Duration::from_millis(20) {
                            let purgatory = lock(&examining).take();
                            drop(purgatory);
                        }
                        false
                    })
                    .then(move |_| {
                        let purgatory = lock(&ending).take();
                        drop(purgatory);
                    });
                let sibling = Probe::new();
                purgatory
                    .try_complete_else_watch(sibling.op(NEVER_IN_A_TEST), [2])
                    .expect("there is room");
                purgatory
                    .try_complete_else_watch(op, [1])
                    .expect("there is room");
                *lock(&last) = Some(purgatory);
                eventually("the shutdown", || {
                    sibling.ending() == Some(Completion::ShutDown)
                });
                eventually("the end of its threads", || {
                    support::threads_named("parting").is_empty()
                });
            }
        }
    });
}

/// The wheel's present, which moves on with every park, was returned as the deadline of an operation that was due
/// before it.
#[test]
fn what_is_due_already_stays_the_next_deadline() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let park = |millis| {
        purgatory
            .try_complete_else_watch(Op::new(Duration::from_millis(millis)), [1])
            .expect("there is room");
    };
    park(0);
    let due = purgatory.next_deadline();
    assert_eq!(due, Some(clock.now()));
    clock.advance(Duration::from_millis(5));
    park(10);
    assert_eq!(purgatory.next_deadline(), due);
}
