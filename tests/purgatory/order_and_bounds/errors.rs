//! What is refused, and G21: a forgotten check shows.

use crate::support::{NEVER_IN_A_TEST, Op, Probe, manual, refusal};
use request_purgatory::{
    Purgatory, WaitError, purgatory::BuildError, purgatory::RejectReason, purgatory::Rejected,
    purgatory::ShutdownError, threads::Reaper,
};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

fn build(tick: Duration, wheel_size: usize) -> Result<Purgatory<Op>, BuildError> {
    Purgatory::builder("errors")
        .tick(tick)
        .wheel_size(wheel_size)
        .reaper(Reaper::Manual)
        .build()
}

#[test]
fn absurd_wheels_and_ticks_are_refused() {
    let tick = Duration::from_millis(1);
    for size in [0, 1, (1 << 16) + 1, 1 << 32, (1 << 32) + 64, usize::MAX] {
        let refused = build(tick, size);
        assert!(matches!(refused, Err(BuildError::WheelSize)), "{size}");
    }
    for size in [2, 3, 64, 1 << 16] {
        assert!(build(tick, size).is_ok(), "{size}");
    }
    for tick in [Duration::ZERO, Duration::MAX, Duration::from_secs(1 << 40)] {
        let refused = build(tick, 64);
        assert!(matches!(refused, Err(BuildError::Tick)), "{tick:?}");
    }
    let longest = Duration::from_nanos(u64::MAX);
    for tick in [
        Duration::from_nanos(1),
        longest,
        Duration::from_secs(86_400),
    ] {
        assert!(build(tick, 64).is_ok(), "{tick:?}");
    }
    let error = build(Duration::ZERO, 64).expect_err("refused above");
    assert!(!error.to_string().is_empty() && error.source().is_none());
    let refused = BuildError::Thread(ErrorKind::WouldBlock.into());
    let late = ShutdownError::Thread(ErrorKind::WouldBlock.into());
    for error in [&refused as &dyn Error, &late] {
        let cause = error.source().and_then(|cause| cause.downcast_ref());
        assert_eq!(cause.map(io::Error::kind), Some(ErrorKind::WouldBlock));
    }
}

/// Rounded up to a power of two within bounds.
#[test]
fn g20_any_number_of_map_shards_will_do() {
    for shards in [0, 1, 3, 1_000, 65_537, usize::MAX] {
        let (purgatory, _clock) = manual::<u64>(|builder| builder.map_shards(shards));
        let probes = [(); 100].map(|()| Probe::new());
        for (key, probe) in (0..).zip(&probes) {
            let parked = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [key]);
            assert!(
                parked.is_ok_and(|parked| parked.is_parked()),
                "{shards} shards"
            );
            probe.satisfy();
        }
        assert_eq!(purgatory.watched_keys(), probes.len());
        assert_eq!(purgatory.check_where(|_| true), probes.len());
        assert!(purgatory.is_empty());
    }
}

#[test]
fn a_refused_operation_comes_back_untouched() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder.max_parked(1));
    let probe = Probe::new();
    let refused = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [0; 0]);
    let Err(rejected) = refused else {
        panic!("{refused:?}");
    };
    assert!(!rejected.to_string().is_empty() && format!("{rejected:?}").contains("NoKeys"));
    assert_eq!(rejected.to_string(), RejectReason::NoKeys.to_string());
    assert_eq!(probe.examinations(), 0);
    let handle = purgatory
        .try_complete_else_watch(rejected.into_inner(), [1])
        .expect("there is room for one")
        .into_handle()
        .expect("it cannot complete yet");
    let second = Probe::new();
    let refused = purgatory.try_complete_else_watch(second.op(NEVER_IN_A_TEST), [1]);
    let Err((RejectReason::Full, op)) = refused.map_err(Rejected::into_parts) else {
        panic!("a park beyond the limit");
    };
    assert!(handle.cancel().is_some());
    purgatory.shutdown();
    let refused = purgatory.try_complete_else_watch(op, [1]);
    assert_eq!(refusal(&refused), Some(RejectReason::ShutDown));
    assert_eq!((probe.ending(), second.ending()), (None, None));
    assert_eq!(purgatory.stats().rejected, 3);
}

/// The operator reads which setting to raise, and what a shutdown waits for.
#[test]
fn g17_a_refusal_names_the_limit_that_was_reached() {
    let [full, key_full] = ["(`max_parked`, `max_weight`)", "(`max_watchers_per_key`)"];
    let late = |threads: &[&str]| {
        let late = ShutdownError::TimedOut {
            parked: 3,
            completions_pending: 4,
            threads: threads.iter().copied().map(String::from).collect(),
        };
        late.to_string()
    };
    for (text, limit) in [
        (RejectReason::Full.to_string(), full),
        (WaitError::Full.to_string(), full),
        (RejectReason::KeyFull.to_string(), key_full),
        (WaitError::KeyFull.to_string(), key_full),
        (
            RejectReason::TooLong.to_string(),
            "(a simple wheel: take another scheme)",
        ),
        (BuildError::Tick.to_string(), "`tick`"),
        (BuildError::WheelSize.to_string(), "`wheel_size`"),
        (late(&[]), "3 operations parked, 4 completions pending"),
        (late(&[]), "threads running: none"),
        (
            late(&["reaper", "completions"]),
            "threads running: reaper, completions",
        ),
    ] {
        assert!(text.contains(limit), "{text}");
    }
}

#[test]
fn g21_an_expiry_that_a_check_would_have_prevented_is_counted() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let timeout = Duration::from_millis(5);
    let (forgotten, hopeless) = (Probe::new(), Probe::new());
    for probe in [&forgotten, &hopeless] {
        purgatory
            .try_complete_else_watch(probe.op(timeout), [1])
            .expect("there is room");
    }
    forgotten.satisfy();
    clock.advance(timeout);
    assert_eq!(purgatory.advance(), 2);
    assert_eq!(purgatory.stats().missed_checks, 1);
}

/// Most operations are not `Sync`: they own a cell, or a sender of a channel.
#[test]
fn a_refusal_of_an_operation_that_is_not_sync_converts_by_the_question_mark() {
    use request_purgatory::{Completion, DelayedOperation};
    use std::cell::Cell;

    struct NotSync(Cell<u8>);

    impl DelayedOperation for NotSync {
        type Key = u64;

        fn timeout(&self) -> Duration {
            NEVER_IN_A_TEST
        }

        fn try_complete(&mut self) -> bool {
            self.0.get() > 1
        }

        fn on_complete(self, _: Completion) {}
    }

    fn boxed(purgatory: &Purgatory<NotSync>) -> Result<(), Box<dyn Error + Send + Sync>> {
        purgatory.try_complete_else_watch(NotSync(Cell::new(7)), [0; 0])?;
        Ok(())
    }

    fn any(purgatory: &Purgatory<NotSync>) -> anyhow::Result<()> {
        purgatory.try_complete_else_watch(NotSync(Cell::new(8)), [0; 0])?;
        Ok(())
    }

    let purgatory = Purgatory::builder("errors").reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let error = boxed(&purgatory).expect_err("there are no keys");
    let rejected = error.downcast::<Rejected<NotSync>>().expect("it is inside");
    assert_eq!(rejected.into_inner().0.get(), 7);
    let error = any(&purgatory).expect_err("there are no keys");
    let rejected = error.downcast::<Rejected<NotSync>>().expect("it is inside");
    assert_eq!(rejected.reason(), RejectReason::NoKeys);
    assert_eq!(rejected.into_inner().0.get(), 8);
}
