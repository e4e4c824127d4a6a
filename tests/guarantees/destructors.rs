//! G14: chains through destructors. What an operation or a key that is dropped at an end causes does not nest in that
//! end, however long the chain is.

use crate::support::keys::by_number;
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, on_a_stack_of,
    threads_named, within,
};
use request_purgatory::purgatory::WeakPurgatory;
use request_purgatory::{
    Completion, Handle, Purgatory, RejectReason, Waits, threads::Reaper, threads::ReaperThread,
    time::Clock, time::ManualClock, time::SystemClock, time::Timestamp,
};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const LINKS: u64 = 100_000;
const TICK: Duration = Duration::from_millis(1);

/// Calls this when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The third examination panics; what `on_drop` does, the destructor of the operation does.
fn aborted(on_drop: impl FnMut() + Send + 'static) -> Op {
    let (on_drop, mut examinations) = (OnDrop(on_drop), 0);
    Op::new(NEVER_IN_A_TEST).when(move || {
        let _owned = &on_drop;
        examinations += 1;
        if examinations == 3 {
            // Without the hook, which would print it.
            resume_unwind(Box::new("intended"));
        }
        false
    })
}

#[test]
fn g14_a_chain_of_aborted_operations_whose_destructors_check_the_next_needs_no_stack() {
    within(PATIENCE * 2, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let dropped = Tally::new();
        for link in 0..LINKS {
            let (weak, dropped) = (purgatory.downgrade(), dropped.clone());
            let op = aborted(move || {
                dropped.add();
                if let Some(purgatory) = weak.upgrade() {
                    purgatory.check_and_complete(&(link + 1));
                }
            });
            drop(purgatory.try_complete_else_watch(op, [link]));
        }
        let first = purgatory.clone();
        on_a_stack_of(64, move || _ = first.check_and_complete(&0));
        assert_eq!((dropped.count(), purgatory.len()), (LINKS, 0));
        assert_eq!(purgatory.stats().aborted, LINKS);
    });
}

#[test]
fn g14_a_chain_of_aborted_operations_whose_destructors_park_the_next_needs_no_stack() {
    fn link(weak: &WeakPurgatory<Op>, number: u64, dropped: &Arc<Tally>) -> Op {
        let (weak, dropped) = (weak.clone(), dropped.clone());
        aborted(move || {
            dropped.add();
            if let (Some(purgatory), true) = (weak.upgrade(), number < LINKS) {
                let next = link(&weak, number + 1, &dropped);
                drop(purgatory.try_complete_else_watch(next, [number]));
                purgatory.check_and_complete(&number);
            }
        })
    }
    within(PATIENCE * 2, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let dropped = Tally::new();
        let first = link(&purgatory.downgrade(), 1, &dropped);
        drop(purgatory.try_complete_else_watch(first, [0]));
        let same = purgatory.clone();
        // A park takes most of it, in a build without optimisation.
        on_a_stack_of(128, move || _ = same.check_and_complete(&0));
        assert_eq!((dropped.count(), purgatory.len()), (LINKS, 0));
    });
}

/// How the destructor of a key ends the next operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Force,
    Cancel,
    Check,
    Expiry,
}

/// Whose copy of a key it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Operation,
    /// The purgatory's own.
    Map,
    /// A name for a call.
    Argument,
}

struct Chain {
    purgatory: Purgatory<Op<Link>>,
    clock: ManualClock,
    by: By,
    armed: Copied,
    ended: Tally,
}

/// A key whose destructor ends the next operation.
struct Link(u64, Copied, Arc<Mutex<Option<Arc<Chain>>>>);

impl Clone for Link {
    fn clone(&self) -> Self {
        let copied = match self.1 {
            Copied::Operation => Copied::Map,
            other => other,
        };
        Self(self.0, copied, self.2.clone())
    }
}

impl PartialEq for Link {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Link {}

impl Hash for Link {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let chain = lock(&self.2).clone();
        if let Some(chain) = chain.filter(|chain| chain.armed == self.1) {
            chain.ended.add();
            self.end_next(&chain);
        }
    }
}

impl Link {
    fn end_next(&self, chain: &Chain) {
        let next = self.0.wrapping_add(1);
        let next = Self(next, Copied::Argument, self.2.clone());
        match chain.by {
            By::Force => _ = chain.purgatory.force_complete_for_key(&next),
            By::Cancel => drop(chain.purgatory.cancel_for_key(&next)),
            By::Check => _ = chain.purgatory.check_and_complete(&next),
            By::Expiry => {
                chain.clock.advance(TICK);
                chain.purgatory.advance();
            }
        }
    }
}

fn chain_of_keys(by: By, armed: Copied) {
    let (purgatory, clock) = manual::<Link>(|builder| builder);
    let chain = Arc::new(Chain {
        purgatory,
        clock,
        by,
        armed,
        ended: Tally::default(),
    });
    let place = Arc::<Mutex<_>>::default();
    let purgatory = &chain.purgatory;
    for link in 0..LINKS {
        let key = Link(link, Copied::Operation, place.clone());
        let mut examinations = 0;
        let op = Op::new(TICK * (link as u32 + 1)).when(move || {
            examinations += 1;
            by == By::Check && examinations == 3
        });
        let parked = purgatory.try_complete_else_watch(op, [key]);
        assert!(parked.is_ok_and(|parked| parked.is_parked()));
    }
    *lock(&place) = Some(chain.clone());
    let (first, same) = (chain.clone(), place.clone());
    on_a_stack_of(64, move || {
        Link(u64::MAX, Copied::Argument, same).end_next(&first)
    });
    *lock(&place) = None;
    assert_eq!(chain.ended.count(), LINKS, "{by:?} {armed:?}");
    assert!(purgatory.is_empty() && purgatory.stats().panicked == 0);
}

#[test]
fn g14_a_chain_of_keys_whose_destructors_end_the_next_operation_needs_no_stack() {
    for by in [By::Force, By::Cancel, By::Check, By::Expiry] {
        for armed in [Copied::Operation, Copied::Map] {
            within(PATIENCE * 2, move || chain_of_keys(by, armed));
        }
    }
}

/// The destructor of a key that is dropped within another such destructor runs as a deferred call. If it panics, the
/// panic goes on, and the thread is outside the library again.
#[test]
fn g12_a_deferred_call_that_panics_leaves_the_thread_outside() {
    /// Forces the next key when it is dropped; the last one panics.
    #[derive(Clone)]
    struct Next(u64, Arc<Mutex<Option<Purgatory<Op<Next>>>>>);

    by_number!(Next);

    impl Drop for Next {
        fn drop(&mut self) {
            let purgatory = lock(&self.1).clone();
            match (purgatory, self.0) {
                (Some(purgatory), 1) => {
                    purgatory.force_complete_for_key(&Self(2, Arc::default()));
                }
                (Some(_), 2) => resume_unwind(Box::new("intended")),
                _ => {}
            }
        }
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Next>(|builder| builder);
        let place = Arc::<Mutex<_>>::default();
        let ended = Tally::new();
        for number in [1, 2] {
            let ended = ended.clone();
            let op = Op::new(NEVER_IN_A_TEST).then(move |_| ended.add());
            let key = Next(number, place.clone());
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        *lock(&place) = Some(purgatory.clone());
        let force = || purgatory.force_complete_for_key(&Next(1, Arc::default()));
        let forced = catch_unwind(AssertUnwindSafe(force));
        *lock(&place) = None;
        assert!(forced.is_err(), "no deferred call has panicked");
        assert_eq!((ended.count(), purgatory.len()), (2, 0));
        // The next call on this thread is an outermost one: its completions run before it returns.
        let (seen, ending) = (Tally::new(), ended.clone());
        let saw = seen.clone();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| ending.add());
        drop(purgatory.try_complete_else_watch(op, [Next(3, Arc::default())]));
        assert_eq!(
            purgatory.force_complete_for_key(&Next(3, Arc::default())),
            1
        );
        assert_eq!(ended.count(), 3);
        let waits = Waits::<u64>::new("g12-outside");
        let answer = waits.wait_blocking([1], TICK * 1_000, move || {
            saw.add();
            Some(saw.count())
        });
        assert_eq!(answer.ok(), Some(1));
        assert_eq!(seen.count(), 1);
    });
}

/// The payload of a panic, which panics in turn when it is dropped.
struct BadPayload;

impl Drop for BadPayload {
    fn drop(&mut self) {
        if !thread::panicking() {
            resume_unwind(Box::new("intended"));
        }
    }
}

/// What a key does when it is dropped.
type Act = Arc<dyn Fn() + Send + Sync>;

/// Keys that do something when they are dropped; those that are made by cloning do nothing.
struct Acting(u64, Option<Act>);

impl Clone for Acting {
    fn clone(&self) -> Self {
        Self(self.0, None)
    }
}

by_number!(Acting);

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some(act) = self.1.take() {
            act();
        }
    }
}

/// Two operations: a key of the first, when it is dropped, forces the second, whose two keys then panic when they are
/// dropped as deferred calls. Returns the purgatory, the first one's handle, and how many were completed.
fn two_with_bad_keys() -> (Purgatory<Op<Acting>>, Handle<Op<Acting>>, Arc<Tally>) {
    let (purgatory, _clock) = manual::<Acting>(|builder| builder);
    let ended = Tally::new();
    let op = || {
        let ended = ended.clone();
        Op::new(NEVER_IN_A_TEST).then(move |_| ended.add())
    };
    let bad = |number| {
        Acting(
            number,
            Some(Arc::new(|| resume_unwind(Box::new(BadPayload)))),
        )
    };
    let second = purgatory.try_complete_else_watch(op(), [bad(2), bad(3)]);
    let second = second.ok().and_then(|second| second.into_handle());
    let second = second.expect("it is parked");
    let force: Act = Arc::new(move || _ = second.force_complete());
    let first = purgatory.try_complete_else_watch(op(), [Acting(1, Some(force))]);
    let first = first.ok().and_then(|first| first.into_handle());
    (purgatory, first.expect("it is parked"), ended)
}

/// Between two examinations of a check its list is emptied, and another one of that key filled: the check does not go on
/// in that one.
#[test]
fn g22_a_check_whose_list_was_emptied_meets_none_of_the_next_list() {
    const WATCHERS: u64 = 200;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        let park = |op, act| drop(purgatory.try_complete_else_watch(op, [Acting(1, act)]));
        let (weak, met) = (purgatory.downgrade(), Tally::new());
        let meets = met.clone();
        let replace: Act = Arc::new(move || {
            let all = weak.upgrade().expect("it is checked");
            let others = all.cancel_for_key(&Acting(1, None)).len() as u64;
            assert_eq!(others, WATCHERS - 1);
            for _ in 0..2 * WATCHERS {
                let meets = meets.clone();
                let newcomer = Op::new(NEVER_IN_A_TEST).when(move || {
                    meets.add();
                    false
                });
                drop(all.try_complete_else_watch(newcomer, [Acting(1, None)]));
            }
        });
        park(Op::new(NEVER_IN_A_TEST), None);
        let mut examinations = 0;
        let satisfied = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            examinations == 3
        });
        park(satisfied, Some(replace));
        for _ in 2..WATCHERS {
            park(Op::new(NEVER_IN_A_TEST), None);
        }
        assert_eq!(purgatory.check_and_complete(&Acting(1, None)), 1);
        assert_eq!(purgatory.stats().panicked, 0);
        // Each is examined twice in its park.
        assert_eq!(met.count(), 2 * 2 * WATCHERS);
    });
}

/// The payloads of several panics in deferred calls may panic in turn: the thread leaves the library all the same.
#[test]
fn g12_deferred_calls_whose_panics_have_bad_payloads_leave_the_thread_outside() {
    within(PATIENCE, || {
        let (purgatory, first, ended) = two_with_bad_keys();
        let forced = catch_unwind(AssertUnwindSafe(|| first.force_complete()));
        std::mem::forget(forced.expect_err("a panic goes to the caller"));
        assert_eq!(ended.count(), 2);
        // A blocking call is refused inside the library.
        let waits = Waits::<u64>::new("outside");
        assert_eq!(waits.wait_blocking([1], TICK, || Some(7)), Ok(7));
        let probe = Probe::new();
        let third = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Acting(9, None)]);
        assert!(third.is_ok());
        assert_eq!(purgatory.force_complete_for_key(&Acting(9, None)), 1);
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    });
}

/// A call that returns an operation returns it, whatever the destructors do that it has caused.
#[test]
fn g05_a_cancel_returns_the_operation_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        for by_key in [false, true] {
            let (purgatory, first, ended) = two_with_bad_keys();
            let cancelled = catch_unwind(AssertUnwindSafe(|| match by_key {
                true => purgatory.cancel_for_key(&Acting(1, None)).len(),
                false => usize::from(first.cancel().is_some()),
            }));
            assert_eq!(cancelled.ok(), Some(1), "by key: {by_key}");
            assert_eq!(ended.count(), 1, "the other was forced");
            assert!(purgatory.stats().panicked >= 1);
            assert_eq!(purgatory.len(), 0);
        }
    });
}

#[test]
fn g05_a_park_that_is_refused_returns_the_operation_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder.max_watchers_per_key(1));
        let occupied =
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [Acting(5, None)]);
        assert!(occupied.is_ok());
        let bad = Acting(2, Some(Arc::new(|| resume_unwind(Box::new(BadPayload)))));
        let second = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [bad]);
        let second = second.ok().and_then(|second| second.into_handle());
        let second = second.expect("it is parked");
        let force: Act = Arc::new(move || _ = second.force_complete());
        let keys = [Acting(1, Some(force)), Acting(5, None)];
        let parked = catch_unwind(AssertUnwindSafe(|| {
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), keys)
        }));
        let refused = parked.ok().and_then(Result::err).expect("it is refused");
        assert_eq!(refused.reason(), RejectReason::KeyFull);
        assert_eq!(purgatory.len(), 1);
    });
}

/// A check finds that the deadline of the operation has passed. Between the count of its end and the hand-over of its
/// completion, a key takes its time to be dropped.
#[test]
fn g15_a_drain_waits_while_the_keys_of_an_expired_operation_are_dropped() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op<Acting>>::new("g15-keys");
        let ((entered, has_entered), (go_on, told)) = (channel(), channel::<()>());
        let ((dropping, is_dropping), (drop_it, may_drop)) = (channel(), channel::<()>());
        let may_drop = Mutex::new(may_drop);
        let slow: Act = Arc::new(move || {
            dropping.send(()).expect("the test waits");
            lock(&may_drop).recv().expect("the test says so");
        });
        let (probe, mut examinations) = (Probe::new(), 0);
        let ending = probe.clone();
        let op = Op::new(5 * TICK).when(move || {
            examinations += 1;
            if examinations == 3 {
                entered.send(()).expect("the test waits");
                told.recv().expect("the test says so");
            }
            false
        });
        let op = op.then(move |completion| ending.end(completion));
        assert!(
            purgatory
                .try_complete_else_watch(op, [Acting(1, Some(slow))])
                .is_ok()
        );
        let check = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&Acting(1, None)))
        };
        has_entered.recv().expect("the check examines it");
        // The reaper finds it held, and leaves a mark.
        thread::sleep(20 * TICK);
        go_on.send(()).expect("the check waits");
        is_dropping.recv().expect("its key is dropped");
        assert!(purgatory.is_empty(), "it has ended");
        let drain = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.drain(NEVER_IN_A_TEST))
        };
        thread::sleep(20 * TICK);
        assert!(!drain.is_finished(), "its completion has not run");
        drop_it.send(()).expect("the key waits");
        assert_eq!(drain.join().expect("no panic"), 0);
        assert_eq!(probe.ending(), Some(Completion::Expired));
        assert_eq!(check.join().expect("no panic"), 0);
    });
}

/// Each key is merged with a check that waits already, and its destructor defers a check of the next one.
#[test]
fn g14_a_chain_of_merged_checks_needs_no_stack() {
    type Slot = Arc<Mutex<Option<Act>>>;

    on_a_stack_of(256, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        (0..LINKS).for_each(|number| purgatory.check_later(Acting(number, None)));
        let (slot, defers, made) = (Slot::default(), purgatory.clone(), Tally::new());
        let (next, number) = (slot.clone(), made.clone());
        let act: Act = Arc::new(move || {
            if number.count() < LINKS {
                let key = Acting(number.count(), lock(&next).clone());
                number.add();
                defers.check_later(key);
            }
        });
        *lock(&slot) = Some(act.clone());
        purgatory.check_later(Acting(0, Some(act)));
        *lock(&slot) = None;
        assert_eq!(made.count(), LINKS);
    });
}

/// Keys that the library has collected are dropped one by one: of two panics together the process would die.
#[test]
fn g12_collected_keys_whose_destructors_panic_are_dropped_one_by_one() {
    thread_local!(static LIT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Bomb(u64);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if LIT.get() {
                resume_unwind(Box::new("intended"));
            }
        }
    }

    type Call = fn(&Waits<Bomb>);
    let calls: [Call; 3] = [
        |waits| _ = waits.check_where(|_| false),
        |waits| drop(waits.snapshot()),
        |waits| {
            LIT.set(false);
            let keys = [Bomb(5), Bomb(6)];
            let take = waits.take(keys, NEVER_IN_A_TEST, || None::<()>, |()| ());
            LIT.set(true);
            drop(take);
        },
    ];
    for call in calls {
        within(PATIENCE, move || {
            let waits = Waits::<Bomb>::builder("g12").reaper(Reaper::Manual);
            let waits = waits.build().expect("no threads to refuse");
            let listeners = (0..4).map(|key| waits.listen([Bomb(key)], NEVER_IN_A_TEST));
            let listeners = listeners.collect::<Vec<_>>();
            LIT.set(true);
            let called = catch_unwind(AssertUnwindSafe(|| call(&waits)));
            LIT.set(false);
            assert!(called.is_err(), "no key has panicked");
            drop(listeners);
            assert!(waits.is_empty());
        });
    }
}

/// Checks that wait at the shutdown are not made. A key that panics when it is dropped then costs no other one its drop.
#[test]
fn g12_keys_of_deferred_checks_that_panic_at_the_shutdown_are_counted() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        for number in 0..3 {
            let panics: Act = Arc::new(|| resume_unwind(Box::new("intended")));
            purgatory.check_later(Acting(number, Some(panics)));
        }
        let shut_down = catch_unwind(AssertUnwindSafe(|| purgatory.shutdown()));
        assert!(shut_down.is_ok());
        assert_eq!(purgatory.stats().panicked, 3);
    });
}

/// The destructor of a key, dropped at the shutdown, causes a panic: the threads end all the same.
#[test]
fn g15_a_shutdown_stops_its_threads_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        let (other, _clock) = manual::<Acting>(|builder| builder);
        let bad = Acting(2, Some(Arc::new(|| resume_unwind(Box::new(BadPayload)))));
        let second = other.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [bad]);
        let second = second.ok().and_then(|second| second.into_handle());
        let second = second.expect("it is parked");
        let force: Act = Arc::new(move || _ = second.force_complete());
        let purgatory = Purgatory::<Op<Acting>>::new("g15-badkey");
        let first =
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [Acting(1, Some(force))]);
        assert!(first.is_ok());
        eventually("its threads", || !threads_named("g15-badkey").is_empty());
        let shut_down = catch_unwind(AssertUnwindSafe(|| purgatory.shutdown()));
        assert!(shut_down.is_ok(), "the panic is counted");
        assert_eq!(purgatory.stats().panicked, 1);
        eventually("the end of its threads", || {
            threads_named("g15-badkey").is_empty()
        });
        assert!(other.is_empty(), "no panic has happened");
    });
}

/// The clock of one purgatory panics, and the payload panics when it is dropped: the reaper drives this and the others.
#[test]
fn g12_a_reaper_survives_a_panic_with_a_bad_payload() {
    #[derive(Clone)]
    struct Bad(Arc<AtomicBool>, SystemClock);

    impl Clock for Bad {
        fn now(&self) -> Timestamp {
            if self.0.swap(false, Ordering::SeqCst) {
                resume_unwind(Box::new(BadPayload));
            }
            self.1.now()
        }
    }

    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("g12").expect("two threads more");
        let armed = Arc::new(AtomicBool::new(false));
        let clock = Bad(armed.clone(), SystemClock::new());
        let builder = || Purgatory::<Op>::builder("g12").reaper(Reaper::Shared(reaper.clone()));
        let bad = builder().clock(clock).build().expect("no thread more");
        let good = builder().build().expect("no thread more");
        let probes = [Probe::new(), Probe::new()];
        drop(bad.try_complete_else_watch(probes[0].op(100 * TICK), [1]));
        armed.store(true, Ordering::SeqCst);
        eventually("a reading by the reaper", || !armed.load(Ordering::SeqCst));
        drop(good.try_complete_else_watch(probes[1].op(TICK), [1]));
        for probe in probes {
            eventually("its expiry", || probe.ending() == Some(Completion::Expired));
        }
    });
}
