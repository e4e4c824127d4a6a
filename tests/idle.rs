//! G28, counted: a target of its own with one test, because it counts the memory and the threads of the whole process.

use request_purgatory::future::Waits;
use request_purgatory::{Purgatory, Timer};
use request_purgatory_tracker::{Requests, Responded, Tracker};
use std::time::Duration;
use testing::allocated::{Counting, allocated};
use testing::eventually;
use testing::patient::Op;
use testing::process::Process;

#[global_allocator]
static COUNTING: Counting = Counting;

const LONG: Duration = Duration::from_secs(3_600);
const COUNT: usize = 1_000;
/// What the promise allows for each is six times this.
const BYTES: usize = 4 * 1_024;

fn threads() -> usize {
    Process::this().count_threads().expect("this is Linux")
}

/// Makes many, lets all of them do what needs no thread and one of them what does, and drops all.
fn a_thousand<T>(
    kind: &str,
    make: impl Fn() -> T,
    needs_none: impl Fn(&T),
    needs_reaper: impl Fn(&T),
) {
    // What the process keeps from the first one on: places for handles, numbers of threads.
    let before_any = threads();
    needs_reaper(&make());
    // The drop waits for its threads for a moment only, and a joined thread is listed for a moment longer.
    eventually("the end of its threads", || threads() == before_any);
    let mut all = Vec::with_capacity(COUNT);
    let before = allocated();
    all.extend((0..COUNT).map(|_| make()));
    let each = (allocated() - before) / COUNT;
    assert!(each <= BYTES, "{each} bytes for each {kind}");
    assert_eq!(threads(), before_any, "{kind}");
    all.iter().for_each(&needs_none);
    assert_eq!(threads(), before_any, "{kind}");
    for _ in 0..2 {
        needs_reaper(&all[COUNT / 2]);
        assert_eq!(threads(), before_any + 1, "{kind}");
    }
    drop(all);
    eventually("the end of all threads", || threads() == before_any);
}

#[test]
fn g28_a_thousand_idle_ones_have_no_thread_and_little_memory() {
    let park = |purgatory: &Purgatory<Op>, timeout| {
        let parked = purgatory.try_complete_else_watch(Op(timeout), [1]);
        assert!(parked.is_ok_and(|admission| admission.is_parked()));
    };
    a_thousand(
        "purgatory",
        || {
            let purgatory = Purgatory::<Op>::new("g28");
            // A look that finds nothing makes nothing.
            assert_eq!(purgatory.check_and_complete(&1), 0);
            let seen = (purgatory.watched_keys(), purgatory.snapshot().len());
            assert_eq!(seen, (0, 0));
            purgatory
        },
        |purgatory| {
            park(purgatory, Duration::MAX);
            assert_eq!(purgatory.check_and_complete(&1), 0);
            assert_eq!((purgatory.advance(), purgatory.next_deadline()), (0, None));
            assert_eq!(purgatory.cancel_for_key(&1).len(), 1);
        },
        |purgatory| park(purgatory, LONG),
    );
    a_thousand(
        "purgatory that is asked to check later",
        || Purgatory::<Op>::new("g28"),
        |purgatory| assert_eq!(purgatory.snapshot().len(), 0),
        |purgatory| purgatory.check_later(1),
    );
    a_thousand(
        "waits",
        || Waits::<u64>::new("g28"),
        |waits| drop(waits.wait([1], Duration::MAX, || None::<()>)),
        |waits| drop(waits.wait([1], LONG, || None::<()>)),
    );
    a_thousand(
        "timer",
        || Timer::new("g28", |_: u64| ()),
        |timer| {
            let id = timer.start(Duration::MAX, 1).expect("there is room");
            assert_eq!(timer.stop(id), Some(1));
        },
        |timer| _ = timer.start(LONG, 1).expect("there is room"),
    );
    a_thousand(
        "tracker",
        || {
            let tracker = Tracker::new("g28", |_: u64, _: u64, _| ());
            assert_eq!((tracker.complete(&1), tracker.get(&1)), (None, None));
            assert!(!tracker.reschedule(&1, LONG));
            tracker
        },
        |tracker| {
            assert!(tracker.track(1, 2, Duration::MAX).is_ok());
            assert_eq!(tracker.complete(&1), Some(2));
        },
        |tracker| _ = tracker.track(1, 2, LONG).expect("there is room"),
    );
    let request = |requests: &Requests<u64, u64>, timeout| {
        drop(requests.request(1, timeout).expect("there is room"));
    };
    a_thousand(
        "requests",
        || {
            let requests = Requests::<u64, u64>::new("g28");
            assert_eq!(requests.respond(&1, 2), Responded::Unknown(2));
            requests
        },
        |requests| request(requests, Duration::MAX),
        |requests| request(requests, LONG),
    );
}
