//! G6, measured: a target of its own, because it reads the memory of the whole process.

use request_purgatory::{Completion, DelayedOperation, Purgatory, threads::Reaper};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use support::{NEVER_IN_A_TEST, PATIENCE, lock, within};
use testing as support;

/// It waits until its payload is ready.
struct Loaded(Arc<(AtomicBool, [u8; 256])>);

impl Loaded {
    fn new() -> Self {
        Self(Arc::new((AtomicBool::new(false), [0; 256])))
    }
}

impl DelayedOperation for Loaded {
    type Key = u64;

    fn timeout(&self) -> Duration {
        NEVER_IN_A_TEST
    }

    fn try_complete(&mut self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        assert_eq!(completion, Completion::Satisfied);
    }
}

const BUSY: u64 = 1;
const QUIET: u64 = 2;

/// One test at a time reads it.
static MEMORY: Mutex<()> = Mutex::new(());

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let resident = testing::process::Process::this().resident();
    resident.expect("this is Linux") / 1_024
}

/// A million requests come and go with a handful parked at a time. Kafka's purgatory kept each of them in the list of
/// the quiet key until the next purge.
#[test]
fn g06_a_million_operations_on_a_busy_and_a_quiet_key_leave_nothing() {
    let _alone = lock(&MEMORY);
    within(2 * PATIENCE, || {
        let purgatory = Purgatory::<Loaded>::new("g06-million");
        let mut parked = VecDeque::new();
        let mut sample = Vec::<Weak<_>>::new();
        let mut settled = 0;
        for number in 0..1_000_000 {
            let op = Loaded::new();
            let payload = op.0.clone();
            if number % 1_000 == 0 {
                sample.push(Arc::downgrade(&payload));
            }
            let admission = purgatory.try_complete_else_watch(op, [BUSY, QUIET]);
            assert!(admission.is_ok());
            parked.push_back(payload);
            if parked.len() > 10 {
                let oldest = parked.pop_front().expect("eleven are parked");
                oldest.0.store(true, Ordering::Relaxed);
                assert_eq!(purgatory.check_and_complete(&BUSY), 1);
            }
            if number == 100_000 {
                settled = resident();
            }
        }
        let grown = resident().saturating_sub(settled);
        assert!(grown < 8 * 1_024, "{grown} KiB more than after 100,000");
        for payload in parked {
            payload.0.store(true, Ordering::Relaxed);
        }
        assert_eq!(purgatory.check_and_complete(&BUSY), 10);
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.watched), (0, 0));
        assert_eq!((purgatory.watched_keys(), stats.completed), (0, 1_000_000));
        assert!(sample.iter().all(|payload| payload.strong_count() == 0));
    });
}

/// A dropped purgatory leaves no memory behind, although there are handles to its operations; the recycled places of
/// the handles are used again.
#[test]
fn g06_purgatories_that_come_and_go_leave_nothing() {
    const COUNT: usize = 50_000;
    let _alone = lock(&MEMORY);
    within(2 * PATIENCE, || {
        let mut settled = 0;
        for number in 0..COUNT {
            let builder = Purgatory::<Loaded>::builder("g06-many").reaper(Reaper::Manual);
            let purgatory = builder.build().expect("no threads to refuse");
            let watch = purgatory.try_complete_else_watch(Loaded::new(), [BUSY]);
            let handle = watch.expect("there is room").into_handle();
            let handle = handle.expect("it cannot complete yet");
            assert!(handle.cancel().is_some());
            drop(purgatory);
            assert!(!handle.is_parked());
            if number == COUNT / 10 {
                settled = resident();
            }
        }
        let grown = resident().saturating_sub(settled);
        assert!(grown < 1_024, "{grown} KiB more than after a tenth");
    });
}
