//! G5, G6, G16 under load: many threads on few keys, and ten thousand calls at once.

use crate::support::keys::{Census, Counted};
use crate::support::{Mint, PATIENCE, Token, eventually, lock, within};
use crate::{delivered, manual_requests, manual_tracker};
use request_purgatory::future::block_on;
use request_purgatory::{WaitError, threads::Reaper};
use request_purgatory_tracker::{RejectReason, Rejected, Requests, Responded, Tracker};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const THREADS: u64 = 4;
const VALUES: u64 = 5_000;
const KEYS: u64 = 5;

/// Tracks values under few keys in every way. Returns the numbers of those that it got back.
fn work(tracker: &Tracker<u64, Token>, mint: &Mint, seed: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let (mut back, mut mine) = (Vec::new(), None);
    for number in seed * VALUES..(seed + 1) * VALUES {
        let key = random.u64(..KEYS);
        let value = mint.token(number);
        let timeout = Duration::from_micros(random.u64(..3_000));
        match random.u64(..3) {
            0 => {
                let tracked = tracker.track(key, value, timeout).expect("room");
                back.extend(tracked.1.map(|value| value.number));
                mine = Some((key, tracked.0, number));
            }
            1 => match mine.take().map(|(key, token, number)| {
                let replaced = tracker.replace_if(&key, token, value, timeout);
                (replaced, number)
            }) {
                Some((Ok(tracked), replaced)) => {
                    assert_eq!(tracked.1.number, replaced, "the value of another token");
                    back.push(replaced);
                    mine = Some((key, tracked.0, number));
                }
                Some((Err(rejected), _)) => {
                    assert_eq!(rejected.reason(), RejectReason::StaleToken);
                    back.push(rejected.into_inner().number);
                }
                None => back.push(number),
            },
            _ => match tracker
                .try_track(key, value, timeout)
                .map_err(Rejected::into_parts)
            {
                Ok(token) => mine = Some((key, token, number)),
                Err((RejectReason::Duplicate, value)) => back.push(value.number),
                Err(other) => panic!("{other:?}"),
            },
        }
        let other = random.u64(..KEYS);
        match random.u64(..6) {
            4 => {
                let completed = mine.and_then(|(key, token, number)| {
                    Some((tracker.complete_if(&key, token)?.number, number))
                });
                assert!(completed.is_none_or(|(value, mine)| value == mine));
                back.extend(completed.map(|(value, _)| value));
            }
            5 => drop(mine.map(|(key, token, _)| tracker.reschedule_if(&key, token, timeout))),
            0 => back.extend(tracker.complete(&other).map(|value| value.number)),
            1 => drop(tracker.reschedule(&other, timeout)),
            2 => drop(tracker.contains(&other)),
            _ => {}
        }
    }
    back
}

fn stress(tracker: &Tracker<u64, Token>, expired: &Mutex<Vec<u64>>, mint: &Mint, drive: impl Fn()) {
    let workers = (0..THREADS).map(|seed| {
        let (tracker, mint) = (tracker.clone(), mint.clone());
        thread::spawn(move || work(&tracker, &mint, seed))
    });
    let workers = workers.collect::<Vec<_>>();
    while workers.iter().any(|worker| !worker.is_finished()) {
        drive();
    }
    let mut ends = Vec::new();
    for worker in workers {
        ends.extend(worker.join().expect("no call panics"));
    }
    eventually("the expiry of the rest", || {
        drive();
        mint.living() == 0
    });
    ends.extend(lock(expired).iter());
    ends.sort_unstable();
    assert!(
        ends.into_iter().eq(0..THREADS * VALUES),
        "lost or ended twice"
    );
    let stats = tracker.stats();
    assert_eq!((stats.parked, stats.panicked), (0, 0), "{stats:?}");
    assert!((0..KEYS).all(|key| !tracker.contains(&key)));
    assert!(tracker.shutdown().is_empty());
}

#[test]
fn g05_each_value_ends_once_on_a_real_clock() {
    within(PATIENCE, || {
        let expired = Arc::new(Mutex::new(Vec::new()));
        let log = expired.clone();
        let tracker = Tracker::new("g05", move |_, value: Token, _| {
            lock(&log).push(value.number)
        });
        stress(&tracker, &expired, &Mint::default(), || {
            thread::sleep(Duration::from_millis(1));
        });
    });
}

/// Two threads advance it, beside the workers; the clock jumps.
#[test]
fn g05_each_value_ends_once_by_hand() {
    within(PATIENCE, || {
        let expired = Arc::new(Mutex::new(Vec::new()));
        let log = expired.clone();
        let note = move |_, value: Token, _| lock(&log).push(value.number);
        let (tracker, clock) = manual_tracker(|builder| builder, note);
        stress(&tracker, &expired, &Mint::default(), || {
            clock.advance(Duration::from_micros(300));
            thread::scope(|scope| {
                scope.spawn(|| tracker.advance());
                tracker.advance();
            });
        });
    });
}

/// Under keys that share no lock.
#[test]
fn g18_no_token_is_given_twice() {
    within(PATIENCE, || {
        let tracker = Tracker::<u64, ()>::builder("g18").reaper(Reaper::Manual);
        let tracker = tracker.build(|_, (), _| ()).expect("no threads to refuse");
        let begun = AtomicU64::new(0);
        let work = |seed| {
            // Together, as far as two processors can.
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            let keys = (0..60 * VALUES).map(|number| 2 * number + seed);
            let tracked = keys.map(|key| tracker.track(key, (), Duration::MAX));
            let tokens = tracked.map(|tracked| tracked.expect("room").0);
            tokens.collect::<Vec<_>>()
        };
        let mut tokens = thread::scope(|scope| {
            let workers = [0, 1].map(|seed| scope.spawn(move || work(seed)));
            workers
                .map(|worker| worker.join().expect("no panic"))
                .concat()
        });
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len() as u64, 120 * VALUES);
    });
}

/// The keys of values that have ended are out of the map.
#[test]
fn g06_no_key_is_left_in_the_map() {
    let census = Census::default();
    let tick = Duration::from_millis(1);
    let (tracker, clock) = manual_tracker::<Counted, u64>(|builder| builder, |_, _, _| ());
    for number in 0..3_000 {
        let key = census.key(number);
        match number % 4 {
            0 => assert!(tracker.track(key, 1, tick).is_ok()),
            1 => {
                assert!(tracker.track(key.clone(), 1, Duration::MAX).is_ok());
                assert_eq!(tracker.complete(&key), Some(1));
            }
            2 => {
                assert!(tracker.track(key.clone(), 1, Duration::MAX).is_ok());
                let tracked = tracker.track(key, 2, tick).expect("room");
                assert_eq!(tracked.1, Some(1));
            }
            _ => {
                assert!(tracker.track(key.clone(), 1, tick).is_ok());
                let refused = tracker.try_track(key, 2, tick);
                let refused = refused.map_err(Rejected::into_parts);
                assert_eq!(refused, Err((RejectReason::Duplicate, 2)));
            }
        }
    }
    clock.advance(tick);
    assert_eq!(tracker.advance(), 2_250);
    assert_eq!(census.count(), 0, "keys left behind");
    // Those of a tracker that is shut down as well.
    assert!(tracker.track(census.key(1), 1, tick).is_ok());
    drop(tracker.shutdown());
    assert_eq!(census.count(), 0);
    // And of requests that are answered, time out and are dropped.
    let (calls, clock) = manual_requests::<Counted, u64>(|builder| builder.remembered_ids(5));
    for number in 0..300 {
        let request = calls.request(census.key(number), tick).expect("room");
        match number % 3 {
            0 => assert!(delivered(calls.respond(request.id(), 1))),
            1 => {
                clock.advance(tick);
                assert_eq!(calls.advance(), 1);
            }
            _ => {}
        }
    }
    // Also none of those that are remembered.
    assert_eq!((calls.stats().parked, census.count()), (0, 0));
    drop(calls);
    assert_eq!(census.count(), 0);
}

/// Answers from several threads around the timeouts: each call has one of a response, or a timeout and a late response.
#[test]
fn g05_ten_thousand_calls_are_answered_or_time_out() {
    within(PATIENCE, || {
        const CALLS: u64 = 10_000;
        let builder = Requests::<u64, u64>::builder("calls").remembered_ids(CALLS as usize);
        let calls = builder.build().expect("threads are to be had");
        let mut random = fastrand::Rng::with_seed(5);
        let requests = (0..CALLS).map(|id| {
            // Some are certain to be answered, some to time out, however slow the machine.
            let timeout = match id % 10 {
                0 => Duration::ZERO,
                1 => PATIENCE,
                _ => Duration::from_micros(20_000 + random.u64(..60_000)),
            };
            calls.request(id, timeout).expect("room")
        });
        let requests = requests.collect::<Vec<_>>();
        let responders = (0..4).map(|part| {
            let calls = calls.clone();
            thread::spawn(move || {
                let (mut answered, mut late) = (Vec::new(), Vec::new());
                for id in (part..CALLS).step_by(4) {
                    if id % 200 < 4 {
                        thread::sleep(Duration::from_micros(1_200));
                    }
                    match calls.respond(&id, id) {
                        Responded::Delivered => answered.push(id),
                        Responded::Late(response) => late.push(response),
                        Responded::Unknown(_) => panic!("{id} was made"),
                    }
                }
                (answered, late)
            })
        });
        let responders = responders.collect::<Vec<_>>();
        let mut answered = Vec::new();
        let mut timed_out = Vec::new();
        for (id, request) in (0..).zip(requests) {
            match block_on(request) {
                Ok(response) => {
                    assert_eq!(response, id);
                    answered.push(id);
                }
                Err(WaitError::Expired) => timed_out.push(id),
                Err(other) => panic!("{other:?}"),
            }
        }
        let (mut accepted, mut late) = (Vec::new(), Vec::new());
        for responder in responders {
            let (answered, came_late) = responder.join().expect("no panic");
            accepted.extend(answered);
            late.extend(came_late);
        }
        accepted.sort_unstable();
        late.sort_unstable();
        assert_eq!(
            answered, accepted,
            "responders that were told that a request waited"
        );
        assert_eq!(late, timed_out, "every response to a timeout is late");
        assert_eq!((calls.stats().parked, calls.late()), (0, late.len() as u64));
        let stats = calls.stats();
        assert_eq!(
            (stats.completed, stats.expired),
            (answered.len() as u64, calls.late())
        );
        assert!(!answered.is_empty() && !timed_out.is_empty());
    });
}
