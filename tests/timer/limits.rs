//! G9, G12, G18, G29: ids, deadlines that have passed, a clock that panics, the longest tick. The bound of G17 is
//! tested by the `model`, and the builder in `tests/builders`.

use crate::support::{FragileClock, Mint, NEVER_IN_A_TEST, Token, quietly};
use crate::tested::{Tested, builder, manual, with_channel};
use request_purgatory::{Timer, purgatory::BuildError, time::Timestamp};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

pub(crate) fn g12_a_panic_in_your_own_start_is_yours_and_leaves_nothing<W: Tested>() {
    quietly();
    let (clock, mint) = (FragileClock::default(), Mint::default());
    let (builder, _clock) = manual::<Token, W>();
    let (timer, _expired) = with_channel(builder.clock(clock.clone()).max_parked(1));
    let panics = |call: &dyn Fn()| {
        clock.set_broken(true);
        let unwound = catch_unwind(AssertUnwindSafe(call));
        clock.set_broken(false);
        unwound.is_err()
    };
    assert!(panics(&|| drop(timer.start(TICK, mint.token(1)))));
    // No payload, no timer, and no place taken.
    let left = (mint.living(), timer.len(), timer.next_deadline());
    assert_eq!(left, (0, 0, None));
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.rejected), (0, 0));
    let id = timer.start(TICK, mint.token(2)).expect("there is room");
    assert!(panics(&|| _ = timer.reschedule(id, Duration::MAX)));
    assert!(panics(&|| _ = timer.remaining(id)));
    assert!(panics(&|| _ = timer.now()));
    // With a reading of the caller's, no clock is asked.
    assert!(!panics(&|| {
        let given = timer.reschedule_under_lock(id, Timestamp::default(), 2 * TICK);
        drop(given.expect("it runs"));
    }));
    assert_eq!(timer.remaining(id), Some(2 * TICK));
}

/// G29: whether the thread that drives the timer has come or not. `stop` does not look at the clock.
pub(crate) fn g29_past_its_deadline_a_timer_is_not_rescheduled<W: Tested>() {
    for by_reading in [false, true] {
        let (builder, clock) = manual::<u32, W>();
        let (timer, expired) = with_channel(builder);
        let reschedule = |id| match by_reading {
            false => timer.reschedule(id, 5 * TICK),
            true => {
                let given = timer.reschedule_under_lock(id, timer.now(), 5 * TICK);
                given.is_ok()
            }
        };
        let [late, stopped, early] =
            [2, 2, 5].map(|ticks| timer.start(ticks * TICK, ticks).expect("there is room"));
        clock.advance(TICK);
        assert!(reschedule(early));
        clock.advance(TICK);
        assert!(!reschedule(late) && !reschedule(stopped));
        assert!(timer.is_running(late) && timer.is_running(early));
        assert_eq!(timer.remaining(late), Some(Duration::ZERO));
        assert_eq!(timer.stop(stopped), Some(2));
        assert!(!timer.is_running(stopped));
        assert_eq!((timer.advance(), expired.try_recv()), (1, Ok(2)));
        assert!(!timer.is_running(late) && !reschedule(late));
        clock.advance(4 * TICK);
        assert_eq!((timer.advance(), expired.try_recv()), (1, Ok(5)));
    }
}

/// Ids whose timers have ended, and ids of another timer with the same slots in use.
pub(crate) fn g18_stale_and_foreign_ids_do_nothing<W: Tested>() {
    let (builder, clock) = manual::<u64, W>();
    let (timer, expired) = with_channel(builder);
    let (other, _others) = with_channel(manual::<u64, W>().0);
    let start_four = |timer: &Timer<u64, W>| {
        [0, 1, 2, 3].map(|number| timer.start(TICK * 5, number).expect("there is room"))
    };
    let mut random = fastrand::Rng::with_seed(18);
    let mut stale = Vec::new();
    for _ in 0..300 {
        let (mine, foreign) = (start_four(&timer), start_four(&other));
        for id in stale.iter().chain(&foreign) {
            assert_eq!(timer.stop(*id), None);
            assert!(!timer.reschedule(*id, Duration::ZERO));
            assert_eq!((timer.remaining(*id), timer.deadline(*id)), (None, None));
        }
        assert_eq!((timer.stats().parked, other.stats().parked), (4, 4));
        // Two are stopped, two expire; the slots are used again in the next round.
        assert_eq!(
            (timer.stop(mine[0]), timer.stop(mine[2])),
            (Some(0), Some(2))
        );
        clock.advance(TICK * 5);
        assert_eq!((timer.advance(), expired.try_iter().count()), (2, 2));
        assert!(foreign.iter().all(|id| other.stop(*id).is_some()));
        stale.extend(mine);
        if stale.len() > 50 {
            stale.swap_remove(random.usize(..50));
        }
    }
}

/// Other ticks and wheels that make no sense are refused by the builder of every kind, and tested there.
pub(crate) fn g09_the_longest_tick_is_a_tick<W: Tested>() {
    let longest = Duration::from_nanos(u64::MAX);
    let timer = manual::<u32, W>().0.tick(longest).build(drop);
    let timer = timer.expect("it makes sense, barely");
    let id = timer.start(NEVER_IN_A_TEST, 1).expect("it fits");
    assert_eq!(timer.remaining(id), Some(longest));
    let longer = builder::<u32, W>("tick").tick(Duration::MAX).build(drop);
    assert!(matches!(longer, Err(BuildError::Tick)));
}
