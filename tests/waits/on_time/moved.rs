//! G10, G19 and G29: deadlines that are moved beside rechecks, at the end and past it.

use super::{WOKEN, Waiter};
use crate::support::{NEVER_IN_A_TEST, PATIENCE, lock, within};
use crate::{SECOND, Slot, assert_empty, built, by_hand, owning, pass, put, waiting};
use request_purgatory::future::{WaitError, block_on};
use request_purgatory::time::Timestamp;
use request_purgatory::{Deadline, Waits};
use std::future::ready;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

/// The recheck starts the reaper, which takes a while; the deadline is moved meanwhile.
#[test]
fn g10_a_deadline_that_is_moved_beside_the_first_recheck_is_kept() {
    within(2 * PATIENCE, || {
        for round in 0..300 {
            let waits = Waits::<u64>::new("moved");
            let listener = waits.listen([1], None);
            let handle = listener.handle().expect("there is room").clone();
            let begin = Arc::new(Barrier::new(2));
            let mover = thread::spawn({
                let begin = begin.clone();
                move || {
                    begin.wait();
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(round % 60) {
                        std::hint::spin_loop();
                    }
                    handle.reschedule(Duration::from_millis(5))
                }
            });
            begin.wait();
            let mut listener = listener.recheck_every(NEVER_IN_A_TEST);
            assert!(mover.join().expect("it only moves a deadline"));
            assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
        }
    });
}

#[test]
fn g19_a_recheck_behind_the_deadline_comes_if_the_deadline_moves() {
    let mut waiter = Waiter::rechecked(SECOND, 2 * SECOND);
    assert!(waiter.handle().reschedule(NEVER_IN_A_TEST));
    for rechecks in 1..4 {
        assert!(waiter.told().is_pending());
        waiter.pass(2 * SECOND);
        assert_eq!((waiter.bell.rung(), waiter.told()), (rechecks, WOKEN));
    }
}

/// At its deadline the operation stays parked until the condition is evaluated, for a second at most (G6). It has no
/// more time for that, whatever its handle asks for, and whatever the longest timeout is.
#[test]
fn g29_a_listener_that_is_evaluated_at_its_deadline_gets_no_more_time() {
    const FAR: Deadline = Deadline::After(NEVER_IN_A_TEST);
    for (timeout, max_timeout, asked) in [
        (Some(SECOND), Duration::MAX, Deadline::Never),
        (Some(SECOND), Duration::MAX, FAR),
        (None, SECOND, FAR),
    ] {
        let (waits, clock): (Waits<u64>, _) = built(|builder| builder.max_timeout(max_timeout));
        let listener = waits.listen([1], timeout);
        let handle = listener.handle().expect("there is room").clone();
        let deadline = handle.deadline();
        let (mut until, bell) = waiting(listener.until(|| ready(None::<()>)));
        let pass = |time| {
            clock.advance(time);
            (waits.advance(), waits.len())
        };
        assert_eq!((pass(SECOND), bell.rung()), ((0, 1), 1));
        assert_eq!(handle.remaining(), Some(Duration::ZERO));
        assert_eq!(handle.deadline(), deadline);
        assert!(!handle.reschedule(asked), "{asked:?}");
        assert_eq!(pass(SECOND - Duration::from_millis(1)), (0, 1));
        assert_eq!(pass(Duration::from_millis(1)), (1, 0), "{timeout:?}");
        assert_eq!(waits.stats().expired, 1);
        assert_eq!(bell.poll(&mut until), Poll::Ready(Err(WaitError::Expired)));
    }
}

/// The condition is dropped with the future, and its destructor tries to move the deadline that has come.
#[test]
fn g29_a_listener_that_is_dropped_at_its_deadline_gets_no_more_time() {
    let (waits, clock) = by_hand();
    let listener = waits.listen([1], SECOND);
    let handle = listener.handle().expect("there is room").clone();
    let (moved, moves) = (Slot::default(), handle.clone());
    let tells = moved.clone();
    let owned = scopeguard::guard((), move |()| put(&tells, moves.reschedule(SECOND)));
    let (until, _bell) = waiting(listener.until(owning(owned, std::future::pending::<Option<()>>)));
    pass(&waits, &clock, SECOND);
    assert!(!handle.reschedule(SECOND));
    drop(until);
    assert_eq!(*lock(&moved), Some(false));
    assert_empty(&waits);
}

/// The timer is filed at a recheck that is due, and that no thread has handled yet.
#[test]
fn g10_a_deadline_is_moved_into_the_past_beside_a_recheck() {
    for is_rechecked in [false, true] {
        let mut waiter = Waiter::new(by_hand(), |waits| waits.listen([1], 10 * SECOND));
        if is_rechecked {
            waiter.recheck_every(SECOND);
        }
        waiter.clock.advance(2 * SECOND);
        let past = Timestamp::from_origin(SECOND / 2);
        assert!(waiter.handle().reschedule(past));
        assert_eq!(waiter.waits.advance(), 1);
        assert_eq!(waiter.waits.stats().expired, 1);
    }
}

#[test]
fn g10_a_deadline_behind_a_recheck_can_be_moved_until_it_has_come() {
    let mut waiter = Waiter::rechecked(SECOND * 2, SECOND);
    let handle = waiter.handle();
    waiter.clock.advance(SECOND * 2 - Duration::from_millis(1));
    // The recheck has come, and the deadline has not.
    assert!(handle.reschedule(SECOND));
    assert_eq!(handle.remaining(), Some(SECOND));
    waiter.clock.advance(SECOND);
    assert!(!handle.reschedule(SECOND), "it has");
    assert_eq!(waiter.waits.advance(), 1);
}
