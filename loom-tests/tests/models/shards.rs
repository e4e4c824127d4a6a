//! Two timer shards: operations that end on a thread whose shard is another one.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{Outcome, Probe, assert_empty, bounded, manual_with_two_shards};
use request_purgatory::{Handle, Purgatory, purgatory::RejectReason, time::ManualClock};
use std::sync::Arc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

fn park(purgatory: &Purgatory<Probe>, timeout: Duration) -> (Arc<Outcome>, Handle<Probe>) {
    let outcome = Outcome::new();
    let admission = purgatory.try_complete_else_watch(Probe::with_timeout(&outcome, timeout), [1]);
    let handle = admission.expect("it may park").into_handle();
    (outcome, handle.expect("it parked"))
}

/// Catches: a slot or a timer that is lost on its way back to its own shard.
#[test]
fn g06_a_cancel_by_a_thread_of_another_shard_races_a_park() {
    bounded(|| {
        let purgatory = manual_with_two_shards(&ManualClock::new());
        let (outcome, handle) = park(&purgatory, TICK);
        let canceller = thread::spawn(move || handle.cancel().is_some());
        let (_, mine) = park(&purgatory, TICK);
        assert!(canceller.join().unwrap(), "no other thread ended it");
        drop(mine.cancel().expect("no other thread ended it"));
        assert_eq!(outcome.endings(), [0; 4]);
        assert_eq!(purgatory.next_deadline(), None, "a timer is left");
        assert_empty(&purgatory);
    });
}

/// Catches: an ending that two threads of different shards win, or count twice.
#[test]
fn g05_cancel_races_an_expiry_by_a_thread_of_another_shard() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual_with_two_shards(&clock);
        let (first, cancelled) = park(&purgatory, TICK);
        let (second, _) = park(&purgatory, TICK);
        clock.advance(TICK);
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        let cancelled = usize::from(cancelled.cancel().is_some());
        let expired = reaper.join().unwrap();
        assert_eq!(first.endings()[1] + cancelled, 1);
        assert_eq!(second.endings(), [0, 1, 0, 0]);
        assert_eq!(expired + cancelled, 2);
        assert_eq!(purgatory.next_deadline(), None, "a timer is left");
        assert_empty(&purgatory);
    });
}

/// Catches: a shutdown that leaves one shard open.
#[test]
fn g15_shutdown_races_a_park_in_another_shard() {
    bounded(|| {
        let purgatory = manual_with_two_shards(&ManualClock::new());
        let (mine, _) = park(&purgatory, Duration::MAX);
        let (outcome, refused) = (Outcome::new(), Arc::new(AtomicUsize::new(0)));
        let parker = {
            let (purgatory, outcome, refused) =
                (purgatory.clone(), outcome.clone(), refused.clone());
            thread::spawn(move || {
                if let Err(rejected) = purgatory.try_complete_else_watch(Probe::new(&outcome), [1])
                {
                    assert_eq!(rejected.reason(), RejectReason::ShutDown);
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        purgatory.shutdown();
        parker.join().unwrap();
        assert_eq!(mine.endings(), [0, 0, 0, 1]);
        let refused = refused.load(Ordering::Relaxed);
        assert_eq!(outcome.endings(), [0, 0, 0, 1 - refused]);
        assert_empty(&purgatory);
    });
}
