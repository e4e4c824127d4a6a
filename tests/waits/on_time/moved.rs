//! Deadlines that are moved beside rechecks, at the end and past it.

use crate::by_hand;
use crate::on_time::recheck::{SECOND, pass};
use crate::support::bell::Bell;
use crate::support::{PATIENCE, within};
use request_purgatory::Waits;
use request_purgatory::future::{WaitError, block_on};
use request_purgatory::time::Timestamp;
use std::cell::Cell;
use std::future::ready;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3_600);

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
            let mut listener = listener.recheck_every(HOUR);
            assert!(mover.join().expect("it only moves a deadline"));
            assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
        }
    });
}

#[test]
fn g19_a_recheck_behind_the_deadline_comes_if_the_deadline_moves() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], SECOND).recheck_every(2 * SECOND);
    let handle = listener.handle().expect("there is room").clone();
    assert!(handle.reschedule(HOUR));
    let bell = Bell::new();
    for rechecks in 1..4 {
        assert!(bell.poll(&mut Box::pin(listener.checked())).is_pending());
        pass(&waits, &clock, 2 * SECOND);
        assert_eq!(bell.rung(), rechecks);
        let told = bell.poll(&mut Box::pin(listener.checked()));
        assert_eq!(told, Poll::Ready(Ok(())));
    }
}

/// At its deadline the operation stays parked until the condition is evaluated, for a second at most. It has no more
/// time for that, whatever its handle asks for, and whatever the longest timeout is.
#[test]
fn g29_a_listener_that_is_evaluated_at_its_deadline_gets_no_more_time() {
    for asked in [None, Some(HOUR)] {
        let (waits, clock) = by_hand();
        let listener = waits.listen([1], SECOND);
        let handle = listener.handle().expect("there is room").clone();
        let deadline = handle.deadline();
        let mut until = Box::pin(listener.until(|| ready(None::<()>)));
        let bell = Bell::new();
        assert!(bell.poll(&mut until).is_pending());
        pass(&waits, &clock, SECOND);
        assert_eq!((waits.len(), bell.rung()), (1, 1));
        assert_eq!(handle.remaining(), Some(Duration::ZERO));
        assert_eq!(handle.deadline(), deadline);
        let moved = match asked {
            None => handle.reschedule(None),
            Some(time) => handle.reschedule(time),
        };
        assert!(!moved);
        pass(&waits, &clock, SECOND - Duration::from_millis(1));
        assert_eq!(waits.len(), 1);
        pass(&waits, &clock, Duration::from_millis(1));
        assert_eq!((waits.len(), waits.stats().expired), (0, 1));
        assert_eq!(bell.poll(&mut until), Poll::Ready(Err(WaitError::Expired)));
    }
}

/// The recheck is told after the deadline, and finds the event. A check has announced it, before or after that.
#[test]
fn g21_a_check_after_the_deadline_announces_what_a_recheck_finds() {
    for is_before in [true, false] {
        let (waits, clock) = by_hand();
        let event = Cell::new(false);
        let listener = waits.listen([1], SECOND);
        let listener = listener.recheck_every(Duration::from_millis(990));
        let mut until = Box::pin(listener.until(|| ready(event.get().then_some(()))));
        let bell = Bell::new();
        assert!(bell.poll(&mut until).is_pending());
        pass(&waits, &clock, Duration::from_millis(990));
        pass(&waits, &clock, Duration::from_millis(10));
        event.set(true);
        if is_before {
            waits.check_and_complete(&1);
        }
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(())));
        if !is_before {
            waits.check_and_complete(&1);
        }
        pass(&waits, &clock, Duration::from_millis(100));
        assert_eq!((waits.stats().missed_checks, waits.len()), (0, 0));
    }
}

/// The timer is filed at a recheck that is due, and that no thread has handled yet.
#[test]
fn g10_a_deadline_is_moved_into_the_past_beside_a_recheck() {
    for rechecks in [false, true] {
        let (waits, clock) = by_hand();
        let mut listener = waits.listen([1], 10 * SECOND);
        if rechecks {
            listener = listener.recheck_every(SECOND);
        }
        clock.advance(2 * SECOND);
        let past = Timestamp::from_origin(SECOND / 2);
        assert!(listener.handle().expect("there is room").reschedule(past));
        assert_eq!(waits.advance(), 1);
        assert_eq!(waits.stats().expired, 1);
    }
}
