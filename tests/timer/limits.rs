//! G12, G17, G18, G29: bounds, ids, deadlines that have passed, a clock that panics, settings that make no sense.

use crate::support::{FragileClock, Mint, NEVER_IN_A_TEST, Token, quietly, refusal};
use crate::tested::{Tested, builder, manual, with_channel};
use request_purgatory::{
    Timer, purgatory::BuildError, purgatory::RejectReason, purgatory::Rejected, threads::Reaper,
    time::ManualClock, time::Timestamp,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

pub(crate) fn g17_the_bound_is_exact<W: Tested>() {
    let (builder, clock) = manual::<u32, W>();
    let builder = builder.max_parked(3);
    let (timer, _expired) = with_channel(builder);
    // What the scheme has no place for leaves the bound as it is.
    let too_long = u64::from(!W::ENDLESS);
    for round in 1..=20 {
        for number in 0..too_long as u32 {
            let refused = timer.start(NEVER_IN_A_TEST, number);
            assert_eq!(refusal(&refused), Some(RejectReason::TooLong));
        }
        // Each round frees the three places in another way.
        let ids = [1, 2, 3].map(|number| timer.start(TICK, number).expect("there is room"));
        for number in [4, 5] {
            let refused = timer.start(TICK, number);
            assert!(
                matches!(refused.map_err(Rejected::into_parts), Err((RejectReason::Full, back)) if back == number)
            );
        }
        assert_eq!(
            (timer.stats().parked, timer.stats().rejected),
            (3, (2 + too_long) * round)
        );
        match round % 3 {
            0 => assert!(ids.iter().all(|id| timer.stop(*id).is_some())),
            1 => {
                clock.advance(TICK);
                assert_eq!(timer.advance(), 3);
            }
            _ => {
                assert_eq!(timer.stop(ids[1]), Some(2));
                clock.advance(TICK);
                assert_eq!(timer.advance(), 2);
            }
        }
        assert!(timer.is_empty());
    }
    timer.start(TICK, 1).expect("there is room");
    assert_eq!(timer.shutdown(), [1]);
    // Refused for the better reason, and counted.
    let refused = timer.start(TICK, 9);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::ShutDown, 9))
    ));
    assert_eq!(timer.stats().rejected, 20 * (2 + too_long) + 1);
}

pub(crate) fn g17_a_scheme_that_is_chosen_last_changes_no_other_choice<W: Tested>() {
    let clock = ManualClock::new();
    let builder = Timer::<u32>::builder("last").clock(clock.clone());
    let builder = builder.reaper(Reaper::Manual).max_parked(1);
    let builder = builder.max_timeout(TICK).tick(2 * TICK);
    let (timer, expired) = with_channel(builder.scheme::<W>());
    let id = timer.start(3 * TICK, 1).expect("there is room");
    assert_eq!(timer.remaining(id), Some(2 * TICK));
    let refused = timer.start(TICK, 2);
    assert_eq!(refusal(&refused), Some(RejectReason::Full));
    clock.advance(2 * TICK);
    assert_eq!((timer.advance(), expired.try_recv()), (1, Ok(1)));
}

pub(crate) fn g12_a_panic_in_your_own_start_is_yours_and_leaves_nothing<W: Tested>() {
    quietly();
    let clock = FragileClock::default();
    let (builder, _clock) = manual::<Token, W>();
    let builder = builder.clock(clock.clone()).max_parked(1);
    let (timer, _expired) = with_channel(builder);
    let mint = Mint::default();
    clock.set_broken(true);
    let started = catch_unwind(AssertUnwindSafe(|| {
        timer.start(TICK, mint.token(1)).is_ok()
    }));
    clock.set_broken(false);
    assert!(started.is_err(), "it goes to the caller");
    // No payload, no timer, and no place taken.
    assert_eq!(
        (mint.living(), timer.len(), timer.next_deadline()),
        (0, 0, None)
    );
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.rejected), (0, 0));
    let id = timer.start(TICK, mint.token(2)).expect("there is room");
    clock.set_broken(true);
    let moved = catch_unwind(AssertUnwindSafe(|| timer.reschedule(id, Duration::MAX)));
    let asked = catch_unwind(AssertUnwindSafe(|| timer.remaining(id)));
    let now = catch_unwind(AssertUnwindSafe(|| timer.now()));
    // With a reading of the caller's, no clock is asked.
    let given = timer.reschedule_under_lock(id, Timestamp::default(), 2 * TICK);
    drop(given.expect("it runs"));
    clock.set_broken(false);
    assert!(moved.is_err() && asked.is_err() && now.is_err());
    assert_eq!(timer.remaining(id), Some(2 * TICK));
}

/// G29: whether the thread that drives the timer has come or not. `stop` does not look at the clock.
pub(crate) fn g29_past_its_deadline_a_timer_is_not_rescheduled<W: Tested>() {
    for by_reading in [false, true] {
        let (builder, clock) = manual::<u32, W>();
        let (timer, expired) = with_channel(builder);
        let reschedule = |id| match by_reading {
            false => timer.reschedule(id, 5 * TICK),
            true => timer
                .reschedule_under_lock(id, timer.now(), 5 * TICK)
                .is_ok(),
        };
        let [late, stopped, early] = [2, 2, 5].map(|ticks| timer.start(ticks * TICK, ticks));
        let [late, stopped, early] = [late, stopped, early].map(|it| it.expect("there is room"));
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
    let (builder, _) = manual::<u64, W>();
    let (other, _others) = with_channel(builder);
    let mut random = fastrand::Rng::with_seed(18);
    let mut stale = Vec::new();
    for round in 0..300 {
        let mine = (0..4).map(|number| timer.start(TICK * 5, 10 * round + number));
        let mine = mine.collect::<Result<Vec<_>, _>>().expect("there is room");
        let foreign = (0..4).map(|number| other.start(TICK * 5, number));
        let foreign = foreign
            .collect::<Result<Vec<_>, _>>()
            .expect("there is room");
        for id in stale.iter().chain(&foreign) {
            assert_eq!(timer.stop(*id), None);
            assert!(!timer.reschedule(*id, Duration::ZERO));
            assert_eq!((timer.remaining(*id), timer.deadline(*id)), (None, None));
        }
        assert_eq!((timer.stats().parked, other.stats().parked), (4, 4));
        // Two are stopped, two expire; the slots are used again in the next round.
        assert!(timer.stop(mine[0]).is_some() && timer.stop(mine[2]).is_some());
        clock.advance(TICK * 5);
        assert_eq!(timer.advance(), 2);
        assert_eq!(expired.try_iter().count(), 2);
        assert!(foreign.iter().all(|id| other.stop(*id).is_some()));
        stale.extend(mine);
        if stale.len() > 50 {
            stale.swap_remove(random.usize(..50));
        }
    }
}

pub(crate) fn absurd_settings_are_refused<W: Tested>() {
    for tick in [Duration::ZERO, Duration::MAX] {
        let built = builder::<u32, W>("tick").tick(tick).build(drop);
        assert!(matches!(built, Err(BuildError::Tick)), "{tick:?}");
    }
    for slots in [0, 1, (1 << 16) + 1, usize::MAX] {
        let built = builder::<u32, W>("slots").wheel_size(slots).build(drop);
        assert!(matches!(built, Err(BuildError::WheelSize)), "{slots}");
    }
    // The longest tick there is.
    let (builder, _) = manual::<u32, W>();
    let timer = builder.tick(Duration::from_nanos(u64::MAX)).build(drop);
    let timer = timer.expect("it makes sense, barely");
    let id = timer.start(NEVER_IN_A_TEST, 1).expect("it fits");
    assert_eq!(timer.remaining(id), Some(Duration::from_nanos(u64::MAX)));
}
