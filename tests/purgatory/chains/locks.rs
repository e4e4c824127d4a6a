//! G3: no lock of the library is held over user code.

use crate::support::keys::{Act, Acting, by_number};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, lock, manual, refusal, within};
use request_purgatory::{
    Completion, Handle, Purgatory, purgatory::RejectReason, purgatory::WeakRef, threads::Dispatch,
    threads::Reaper, threads::ReaperThread, time::Clock, time::ManualClock, time::Timestamp,
    time::WakeFn,
};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(5);

/// The pattern of Kafka's deadlocks: callbacks lock what belongs to the broker, and the broker tells the purgatory of
/// events while it has that locked.
#[test]
fn g03_callbacks_take_the_locks_under_which_others_defer_checks() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g03-locks");
        let partitions = Arc::new([(); 4].map(|()| Mutex::new(0_u64)));
        let ended = Tally::new();
        let workers = (0..4_u64).map(|seed| {
            let (purgatory, partitions) = (purgatory.clone(), partitions.clone());
            let ended = ended.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + 1);
                for _ in 0..2_000 {
                    let number = random.usize(..4);
                    let wanted = *lock(&partitions[number]) + 1 + random.u64(..3);
                    let (examining, ending) = (partitions.clone(), partitions.clone());
                    let ended = ended.clone();
                    let op = Op::new(Duration::from_millis(1 + random.u64(..20)))
                        .when(move || *lock(&examining[number]) >= wanted)
                        .then(move |_| {
                            *lock(&ending[(number + 1) % 4]) += 0;
                            ended.add();
                        });
                    purgatory
                        .try_complete_else_watch(op, [number as u64])
                        .expect("there is room");
                    let number = random.u64(..4);
                    let mut partition = lock(&partitions[number as usize]);
                    *partition += 1;
                    purgatory.check_later(number);
                    drop(partition);
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.join().expect("no call panics");
        }
        crate::support::eventually("the end of all", || purgatory.is_empty());
        purgatory.shutdown();
        assert_eq!(ended.count(), 8_000);
    });
}

/// The waker of a reactor may ask at once when to come, on the thread that parks.
#[test]
fn g03_a_reactor_may_call_the_purgatory_while_it_is_woken() {
    within(PATIENCE, || {
        let place = Arc::new(OnceLock::<WeakRef<Purgatory<Op>>>::new());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (found, log, clock) = (place.clone(), asked.clone(), ManualClock::new());
        let waker = WakeFn::new(move || {
            if let Some(purgatory) = found.get().and_then(WeakRef::upgrade) {
                lock(&log).push(purgatory.next_deadline().map(Timestamp::since_origin));
                assert_eq!(purgatory.advance(), 0);
            }
            true
        });
        let purgatory = Purgatory::<Op>::builder("g03-reactor")
            .clock(clock.clone())
            .reaper(Reaper::Reactor(waker))
            .build()
            .expect("no threads to refuse");
        place.set(purgatory.downgrade()).expect("set once");
        let times = [9, 7, 5].map(Duration::from_millis);
        let park = |timeout| {
            let parked = purgatory.try_complete_else_watch(Op::new(timeout), [1]);
            parked.expect("there is room").into_handle()
        };
        let first = park(times[0]).expect("it cannot complete");
        park(times[1]);
        assert!(first.reschedule(times[2]));
        assert_eq!(*lock(&asked), times.map(Some));
        purgatory.check_later(1);
        assert_eq!(lock(&asked).len(), 4, "and for a deferred check");
    });
}

/// On the thread that drives many, a callback builds one more for it, and prints it.
#[test]
fn g03_a_callback_may_build_on_the_reaper_that_runs_it() {
    within(PATIENCE / 2, || {
        let reaper = ReaperThread::spawn("g03-shared").expect("threads are to be had");
        let clock = ManualClock::new();
        let build = |reaper: &ReaperThread, clock: &ManualClock| {
            let builder = Purgatory::<Op>::builder("g03").clock(clock.clone());
            let builder = builder.reaper(Reaper::Shared(reaper.clone()));
            let built = builder.dispatch(Dispatch::Inline).build();
            built.expect("no threads to refuse")
        };
        let purgatory = build(&reaper, &clock);
        let ((shared, same), (built, next)) = ((reaper.clone(), clock.clone()), channel());
        let op = Op::new(SOON).then(move |_| {
            assert!(!format!("{shared:?}").is_empty());
            built.send(build(&shared, &same)).expect("the test waits");
        });
        drop(purgatory.try_complete_else_watch(op, [1]));
        clock.advance(SOON);
        let (next, probe) = (next.recv().expect("it is built"), Probe::new());
        drop(next.try_complete_else_watch(probe.op(SOON), [1]));
        clock.advance(SOON);
        crate::support::eventually("its expiry", || probe.ending().is_some());
    });
}

/// One who is woken because the clock moves may move it on, and build on it.
#[test]
fn g03_a_wake_function_may_use_the_clock_that_calls_it() {
    within(PATIENCE / 2, || {
        let clock = ManualClock::new();
        let once = Mutex::new(Some(clock.clone()));
        clock.subscribe(WakeFn::new(move || {
            let clock = lock(&once).take();
            if let Some(clock) = clock {
                let reactor = Reaper::Reactor(WakeFn::new(|| true));
                let builder = Purgatory::<Op>::builder("g03").clock(clock.clone());
                assert!(builder.reaper(reactor).build().is_ok());
                clock.advance(SOON);
            }
            true
        }));
        clock.advance(SOON);
        assert_eq!(clock.now().since_origin(), 2 * SOON);
    });
}

/// Every public method, called from a callback.
fn call_everything(weak: &WeakRef<Purgatory<Op>>, handle: &OnceLock<Handle<Op>>, fate: Fate) {
    let Some(purgatory) = weak.upgrade() else {
        return;
    };
    let same = purgatory.clone();
    same.check_and_complete(&1);
    same.check_and_complete(&2);
    same.check_later(1);
    // It would never expire: the check is made before its deadline.
    let put_off = !matches!(fate, Fate::Expire);
    if let Some(handle) = handle.get().filter(|_| put_off) {
        let _ = handle.reschedule(NEVER_IN_A_TEST);
    }
    same.watched_keys();
    same.stats();
    same.snapshot();
    same.advance();
    same.next_deadline();
    same.is_shut_down();
    assert!(!format!("{same:?} {weak:?} {handle:?}").is_empty());
    let parked = same.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1, 3]);
    if let Some(parked) = parked.ok().and_then(|watch| watch.into_handle()) {
        parked.is_parked();
        parked.remaining();
        parked.deadline();
        parked.check();
        let _ = parked.reschedule(Duration::ZERO);
        parked.cancel();
    }
    let satisfied = Op::new(NEVER_IN_A_TEST).when(|| true);
    drop(same.try_complete_else_watch(satisfied, [1]));
    if let Some(handle) = handle.get() {
        handle.is_parked();
        handle.remaining();
        handle.deadline();
        handle.check();
        if put_off {
            let _ = handle.reschedule(NEVER_IN_A_TEST);
        }
    }
    same.cancel_for_key(&3);
    same.force_complete_for_key(&4);
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Check,
    CheckLater,
    Force,
    Cancel,
    CancelKey,
    Expire,
    ShutDown,
}

/// From each callback, whatever made it run.
#[test]
fn g03_every_method_may_be_called_from_every_callback() {
    use Fate::{Cancel, CancelKey, Check, CheckLater, Expire, Force, ShutDown};
    for reaper in [Reaper::Own, Reaper::Manual] {
        for completions in [Dispatch::Inline, Dispatch::OwnThread] {
            for fate in [
                Check, CheckLater, Force, Cancel, CancelKey, Expire, ShutDown,
            ] {
                let (reaper, completions) = (reaper.clone(), completions.clone());
                within(PATIENCE / 2, move || reenter(reaper, completions, fate));
            }
        }
    }
}

fn reenter(reaper: Reaper, completions: Dispatch, fate: Fate) {
    let purgatory = Purgatory::<Op>::builder("g03-reenter")
        .reaper(reaper)
        .dispatch(completions)
        .build()
        .expect("threads are to be had");
    let probe = Probe::new();
    let handle = Arc::new(OnceLock::new());
    let ended = Tally::new();
    let op = {
        let (examining, ending) = (probe.clone(), ended.clone());
        let (weak, same) = (purgatory.downgrade(), handle.clone());
        let (weak_at_end, same_at_end) = (weak.clone(), same.clone());
        Op::new(match fate {
            Fate::Expire => Duration::from_millis(5),
            _ => NEVER_IN_A_TEST,
        })
        .when(move || {
            call_everything(&weak, &same, fate);
            examining.is_ready()
        })
        .then(move |_| {
            call_everything(&weak_at_end, &same_at_end, fate);
            ending.add();
        })
    };
    let watch = purgatory.try_complete_else_watch(op, [1, 2]);
    let parked = watch.expect("there is room").into_handle();
    let Some(parked) = parked else {
        // On a busy machine its 5 ms may pass while it is parked.
        assert!(matches!(fate, Fate::Expire), "it cannot complete yet");
        crate::support::eventually("its expiry", || ended.count() == 1);
        return;
    };
    handle.set(parked.clone()).expect("set once");
    let returned = match fate {
        Fate::Check => {
            probe.satisfy();
            // Or the reaper does it, in one of the checks that the callback deferred.
            assert!(purgatory.check_and_complete(&2) <= 1);
            0
        }
        Fate::CheckLater => {
            probe.satisfy();
            purgatory.check_later(2);
            purgatory.advance();
            0
        }
        Fate::Force => {
            // The same.
            parked.force_complete();
            0
        }
        Fate::Cancel => usize::from(parked.cancel().is_some()),
        Fate::CancelKey => purgatory.cancel_for_key(&2).len(),
        Fate::Expire => {
            crate::support::eventually("its expiry", || {
                purgatory.advance();
                ended.count() > 0
            });
            0
        }
        Fate::ShutDown => {
            purgatory.shutdown();
            0
        }
    };
    crate::support::eventually("its end", || ended.count() as usize + returned == 1);
    assert_eq!(purgatory.stats().panicked, 0);
}

/// The callback itself parks, checks, cancels and ends *its own* operation.
#[test]
fn g03_an_operation_may_be_ended_by_its_own_try_complete() {
    type Act = fn(&Handle<Op>, &Purgatory<Op>);
    let acts: [(Act, Completion); 6] = [
        (
            |handle, _| assert!(!handle.force_complete()),
            Completion::Satisfied,
        ),
        (
            |handle, _| assert!(handle.cancel().is_none()),
            Completion::Cancelled,
        ),
        (
            |_, all| assert!(all.cancel_for_key(&1).is_empty()),
            Completion::Cancelled,
        ),
        (
            |_, all| assert_eq!(all.force_complete_for_key(&1), 0),
            Completion::Satisfied,
        ),
        (|_, all| all.shutdown(), Completion::ShutDown),
        (
            |handle, all| {
                let _ = handle.reschedule(Duration::ZERO);
                thread::sleep(Duration::from_millis(3));
                all.advance();
            },
            Completion::Expired,
        ),
    ];
    for (number, (act, expected)) in acts.into_iter().enumerate() {
        within(PATIENCE / 2, move || {
            let purgatory = Purgatory::<Op>::new("g03-itself");
            let probe = Probe::new();
            let handle = Arc::new(OnceLock::<Handle<Op>>::new());
            let op = {
                let (examining, ending) = (probe.clone(), probe.clone());
                let (weak, itself) = (purgatory.downgrade(), handle.clone());
                Op::new(NEVER_IN_A_TEST)
                    .when(move || {
                        examining.examine(|| {
                            if let (Some(handle), Some(all)) = (itself.get(), weak.upgrade()) {
                                act(handle, &all);
                            }
                            false
                        })
                    })
                    .then(move |completion| ending.end(completion))
            };
            let watch = purgatory.try_complete_else_watch(op, [1]);
            let parked = watch.expect("there is room").into_handle();
            let parked = parked.expect("it cannot complete yet");
            handle.set(parked).expect("set once");
            purgatory.check_and_complete(&1);
            crate::support::eventually("its end", || probe.ending().is_some());
            assert_eq!(probe.ending(), Some(expected), "act {number}");
            assert_eq!(purgatory.stats().parked, 0);
        });
    }
}

/// A checker that finds an operation held leaves at once, and the holder examines it again.
#[test]
fn g03_no_thread_waits_for_a_held_operation() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g03-busy");
        let examinations = Arc::new(AtomicUsize::new(0));
        let (entered, inside) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel::<()>();
        let counted = examinations.clone();
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            // The third examination is the slow one: two belong to the park.
            if counted.fetch_add(1, Ordering::SeqCst) == 2 {
                entered.send(()).expect("the test listens");
                left.recv().expect("the test answers");
            }
            false
        });
        let watch = purgatory.try_complete_else_watch(op, [1]);
        let handle = watch.expect("there is room").into_handle();
        let handle = handle.expect("it cannot complete yet");
        let holder = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&1))
        };
        inside.recv().expect("the holder enters");
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert!(!handle.check());
        assert!(handle.is_parked());
        assert!(handle.remaining().is_some());
        assert!(handle.reschedule(Duration::MAX));
        assert_eq!(purgatory.snapshot().len(), 1);
        leave.send(()).expect("the holder waits");
        holder.join().expect("the holder does not panic");
        assert_eq!(
            examinations.load(Ordering::SeqCst),
            4,
            "and one examination for both checks"
        );
        let refused = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [0; 0]);
        assert_eq!(refusal(&refused), Some(RejectReason::NoKeys));
    });
}

/// Destructors of keys run under no lock: a key may use the purgatory in its own.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped() {
    static PURGATORY: Mutex<Option<Purgatory<Op<Busy>>>> = Mutex::new(None);

    /// Checks its key once more whenever a copy of it is dropped.
    #[derive(Clone)]
    struct Busy(u64, bool);

    by_number!(Busy);

    impl Drop for Busy {
        fn drop(&mut self) {
            let purgatory = PURGATORY
                .lock()
                .ok()
                .and_then(|purgatory| purgatory.clone());
            if let (true, Some(purgatory)) = (self.1, purgatory) {
                purgatory.check_and_complete(&Self(self.0, false));
                drop(purgatory.resolve(Self(self.0, false)));
                purgatory.watched_keys();
            }
        }
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Busy>(|builder| builder);
        *PURGATORY.lock().expect("no test panics") = Some(purgatory.clone());
        for number in 0..3 {
            let key = purgatory.resolve(Busy(number, true));
            let again = purgatory.resolve(Busy(number, true));
            let park = |watch| {
                let op = Op::new(NEVER_IN_A_TEST);
                let parked = purgatory.try_complete_else_watch(op, [watch]);
                parked.ok().and_then(|watch| watch.into_handle())
            };
            let first = park(key.watch());
            let second = park(request_purgatory::Watch::from(Busy(number, true)).at_rank(1));
            drop((key, again));
            assert!(first.is_some_and(|handle| handle.force_complete()));
            assert!(second.is_some_and(|handle| handle.cancel().is_some()));
            assert_eq!(
                (purgatory.stats().watched, purgatory.watched_keys()),
                (0, 0)
            );
        }
        *PURGATORY.lock().expect("no test panics") = None;
    });
}

/// `Hash` of an old key panics while the map grows for a new one, which is dropped after the lock is released.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped_that_found_no_place() {
    static ALL: Mutex<Option<Purgatory<Op<Busy>>>> = Mutex::new(None);
    /// The key that the next call adds; `Hash` of all others panics, once.
    static NEW: AtomicU64 = AtomicU64::new(u64::MAX);
    /// Whether the next key that is dropped uses the purgatory.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Busy(u64);

    impl Hash for Busy {
        fn hash<H: Hasher>(&self, state: &mut H) {
            let new = NEW.load(Ordering::SeqCst);
            if new != u64::MAX && new != self.0 {
                NEW.store(u64::MAX, Ordering::SeqCst);
                REFUSED.store(true, Ordering::SeqCst);
                std::panic::panic_any("intended");
            }
            // All keys lie in one shard.
            0_u64.hash(state);
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            if REFUSED.swap(false, Ordering::SeqCst) {
                let all = ALL.lock().expect("no test panics").clone();
                let purgatory = all.expect("it is set");
                purgatory.check_later(Self(u64::MAX - 1));
                purgatory.watchers(&Self(u64::MAX - 1));
            }
        }
    }

    for later in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<Busy>(|builder| builder);
            *ALL.lock().expect("no test panics") = Some(purgatory.clone());
            let mut parked = Vec::new();
            let has_panicked = (0..1_000).any(|number| {
                NEW.store(number, Ordering::SeqCst);
                let key = Busy(number);
                let panicked = match later {
                    true => catch_unwind(AssertUnwindSafe(|| purgatory.check_later(key))).is_err(),
                    false => {
                        let op = Op::new(NEVER_IN_A_TEST);
                        let park = || purgatory.try_complete_else_watch(op, [key]);
                        let outcome = catch_unwind(AssertUnwindSafe(park));
                        let panicked = outcome.is_err();
                        parked.extend(outcome);
                        panicked
                    }
                };
                NEW.store(u64::MAX, Ordering::SeqCst);
                REFUSED.store(false, Ordering::SeqCst);
                panicked
            });
            assert!(has_panicked, "no map has grown");
            *ALL.lock().expect("no test panics") = None;
            purgatory.shutdown();
        });
    }
}

/// A key that panics when its deferred check is made leaves an entry. That goes when the key is checked later once more,
/// and its destructor may use the purgatory.
#[test]
fn g03_no_lock_is_held_while_the_key_of_a_dead_entry_is_dropped() {
    thread_local!(static BROKEN: Cell<bool> = const { Cell::new(false) });

    /// `Hash` panics when told to.
    #[derive(Clone, PartialEq, Eq)]
    struct Breaks(Acting);

    impl Hash for Breaks {
        fn hash<H: Hasher>(&self, state: &mut H) {
            if BROKEN.get() {
                resume_unwind(Box::new("intended"));
            }
            self.0.hash(state);
        }
    }

    within(PATIENCE / 2, || {
        let (purgatory, _clock) = manual::<Breaks>(|builder| builder);
        let (dropped, weak) = (Tally::new(), purgatory.downgrade());
        let drops = dropped.clone();
        let act: Act = Arc::new(move || {
            drops.add();
            if let Some(purgatory) = weak.upgrade() {
                purgatory.check_later(Breaks(Acting(2, None)));
            }
        });
        let probes = [1, 2].map(|key| {
            let probe = Probe::new();
            let op = probe.op(NEVER_IN_A_TEST);
            assert!(
                purgatory
                    .try_complete_else_watch(op, [Breaks(Acting(key, None))])
                    .is_ok()
            );
            probe.satisfy();
            probe
        });
        purgatory.check_later(Breaks(Acting(1, Some(act))));
        BROKEN.set(true);
        purgatory.advance();
        BROKEN.set(false);
        assert_eq!((purgatory.stats().panicked, dropped.count()), (1, 0));
        purgatory.check_later(Breaks(Acting(1, None)));
        // The second pass makes the check that the destructor may have deferred in the first one.
        purgatory.advance();
        purgatory.advance();
        assert_eq!(dropped.count(), 1);
        assert!(probes.iter().all(|probe| probe.ending().is_some()));
    });
}
