//! G3: no lock of the library is held over user code. G7: a clock that user code uses forgets none whom it wakes.

use super::scene::{Breaks, Gate, admit, endings, inside, park};
use crate::lost_completion::steps::{FIRST_CHECK, hooked_op, park_probe, probed_op, watches};
use crate::support::keys::{Act, Acting, Busy, Hook, fragile};
use crate::support::keys::{with_fuse, with_one_panic_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally};
use crate::support::{eventually, lock, manual, within};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, Timestamp, WakeFn};
use request_purgatory::{Completion, Handle, Purgatory, Watch, purgatory::WeakRef};
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
        let partitions = [(); 4].map(|()| Arc::new(Mutex::new(0_u64)));
        let ended = Tally::new();
        thread::scope(|scope| {
            for seed in 1..=4 {
                let (purgatory, partitions, ended) = (&purgatory, &partitions, &ended);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..2_000 {
                        let number = random.usize(..4);
                        let wanted = *lock(&partitions[number]) + 1 + random.u64(..3);
                        let examined = partitions[number].clone();
                        let (next, ended) = (partitions[(number + 1) % 4].clone(), ended.clone());
                        let op = Op::new(Duration::from_millis(1 + random.u64(..20)))
                            .when(move || *lock(&examined) >= wanted)
                            .then(move |_| {
                                *lock(&next) += 0;
                                ended.add();
                            });
                        admit(purgatory, op, [number as u64]);
                        let number = random.u64(..4);
                        let mut partition = lock(&partitions[number as usize]);
                        *partition += 1;
                        purgatory.check_later(number);
                    }
                });
            }
        });
        eventually("the end of all", || purgatory.is_empty());
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
        let (found, log) = (place.clone(), asked.clone());
        let waker = WakeFn::new(move || {
            if let Some(purgatory) = found.get().and_then(WeakRef::upgrade) {
                lock(&log).push(purgatory.next_deadline().map(Timestamp::since_origin));
                assert_eq!(purgatory.advance(), 0);
            }
            true
        });
        let (purgatory, _clock) = manual(|builder| builder.reaper(Reaper::Reactor(waker)));
        place.set(purgatory.downgrade()).expect("set once");
        let times = [9, 7, 5].map(Duration::from_millis);
        let first = park(&purgatory, Op::new(times[0]), [1]);
        park(&purgatory, Op::new(times[1]), [1]);
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
        let shared = ReaperThread::spawn("g03-shared").expect("threads are to be had");
        let clock = ManualClock::new();
        let same = clock.clone();
        let build = move || {
            assert!(!format!("{shared:?}").is_empty());
            let builder = Purgatory::<Op>::builder("g03").clock(same.clone());
            let builder = builder.reaper(Reaper::Shared(shared.clone()));
            let built = builder.dispatch(Dispatch::Inline).build();
            built.expect("no threads to refuse")
        };
        let purgatory = build();
        let (built, next) = channel();
        let op = Op::new(SOON).then(move |_| built.send(build()).expect("the test waits"));
        park(&purgatory, op, [1]);
        clock.advance(SOON);
        let (next, probe) = (next.recv().expect("it is built"), Probe::new());
        park(&next, probe.op(SOON), [1]);
        clock.advance(SOON);
        eventually("its expiry", || probe.ending().is_some());
    });
}

/// What is woken first moves the clock, subscribes to it or builds on it, once, while the clock wakes the others. One
/// subscriber is gone, and each other one is woken by this move and by every later one.
#[test]
fn g07_a_wake_function_may_use_the_clock_that_calls_it() {
    let uses: [(&str, fn(&ManualClock, &Arc<Tally>), u64, u64); 3] = [
        ("moves", |clock, _| clock.advance(SOON), 2, 0),
        ("subscribes", |it, late| it.subscribe(late.wake_fn()), 1, 2),
        ("builds", |clock, _| build_a_reactor(clock), 1, 0),
    ];
    for (what, act, least, late_wakes) in uses {
        within(PATIENCE / 2, move || {
            let woken = [(); 2].map(|()| Tally::new());
            let (clock, late) = (ManualClock::new(), Tally::new());
            clock.subscribe(WakeFn::new(|| false));
            let once = Arc::new(Mutex::new(None::<ManualClock>));
            for count in woken.clone() {
                let (late, once) = (late.clone(), once.clone());
                clock.subscribe(WakeFn::new(move || {
                    count.add();
                    let clock = lock(&once).take();
                    clock.into_iter().for_each(|clock| act(&clock, &late));
                    true
                }));
            }
            *lock(&once) = Some(clock.clone());
            let counts = || woken.each_ref().map(|woken| woken.count());
            clock.advance(SOON);
            let (first, late_before) = (counts(), late.count());
            assert!(first.iter().all(|first| *first >= least), "{what}");
            for later in [1, 2] {
                clock.advance(SOON);
                assert_eq!(counts(), first.map(|first| first + later), "{what}");
            }
            assert_eq!(late.count() - late_before, late_wakes, "{what}");
            let moves = if what == "moves" { 4 } else { 3 };
            assert_eq!(clock.now().since_origin(), moves * SOON, "{what}");
        });
    }
}

fn build_a_reactor(clock: &ManualClock) {
    let reactor = Reaper::Reactor(WakeFn::new(|| true));
    drop(manual::<u64>(|it| it.clock(clock.clone()).reaper(reactor)));
}

/// Every public method, called from a callback.
fn call_everything(all: &Purgatory<Op>, own: &OnceLock<Handle<Op>>, may_put_off: bool) {
    let call_handle = |handle: &Handle<Op>, timeout: Option<Duration>| {
        handle.is_parked();
        handle.remaining();
        handle.deadline();
        handle.check();
        timeout.map(|timeout| handle.reschedule(timeout));
    };
    let put_off = may_put_off.then_some(NEVER_IN_A_TEST);
    all.check_and_complete(&1);
    all.check_and_complete(&2);
    all.check_later(1);
    all.watched_keys();
    all.stats();
    all.snapshot();
    all.advance();
    all.next_deadline();
    all.is_shut_down();
    assert!(!format!("{all:?} {:?} {own:?}", all.downgrade()).is_empty());
    let parked = all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1, 3]);
    if let Some(parked) = parked.ok().and_then(|parked| parked.into_handle()) {
        call_handle(&parked, Some(Duration::ZERO));
        parked.cancel();
    }
    let satisfied = Op::new(NEVER_IN_A_TEST).when(|| true);
    drop(all.try_complete_else_watch(satisfied, [1]));
    if let Some(own) = own.get() {
        call_handle(own, put_off);
    }
    all.cancel_for_key(&3);
    all.force_complete_for_key(&4);
}

/// From each callback, whatever made it run.
#[test]
fn g03_every_method_may_be_called_from_every_callback() {
    for (name, expected, end) in endings::<Op>() {
        for reaper in [Reaper::Own, Reaper::Manual] {
            for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
                let reaper = reaper.clone();
                within(PATIENCE / 2, move || {
                    let (purgatory, _clock) = manual(|it| it.reaper(reaper).dispatch(dispatch));
                    let (probe, own, ended) = (Probe::new(), Arc::default(), Tally::new());
                    // What puts off its own deadline would never expire.
                    let may_put_off = expected != Completion::Expired;
                    let calls = || {
                        let own = Arc::clone(&own);
                        move |all: &Purgatory<Op>| call_everything(all, &own, may_put_off)
                    };
                    let (examined, calls_before) = (probe.clone(), calls());
                    let op = hooked_op(&purgatory, NEVER_IN_A_TEST, move |all, _| {
                        calls_before(all);
                        examined.is_ready()
                    });
                    let (calls_at_end, tally) = (inside(&purgatory, calls()), ended.clone());
                    let op = op.then(move |_| {
                        calls_at_end();
                        tally.add();
                    });
                    let handle = park(&purgatory, op, [1, 2]);
                    own.set(handle.clone()).expect("set once");
                    // Or the reaper ends it, in one of the checks that the callback deferred.
                    let said = end(&purgatory, &handle, &probe);
                    let returned = u64::from(said && expected == Completion::Cancelled);
                    eventually(&format!("its end by {name}"), || {
                        purgatory.advance();
                        ended.count() + returned == 1
                    });
                    assert_eq!(purgatory.stats().panicked, 0, "{name}");
                });
            }
        }
    }
}

/// The callback itself ends *its own* operation, by whatever call: it ends when it has been examined.
#[test]
fn g03_an_operation_may_be_ended_by_its_own_try_complete() {
    for (name, expected, end) in endings::<Op>() {
        for reaper in [Reaper::Own, Reaper::Manual] {
            let reaper = reaper.clone();
            within(PATIENCE / 2, move || {
                let (purgatory, _clock) = manual(|builder| builder.reaper(reaper));
                let (probe, own) = (Probe::new(), Arc::new(OnceLock::new()));
                let itself = own.clone();
                let op = probed_op(&purgatory, &probe, NEVER_IN_A_TEST, move |all, it, nth| {
                    if nth == FIRST_CHECK {
                        let said = end(all, itself.get().expect("it is parked"), it);
                        // It is being examined, but nothing is parked any more once all is shut down.
                        assert_eq!(said, expected == Completion::ShutDown, "{name}");
                        return false;
                    }
                    it.is_ready()
                });
                own.set(park(&purgatory, op, [1, 2])).expect("set once");
                purgatory.check_and_complete(&1);
                eventually("its end", || {
                    purgatory.advance();
                    probe.ending().is_some()
                });
                assert_eq!(probe.ending(), Some(expected), "{name}");
                let stats = purgatory.stats();
                assert_eq!((stats.parked, stats.panicked), (0, 0), "{name}");
            });
        }
    }
}

/// A checker that finds an operation held leaves at once, and the holder examines it again.
#[test]
fn g03_no_thread_waits_for_a_held_operation() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g03-busy");
        let ((gate, wait), probe) = (Gate::new(), Probe::new());
        let op = probed_op(&purgatory, &probe, NEVER_IN_A_TEST, move |_, _, nth| {
            if nth == FIRST_CHECK {
                wait();
            }
            false
        });
        let handle = park(&purgatory, op, [1]);
        let same = purgatory.clone();
        let holder = thread::spawn(move || same.check_and_complete(&1));
        gate.entered();
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert!(!handle.check());
        assert!(handle.is_parked());
        assert!(handle.remaining().is_some());
        assert!(handle.reschedule(Duration::MAX));
        assert_eq!(purgatory.snapshot().len(), 1);
        gate.open();
        holder.join().expect("the holder does not panic");
        assert_eq!(probe.examinations(), 4, "and one for both checks");
    });
}

/// Destructors of keys run under no lock: a key may use the purgatory in its own.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Busy>(|builder| builder);
        for number in 0..3 {
            let act: Act = Arc::new(inside(&purgatory, move |all| {
                all.check_and_complete(&Busy(number, None));
                drop(all.resolve(Busy(number, None)));
                all.watched_keys();
            }));
            let key = purgatory.resolve(Busy(number, Some(act.clone())));
            let again = purgatory.resolve(Busy(number, Some(act.clone())));
            let plain = Watch::from(Busy(number, Some(act)));
            let first = park(&purgatory, Op::new(NEVER_IN_A_TEST), [key.watch()]);
            let second = park(&purgatory, Op::new(NEVER_IN_A_TEST), [plain.at_rank(1)]);
            drop((key, again));
            assert!(first.force_complete() && second.cancel().is_some());
            assert_eq!(watches(&purgatory), (0, 0));
        }
    });
}

/// `Hash` of an old key panics while the map grows for a new one, which is dropped after the lock is released.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped_that_found_no_place() {
    for later in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<Breaks<Busy>>(|builder| builder.map_shards(1));
            let act: Act = Arc::new(inside(&purgatory, |all| {
                let other = Breaks(fragile(u32::MAX), Busy(0, None));
                all.check_later(other.clone());
                all.watchers(&other);
            }));
            let has_panicked = (0..10_000).any(|number| {
                let key = Breaks(fragile(number), Busy(0, Some(act.clone())));
                let op = Op::new(NEVER_IN_A_TEST);
                let call = || match later {
                    true => purgatory.check_later(key),
                    false => drop(purgatory.try_complete_else_watch(op, [key])),
                };
                // The first key of all is hashed when the map grows.
                if number == 0 {
                    call();
                    return false;
                }
                with_one_panic_after(0, 0, Hook::Hash, call).is_some_and(|it| it.is_err())
            });
            assert!(has_panicked, "no map has grown");
            purgatory.shutdown();
        });
    }
}

/// A key that panics when its deferred check is made leaves an entry. The entry goes when the key is checked later once
/// more, and the destructor of the key may use the purgatory.
#[test]
fn g03_no_lock_is_held_while_the_key_of_a_dead_entry_is_dropped() {
    let key = |number, act| Breaks(fragile(number), Acting(0, act));
    within(PATIENCE / 2, move || {
        let (purgatory, _clock) = manual::<Breaks<Acting>>(|builder| builder);
        let dropped = Tally::new();
        let drops = dropped.clone();
        let check_other = inside(&purgatory, move |all| all.check_later(key(2, None)));
        let act: Act = Arc::new(move || {
            drops.add();
            check_other();
        });
        let probes = [1, 2].map(|number| park_probe(&purgatory, [key(number, None)]).0);
        probes.iter().for_each(|probe| probe.satisfy());
        purgatory.check_later(key(1, Some(act)));
        assert!(with_fuse(1, Hook::Hash, || purgatory.advance()).is_ok());
        assert_eq!(dropped.count(), 0);
        purgatory.check_later(key(1, None));
        // The second pass makes the check that the destructor may have deferred in the first one.
        purgatory.advance();
        purgatory.advance();
        assert_eq!(dropped.count(), 1);
        assert!(probes.iter().all(|probe| probe.ending().is_some()));
    });
}
