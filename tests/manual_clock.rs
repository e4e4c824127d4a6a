//! G10, G12: a manual clock that drives what stands on it. No test in here sleeps, and none has a thread of its own.

use request_purgatory::future::{WaitError, block_on};
use request_purgatory::threads::Dispatch;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Timer, Waits};
use request_purgatory_tracker::Tracker;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn now(clock: &ManualClock) -> Duration {
    clock.now().since_origin()
}

fn waits(clock: &ManualClock) -> Waits<u32> {
    let builder = Waits::<u32>::builder("waits").clock(clock.clone());
    builder.reaper(clock.reaper()).build().unwrap()
}

fn calling<T: Send + 'static>(
    clock: &ManualClock,
    callback: impl Fn(T) + Send + Sync + 'static,
) -> Timer<T> {
    let builder = Timer::<T>::builder("timer").clock(clock.clone());
    builder.reaper(clock.reaper()).build(callback).unwrap()
}

/// Its payloads come by the channel, each with what the clock reads, and the thread.
fn timer<T: Send + 'static>(clock: &ManualClock) -> (Timer<T>, Receiver<(T, Duration, ThreadId)>) {
    let (fired, fires) = channel();
    let reads = clock.clone();
    let timer = calling(clock, move |payload| {
        // A test that has ended hears no more.
        let _ = fired.send((payload, now(&reads), thread::current().id()));
    });
    (timer, fires)
}

/// A timer that is started again by its own callback, and how often it has fired.
fn periodic(clock: &ManualClock) -> (Timer<()>, impl Fn() -> usize) {
    let itself = Arc::new(OnceLock::<Timer<()>>::new());
    let fires = Arc::new(AtomicUsize::new(0));
    let (again, count) = (itself.clone(), fires.clone());
    let timer = calling(clock, move |()| {
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(timer) = again.get() {
            // After its shutdown there is no next time.
            let _ = timer.start(SECOND, ());
        }
    });
    timer.start(SECOND, ()).unwrap();
    assert!(itself.set(timer.clone()).is_ok());
    (timer, move || fires.load(Ordering::Relaxed))
}

#[test]
fn g10_a_wait_expires_at_its_deadline_and_no_time_passes() {
    let (clock, begun) = (ManualClock::starting_at(SECOND), Instant::now());
    let waits = waits(&clock);
    let answer = clock.block_on(waits.wait([7], HOUR, || None::<()>));
    assert_eq!(answer, Err(WaitError::Expired));
    assert_eq!(now(&clock), SECOND + HOUR);
    assert!(begun.elapsed() < HOUR / 60);
    assert_eq!(waits.stats().parked, 0);
}

/// Several futures in one, and a check between them: the clock jumps only when none can go on.
#[test]
fn g10_the_clock_jumps_only_when_nothing_else_can_happen() {
    let clock = ManualClock::new();
    let waits = waits(&clock);
    let messages = Arc::new(Mutex::new(Vec::new()));
    let read = messages.clone();
    let answered = waits.wait([1], HOUR, move || read.lock().unwrap().pop());
    let post = async {
        waits.wait([2], SECOND, || None::<()>).await.unwrap_err();
        assert_eq!(now(&clock), SECOND);
        messages.lock().unwrap().push("hello");
        // Made by the reaper, at the time that it is: and without another deadline to wake it for.
        waits.check_later(1);
    };
    let (answer, ()) = clock.block_on(async { futures::join!(answered, post) });
    assert_eq!((answer, now(&clock)), (Ok("hello"), SECOND));
}

/// Of whatever kind: a purgatory, timers, a tracker, and rechecks of a listener.
#[test]
fn g10_all_on_one_clock_expire_in_the_order_of_their_deadlines() {
    let clock = ManualClock::new();
    let ((one, first), (other, second)) = (timer(&clock), timer(&clock));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let (seen, clock) = (seen.clone(), clock.clone());
        move || seen.lock().unwrap().push((what, now(&clock).as_secs()))
    };
    let expired = note("session");
    let sessions = Tracker::<u32, ()>::builder("sessions").clock(clock.clone());
    let sessions = sessions.reaper(clock.reaper());
    let sessions = sessions.build(move |_, (), _| expired()).unwrap();
    sessions.track(1, (), 3 * SECOND).unwrap();
    for (timer, seconds) in [(&one, 5), (&other, 4), (&one, 1), (&other, 2)] {
        timer.start(seconds * SECOND, seconds).unwrap();
    }
    let waits = waits(&clock);
    let listener = waits.listen([1], None).recheck_every(6 * SECOND);
    let recheck = note("recheck");
    let evaluated = AtomicU32::new(0);
    let found = clock.block_on(listener.until(|| {
        let again = evaluated.fetch_add(1, Ordering::Relaxed) > 0;
        let recheck = &recheck;
        async move { again.then(recheck) }
    }));
    assert_eq!(found, Ok(()));
    let here = thread::current().id();
    let at = |seconds| (seconds, seconds * SECOND, here);
    assert!(first.try_iter().eq([at(1), at(5)]));
    assert!(second.try_iter().eq([at(2), at(4)]));
    let seen = seen.lock().unwrap();
    // A recheck may come earlier by a tenth.
    let in_order = matches!(seen[..], [("session", 3), ("recheck", 5 | 6)]);
    assert!(in_order, "{seen:?}");
}

#[test]
fn g10_advance_makes_what_callbacks_begin_meanwhile() {
    let clock = ManualClock::new();
    let (timer, fires) = periodic(&clock);
    clock.advance(10 * SECOND);
    assert_eq!((fires(), now(&clock)), (10, 10 * SECOND));
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(fires(), 10);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(fires(), 11);
    timer.shutdown();
}

#[test]
fn g10_until_idle_ends_with_the_last_deadline_or_at_the_limit() {
    let clock = ManualClock::new();
    assert!(clock.advance_until_idle(HOUR), "nothing is driven");
    let (timer, fires) = timer(&clock);
    timer.start(SECOND, ()).unwrap();
    timer.start(60 * SECOND, ()).unwrap();
    for (limit, is_idle, fired, seconds) in [
        (59 * SECOND, false, 1, 59),
        (SECOND, true, 1, 60),
        (HOUR, true, 0, 60),
    ] {
        assert_eq!(clock.advance_until_idle(limit), is_idle, "{limit:?}");
        let reached = (fires.try_iter().count(), now(&clock));
        assert_eq!(reached, (fired, seconds * SECOND), "{limit:?}");
    }
    let (timer, fires) = periodic(&clock);
    assert!(!clock.advance_until_idle(HOUR));
    assert_eq!((fires(), now(&clock)), (3_600, 60 * SECOND + HOUR));
    timer.shutdown();
    assert!(clock.advance_until_idle(Duration::ZERO));
}

/// A callback moves the clock: the call that it is inside of expires what is due then.
#[test]
fn g10_a_callback_that_advances_leaves_the_rest_to_the_call_around_it() {
    let clock = ManualClock::new();
    let (fired, fires) = channel();
    let moved = clock.clone();
    let timer = calling(&clock, move |number| {
        if number == 1 {
            moved.advance(HOUR);
        }
        fired.send((number, now(&moved))).unwrap();
    });
    timer.start(SECOND, 1).unwrap();
    timer.start(60 * SECOND, 2).unwrap();
    clock.advance(2 * SECOND);
    let late = SECOND + HOUR;
    assert!(fires.try_iter().eq([(1, late), (2, late)]));
    assert_eq!(now(&clock), 2 * SECOND + HOUR);
}

/// It would wait for itself.
#[test]
fn g12_a_callback_that_drives_panics() {
    let clock = ManualClock::new();
    let inner = clock.clone();
    let timer = calling(&clock, move |by_future| match by_future {
        true => inner.block_on(async {}),
        false => assert!(inner.advance_until_idle(SECOND)),
    });
    timer.start(SECOND, true).unwrap();
    timer.start(SECOND, false).unwrap();
    clock.advance(SECOND);
    assert_eq!(timer.stats().panicked, 2);
}

/// No deadline is left: another thread wakes the future, or parks something that has one.
#[test]
fn g10_without_a_deadline_it_sleeps_until_another_thread_acts() {
    let clock = ManualClock::new();
    let (waits, (timer, fires)) = (waits(&clock), timer(&clock));
    let found = Arc::new(Mutex::new(None));
    let read = found.clone();
    let wait = waits.wait([7], None, move || *read.lock().unwrap());
    let checks = waits.clone();
    let other = thread::spawn(move || {
        timer.start(SECOND, ()).unwrap();
        // The thread in `block_on` has made the jump.
        fires.recv_timeout(HOUR / 60).unwrap();
        *found.lock().unwrap() = Some("found");
        checks.check_and_complete(&7);
    });
    assert_eq!(clock.block_on(wait), Ok("found"));
    assert_eq!(now(&clock), SECOND);
    other.join().unwrap();
}

/// One of them drives, and hands over when it ends.
#[test]
fn g10_several_threads_block_by_one_clock() {
    let clock = ManualClock::new();
    let waits = waits(&clock);
    let expire = |number: u32| {
        for round in 1..=50 {
            let wait = waits.wait([number], number * round * SECOND, || None::<()>);
            assert_eq!(clock.block_on(wait), Err(WaitError::Expired));
        }
    };
    thread::scope(|scope| {
        for number in 1..=8 {
            scope.spawn(move || expire(number));
        }
    });
    assert_eq!(waits.stats().expired, 400);
}

/// Each thread's time counts, whichever of them drives.
#[test]
fn g10_what_several_threads_advance_adds_up() {
    let clock = ManualClock::new();
    let (timer, fires) = periodic(&clock);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| clock.advance(SECOND)));
        }
    });
    clock.advance(Duration::ZERO);
    assert_eq!(now(&clock), 400 * SECOND);
    // Where two advanced at once, the next second began later.
    assert!((1..=400).contains(&fires()));
    timer.shutdown();
}

/// What has a reaper of its own on the same clock goes on with that, and is no deadline for this thread.
#[test]
fn g10_what_the_clock_does_not_drive_is_woken_by_it() {
    let clock = ManualClock::new();
    let own = Waits::<u32>::builder("own").clock(clock.clone());
    let own = own.dispatch(Dispatch::Inline).build().unwrap();
    let far = own.wait([7], HOUR, || None::<()>);
    let waits = waits(&clock);
    let near = waits.wait([7], SECOND, || None::<()>);
    assert_eq!(clock.block_on(near), Err(WaitError::Expired));
    assert_eq!(now(&clock), SECOND);
    clock.advance(HOUR);
    assert_eq!(block_on(far), Err(WaitError::Expired));
}

/// A reaper thread asks while this thread makes a round.
#[test]
fn g10_what_another_reaper_asks_the_clock_is_no_deadline_of_this_one() {
    let clock = ManualClock::new();
    let asked = clock.clone();
    let timer = calling(&clock, move |()| {
        let clock = asked.clone();
        let asks = move || clock.time_until(Timestamp::from_origin(HOUR));
        assert_eq!(thread::spawn(asks).join().unwrap(), None);
    });
    timer.start(SECOND, ()).unwrap();
    assert!(clock.advance_until_idle(2 * HOUR));
    assert_eq!(now(&clock), SECOND);
    assert_eq!(timer.stats().panicked, 0, "the thread was told nothing");
}

/// The thread in `block_on` sleeps, and can only be woken by this one.
#[test]
fn g10_a_thread_that_moves_the_clock_drives_in_place_of_one_that_sleeps() {
    let advances: [fn(&ManualClock); 2] = [
        |clock| clock.advance(SECOND),
        |clock| assert!(clock.advance_until_idle(HOUR)),
    ];
    let clock = ManualClock::new();
    let (waits, (timer, fires)) = (waits(&clock), timer(&clock));
    for advance in advances {
        let found = Arc::new(AtomicUsize::new(0));
        let read = found.clone();
        let wait = waits.wait([7], None, move || {
            Some(read.load(Ordering::Acquire)).filter(|&it| it > 0)
        });
        let blocking = clock.clone();
        let other = thread::spawn(move || blocking.block_on(wait));
        for round in 1..=100 {
            timer.start(SECOND, round).unwrap();
            let begun = now(&clock);
            advance(&clock);
            // It is over when the call returns, whichever thread has made it.
            let (fired, at, _) = fires.try_recv().unwrap();
            assert_eq!(fired, round);
            assert!(at <= begun + SECOND && now(&clock) >= begun);
        }
        found.store(7, Ordering::Release);
        waits.check_and_complete(&7);
        assert_eq!(other.join().unwrap(), Ok(7));
    }
}
