//! G18 for handles of dropped purgatories: the place by which a handle finds its purgatory is used again by the next
//! one.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, within};
use request_purgatory::{Completion, Handle, Purgatory, future::block_on};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

fn park(purgatory: &Purgatory<Op>, probe: &Arc<Probe>) -> Handle<Op> {
    purgatory
        .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1])
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet")
}

fn assert_harmless(stale: &Handle<Op>) {
    assert!(!stale.is_parked() && !stale.check() && !stale.force_complete());
    assert!(stale.cancel().is_none() && !stale.reschedule(Duration::ZERO));
    assert_eq!((stale.remaining(), stale.deadline()), (None, None));
}

/// Each purgatory has its first operation in the same slot, in the same generation, as the one before it.
#[test]
fn g18_an_old_handle_never_acts_on_the_next_purgatory() {
    let mut stale = Vec::<Handle<Op>>::new();
    for round in 0..200 {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let probe = Probe::new();
        let handle = park(&purgatory, &probe);
        stale.iter().for_each(assert_harmless);
        stale.iter().for_each(|old| assert_harmless(&old.clone()));
        assert!(handle.is_parked(), "{round}");
        assert_eq!((probe.examinations(), probe.ending()), (2, None));
        // Half of the purgatories shut down before, half by being dropped.
        if round % 2 == 0 {
            purgatory.shutdown();
            assert_harmless(&handle);
        }
        drop(purgatory);
        assert_eq!(probe.ending(), Some(Completion::ShutDown));
        stale.push(handle);
        stale.drain(..stale.len().saturating_sub(20));
    }
}

/// However often and in whichever way a purgatory is shut down, its place goes to one other.
#[test]
fn g18_a_repeated_shutdown_gives_one_place_back() {
    let again: [fn(&Purgatory<Op>); 3] = [
        Purgatory::shutdown,
        |gone| assert!(gone.shutdown_timeout(PATIENCE).is_ok()),
        |gone| block_on(gone.shutdown_async().expect("a thread")),
    ];
    within(PATIENCE, move || {
        for (first, second) in (0..27).map(|pair| (again[pair % 3], again[pair / 3 % 3])) {
            let (gone, _clock) = manual::<u64>(|builder| builder);
            first(&gone);
            second(&gone);
            let next = [(); 4].map(|()| manual::<u64>(|builder| builder).0);
            let handles = next.each_ref().map(|next| park(next, &Probe::new()));
            assert!(handles.iter().all(|handle| handle.cancel().is_some()));
        }
    });
}

/// Another type of purgatory gets the same recycled place.
#[test]
fn g18_an_old_handle_never_acts_on_a_purgatory_of_another_type() {
    for _ in 0..50 {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let old = park(&purgatory, &Probe::new());
        drop(purgatory);
        let (purgatory, _clock) = manual::<String>(|builder| builder);
        let probe = Probe::new();
        let handle = purgatory
            .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [String::from("key")])
            .expect("there is room")
            .into_handle()
            .expect("it cannot complete yet");
        assert_harmless(&old);
        assert!(handle.is_parked());
        assert_eq!(probe.examinations(), 2);
    }
}

#[test]
fn g18_handles_are_used_while_their_purgatory_goes() {
    within(PATIENCE, || {
        for _ in 0..300 {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let probes = [(); 4].map(|()| Probe::new());
            let handles = probes.each_ref().map(|probe| park(&purgatory, probe));
            let workers = handles.map(|handle| {
                thread::spawn(move || {
                    let mut answers = 0;
                    while handle.is_parked() {
                        assert!(!handle.check());
                        let _ = handle.reschedule(NEVER_IN_A_TEST);
                        answers += 1;
                        if answers == 50 {
                            return handle.cancel().is_some();
                        }
                    }
                    assert_harmless(&handle);
                    false
                })
            });
            thread::yield_now();
            drop(purgatory);
            // The next one may get the place while the old handles are still used.
            let (next, _clock) = manual::<u64>(|builder| builder);
            let own = park(&next, &Probe::new());
            for (worker, probe) in workers.into_iter().zip(probes) {
                let cancelled = worker.join().expect("a handle is harmless");
                assert_eq!(probe.ending().is_none(), cancelled);
            }
            assert!(own.is_parked());
        }
    });
}

/// From `try_complete` and `on_complete`, on its own operation and on another, in time and after the end.
#[test]
fn g18_a_handle_is_used_in_callbacks() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let own = Arc::new(OnceLock::<Handle<Op>>::new());
    let other = Probe::new();
    let others = park(&purgatory, &other);
    let (met, ready) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let op = {
        let (examining, ending) = (own.clone(), own.clone());
        let (others, met, ready) = (others.clone(), met.clone(), ready.clone());
        Op::new(NEVER_IN_A_TEST)
            .when(move || {
                if let Some(own) = examining.get() {
                    assert!(own.is_parked() && !own.check(), "it is being examined");
                    others.check();
                }
                ready.load(Ordering::SeqCst)
            })
            .then(move |_| {
                assert_harmless(ending.get().expect("it parked"));
                met.store(true, Ordering::SeqCst);
            })
    };
    let handle = purgatory
        .try_complete_else_watch(op, [2])
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet");
    assert!(own.set(handle.clone()).is_ok());
    assert!(!handle.check());
    assert_eq!(other.examinations(), 3);
    ready.store(true, Ordering::SeqCst);
    other.satisfy();
    assert!(handle.check());
    assert!(met.load(Ordering::SeqCst));
    assert_eq!(other.ending(), Some(Completion::Satisfied));
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().panicked),
        (0, 0)
    );
}
