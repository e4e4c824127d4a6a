//! G10, G12: a manual clock that drives what stands on it. No test in here sleeps, and none has a thread of its own.

use request_purgatory::future::{WaitError, block_on};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, ManualClock, Timestamp, WakeFn};
use request_purgatory::{Timer, Waits};
use request_purgatory_tracker::Tracker;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;
use testing::{Tally, within};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// For what hangs if it fails.
const PATIENCE: Duration = Duration::from_secs(20);

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
    reading(clock.clone(), clock, callback)
}

/// A timer that `clock` drives, and that reads the time from another clock.
fn reading<T: Send + 'static>(
    reads: impl Clock,
    clock: &ManualClock,
    callback: impl Fn(T) + Send + Sync + 'static,
) -> Timer<T> {
    let builder = Timer::<T>::builder("timer").clock(reads);
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
fn periodic(clock: &ManualClock) -> (Timer<()>, Arc<Tally>) {
    let fires = Tally::new();
    let count = fires.clone();
    let timer = restarting(clock, SECOND, move || count.add());
    (timer, fires)
}

/// A timer that is started again by its own callback, after the same time, until it is shut down.
fn restarting(
    clock: &ManualClock,
    after: Duration,
    callback: impl Fn() + Send + Sync + 'static,
) -> Timer<()> {
    let itself = Arc::new(OnceLock::<Timer<()>>::new());
    let again = itself.clone();
    let timer = calling(clock, move |()| {
        callback();
        if let Some(timer) = again.get() {
            // After its shutdown there is no next time.
            let _ = timer.start(after, ());
        }
    });
    assert!(itself.set(timer.clone()).is_ok());
    timer.start(after, ()).unwrap();
    timer
}

/// A timer that is driven by whoever is woken by `wake`.
fn woken_by(clock: &ManualClock, wake: WakeFn) -> Timer<()> {
    let builder = Timer::<()>::builder("woken").clock(clock.clone());
    builder.reaper(Reaper::Reactor(wake)).build(drop).unwrap()
}

/// Runs code of its user when it is asked how long a thread may sleep: inside a round of the reaper, and outside every
/// callback.
struct Asked<F>(ManualClock, F);

impl<F: Fn() + Send + Sync + 'static> Clock for Asked<F> {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        (self.1)();
        self.0.time_until(deadline)
    }

    fn subscribe(&self, wake: WakeFn) {
        self.0.subscribe(wake);
    }
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
    let (recheck, mut evaluated) = (note("recheck"), false);
    let found = clock.block_on(listener.until(|| {
        let again = std::mem::replace(&mut evaluated, true);
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
    assert_eq!((fires.count(), now(&clock)), (10, 10 * SECOND));
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(fires.count(), 10);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(fires.count(), 11);
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
    assert_eq!((fires.count(), now(&clock)), (3_600, 60 * SECOND + HOUR));
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
    assert!((1..=400).contains(&fires.count()));
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

/// By any call, inside any call.
#[test]
fn g10_a_wake_function_moves_the_clock_that_has_called_it() {
    type Move = fn(&ManualClock, &Waits<u32>, Duration);
    const MOVES: [Move; 3] = [
        |clock, _, by| clock.advance(by),
        |clock, waits, by| {
            let wait = waits.wait([7], by, || None::<()>);
            assert_eq!(clock.block_on(wait), Err(WaitError::Expired));
        },
        |clock, _, by| {
            let (timer, fires) = timer(clock);
            timer.start(by, ()).unwrap();
            assert!(clock.advance_until_idle(by));
            assert_eq!(fires.try_iter().count(), 1);
        },
    ];
    for outer in MOVES {
        for inner in MOVES {
            within(PATIENCE, move || {
                let clock = ManualClock::new();
                let waits = waits(&clock);
                let armed = Arc::new(AtomicBool::new(false));
                let (fire, moved, its_waits) = (armed.clone(), clock.clone(), waits.clone());
                let wake = move || {
                    if fire.swap(false, Ordering::Relaxed) {
                        inner(&moved, &its_waits, SECOND);
                    }
                    true
                };
                let _woken = woken_by(&clock, WakeFn::new(wake));
                armed.store(true, Ordering::Relaxed);
                outer(&clock, &waits, 5 * SECOND);
                // The first step of `block_on` may be a shorter one.
                assert!((5 * SECOND..=6 * SECOND).contains(&now(&clock)));
                assert!(!armed.load(Ordering::Relaxed));
            });
        }
    }
}

fn assert_passes_on(clock: &ManualClock, panic: &'static str) {
    let moved = catch_unwind(AssertUnwindSafe(|| clock.advance(SECOND)));
    let passed_on = moved.expect_err("it is passed on");
    assert_eq!(passed_on.downcast_ref(), Some(&panic));
}

/// A build calls wake functions of others, to find those that are stale. A call that moves the clock passes the panic
/// on.
#[test]
fn g12_the_reactor_that_panics_fails_no_build_of_another() {
    let clock = ManualClock::new();
    let panics = Tally::new();
    let count = panics.clone();
    let bad = WakeFn::new(move || {
        count.add();
        resume_unwind(Box::new("a reactor"))
    });
    let _bad = woken_by(&clock, bad);
    let woken = Tally::new();
    let _good = Vec::from_iter((0..100).map(|_| woken_by(&clock, woken.wake_fn())));
    assert!(panics.count() > 0, "no build has called it");
    let before = woken.count();
    assert_passes_on(&clock, "a reactor");
    assert_eq!((now(&clock), woken.count() - before), (SECOND, 100));
}

/// Two of these at a time: a second panic while the thread unwinds from the first one would abort the process.
#[test]
fn g12_destructors_of_stale_wake_functions_fail_no_build_of_another() {
    let clock = ManualClock::new();
    let dropped = Tally::new();
    let stale = || {
        let bad = scopeguard::guard(dropped.clone(), |dropped| {
            dropped.add();
            resume_unwind(Box::new("a destructor"));
        });
        let wake = WakeFn::new(move || bad.count() < u64::MAX);
        drop(woken_by(&clock, wake));
    };
    (0..2).for_each(|_| stale());
    let woken = Tally::new();
    let _good = Vec::from_iter((0..100).map(|_| woken_by(&clock, woken.wake_fn())));
    assert_eq!(dropped.count(), 2);
    (0..2).for_each(|_| stale());
    let before = woken.count();
    assert_passes_on(&clock, "a destructor");
    assert_eq!(dropped.count(), 4);
    // The clock has forgotten them, and no other.
    clock.advance(SECOND);
    assert_eq!(woken.count() - before, 200);
}

/// Time does not pass in it, so the callback could go on for ever.
#[test]
fn g10_a_woken_future_goes_on_while_a_timer_restarts_itself_at_once() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let waits = waits(&clock);
        let fires = Tally::new();
        let (count, checks) = (fires.clone(), waits.clone());
        let timer = restarting(&clock, Duration::ZERO, move || {
            count.add();
            checks.check_and_complete(&7);
        });
        let third = move || (fires.count() >= 3).then_some("the third");
        let wait = waits.wait([7], HOUR, third);
        assert_eq!(clock.block_on(wait), Ok("the third"));
        assert_eq!(now(&clock), Duration::ZERO);
        timer.shutdown();
    });
}

/// Finitely many at one time are all made: also those that are begun after the future was woken.
#[test]
fn g10_what_is_begun_at_once_is_made_before_the_future_goes_on() {
    let clock = ManualClock::new();
    let waits = waits(&clock);
    let wait = waits.wait([7], SECOND, || None::<()>);
    let itself = Arc::new(OnceLock::<Timer<u32>>::new());
    let again = itself.clone();
    let timer = calling(&clock, move |left: u32| {
        if let (Some(left), Some(timer)) = (left.checked_sub(1), again.get()) {
            timer.start(Duration::ZERO, left).unwrap();
        }
    });
    assert!(itself.set(timer.clone()).is_ok());
    timer.start(SECOND, 99).unwrap();
    assert_eq!(clock.block_on(wait), Err(WaitError::Expired));
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.completions_pending), (100, 0));
    timer.shutdown();
}

/// It panics in the round after each expiry, before the round has told the next deadline.
#[test]
fn g10_deadlines_are_known_and_in_order_after_a_panic_of_a_round() {
    let moves: [fn(&ManualClock); 2] = [
        |clock| clock.advance(10 * SECOND),
        |clock| assert!(clock.advance_until_idle(10 * SECOND)),
    ];
    for moves in moves {
        let clock = ManualClock::new();
        let armed = Arc::new(AtomicBool::new(true));
        let fire = armed.clone();
        let asked = Asked(clock.clone(), move || {
            if fire.swap(false, Ordering::Relaxed) {
                resume_unwind(Box::new("a clock"));
            }
        });
        let (fired, fires) = channel();
        let (reads, notes) = (clock.clone(), fired.clone());
        let timer = reading(asked, &clock, move |number: u32| {
            armed.store(true, Ordering::Relaxed);
            fired.send((number, now(&reads))).unwrap();
        });
        // Its deadline is known in each round.
        let reads = clock.clone();
        let other = calling(&clock, move |number| {
            notes.send((number, now(&reads))).unwrap();
        });
        other.start(10 * SECOND, 10).unwrap();
        for number in 1..=3 {
            timer.start(number * SECOND, number).unwrap();
        }
        moves(&clock);
        let at = |number| (number, number * SECOND);
        assert_eq!(Vec::from_iter(fires.try_iter()), [1, 2, 3, 10].map(at));
        assert_eq!(now(&clock), 10 * SECOND);
    }
}

#[test]
fn g12_a_round_that_panics_each_time_ends_and_is_not_idle() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let asked = Asked(clock.clone(), || resume_unwind(Box::new("a clock")));
        let fires = Tally::new();
        let count = fires.clone();
        let timer = reading(asked, &clock, move |()| count.add());
        timer.start(SECOND, ()).unwrap();
        timer.start(2 * SECOND, ()).unwrap();
        assert!(!clock.advance_until_idle(HOUR), "it has deadlines");
        for fired in [1, 2] {
            clock.advance(SECOND);
            assert_eq!(fires.count(), fired);
        }
        // Without a deadline it is asked nothing.
        assert!(clock.advance_until_idle(HOUR));
        assert_eq!(now(&clock), 2 * SECOND);
    });
}

/// It would wait for itself: a callback, or a clock that is asked how long a thread may sleep.
#[test]
fn g12_user_code_in_a_round_that_drives_panics() {
    within(PATIENCE, || {
        let (clock, refused) = (ManualClock::new(), Tally::new());
        let (inner, count) = (clock.clone(), refused.clone());
        let drives = move || {
            inner.advance(Duration::ZERO);
            let until_idle = || _ = inner.advance_until_idle(SECOND);
            assert!(catch_unwind(AssertUnwindSafe(until_idle)).is_err());
            let by_future = || inner.block_on(async {});
            assert!(catch_unwind(AssertUnwindSafe(by_future)).is_err());
            count.add();
        };
        let asked = Asked(clock.clone(), drives.clone());
        let timer = reading(asked, &clock, move |()| drives());
        timer.start(SECOND, ()).unwrap();
        assert!(clock.advance_until_idle(HOUR));
        assert_eq!(now(&clock), SECOND);
        assert_eq!(timer.stats().panicked, 0, "the callback was not refused");
        assert!(refused.count() > 1, "the clock was not asked or refused");
    });
}

/// A key that begins a wait of a second when it is dropped, if it is 0 and `WHERE` is set.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Waiting(u64);

/// Where the next key 0 that is dropped waits, and the count of these waits that have ended.
type Place = RefCell<Option<(Waits<Waiting>, Arc<Tally>)>>;

thread_local!(static WHERE: Place = const { Place::new(None) });

impl Drop for Waiting {
    fn drop(&mut self) {
        let place = (self.0 == 0).then(|| WHERE.take()).flatten();
        let Some((waits, ended)) = place else {
            return;
        };
        let count = move |_| ended.add();
        waits.wait_then([Waiting(1)], SECOND, || None::<()>, count);
    }
}

/// Many waits expire at once, and the key of one of them begins another wait when it is dropped, after its batch has
/// left the queue. The clock goes on to the deadline of that wait too.
#[test]
fn g10_a_wait_that_begins_when_the_last_batch_is_reclaimed_expires() {
    for waits_at_once in [1, 63, 64, 65] {
        let clock = ManualClock::new();
        let builder = Waits::<Waiting>::builder("waits").clock(clock.clone());
        let waits = builder.reaper(clock.reaper()).build().unwrap();
        let ended = Tally::new();
        for _ in 1..waits_at_once {
            waits.wait_then([Waiting(1)], SECOND, || None::<()>, |_| ());
        }
        waits.wait_then([Waiting(0)], SECOND, || None::<()>, |_| ());
        WHERE.set(Some((waits.clone(), ended.clone())));
        assert!(clock.advance_until_idle(HOUR));
        let left = (waits.stats().parked, ended.count());
        assert_eq!(left, (0, 1), "{waits_at_once}");
    }
}
