//! G5: every operation ends once. (All calls at once, with plain, resolved and ranked keys: `mixed_watches`.)

use crate::lost_completion::steps::{assert_empty, park, probed_op};
use crate::support::{Op, PATIENCE, Probe, eventually, manual, quietly, within};
use request_purgatory::{Handle, Purgatory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The operations that have had a completion.
fn ended(probes: &[Arc<Probe>]) -> usize {
    let ended = probes.iter().filter(|probe| probe.ending().is_some());
    ended.count()
}

/// As many endings as operations, whichever thread wins; a returned operation has had no completion.
#[test]
fn g05_an_operation_ends_once_whatever_calls_meet() {
    const OPERATIONS: u64 = 2_000;
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g05");
        let (mut returned, mut probes) = (0, Vec::new());
        for key in 0..OPERATIONS {
            let probe = Probe::new();
            let op = probe.op(Duration::from_millis(key % 3));
            let parked = purgatory.try_complete_else_watch(op, [key]);
            let handle = parked.expect("there is room").into_handle();
            let cancelled = thread::scope(|scope| {
                let cancel = || handle.as_ref().and_then(Handle::cancel).is_some();
                let canceller = scope.spawn(cancel);
                probe.satisfy();
                match &handle {
                    _ if key % 2 == 0 => _ = purgatory.check_and_complete(&key),
                    Some(handle) => _ = handle.force_complete(),
                    None => {}
                }
                canceller.join().expect("a cancel does not panic")
            });
            returned += usize::from(cancelled);
            assert!(!cancelled || probe.ending().is_none());
            probes.push(probe);
        }
        eventually("the end of all", || purgatory.is_empty());
        purgatory.shutdown();
        assert_eq!((ended(&probes) + returned) as u64, OPERATIONS);
    });
}

/// Many are ended before any is told of it, and each is examined then: by examinations that call the purgatory.
#[test]
fn g05_examinations_that_act_in_a_storm_end_nothing_twice() {
    /// What the examination of the operation on this key calls, and how many operations it gets back.
    type Act = fn(&Purgatory<Op>, u64) -> usize;
    const ACTS: [(&str, Act); 5] = [
        ("advance", |all, _| {
            all.advance();
            0
        }),
        ("shutdown", |all, key| {
            if key > 700 {
                all.shutdown();
            }
            0
        }),
        ("cancel", |all, key| {
            let around = [key - 1, key + 1].map(|key| all.cancel_for_key(&key).len());
            around.iter().sum()
        }),
        ("force", |all, key| {
            all.force_complete_for_key(&((key + 400) % 1_000));
            0
        }),
        ("panic", |_, _| panic!("intended")),
    ];
    quietly();
    within(PATIENCE, move || {
        for (name, act) in ACTS {
            let (purgatory, clock) = manual::<u64>(|builder| builder);
            let late = Arc::new(AtomicBool::new(false));
            let returned = Arc::new(AtomicUsize::new(0));
            let probes = [(); 1_000].map(|()| Probe::new());
            for (key, probe) in (0..).zip(&probes) {
                let (late, returned) = (late.clone(), returned.clone());
                let timeout = Duration::from_millis(1);
                let op = probed_op(&purgatory, probe, timeout, move |all, _, _| {
                    if late.load(Ordering::SeqCst) && key % 97 == 3 {
                        returned.fetch_add(act(all, key), Ordering::SeqCst);
                    }
                    false
                });
                park(&purgatory, op, [key, 1_000 + key % 3]);
            }
            late.store(true, Ordering::SeqCst);
            clock.advance(Duration::from_millis(2));
            purgatory.advance();
            let returned = returned.load(Ordering::SeqCst);
            let aborted = purgatory.stats().aborted as usize;
            assert_eq!(ended(&probes) + returned + aborted, probes.len(), "{name}");
            assert_empty(&purgatory);
        }
    });
}
