//! Further keys: what a listener learns while it reads.

use crate::chains::drops::Bomb;
use crate::on_time::recheck::{SECOND, pass};
use crate::support::bell::Bell;
use crate::support::keys::by_number;
use crate::support::{PATIENCE, eventually, within};
use crate::{assert_empty, by_hand};
use request_purgatory::future::{Listener, WaitError, block_on};
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{CheckBound, Waits, Watch};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

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
        waits.check_and_complete_with(&2, CheckBound::all().up_to(rank));
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

/// Of a destructor that panics while the thread unwinds already, the process would die.
#[test]
fn g12_a_listener_whose_waker_and_added_keys_panic_when_dropped_costs_no_process() {
    #[derive(Clone)]
    struct Key(u64, Arc<AtomicBool>);
    by_number!(Key);
    impl Drop for Key {
        fn drop(&mut self) {
            if self.1.load(Ordering::SeqCst) {
                resume_unwind(Box::new("intended"));
            }
        }
    }
    struct Loud(Bomb);
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {}
    }
    within(PATIENCE, || {
        let (waits, armed) = (Waits::<Key>::new("loud"), Arc::new(AtomicBool::new(false)));
        let key = |number| Key(number, armed.clone());
        let mut listener = waits.listen([key(1)], None);
        (2..5).for_each(|number| listener.also(key(number)));
        let waker = Waker::from(Arc::new(Loud(Bomb)));
        let poll = pin!(listener.checked()).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        drop(waker);
        armed.store(true, Ordering::SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(listener))).is_err());
        armed.store(false, Ordering::SeqCst);
        assert_eq!(Arc::strong_count(&armed), 1, "a key is left");
        assert_empty(&waits);
    });
}
