//! G29: a deadline that is a point in time stays that point.

use request_purgatory::future::block_on;
use request_purgatory::time::{ManualClock, Timestamp};
use request_purgatory::{Deadline, WaitError, threads::Reaper};
use request_purgatory_tracker::{Requests, Tracker};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn at(after: Duration) -> Timestamp {
    Timestamp::from_origin(after)
}

fn tracker(max_timeout: Duration) -> (Tracker<u32, u32>, ManualClock, Receiver<u32>) {
    let clock = ManualClock::starting_at(SECOND);
    let (expired, ends) = channel();
    let tracker = Tracker::builder("g29-points")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .max_timeout(max_timeout)
        .build(move |key, _, _| expired.send(key).expect("it is read"));
    (tracker.expect("no threads to refuse"), clock, ends)
}

#[test]
fn g29_a_value_expires_at_its_point() {
    let (tracker, clock, ends) = tracker(Duration::MAX);
    let point = tracker.point(SECOND);
    assert_eq!(point, Deadline::At(at(2 * SECOND)));
    tracker.track(1, 1, point).expect("there is room");
    tracker.try_track(2, 2, None).expect("there is room");
    clock.advance(SECOND / 2);
    let left = [1, 2].map(|key| tracker.remaining(&key));
    assert_eq!(left, [Some(SECOND / 2), None]);
    // A timeout begins anew, a point does not.
    assert!(tracker.reschedule(&1, point) && tracker.reschedule(&2, at(2 * SECOND)));
    let token = tracker.token(&2).expect("it is kept");
    assert!(tracker.replace_if(&2, token, 3, point).is_ok());
    clock.advance(SECOND / 2);
    assert!(!tracker.contains(&1) && !tracker.contains(&2));
    assert!(!tracker.reschedule(&1, point));
    assert_eq!(tracker.advance(), 2);
    // A point that has passed: it is kept for no call.
    tracker.track(4, 4, at(SECOND)).expect("there is room");
    assert_eq!((tracker.get(&4), tracker.advance()), (None, 1));
    assert_eq!(ends.try_iter().last(), Some(4));
    let tracked = tracker.track(5, 5, at(Duration::MAX));
    tracked.expect("there is room");
    clock.advance(Duration::from_secs(1 << 40));
    assert_eq!((tracker.get(&5), tracker.advance()), (Some(5), 0));
}

#[test]
fn g29_the_longest_timeout_bounds_the_points_of_values() {
    let (tracker, clock, _ends) = tracker(SECOND);
    for (key, deadline, granted) in [
        (1, Deadline::At(at(9 * SECOND)), SECOND),
        (2, Deadline::At(at(SECOND + SECOND / 4)), SECOND / 4),
        (3, Deadline::Never, SECOND),
        (4, Deadline::from(Instant::now() + 3_600 * SECOND), SECOND),
    ] {
        tracker.track(key, 0, deadline).expect("there is room");
        assert_eq!(tracker.remaining(&key), Some(granted), "{key}");
    }
    clock.advance(SECOND);
    assert_eq!(tracker.advance(), 4);
}

#[test]
fn g29_a_request_that_is_sent_again_expires_at_its_first_instant() {
    let calls = Requests::<u32, &str>::new("g29-points");
    let deadline = Instant::now() + Duration::from_millis(30);
    for id in 0..3 {
        let response = calls.request(id, deadline).expect("there is room");
        assert_eq!(block_on(response), Err(WaitError::Expired));
        assert!(Instant::now() >= deadline);
    }
    assert!(Instant::now() < deadline + 5 * SECOND);
    let pending = calls.request(3, None).expect("there is room");
    assert!(calls.reschedule(&3, deadline));
    assert_eq!(block_on(pending), Err(WaitError::Expired));
}
