//! G6: nothing is left behind. (Memory over a million operations is measured in the target `memory`.)

use crate::chains::scene::park;
use crate::support::{
    Mint, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, manual, within,
};
use request_purgatory::{Completion, Purgatory, time::ManualClock};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Parks an operation that has a token.
fn park_token(purgatory: &Purgatory<Op>, mint: &Mint, timeout: Duration, keys: &[u64]) {
    let token = mint.token(0);
    let op = Op::new(timeout).when(move || {
        _ = &token;
        false
    });
    let parked = purgatory.try_complete_else_watch(op, keys.iter().copied());
    assert!(parked.is_ok(), "there is room");
}

/// How many are parked, how many watches they have, and on how many keys.
fn found(purgatory: &Purgatory<Op>) -> (usize, usize, usize) {
    let stats = purgatory.stats();
    (stats.parked, stats.watched, purgatory.watched_keys())
}

#[test]
fn g06_every_ending_drops_the_payload_and_leaves_every_key() {
    const BUSY: u64 = 1;
    const QUIET: u64 = 2;
    const OWN: u64 = 100;
    type End = fn(&Purgatory<Op>, &ManualClock);
    const ENDS: [(&str, End); 4] = [
        ("force", |all, _| {
            assert_eq!(all.force_complete_for_key(&BUSY), 1_000);
        }),
        ("cancel", |all, _| drop(all.cancel_for_key(&BUSY))),
        ("expiry", |all, clock| {
            clock.advance(2 * SECOND);
            all.advance();
        }),
        ("shutdown", |all, _| all.shutdown()),
    ];
    for (name, end) in ENDS {
        let (purgatory, clock) = manual(|builder| builder);
        let mint = Mint::default();
        for number in 0..1_000 {
            let timeout = Duration::from_millis(number);
            let keys = [BUSY, QUIET, QUIET, OWN + number];
            park_token(&purgatory, &mint, timeout, &keys);
        }
        assert_eq!(found(&purgatory), (1_000, 3_000, 1_002));
        assert_eq!(mint.living(), 1_000);
        end(&purgatory, &clock);
        assert_eq!(found(&purgatory), (0, 0, 0), "{name}");
        assert_eq!(mint.living(), 0, "{name}");
        assert_eq!(purgatory.next_deadline(), None, "{name}: a timer");
        assert!(purgatory.snapshot().is_empty(), "{name}");
    }
}

/// By the time of its completion.
#[test]
fn g06_one_that_expires_alone_leaves_every_key() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let (weak, (tell, left)) = (purgatory.downgrade(), channel());
    let op = Op::new(SECOND).then(move |_| {
        let purgatory = weak.upgrade().expect("it drives the timer");
        let watchers = [1, 2].map(|key| purgatory.watchers(&key));
        tell.send(watchers).expect("the test waits");
    });
    drop(purgatory.try_complete_else_watch(op, [1, 2]));
    park_token(&purgatory, &Mint::default(), NEVER_IN_A_TEST, &[1]);
    clock.advance(SECOND);
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(left.try_recv(), Ok([1, 0]));
}

/// Just before the cause is left for an operation, it has ended.
#[test]
fn g06_a_cause_goes_whose_operation_has_ended() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let [_, second] = [(); 2].map(|()| park(&purgatory, Op::new(NEVER_IN_A_TEST), [1]));
    let mint = Mint::default();
    let token = mint.token(0);
    let cause = move |_: &mut Op| {
        _ = &token;
        drop(second.cancel());
    };
    assert_eq!(purgatory.force_complete_for_key_with(&1, cause), 1);
    assert_eq!(mint.living(), 0, "the second had ended");
}

/// Parks an operation on key 1 and checks it. While it is examined there, `meanwhile` runs; then it says `ready`.
fn check(
    purgatory: &Purgatory<Op>,
    ready: bool,
    meanwhile: impl FnOnce(&Purgatory<Op>) + Send + 'static,
) {
    let (inside, mut examinations) = (purgatory.downgrade(), 0);
    let mut meanwhile = Some(meanwhile);
    let op = Op::new(Duration::MAX).when(move || {
        examinations += 1;
        if let Some(meanwhile) = meanwhile.take_if(|_| examinations == 3) {
            meanwhile(&inside.upgrade().expect("it is checked"));
            return ready;
        }
        false
    });
    assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
    assert_eq!(purgatory.check_and_complete(&1), usize::from(ready));
}

/// A cause is left for an operation in the hands of a check that does not look for it: a later call drops the cause.
#[test]
fn g06_a_cause_goes_whose_operation_ends_without_it() {
    type Later = fn(&Purgatory<Op>);
    let laters: [Later; 2] = [|idle| _ = idle.advance(), |closed| closed.shutdown()];
    for later in laters {
        let purgatory = manual(|builder| builder).0;
        let mint = Mint::default();
        let token = mint.token(0);
        check(&purgatory, true, move |inside| {
            let cause = move |_: &mut Op| _ = &token;
            assert_eq!(inside.force_complete_for_key_with(&1, cause), 0);
        });
        later(&purgatory);
        assert_eq!(mint.living(), 0);
    }
}

/// The destructor of what a change has captured may leave a change in turn.
#[test]
fn g03_a_change_that_another_replaces_is_dropped_with_no_lock_held() {
    within(PATIENCE, || {
        let purgatory = manual(|builder| builder).0;
        check(&purgatory, false, |inside| {
            let again = inside.clone();
            let forces = scopeguard::guard((), move |()| {
                let forced = again.force_complete_for_key_with(&1, |_| ());
                assert_eq!(forced, 0, "it is examined");
            });
            inside.force_complete_for_key_with(&1, move |_| _ = &forces);
            inside.force_complete_for_key_with(&1, |_| ());
        });
        assert_eq!(purgatory.stats().completed, 1, "as the changes were to be");
    });
}

/// The change of an operation that was satisfied all the same is left to the next call that has one, and its destructor
/// panics. That call's own is for an operation that a thread examines.
#[test]
fn g12_a_change_that_panics_when_it_is_dropped_costs_no_other_operation_its_change() {
    within(PATIENCE, || {
        let purgatory = manual(|builder| builder).0;
        check(&purgatory, true, |inside| {
            let loud = scopeguard::guard((), |()| resume_unwind(Box::new("intended")));
            inside.force_complete_for_key_with(&1, move |_| _ = &loud);
        });
        let probe = Probe::new();
        let (examined, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        assert!(purgatory.try_complete_else_watch(examined, [2]).is_ok());
        let check = stall.check(&purgatory, 2);
        let changed = Tally::new();
        let change = changed.clone();
        let force = || purgatory.force_complete_for_key_with(&2, move |_| change.add());
        let _ = catch_unwind(AssertUnwindSafe(force));
        stall.end();
        check.join().expect("no panic");
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
        assert_eq!(changed.count(), 1);
    });
}

/// Everything goes when the purgatory goes, jobs on other threads included.
#[test]
fn g06_a_dropped_purgatory_keeps_nothing() {
    within(PATIENCE, || {
        let (purgatory, mint) = (Purgatory::<Op>::new("g06-drop"), Mint::default());
        for _ in 0..100 {
            for timeout in [Duration::ZERO, Duration::from_millis(5), Duration::MAX] {
                park_token(&purgatory, &mint, timeout, &[1, 2]);
            }
        }
        let weak = purgatory.downgrade();
        drop(purgatory);
        assert!(weak.upgrade().is_none());
        eventually("the end of every payload", || mint.living() == 0);
    });
}
