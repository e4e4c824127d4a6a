//! G29: a deadline is a moment of the clock. After this moment the value has expired for every call, whether the call or
//! the thread that drives the timer finds that first; and its callback runs once. G18: with the token of that value.

#[path = "../../docs/stall_clock.rs"]
#[allow(unreachable_pub, reason = "it is a page of the guide")]
mod stall_clock;

use crate::support::expiries::{Jobs, Runs};
use crate::support::{PATIENCE, eventually, lock, within};
use crate::{manual_requests, manual_tracker};
use request_purgatory::future::block_on;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{WaitError, threads::Reaper};
use request_purgatory_tracker::Responded::{Delivered, Late, Unknown};
use request_purgatory_tracker::{FencingToken, RejectReason, Requests, Tracker};
use rustix::process::{Pid, Signal, kill_process};
use stall_clock::StallClock;
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

/// Keys, values and tokens of what has expired.
type Log = Arc<Mutex<Vec<(u32, u32, FencingToken)>>>;

/// A tracker whose timer no thread drives.
fn manual(tick: Duration) -> (Tracker<u32, u32>, ManualClock, Log) {
    let expired = Log::default();
    let log = expired.clone();
    let note = move |key, value, token| lock(&log).push((key, value, token));
    let (tracker, clock) = manual_tracker(|builder| builder.tick(tick), note);
    (tracker, clock, expired)
}

/// Each call, by what it finds of the value 1 of key 1 with this token.
type Call = fn(&Tracker<u32, u32>, FencingToken) -> bool;

const CALLS: [(&str, Call); 12] = [
    ("get", |tracker, _| tracker.get(&1) == Some(1)),
    ("contains", |tracker, _| tracker.contains(&1)),
    ("token", |tracker, token| tracker.token(&1) == Some(token)),
    ("remaining", |tracker, _| tracker.remaining(&1).is_some()),
    ("keys", |tracker, _| tracker.keys() == [1]),
    ("reschedule", |tracker, _| tracker.reschedule(&1, TICK)),
    ("reschedule_if", |tracker, token| {
        tracker.reschedule_if(&1, token, TICK)
    }),
    ("replace_if", |tracker, token| {
        match tracker.replace_if(&1, token, 1, TICK) {
            Ok((_, old)) => old == 1,
            Err(refused) => {
                assert_eq!(refused.into_parts(), (RejectReason::StaleToken, 1));
                false
            }
        }
    }),
    ("complete", |tracker, _| tracker.complete(&1) == Some(1)),
    ("complete_if", |tracker, token| {
        tracker.complete_if(&1, token) == Some(1)
    }),
    ("withdraw_where", |tracker, _| {
        let mut asked = 0;
        let withdrawn = tracker.withdraw_where(|_, _| {
            asked += 1;
            true
        });
        assert_eq!(withdrawn.len(), asked);
        withdrawn == [(1, 1)]
    }),
    ("try_track", |tracker, _| {
        match tracker.try_track(1, 2, Duration::MAX) {
            Ok(_) => false,
            Err(refused) => refused.reason() == RejectReason::Duplicate,
        }
    }),
];

#[test]
fn g29_past_its_deadline_a_value_has_expired_for_every_call() {
    for (name, call) in CALLS {
        for reaper_first in [false, true] {
            let (tracker, clock, expired) = manual(TICK);
            let token = tracker.try_track(1, 1, TICK).expect("room");
            clock.advance(TICK - Duration::from_nanos(1));
            let (other, _, _) = manual(TICK);
            let of_other = other.try_track(1, 1, TICK).expect("room");
            assert!(call(&other, of_other), "{name} finds a value that is kept");
            clock.advance(Duration::from_nanos(1));
            let mut advanced = 0;
            if reaper_first {
                advanced = tracker.advance();
            }
            assert!(!call(&tracker, token), "{name}");
            assert!(!call(&tracker, token) || name == "try_track", "{name}");
            advanced += tracker.advance();
            assert_eq!((advanced, tracker.advance()), (1, 0), "{name}");
            assert_eq!(*lock(&expired), [(1, 1, token)], "{name}");
            let kept = (name == "try_track").then_some(2);
            assert_eq!(tracker.get(&1), kept, "{name}");
        }
    }
}

/// Up to the last moment it is kept. The callback comes at the next tick, which may be later.
#[test]
fn g29_the_deadline_is_the_moment_that_was_asked_for_and_no_tick() {
    let (tracker, clock, expired) = manual(TICK * 10);
    clock.advance(TICK);
    let token = tracker.try_track(1, 1, TICK * 3).expect("room");
    clock.advance(TICK * 3 - Duration::from_nanos(1));
    for (name, call) in CALLS.into_iter().take(5) {
        assert!(call(&tracker, token), "{name}");
    }
    assert_eq!(tracker.remaining(&1), Some(Duration::from_nanos(1)));
    clock.advance(Duration::from_nanos(1));
    assert!(!tracker.contains(&1) && !tracker.reschedule_if(&1, token, TICK));
    assert_eq!(tracker.advance(), 0);
    clock.advance(TICK * 6);
    assert_eq!(tracker.advance(), 1);
    assert_eq!(*lock(&expired), [(1, 1, token)]);
}

/// Each has its callback, with its own token, though the reaper comes only at the end and the key has another value by
/// then. None is in the others' way.
#[test]
fn g29_values_follow_one_another_before_the_reaper_comes() {
    let (tracker, clock, expired) = manual(TICK);
    let mut given = Vec::new();
    for value in 0..100 {
        let token = match value % 3 {
            0 => tracker.try_track(1, value, TICK).expect("the key is free"),
            1 => {
                let (token, replaced) = tracker.track(1, value, TICK).expect("room");
                assert_eq!(replaced, None, "it has expired");
                token
            }
            _ => {
                let first = tracker.try_track(1, 0, TICK).expect("the key is free");
                let replaced = tracker.replace_if(&1, first, value, TICK);
                replaced.expect("it is kept").0
            }
        };
        given.push((1, value, token));
        assert_eq!((tracker.get(&1), tracker.keys().len()), (Some(value), 1));
        assert_eq!(tracker.token(&1), Some(token));
        clock.advance(TICK);
    }
    assert_eq!((tracker.keys().len(), tracker.len()), (0, 100));
    assert_eq!(tracker.advance(), 100);
    lock(&expired).sort_unstable();
    assert_eq!(*lock(&expired), given);
    assert_eq!(tracker.stats().expired, 100);
}

/// What the shutdown ends has no callback any more. So it comes back, whatever the clock says.
#[test]
fn g29_a_shutdown_returns_what_has_expired_unseen() {
    let (tracker, clock, expired) = manual(TICK);
    tracker.try_track(1, 1, TICK).expect("room");
    clock.advance(TICK);
    tracker.try_track(1, 2, TICK).expect("the key is free");
    let mut remains = tracker.shutdown();
    remains.sort_unstable();
    assert_eq!(remains, [(1, 1), (1, 2)]);
    assert!(lock(&expired).is_empty());
}

/// The reaper, the response or the next request finds the deadline passed first. It remembers the request, once, as one
/// that has ended without a response.
#[test]
fn g29_past_its_deadline_a_response_is_late_whoever_comes_first() {
    for first in ["the reaper", "the response", "the next request"] {
        let (calls, clock) = manual_requests::<u32, u32>(|builder| builder);
        let [expired, answered] = [1, 2].map(|id| calls.request(id, TICK).expect("room"));
        clock.advance(TICK - Duration::from_nanos(1));
        assert_eq!(calls.respond(&2, 7), Delivered);
        clock.advance(Duration::from_nanos(1));
        if first == "the reaper" {
            assert_eq!(calls.advance(), 1);
        }
        assert!(!calls.reschedule(&1, TICK), "{first}");
        assert_eq!(calls.fail_all_with(|_| 9), 0, "{first}");
        let respond_late = || {
            let responded = [7, 7].map(|response| calls.respond(&1, response));
            assert_eq!(responded, [Late(7), Unknown(7)], "{first}");
        };
        if first != "the next request" {
            respond_late();
        }
        let again = calls.request(1, TICK).expect("the id is free");
        assert_eq!(calls.respond(&1, 8), Delivered, "{first}");
        if first == "the next request" {
            respond_late();
        }
        let is_left = first != "the reaper";
        assert_eq!(calls.advance(), usize::from(is_left), "{first}");
        assert_eq!(calls.respond(&1, 7), Unknown(7), "{first}");
        assert_eq!(block_on(expired), Err(WaitError::Expired), "{first}");
        assert_eq!((block_on(again), block_on(answered)), (Ok(8), Ok(7)));
        assert_eq!((calls.late(), calls.unknown()), (1, 2), "{first}");
    }
}

/// What was picked before its deadline, and is past it when it would end, ends by the deadline.
#[test]
fn g29_what_expires_while_others_are_picked_has_its_callback() {
    let (tracker, clock, expired) = manual(TICK);
    let token = tracker.try_track(1, 1, TICK).expect("room");
    tracker.try_track(2, 2, TICK * 9).expect("room");
    let withdrawn = tracker.withdraw_where(|key, _| {
        clock.advance(TICK / 2 + TICK);
        *key < 3
    });
    assert_eq!(withdrawn, [(2, 2)]);
    assert_eq!(
        (tracker.advance(), lock(&expired).pop()),
        (1, Some((1, 1, token)))
    );
    let (calls, clock) = manual_requests::<u32, u32>(|builder| builder);
    let pending = calls.request(1, TICK).expect("room");
    let response = |_: &u32| {
        clock.advance(TICK);
        7
    };
    assert_eq!((calls.fail_all_with(response), calls.advance()), (0, 1));
    assert_eq!(block_on(pending), Err(WaitError::Expired));
}

thread_local! {
    /// What each call of this thread reads, as if it had been held up since.
    static EARLIER: Cell<Option<Timestamp>> = const { Cell::new(None) };
}

/// A clock of which calls may have an earlier reading.
#[derive(Clone, Default)]
struct Held(ManualClock);

impl Clock for Held {
    fn now(&self) -> Timestamp {
        EARLIER.get().unwrap_or_else(|| self.0.now())
    }
}

/// The first call finds it by the clock; or by the timer, which has fired while the callback waits. Every other call
/// has read the clock before the deadline.
#[test]
fn g29_what_one_call_finds_expired_no_call_brings_back() {
    let finds: [(&str, bool, Call); 7] = [
        ("contains", false, CALLS[1].1),
        ("complete", true, CALLS[8].1),
        ("complete_if", true, CALLS[9].1),
        ("reschedule", true, CALLS[5].1),
        ("reschedule_if", true, CALLS[6].1),
        ("replace_if", true, CALLS[7].1),
        ("withdraw_where", true, |tracker, _| {
            !tracker.withdraw_where(|_, _| true).is_empty()
        }),
    ];
    for (first, by_timer, finds) in finds {
        for (name, call) in CALLS {
            let (clock, jobs) = (Held::default(), Jobs::new(Runs::Later));
            let expired = Log::default();
            let log = expired.clone();
            let tracker = Tracker::builder("g29")
                .clock(clock.clone())
                .reaper(Reaper::Manual)
                .dispatch(jobs.dispatch())
                .build(move |key, value, token| lock(&log).push((key, value, token)))
                .expect("no threads to refuse");
            let token = tracker.try_track(1, 1, TICK).expect("room");
            let before = clock.now();
            clock.0.advance(TICK);
            if by_timer {
                assert_eq!(tracker.advance(), 1);
                EARLIER.set(Some(before));
            }
            assert!(!finds(&tracker, token), "{first}");
            EARLIER.set(Some(before));
            assert!(!call(&tracker, token), "{name} after {first}");
            EARLIER.set(None);
            assert_eq!(tracker.advance(), usize::from(!by_timer));
            jobs.run_all();
            assert_eq!(*lock(&expired), [(1, 1, token)], "{name} after {first}");
        }
    }
}

/// A tick of a nanosecond has its last 64-bit tick after 584 years. A deadline after that never comes, for the callback
/// and for every call; an earlier one comes.
#[test]
fn g09_a_deadline_after_the_last_tick_never_comes() {
    const YEAR: Duration = Duration::from_secs(31_557_600);
    for (years, has_end) in [(290, true), (300, true), (580, true), (590, false)] {
        let sets: [Call; 3] = [
            |tracker, _| tracker.contains(&1),
            |tracker, _| tracker.reschedule(&1, YEAR * tracker.get(&2).expect("it is kept")),
            |tracker, token| {
                let years = tracker.get(&2).expect("it is kept");
                tracker.replace_if(&1, token, 1, YEAR * years).is_ok()
            },
        ];
        for set in sets {
            let (tracker, clock, expired) = manual(Duration::from_nanos(1));
            tracker.try_track(2, years, Duration::MAX).expect("room");
            let token = tracker.try_track(1, 1, YEAR * years).expect("room");
            assert!(set(&tracker, token));
            assert_eq!(tracker.remaining(&1).is_some(), has_end, "{years}");
            clock.advance(YEAR * years - TICK);
            assert_eq!((tracker.get(&1), tracker.advance()), (Some(1), 0));
            clock.advance(TICK * 2);
            let kept = (!has_end).then_some(1);
            assert_eq!(tracker.get(&1), kept, "{years}");
            assert_eq!(tracker.advance(), usize::from(has_end), "{years}");
            assert_eq!((tracker.get(&1), tracker.get(&2)), (kept, Some(years)));
            assert_eq!(lock(&expired).len(), usize::from(has_end), "{years}");
        }
    }
}

/// Leases that end, calls that are made at once at their ends, and how many of these had an effect that they must not
/// have: the clock was read after the end, before the call.
struct Ends {
    tracker: Tracker<usize, usize>,
    requests: Requests<usize, usize>,
    wrong: AtomicUsize,
    /// Of those calls, how many there were.
    late: AtomicUsize,
    expired: Arc<AtomicUsize>,
}

impl Ends {
    fn new() -> Self {
        let expired = Arc::new(AtomicUsize::new(0));
        let count = expired.clone();
        Self {
            tracker: Tracker::new("g29", move |_, _, _| {
                _ = count.fetch_add(1, Ordering::SeqCst)
            }),
            requests: Requests::new("g29"),
            wrong: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            expired,
        }
    }

    /// Lets one lease and one request end, and makes a call then.
    fn try_one(&self, number: usize, term: Duration) {
        let token = self.tracker.try_track(number, number, term).expect("room");
        let request = self.requests.request(number, term).expect("room");
        let end = Instant::now() + term;
        thread::sleep(end.saturating_duration_since(Instant::now()));
        while Instant::now() < end {
            thread::yield_now();
        }
        self.late.fetch_add(1, Ordering::SeqCst);
        let is_wrong = match number % 7 {
            0 => self.tracker.reschedule(&number, term * 100),
            1 => self.tracker.reschedule_if(&number, token, term * 100),
            2 => self.tracker.get(&number).is_some(),
            3 => self.tracker.complete(&number).is_some(),
            4 => self.tracker.complete_if(&number, token).is_some(),
            5 => self.tracker.replace_if(&number, token, 0, term).is_ok(),
            _ => match self.tracker.try_track(number, 0, Duration::MAX) {
                Ok(_) => self.tracker.complete(&number).is_none(),
                Err(_) => true,
            },
        };
        let is_delivered = self.requests.respond(&number, 0) == Delivered;
        let wrong = usize::from(is_wrong) + usize::from(is_delivered);
        self.wrong.fetch_add(wrong, Ordering::SeqCst);
        drop(request);
    }

    /// None was wrong, and each of so many callbacks has run, once.
    fn check(&self, leases: usize) {
        let (wrong, late) = (&self.wrong, self.late.load(Ordering::SeqCst));
        assert_eq!((wrong.load(Ordering::SeqCst), late), (0, leases));
        let expired = || self.expired.load(Ordering::SeqCst);
        eventually("each callback", || expired() >= leases);
        thread::sleep(TICK * 10);
        assert_eq!(expired(), leases);
        assert_eq!(self.tracker.len(), 0);
    }
}

/// More threads than processors keep the reaper waiting.
#[test]
fn g29_no_lease_outlives_its_end_on_a_machine_that_is_busy() {
    within(PATIENCE, || {
        let ends = Ends::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        std::hint::black_box((0..10_000).fold(0_u64, |sum, n| sum ^ n));
                    }
                });
            }
            let leases = (0..8).map(|thread| {
                let ends = &ends;
                scope.spawn(move || {
                    (0..50).for_each(|n| ends.try_one(n * 8 + thread, TICK * 5));
                })
            });
            let leases = leases.collect::<Vec<_>>();
            let panicked = leases.into_iter().filter_map(|lease| lease.join().err());
            let panicked = panicked.count();
            done.store(true, Ordering::SeqCst);
            assert_eq!(panicked, 0);
        });
        ends.check(400);
    });
}

/// For the process that a test starts: this is it.
const STALLED: &str = "REQUEST_PURGATORY_STALLED";

/// Starts this test again in a process of its own, and stops that for 1.5 s when it says so. There, returns `false`.
fn stalls(test: &str) -> bool {
    if std::env::var_os(STALLED).is_some() {
        return false;
    }
    let program = std::env::current_exe().expect("a path");
    let mut process = Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env(STALLED, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let pid = Pid::from_child(&process);
    let output = process.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let ready = lines.any(|line| line.contains("ready"));
    if ready {
        thread::sleep(TICK * 20);
        kill_process(pid, Signal::STOP).expect("it runs");
        thread::sleep(TICK * 1_500);
        kill_process(pid, Signal::CONT).expect("it is there");
    }
    let rest = lines.collect::<Vec<_>>();
    let status = process.wait().expect("it ends");
    assert!(ready && status.success(), "{}", rest.join("\n"));
    true
}

/// 200 leases and requests end while the process is stopped, and calls come for all of them when it goes on.
#[test]
fn g29_no_lease_outlives_its_end_where_the_process_is_stopped() {
    within(PATIENCE, || {
        if stalls("deadlines::g29_no_lease_outlives_its_end_where_the_process_is_stopped") {
            return;
        }
        let ends = Arc::new(Ends::new());
        let leases = (0..200).map(|number| {
            let ends = ends.clone();
            thread::spawn(move || ends.try_one(number, TICK * 200))
        });
        let leases = leases.collect::<Vec<_>>();
        println!("ready");
        leases
            .into_iter()
            .for_each(|lease| lease.join().expect("no panic"));
        ends.check(200);
    });
}

/// The recipe of the guide: its thread sleeps between the beats, however short the patience, and its time goes on.
#[test]
fn g29_a_clock_without_stalls_and_without_patience_goes_on() {
    within(PATIENCE, || {
        for patience in [Duration::ZERO, Duration::from_nanos(3)] {
            let clock = StallClock::start(patience).expect("a thread");
            while clock.now().since_origin() < TICK {
                thread::sleep(TICK);
            }
        }
    });
}

/// The recipe of the guide: by a clock that does not count a stall, all sessions are kept that were kept before.
#[test]
fn g29_a_clock_without_stalls_keeps_the_sessions() {
    within(PATIENCE, || {
        if stalls("deadlines::g29_a_clock_without_stalls_keeps_the_sessions") {
            return;
        }
        const TERM: Duration = Duration::from_millis(600);
        let clock = StallClock::start(TICK * 100).expect("a thread");
        let sessions = Tracker::builder("grace").clock(clock.clone());
        let sessions = sessions.build(|_: u32, (), _| ());
        let sessions = sessions.expect("no threads at once");
        for session in 0..200 {
            sessions.try_track(session, (), TERM).expect("room");
        }
        println!("ready");
        let mut last = Instant::now();
        // One heartbeat of all after the other, until one interval was much too long.
        let stalled = loop {
            thread::sleep(TICK * 10);
            let stalled = last.elapsed();
            let is_kept = |session: &u32| sessions.reschedule(session, TERM);
            assert!((0..200).all(|session| is_kept(&session)), "{stalled:?}");
            if stalled > TICK * 1_000 {
                break stalled;
            }
            last = Instant::now();
        };
        assert!(stalled > TERM * 2);
        // And a session that falls silent ends by this clock as well.
        thread::sleep(TERM + TICK * 400);
        assert_eq!((sessions.len(), sessions.stats().expired), (0, 200));
    });
}
