//! G18 for handles of dropped purgatories: the place by which a handle finds its purgatory is used again by the next
//! one.

use crate::lost_completion::steps::{FIRST_CHECK, hooked_op, park, park_probe};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, manual, within};
use request_purgatory::{Completion, Handle, Purgatory, future::block_on};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

fn assert_harmless(stale: &Handle<Op>) {
    assert!(!stale.is_parked() && !stale.check() && !stale.force_complete());
    assert!(stale.cancel().is_none() && !stale.reschedule(Duration::ZERO));
    assert_eq!((stale.remaining(), stale.deadline()), (None, None));
}

/// Each purgatory has its first operation in the same slot, in the same generation, as the one before it; and so has a
/// purgatory of another type, which gets the same place in between.
#[test]
fn g18_an_old_handle_never_acts_on_the_next_purgatory() {
    let mut stale = Vec::<Handle<Op>>::new();
    for round in 0..200 {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (probe, handle) = park_probe(&purgatory, [1]);
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
        let (other, _clock) = manual::<String>(|builder| builder);
        let (probe, others) = park_probe(&other, [String::from("key")]);
        assert_harmless(&handle);
        stale.iter().for_each(assert_harmless);
        assert!(others.is_parked(), "{round}");
        assert_eq!(probe.examinations(), 2);
        stale.push(handle);
        stale.drain(..stale.len().saturating_sub(20));
    }
}

#[test]
fn g18_a_repeated_shutdown_gives_one_place_back() {
    const WAYS: [fn(&Purgatory<Op>); 3] = [
        Purgatory::shutdown,
        |gone| assert!(gone.shutdown_timeout(PATIENCE).is_ok()),
        |gone| block_on(gone.shutdown_async().expect("a thread")),
    ];
    within(PATIENCE, || {
        for pair in 0..27 {
            let (gone, _clock) = manual::<u64>(|builder| builder);
            WAYS[pair % 3](&gone);
            WAYS[pair / 3 % 3](&gone);
            let next = [(); 4].map(|()| manual::<u64>(|builder| builder).0);
            let handles = next.each_ref().map(|next| park_probe(next, [1]).1);
            assert!(handles.iter().all(|handle| handle.cancel().is_some()));
        }
    });
}

#[test]
fn g18_handles_are_used_while_their_purgatory_goes() {
    within(PATIENCE, || {
        for _ in 0..300 {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let parked = [(); 4].map(|()| park_probe(&purgatory, [1]));
            let workers = parked.map(|(probe, handle)| {
                let worker = thread::spawn(move || {
                    for _ in 0..50 {
                        if !handle.is_parked() {
                            assert_harmless(&handle);
                            return false;
                        }
                        assert!(!handle.check());
                        let _ = handle.reschedule(NEVER_IN_A_TEST);
                    }
                    handle.cancel().is_some()
                });
                (worker, probe)
            });
            thread::yield_now();
            drop(purgatory);
            // The next one may get the place while the old handles are still used.
            let (next, _clock) = manual::<u64>(|builder| builder);
            let (_, own) = park_probe(&next, [1]);
            for (worker, probe) in workers {
                let cancelled = worker.join().expect("a handle is harmless");
                assert_eq!(probe.ending().is_none(), cancelled);
            }
            assert!(own.is_parked());
        }
    });
}

/// (In its examination: `chains/locks.rs`.)
#[test]
fn g18_a_handle_does_nothing_in_the_completion_of_its_operation() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let (own, met) = (Arc::new(OnceLock::<Handle<Op>>::new()), Tally::new());
    let (ending, meets) = (own.clone(), met.clone());
    let op = hooked_op(&purgatory, NEVER_IN_A_TEST, |_, nth| nth == FIRST_CHECK);
    let op = op.then(move |_| {
        assert_harmless(ending.get().expect("it parked"));
        meets.add();
    });
    let handle = park(&purgatory, op, [1]);
    assert!(own.set(handle.clone()).is_ok());
    assert!(handle.check());
    assert_eq!(met.count(), 1);
}
