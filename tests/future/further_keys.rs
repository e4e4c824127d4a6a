//! Further keys: what a listener learns while it reads.

use crate::by_hand;
use crate::recheck::{SECOND, pass};
use crate::support::bell::Bell;
use crate::support::eventually;
use request_purgatory::future::{Listener, WaitError, block_on};
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{Bound, Waits, Watch};
use std::task::Poll;

#[test]
fn a_key_that_is_learnt_while_reading_is_listened_to() {
    let (waits, clock) = by_hand();
    let bell = Bell::new();
    let mut listener = waits.listen([1], SECOND);
    listener.also(2);
    listener.also(2);
    listener.also(waits.resolve(3).watch());
    assert_eq!((waits.stats().parked, waits.stats().watched), (3, 3));
    for key in [2, 3, 1] {
        assert!(bell.poll(&mut Box::pin(listener.checked())).is_pending());
        waits.check_and_complete(&key);
        assert_eq!(
            bell.poll(&mut Box::pin(listener.checked())),
            Poll::Ready(Ok(()))
        );
    }
    pass(&waits, &clock, SECOND);
    eventually("the end", || waits.stats().expired == 1);
    let end = Poll::Ready(Err(WaitError::Expired));
    assert_eq!(bell.poll(&mut Box::pin(listener.checked())), end);
    drop(listener);
    assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
    let mut listener = waits.listen([1], SECOND);
    listener.also(2);
    listener.satisfied();
    assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
}

#[test]
fn a_key_that_is_learnt_again_counts_at_its_lowest_rank() {
    let (waits, _clock) = by_hand();
    let bell = Bell::new();
    let mut listener = waits.listen([1], None);
    let woken_by = |listener: &mut Listener<u64>, rank| {
        waits.check_and_complete_with(&2, Bound::all().up_to(rank));
        bell.poll(&mut Box::pin(listener.checked())).is_ready()
    };
    listener.also(Watch::from(2).at_rank(10));
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
fn a_further_key_that_is_refused_ends_the_listener() {
    for told_first in [true, false] {
        let clock = ManualClock::new();
        let builder = Waits::<u64>::builder("also").clock(clock.clone());
        let builder = builder.reaper(Reaper::Manual).max_parked(2);
        let waits = builder.build().expect("no threads to refuse");
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
        assert_eq!(
            block_on(listener.checked()),
            Err(WaitError::Full),
            "the first end counts"
        );
    }
}

/// A key that was added is watched for the longest timeout, whatever the deadline of the listener is later.
#[test]
fn a_further_key_expires_at_the_longest_timeout() {
    let clock = ManualClock::new();
    let builder = Waits::<u64>::builder("also").clock(clock.clone());
    let builder = builder.reaper(Reaper::Manual).max_timeout(SECOND);
    let waits = builder.build().expect("no threads to refuse");
    let mut listener = waits.listen([1], SECOND);
    listener.also(2);
    clock.advance(SECOND / 2);
    let handle = listener.handle().expect("there is room");
    assert!(handle.reschedule(SECOND));
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
    drop(listener);
    assert_eq!(waits.stats().parked, 0);
}
