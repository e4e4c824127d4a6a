//! G17: the bound of one key. G22: that of a check.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, refusal, within};
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Purgatory, Watch, purgatory::Builder,
    purgatory::Cause, purgatory::KeyHasher, purgatory::RejectReason, threads::Dispatch,
    threads::Reaper, time::ManualClock,
};
use std::cell::Cell;
use std::hash::RandomState;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// By plain keys, resolved ones and at ranks; with a place freed by a check, a cancel and an expiry.
#[test]
fn g17_the_watchers_of_a_key_are_bounded_exactly() {
    let clock = request_purgatory::time::ManualClock::new();
    for max in [0, 1, 2, 3, 7, 300] {
        let builder = Purgatory::<Op>::builder("g17-key").reaper(Reaper::Manual);
        let builder = builder.clock(clock.clone()).max_watchers_per_key(max);
        let purgatory = builder.build().expect("no threads to refuse");
        let resolved = purgatory.resolve(2);
        let tick = Duration::from_millis(1);
        for (way, is_shared) in (0..6).flat_map(|way| [(way, true), (way, false)]) {
            let probes = (0..=max).map(|_| Probe::new()).collect::<Vec<_>>();
            let parks = Cell::new(0);
            let park = |probe: &Arc<Probe>| {
                let op = probe.op(tick);
                parks.set(parks.get() + 1);
                // The other key comes first, and must be left again where the operation is refused. It is full as well,
                // or has room.
                let other = Watch::from(9 + if is_shared { way } else { parks.get() });
                // A key that is resolved is still named by itself as well.
                let watch = match (way % 2, parks.get() % 2) {
                    (0, _) => Watch::from(1),
                    (_, 0) => Watch::from(2),
                    _ => resolved.watch(),
                };
                // Without a rank, at one, or in turn.
                let watch = match way / 2 {
                    0 => watch,
                    2 if parks.get() % 2 == 0 => watch,
                    _ => watch.at_rank(5),
                };
                purgatory.try_complete_else_watch(op, [other, watch])
            };
            let key = if way % 2 == 0 { 1 } else { 2 };
            for probe in &probes[..max] {
                assert!(park(probe).expect("room").is_parked());
            }
            let refused = park(&probes[max]).map_err(|refused| refused.reason());
            assert!(matches!(refused, Err(RejectReason::KeyFull)), "{refused:?}");
            // Only on arrival, and no more when a key is full: what it would take then is lost with the refusal.
            assert_eq!(
                (probes[max].ending(), probes[max].examinations()),
                (None, 1)
            );
            let stats = purgatory.stats();
            assert_eq!((stats.parked, stats.watched), (max, 2 * max));
            let (other, on_other) = match is_shared {
                true => (9 + way, max),
                false => (9 + parks.get(), 0),
            };
            assert_eq!(
                (purgatory.watchers(&key), purgatory.watchers(&other)),
                (max, on_other)
            );
            if max > 0 {
                // A place that is free is taken once.
                probes[0].satisfy();
                assert_eq!(purgatory.check_and_complete(&key), 1);
                assert!(park(&Probe::new()).is_ok() && park(&Probe::new()).is_err());
                assert!(park(&Probe::new()).is_err());
            }
            clock.advance(tick);
            assert_eq!(purgatory.advance(), max);
            assert_eq!(
                (purgatory.watchers(&key), purgatory.stats().watched),
                (0, 0)
            );
        }
    }
}

/// The bound of a key holds while threads park on it, and none is refused for long.
#[test]
fn g17_the_bound_of_a_key_holds_under_load() {
    within(PATIENCE, || {
        const MAX: usize = 5;
        let purgatory = Purgatory::<Op>::builder("g17-load").max_watchers_per_key(MAX);
        let purgatory = purgatory.build().expect("threads");
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let workers = (0..4).map(|_| {
            let (purgatory, now, most) = (purgatory.clone(), now.clone(), most.clone());
            thread::spawn(move || {
                let mut parked = 0;
                while parked < 2_000 {
                    let op = Op::new(NEVER_IN_A_TEST);
                    let Ok(admission) = purgatory.try_complete_else_watch(op, [7, 8]) else {
                        continue;
                    };
                    parked += 1;
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    let handle = admission.into_handle().expect("parked");
                    assert!(handle.cancel().is_some());
                }
            })
        });
        workers
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|worker| worker.join().expect("no panic"));
        assert!(most.load(Ordering::SeqCst) <= MAX);
        assert_eq!((purgatory.watchers(&7), purgatory.stats().watched), (0, 0));
        assert_eq!(purgatory.stats().parked, 0);
    });
}

/// A bound of none refuses every operation, however the key is named, and a refused one counts as cancelled.
#[test]
fn g17_a_bound_of_no_watchers_refuses_every_operation() {
    let purgatory = Purgatory::<Op>::builder("g17").reaper(Reaper::Manual);
    let purgatory = purgatory.max_watchers_per_key(0).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let key = purgatory.resolve(1);
    for watch in [Watch::from(1), key.watch(), key.watch().at_rank(7)] {
        let refused = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [watch]);
        let refused = refused.err().map(|refused| refused.reason());
        assert_eq!(refused, Some(RejectReason::KeyFull));
    }
    let stats = purgatory.stats();
    assert_eq!((stats.rejected, stats.cancelled, stats.aborted), (3, 3, 0));
    assert!(purgatory.is_empty());
}

/// In whatever order they are set. What a full key refuses takes no place. Nor does a hasher change the time.
#[test]
fn g17_both_limits_hold_beside_each_other_and_a_hasher() {
    const MS: Duration = Duration::from_millis(1);

    fn hold<S: KeyHasher>(builder: Builder<Purgatory<Op, S>>) {
        let purgatory = builder.reaper(Reaper::Manual).build();
        let purgatory = purgatory.expect("no threads to refuse");
        let park =
            |key| refusal(&purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]));
        assert_eq!(park(1), None);
        assert_eq!(purgatory.snapshot()[0].remaining, Some(2 * MS));
        for _ in 0..3 {
            assert_eq!(park(1), Some(RejectReason::KeyFull));
        }
        assert_eq!((park(2), park(3)), (None, Some(RejectReason::Full)));
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        assert_eq!((park(1), park(3)), (None, Some(RejectReason::Full)));
    }

    let (clock, hasher) = (ManualClock::new(), RandomState::new());
    let builder = || Purgatory::<Op>::builder("g17").clock(clock.clone());
    let builder = || builder().tick(2 * MS).max_timeout(MS);
    hold(builder().max_parked(2).max_watchers_per_key(1));
    hold(builder().max_watchers_per_key(1).max_parked(2));
    let limited = builder().max_watchers_per_key(1).max_parked(2);
    hold(limited.hasher(hasher.clone()));
    let hashed = builder().hasher(hasher);
    hold(hashed.max_parked(2).max_watchers_per_key(1));
}

/// The first operation drives the timer past its own deadline when a check examines it. It has expired, and has refused
/// nothing: a check until a refusal goes on to the second one.
#[test]
fn g22_one_that_ends_itself_in_its_examination_refuses_nothing() {
    struct Driving {
        timeout: Duration,
        examined: Box<dyn Fn() -> bool + Send>,
        told: mpsc::Sender<Completion>,
    }

    impl DelayedOperation for Driving {
        type Key = u64;

        fn timeout(&self) -> Duration {
            self.timeout
        }

        fn try_complete(&mut self) -> bool {
            unreachable!("it is asked for a cause")
        }

        fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
            cause.key().is_some() && (self.examined)()
        }

        fn on_complete(self, completion: Completion) {
            self.told.send(completion).expect("it is heard");
        }
    }

    const TICK: Duration = Duration::from_millis(1);
    let clock = ManualClock::new();
    let builder = Purgatory::builder("bounds").reaper(Reaper::Manual);
    let builder = builder.clock(clock.clone()).dispatch(Dispatch::Inline);
    let purgatory = builder.build().expect("no threads to refuse");
    let (tell, told) = mpsc::channel();
    let park = |timeout, examined| {
        let op = Driving {
            timeout,
            examined,
            told: tell.clone(),
        };
        let parked = purgatory.try_complete_else_watch(op, [1]);
        assert!(parked.is_ok_and(|parked| parked.is_parked()));
    };
    let all = purgatory.downgrade();
    let drive = move || {
        clock.advance(10 * TICK);
        all.upgrade().expect("it is there").advance();
        false
    };
    park(TICK, Box::new(drive));
    park(100 * TICK, Box::new(|| true));
    let until_refused = CheckBound::all().until_refused();
    assert_eq!(purgatory.check_and_complete_with(&1, until_refused), 1);
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told, [Completion::Expired, Completion::Satisfied]);
}
