//! Holds each candidate to the common ground rules before it is measured.

pub(crate) mod handles;
pub(crate) mod timer;

use std::thread;
use std::time::{Duration, Instant};

use crate::candidate::Candidate;
use crate::request::{Flag, Request};

/// Long enough not to fire during a check that is not about firing.
const LONG: Duration = Duration::from_secs(30);

/// The longest that a timer may be late here: this is no measurement, and the machine may be busy.
const LATEST: Duration = Duration::from_secs(10);

/// # Panics
///
/// If the candidate breaks a rule.
pub(crate) fn run<C: Candidate>() {
    with_fresh(async |candidate: &C| completes_at_once(candidate));
    with_fresh(async |candidate: &C| any_key_triggers(candidate).await);
    with_fresh(async |candidate: &C| ends_every_ready_watcher(candidate).await);
    if C::EXPIRES {
        with_fresh(async |candidate: &C| expires(candidate).await);
    }
}

/// Runs one check on a candidate of its own, which must be empty in the end.
fn with_fresh<C: Candidate>(check: impl AsyncFn(&C)) {
    let candidate = C::new();
    candidate.drive(check(&candidate));
    candidate.settle();
    assert_eq!(candidate.parked(), 0, "{}: still parked", C::NAME);
    assert_eq!(candidate.watched(), 0, "{}: still watched", C::NAME);
}

fn completes_at_once<C: Candidate>(candidate: &C) {
    let flags = Flag::board(1);
    flags[0].mark_completable();
    assert!(candidate.park(Request::new(0, &flags[0], LONG), &[1, 2, 3]));
    assert!(flags[0].is_satisfied());
    assert_eq!(candidate.check(2), 0);
}

/// A request completes through each of its keys, not before it is ready, and only once.
async fn any_key_triggers<C: Candidate>(candidate: &C) {
    let keys = [10, 11, 12];
    let flags = Flag::board(keys.len());
    for (flag, trigger) in flags.iter().zip(keys) {
        assert!(!candidate.park(Request::new(0, flag, LONG), &keys));
        candidate.finish().await;
        assert_eq!(candidate.parked(), 1);
        assert_eq!(candidate.check(trigger), 0, "{}: not ready", C::NAME);
        assert_eq!(
            candidate.check(99),
            0,
            "{}: a key without requests",
            C::NAME
        );
        flag.mark_completable();
        assert_eq!(candidate.check(trigger), 1, "{}: key {trigger}", C::NAME);
        candidate.finish().await;
        assert!(flag.is_satisfied());
        for key in keys {
            assert_eq!(candidate.check(key), 0, "{}: ended already", C::NAME);
        }
    }
}

/// Of two requests under one key a check ends the one that is ready and leaves the other.
async fn ends_every_ready_watcher<C: Candidate>(candidate: &C) {
    let flags = Flag::board(2);
    for flag in flags {
        assert!(!candidate.park(Request::new(0, flag, LONG), &[7]));
    }
    candidate.finish().await;
    for flag in flags.iter().rev() {
        flag.mark_completable();
        assert_eq!(candidate.check(7), 1);
        candidate.finish().await;
        assert!(flag.is_satisfied());
    }
}

/// A hundred requests that no thread checks expire by themselves: each, once, and none early.
async fn expires<C: Candidate>(candidate: &C) {
    let flags = Flag::board(100);
    let mut deadlines = Vec::new();
    for (id, flag) in (0..).zip(flags) {
        // Around one and two turns of a wheel's lowest level, in no order.
        let timeout = Duration::from_millis(1 + u64::from(id) * 61 % 160);
        let keys = [u64::from(id), u64::from(id) + 1, 500];
        deadlines.push(Instant::now() + timeout);
        assert!(!candidate.park(Request::new(id, flag, timeout), &keys));
        if id % 20 == 0 {
            // Lets the timer move on, so that later timers meet a wheel in motion.
            thread::sleep(Duration::from_millis(7));
            candidate.finish().await;
        }
    }
    let give_up = Instant::now() + LATEST;
    loop {
        for (flag, deadline) in flags.iter().zip(&deadlines) {
            // In this order: what has ended by the first reading must be due by the second.
            let ended = !flag.is_parked();
            let early = ended && Instant::now() < *deadline;
            assert!(!early, "{}: fired before its deadline", C::NAME);
        }
        let expired = flags.iter().filter(|flag| flag.is_expired()).count();
        if expired == flags.len() && candidate.parked() == 0 {
            return;
        }
        assert!(
            Instant::now() < give_up,
            "{}: only {expired} of 100 expired",
            C::NAME
        );
        thread::sleep(Duration::from_millis(1));
        candidate.finish().await;
    }
}
