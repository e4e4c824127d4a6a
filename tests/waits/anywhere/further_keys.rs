//! G1, G2 and G17: a key that a listener learns while it reads is watched, at its lowest rank, or refused. G6: an added
//! key that ends its listener.

use crate::on_time::told;
use crate::support::bell::Bell;
use crate::support::{PATIENCE, within};
use crate::{SECOND, assert_empty, built, by_hand, pass, poll_in_vain};
use request_purgatory::future::{Listener, WaitError, block_on};
use request_purgatory::{CheckBound, Watch};
use std::future::ready;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::thread;

/// The model of waits adds keys without a rank.
#[test]
fn a_key_that_is_added_again_counts_at_its_lowest_rank() {
    let (waits, _clock) = by_hand();
    let mut listener = waits.listen([1], None);
    let woken_by = |listener: &mut Listener<u64>, rank| {
        waits.check_and_complete_with(&2, CheckBound::all().up_to(rank));
        told(&Bell::new(), listener).is_ready()
    };
    listener.also(waits.resolve(2).watch().at_rank(10));
    assert!(!woken_by(&mut listener, 9) && woken_by(&mut listener, 10));
    listener.also(Watch::from(2).at_rank(20));
    assert!(woken_by(&mut listener, 10), "the lower one stays");
    // A loop adds its keys in every round.
    for _ in 0..2 {
        listener.also(Watch::from(2).at_rank(5));
    }
    assert!(!woken_by(&mut listener, 4) && woken_by(&mut listener, 5));
    for _ in 0..2 {
        listener.also(2);
    }
    assert!(woken_by(&mut listener, 0));
    assert_eq!(waits.stats().parked, 4, "one for each that was lower");
}

/// And the reason stays, whether the timeout of those that are parked passes before it is told or after.
#[test]
fn an_added_key_that_is_refused_ends_the_listener() {
    for told_first in [true, false] {
        let (waits, clock) = built(|builder| builder.max_parked(2));
        let mut listener = waits.listen([1], SECOND);
        (2..4).for_each(|key| listener.also(key));
        if told_first {
            assert_eq!(block_on(listener.checked()), Err(WaitError::Full));
        }
        pass(&waits, &clock, SECOND);
        assert_eq!(waits.stats().expired, 1);
        assert_eq!(block_on(listener.checked()), Err(WaitError::Full));
        drop(waits);
        listener.also(9);
        let end = block_on(listener.checked());
        assert_eq!(end, Err(WaitError::Full), "the first end counts");
    }
}

/// An added key expires before the listener's own deadline, and ends the listener. Meanwhile another thread tells the
/// listener of a recheck, and has its operation. That thread ends the operation afterwards.
#[test]
fn g06_a_listener_that_an_added_key_ends_during_a_recheck_leaves_nothing() {
    within(PATIENCE, || {
        let (waits, clock) = built(|builder| builder.max_timeout(SECOND));
        let listener = waits.listen([1], SECOND);
        let mut listener = listener.recheck_every(SECOND * 3 / 5);
        listener.also(2);
        clock.advance(SECOND / 2);
        let handle = listener.handle().expect("there is room");
        assert!(handle.reschedule(SECOND));
        let mut until = Box::pin(listener.until(|| ready(None::<()>)));
        let both = Arc::new(Barrier::new(2));
        let woken = both.clone();
        poll_in_vain(&mut until, move || {
            woken.wait();
            woken.wait();
        });
        clock.advance(SECOND / 10);
        let other = thread::spawn({
            let waits = waits.clone();
            move || waits.advance()
        });
        // The other thread is in the waker.
        both.wait();
        pass(&waits, &clock, SECOND * 2 / 5);
        let ended = Bell::new().poll(&mut until);
        assert_eq!(ended, Poll::Ready(Err(WaitError::Expired)));
        both.wait();
        other.join().expect("it wakes a task");
        let stats = waits.stats();
        assert_eq!((stats.expired, stats.cancelled), (1, 1));
        assert_empty(&waits);
    });
}
