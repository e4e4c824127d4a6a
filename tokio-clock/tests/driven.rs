//! All that has deadlines, on tokio's clock: paused, and real.

use request_purgatory::future::WaitError;
use request_purgatory::purgatory::BuildError;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, Timestamp};
use request_purgatory::{Timer, Waits};
use request_purgatory_tokio::{Drive, TokioClock, spawn};
use request_purgatory_tracker::{Requests, Responded, Tracker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// A tick of the library, and one of tokio's timer.
const TICKS: Duration = Duration::from_millis(2);

fn waits(clock: TokioClock, reaper: Reaper) -> Result<Waits<u32>, BuildError> {
    let builder = Waits::<u32>::builder("waits").clock(clock);
    builder.reaper(reaper).build()
}

/// What a future resolves to, within a day. The clock is paused: a day takes no time, where nothing else happens.
async fn end<F: Future>(future: F) -> F::Output {
    let day = 24 * 3_600 * SECOND;
    timeout(day, future).await.expect("it ends")
}

#[track_caller]
fn passed(since: Instant, expected: Duration) {
    let passed = since.elapsed();
    assert!(
        expected <= passed && passed <= expected + TICKS,
        "{passed:?} passed, not {expected:?}"
    );
}

/// Ends when the task that drove has ended. The clock is paused: it moves while this sleeps, and no time passes.
async fn no_task_is_left() {
    for _ in 0..100 {
        if Handle::current().metrics().num_alive_tasks() == 0 {
            return;
        }
        sleep(SECOND).await;
    }
    panic!("the driver still runs");
}

#[tokio::test(start_paused = true)]
async fn a_wait_expires_at_its_deadline() {
    let waits = spawn(waits).unwrap();
    let (start, hour) = (Instant::now(), 3_600 * SECOND);
    let answer = end(waits.wait([7], hour, || None::<()>)).await;
    assert_eq!(answer, Err(WaitError::Expired));
    passed(start, hour);
}

/// The driver sleeps until a later deadline, or without one.
#[tokio::test(start_paused = true)]
async fn an_earlier_deadline_wakes_the_driver() {
    let waits = spawn(waits).unwrap();
    sleep(SECOND).await;
    let start = Instant::now();
    let late = waits.wait([7], 60 * SECOND, || None::<()>);
    sleep(SECOND).await;
    let soon = end(waits.wait([7], SECOND, || None::<()>)).await;
    assert_eq!(soon, Err(WaitError::Expired));
    passed(start, 2 * SECOND);
    assert_eq!(end(late).await, Err(WaitError::Expired));
    passed(start, 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_driver_makes_deferred_checks() {
    let waits = spawn(waits).unwrap();
    let ready = Arc::new(AtomicBool::new(false));
    let read = ready.clone();
    let start = Instant::now();
    let wait = waits.wait([7], None, move || {
        read.load(Ordering::Acquire).then_some("found")
    });
    sleep(SECOND).await;
    ready.store(true, Ordering::Release);
    waits.check_later(7);
    assert_eq!(end(wait).await, Ok("found"));
    passed(start, SECOND);
}

/// Timers, values and requests, each with a driver of its own on one clock.
#[tokio::test(start_paused = true)]
async fn every_type_that_has_deadlines_is_driven() {
    let (expired, mut expiries) = mpsc::unbounded_channel();
    let ends = |name: &'static str| {
        let expired = expired.clone();
        move || expired.send((name, Instant::now())).unwrap()
    };
    let fire = ends("timer");
    let timer = spawn(|clock, reaper| {
        let builder = Timer::<()>::builder("timer").clock(clock);
        builder.reaper(reaper).build(move |()| fire())
    });
    let expire = ends("value");
    let tracker = spawn(|clock, reaper| {
        let builder = Tracker::<u32, ()>::builder("tracker").clock(clock);
        let builder = builder.reaper(reaper);
        builder.build(move |_, (), _| expire())
    });
    let calls = spawn(|clock, reaper| {
        let builder = Requests::<u32, &str>::builder("calls").clock(clock);
        builder.reaper(reaper).build()
    });
    let (timer, tracker, calls) = (timer.unwrap(), tracker.unwrap(), calls.unwrap());
    let start = Instant::now();
    timer.start(2 * SECOND, ()).unwrap();
    tracker.track(7, (), SECOND).unwrap();
    let answered = calls.request(1, 3 * SECOND).unwrap();
    let unanswered = calls.request(2, 3 * SECOND).unwrap();
    assert_eq!(calls.respond(&1, "response"), Responded::Delivered);
    assert_eq!(end(answered).await, Ok("response"));
    assert_eq!(end(unanswered).await, Err(WaitError::Expired));
    passed(start, 3 * SECOND);
    for (name, after) in [("value", SECOND), ("timer", 2 * SECOND)] {
        let (ended, at) = end(expiries.recv()).await.unwrap();
        assert_eq!(ended, name);
        assert!(at - start >= after && at - start <= after + TICKS);
    }
}

#[tokio::test(start_paused = true)]
async fn the_driver_ends_after_a_shutdown() {
    let waits = spawn(waits).unwrap();
    let wait = waits.wait([7], None, || None::<()>);
    sleep(SECOND).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
    waits.shutdown();
    assert_eq!(end(wait).await, Err(WaitError::ShutDown));
    no_task_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn the_driver_keeps_nothing_alive() {
    let waits = spawn(waits).unwrap();
    let wait = waits.wait([7], 3_600 * SECOND, || None::<()>);
    sleep(SECOND).await;
    let start = Instant::now();
    drop(waits);
    assert_eq!(end(wait).await, Err(WaitError::ShutDown));
    passed(start, Duration::ZERO);
    no_task_is_left().await;
}

/// And what cannot be built leaves no task.
#[tokio::test(start_paused = true)]
async fn an_error_of_the_builder_is_returned() {
    let built = spawn(|clock, reaper| {
        let builder = Waits::<u32>::builder("waits").clock(clock);
        builder.reaper(reaper).tick(Duration::ZERO).build()
    });
    assert!(matches!(built, Err(BuildError::Tick)));
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

/// Nothing would ever expire there.
#[test]
#[should_panic = "timers are disabled"]
fn a_runtime_without_time_is_refused() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.build().expect("a runtime can start");
    let _ = runtime.block_on(async { spawn(waits) });
}

/// A type around one of the library's.
struct Rooms(Waits<u32>);

impl Drive for Rooms {
    fn driver(&self) -> impl Fn() -> Option<Option<Timestamp>> + Send + 'static {
        self.0.driver()
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_around_one_of_them_is_driven() {
    let rooms = spawn(|clock, reaper| waits(clock, reaper).map(Rooms)).unwrap();
    let answer = end(rooms.0.wait([7], SECOND, || None::<()>)).await;
    assert_eq!(answer, Err(WaitError::Expired));
}

/// From many tasks of a runtime with several threads, on the real clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_the_real_clock_nothing_ends_early() {
    let waits = spawn(waits).unwrap();
    let tasks = (1..=100).map(|number| {
        let waits = waits.clone();
        tokio::spawn(async move {
            let timeout = Duration::from_millis(u64::from(number % 10));
            let start = Instant::now();
            let answer = waits.wait([number], timeout, || None::<()>).await;
            assert_eq!(answer, Err(WaitError::Expired));
            assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(waits.stats().expired, 100);
}

#[tokio::test(start_paused = true)]
async fn the_clock_reads_and_finds_instants() {
    let clock = TokioClock::default();
    assert_eq!(clock.now(), Timestamp::default());
    sleep(SECOND).await;
    let now = clock.now();
    assert_eq!(clock.instant(now), Some(Instant::now()));
}
