//! G17, G20: what is refused, and how it says so.

use super::weights::{Heavy, heavy};
use crate::chains::scene::park;
use crate::support::{NEVER_IN_A_TEST, Op, Probe, manual};
use request_purgatory::{
    DelayedOperation, Purgatory, WaitError, purgatory::BuildError, purgatory::RejectReason,
    purgatory::Rejected, purgatory::ShutdownError, threads::Reaper,
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
    for tick in [1, u64::MAX, 86_400_000_000_000].map(Duration::from_nanos) {
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
            park(&purgatory, probe.op(NEVER_IN_A_TEST), [key]);
            probe.satisfy();
        }
        assert_eq!(purgatory.watched_keys(), probes.len(), "{shards} shards");
        assert_eq!(purgatory.check_where(|_| true), probes.len());
        assert!(purgatory.is_empty());
    }
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
    let too_long = "(a simple wheel: take another scheme)";
    for (text, limit) in [
        (RejectReason::Full.to_string(), full),
        (WaitError::Full.to_string(), full),
        (RejectReason::KeyFull.to_string(), key_full),
        (WaitError::KeyFull.to_string(), key_full),
        (RejectReason::TooLong.to_string(), too_long),
        (BuildError::Tick.to_string(), "`tick`"),
        (BuildError::WheelSize.to_string(), "`wheel_size`"),
        (late(&[]), "3 operations parked, 4 completions pending"),
        (late(&[]), "threads running: none"),
        (late(&["r", "c"]), "threads running: r, c"),
    ] {
        assert!(text.contains(limit), "{text}");
    }
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let refused = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [0; 0]);
    let rejected = refused.expect_err("there are no keys");
    assert_eq!(rejected.to_string(), RejectReason::NoKeys.to_string());
    assert!(!rejected.to_string().is_empty() && format!("{rejected:?}").contains("NoKeys"));
}

/// Most operations are not `Sync`: they own a cell, or a sender of a channel.
#[test]
fn a_refusal_of_an_operation_that_is_not_sync_converts_by_the_question_mark() {
    fn boxed(purgatory: &Purgatory<Heavy>) -> Result<(), Box<dyn Error + Send + Sync>> {
        purgatory.try_complete_else_watch(Heavy::new(7, &Probe::new()), [0; 0])?;
        Ok(())
    }

    fn any(purgatory: &Purgatory<Heavy>) -> anyhow::Result<()> {
        purgatory.try_complete_else_watch(Heavy::new(8, &Probe::new()), [0; 0])?;
        Ok(())
    }

    let (purgatory, _clock) = heavy(|builder| builder);
    let error = boxed(&purgatory).expect_err("there are no keys");
    let rejected = error.downcast::<Rejected<Heavy>>().expect("it is inside");
    assert_eq!(rejected.into_inner().weight(), 7);
    let error = any(&purgatory).expect_err("there are no keys");
    let rejected = error.downcast::<Rejected<Heavy>>().expect("it is inside");
    assert_eq!(rejected.reason(), RejectReason::NoKeys);
    assert_eq!(rejected.into_inner().weight(), 8);
}
