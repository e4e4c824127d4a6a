//! G9, G10 for operations whose time of arrival the caller knows: the deadline counts from that reading, whatever it
//! is, and nothing else depends on it. (`model` tries any sequence of calls with any readings.)

use crate::support::{Op, Probe, Tally, manual};
use request_purgatory::{
    Completion, Handle, Purgatory, purgatory::Admission, threads::Reaper, time::Clock,
    time::ManualClock, time::Timestamp, time::WakeFn,
};
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn reading(nanos: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_nanos(nanos))
}

fn park_at(
    purgatory: &Purgatory<Op>,
    arrival: Timestamp,
    timeout: Duration,
) -> (Arc<Probe>, Handle<Op>) {
    let probe = Probe::new();
    let handle = purgatory
        .try_complete_else_watch(probe.op(timeout).arrived(arrival), [1])
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet");
    (probe, handle)
}

/// A clock that counts how often it is read.
#[derive(Clone)]
struct Counting(ManualClock, Arc<Tally>);

impl Clock for Counting {
    fn now(&self) -> Timestamp {
        self.1.add();
        self.0.now()
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        self.0.time_until(deadline)
    }

    fn subscribe(&self, waker: WakeFn) {
        self.0.subscribe(waker);
    }
}

#[test]
fn g10_parking_with_a_reading_reads_no_clock() {
    let clock = Counting(ManualClock::new(), Tally::new());
    let purgatory = Purgatory::<Op>::builder("arrival")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let key = purgatory.resolve(1);
    let arrival = clock.now();
    let before = clock.1.count();
    let op = || Op::new(MS).arrived(arrival);
    for _ in 0..10 {
        assert!(purgatory.try_complete_else_watch(op(), [1, 2]).is_ok());
        let watches = [key.watch().at_rank(3)];
        assert!(purgatory.try_complete_else_watch(op(), watches).is_ok());
        let watch = purgatory.try_complete_else_watch(op().when(|| true), [1]);
        assert!(matches!(watch, Ok(Admission::Ended)));
    }
    purgatory.check_and_complete(&1);
    key.check_and_complete();
    assert_eq!(clock.1.count(), before);
    assert!(purgatory.try_complete_else_watch(Op::new(MS), [1]).is_ok());
    assert_eq!(
        clock.1.count(),
        before + 1,
        "but a park without one does, once"
    );
}

/// Which may have taken long.
#[test]
fn g10_without_a_reading_the_timeout_counts_from_the_end_of_the_first_examination() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let (slow, mut first) = (clock.clone(), true);
    let op = Op::new(60 * MS).when(move || {
        if std::mem::take(&mut first) {
            slow.advance(50 * MS);
        }
        false
    });
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let handle = parked.expect("there is room").into_handle();
    assert_eq!(handle.expect("parked").remaining(), Some(60 * MS));
}

/// Rounded up to the tick, from readings of the past, the present and the future.
#[test]
fn g10_the_deadline_counts_from_the_reading() {
    let (purgatory, clock) = manual::<u64>(|builder| builder.tick(10 * MS));
    clock.advance(Duration::from_secs(1));
    for arrival in [
        0,
        1,
        999_999_999,
        1_000_000_000,
        1_000_000_001,
        7_000_000_000,
    ] {
        for timeout in [0, 1, 9_999_999, 10_000_000, 10_000_001, 2_000_000_000] {
            let timeout_of = Duration::from_nanos(timeout);
            let (_, handle) = park_at(&purgatory, reading(arrival), timeout_of);
            let deadline = (arrival + timeout).next_multiple_of(10_000_000);
            assert_eq!(handle.deadline(), Some(reading(deadline)));
            let remaining = Duration::from_nanos(deadline.saturating_sub(1_000_000_000));
            assert_eq!(handle.remaining(), Some(remaining));
        }
    }
    let (_, handle) = park_at(&purgatory, reading(5), Duration::MAX);
    assert_eq!(handle.deadline(), None);
}

/// A clock may be older than the purgatory, and so may a request.
#[test]
fn g10_a_reading_from_before_the_purgatory_counts_too() {
    let clock = ManualClock::starting_at(100 * MS);
    let purgatory = Purgatory::<Op>::builder("arrival")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let ms = |millis| Timestamp::from_origin(Duration::from_millis(millis));
    let (late, handle) = park_at(&purgatory, ms(40), 50 * MS);
    assert_eq!(handle.remaining(), Some(Duration::ZERO));
    let (soon, handle) = park_at(&purgatory, ms(40), 70 * MS);
    assert_eq!(handle.deadline(), Some(ms(110)));
    let (_, handle) = park_at(&purgatory, ms(40), Duration::MAX);
    assert_eq!(handle.deadline(), None);
    assert_eq!((purgatory.advance(), late.ending().is_some()), (1, true));
    clock.advance(9 * MS);
    assert_eq!(purgatory.advance(), 0);
    clock.advance(MS);
    assert_eq!((purgatory.advance(), soon.ending().is_some()), (1, true));
}

/// The timer must not believe that the future has come.
#[test]
fn g10_a_reading_of_the_future_makes_no_other_deadline_early_or_late() {
    for far in [1, 1_000, 1_000_000, 1 << 40, u64::MAX] {
        for size in [2, 64, 1_000] {
            let (purgatory, clock) = manual::<u64>(|builder| builder.wheel_size(size));
            let future = Timestamp::from_origin(Duration::from_millis(far));
            let (last, _) = park_at(&purgatory, future, Duration::ZERO);
            let timeouts = [1_u64, 2, 3, 10, 63, 64, 65, 500];
            let probes = timeouts.map(|timeout| {
                let probe = Probe::new();
                let timeout = Duration::from_millis(timeout);
                purgatory
                    .try_complete_else_watch(probe.op(timeout), [1])
                    .expect("there is room");
                probe
            });
            // More readings of the future in between.
            let (_, never) = park_at(&purgatory, future, Duration::MAX);
            for now in 1..=500 {
                clock.advance(MS);
                purgatory.advance();
                for (timeout, probe) in timeouts.iter().zip(&probes) {
                    assert_eq!(probe.ending().is_some(), *timeout <= now, "{now}");
                }
                assert_eq!(last.ending().is_some(), far <= now, "{now} of {far}");
            }
            assert!(never.is_parked());
            assert!(never.cancel().is_some());
        }
    }
}

/// If the timer took that reading for the present, it would count each nearer deadline as passed: every pass would
/// search all of these, and the deadline of a cancelled one would stay announced.
#[test]
fn g10_a_reading_of_the_future_makes_no_other_deadline_an_overdue_one() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let future = Timestamp::from_origin(Duration::from_secs(1_000));
    let _last = park_at(&purgatory, future, Duration::ZERO);
    let (_, soon) = park_at(&purgatory, clock.now(), 10 * MS);
    let _later = park_at(&purgatory, clock.now(), 500 * MS);
    assert!(soon.cancel().is_some());
    let next = purgatory.next_deadline().expect("two are parked");
    assert!(next > Timestamp::from_origin(10 * MS), "{next:?}");
}

/// Little of the timeout is left, or nothing: it expires at once, and nothing else does.
#[test]
fn g10_a_stale_reading_expires_with_the_next_tick() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for pass in 0..3 {
        clock.advance(Duration::from_secs(1_000));
        if pass > 0 {
            purgatory.advance();
        }
        let now = clock.now();
        let (other, _) = park_at(&purgatory, now, 2 * MS);
        let stale = [0, 1, 999_000].map(|millis| {
            let arrival = Timestamp::from_origin(Duration::from_millis(millis));
            let (probe, handle) = park_at(&purgatory, arrival, MS);
            assert_eq!(handle.remaining(), Some(Duration::ZERO));
            probe
        });
        assert!(purgatory.next_deadline().is_some_and(|next| next <= now));
        assert_eq!(purgatory.advance(), 3);
        for probe in stale {
            assert_eq!(probe.ending(), Some(Completion::Expired));
        }
        assert_eq!(other.ending(), None);
        clock.advance(2 * MS);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(other.ending(), Some(Completion::Expired));
    }
}

/// `max_timeout` bounds the timeout, not the deadline.
#[test]
fn g10_a_bounded_timeout_counts_from_the_reading_too() {
    let (purgatory, clock) = manual::<u64>(|builder| builder.max_timeout(5 * MS));
    clock.advance(100 * MS);
    let at = |millis| Timestamp::from_origin(Duration::from_millis(millis));
    for (arrival, timeout, deadline) in [
        (100, Duration::MAX, 105),
        (98, 60 * MS, 103),
        (500, 60 * MS, 505),
        (500, 2 * MS, 502),
    ] {
        let (_, handle) = park_at(&purgatory, at(arrival), timeout);
        assert_eq!(handle.deadline(), Some(at(deadline)));
    }
}

/// A reaper that sleeps is woken by what is overdue.
#[test]
fn g07_a_stale_reading_wakes_the_reaper() {
    use crate::support::eventually;
    let clock = ManualClock::starting_at(Duration::from_secs(1_000));
    let purgatory = Purgatory::<Op>::builder("g07-stale")
        .clock(clock.clone())
        .build()
        .expect("threads are to be had");
    let (_, far) = park_at(&purgatory, clock.now(), Duration::from_secs(5));
    for stale in [0, 999, 1_000] {
        let arrival = Timestamp::from_origin(Duration::from_secs(stale));
        // It may expire while it is being parked.
        let probe = Probe::new();
        let op = probe.op(Duration::ZERO).arrived(arrival);
        let parked = purgatory.try_complete_else_watch(op, [1]);
        assert!(parked.is_ok());
        eventually("its expiry", || probe.ending() == Some(Completion::Expired));
    }
    assert!(far.is_parked());
}
