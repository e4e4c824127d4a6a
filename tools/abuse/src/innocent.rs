//! The thread whose calls are timed, and the one that only reads the clock.

use crate::operation::{Kind, Operation};
use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use request_purgatory::Purgatory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Between two rounds: modest, and steady.
const PAUSE: Duration = Duration::from_micros(150);
/// Keys of the innocent begin here; others use lower ones.
const KEYS: u64 = 1 << 40;
/// What an operation of the innocent waits for at most: it has a timer, which never fires.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3_600);

/// What the caller does again and again. Its operations watch a key of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Round {
    /// It parks one and checks its own key.
    Own,
    /// The same, but the operation watches this key too. Both calls add to that key's list or take from it.
    Watching(u64),
    /// The operation watches this key too, and the round checks this key, which examines every operation on it.
    /// Only that check is timed.
    Checking(u64),
}

/// Both threads at work.
pub(crate) struct Innocents {
    stop: Arc<AtomicBool>,
    caller: JoinHandle<Result<Samples>>,
    reader: JoinHandle<Samples>,
}

/// Nanoseconds, each within 0.1 % of itself.
pub(crate) type Samples = Histogram<u64>;

/// What they found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) calls: Samples,
    pub(crate) clock: Samples,
}

impl Innocents {
    /// They begin at once.
    pub(crate) fn start(purgatory: &Purgatory<Operation>, round: Round) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (purgatory, stop) = (purgatory.clone(), stop.clone());
            move || call(&purgatory, round, &stop)
        });
        let reader = thread::spawn({
            let stop = stop.clone();
            move || read(&stop)
        });
        Self {
            stop,
            caller,
            reader,
        }
    }

    pub(crate) fn finish(self) -> Result<Found> {
        self.stop.store(true, Ordering::Release);
        let panicked = || anyhow!("an innocent thread panicked");
        Ok(Found {
            calls: self.caller.join().map_err(|_| panicked())??,
            clock: self.reader.join().map_err(|_| panicked())?,
        })
    }
}

/// To add one allocates nothing; what is over an hour counts as one.
pub(crate) fn samples() -> Samples {
    const HOUR: u64 = 3_600_000_000_000;
    Histogram::new_with_max(HOUR, 3).expect("good bounds")
}

fn call(purgatory: &Purgatory<Operation>, round: Round, stop: &AtomicBool) -> Result<Samples> {
    let mut samples = samples();
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let key = KEYS + number % 64;
        let (beside, checked) = match round {
            Round::Own => (None, key),
            Round::Watching(beside) => (Some(beside), key),
            Round::Checking(beside) => (Some(beside), beside),
        };
        let ready = Arc::new(AtomicBool::new(false));
        let op = Operation::new(TIMEOUT, Kind::When(ready.clone()));
        let start = Instant::now();
        let parked = purgatory.try_complete_else_watch(op, [key].into_iter().chain(beside));
        if checked == key {
            samples.saturating_record(start.elapsed().as_nanos() as u64);
        }
        if !parked
            .map_err(|refused| anyhow!("the innocent's operation: {refused}"))?
            .is_parked()
        {
            return Err(anyhow!("the innocent's operation did not park"));
        }
        ready.store(true, Ordering::Release);
        let start = Instant::now();
        let completed = purgatory.check_and_complete(&checked);
        samples.saturating_record(start.elapsed().as_nanos() as u64);
        // Where it watches another key too, more may be completed, or another thread may be examining it.
        if completed != 1 && beside.is_none() {
            return Err(anyhow!("the innocent's check completed {completed}"));
        }
        thread::sleep(PAUSE);
    }
    Ok(samples)
}

/// Two samples a round, like the other; each takes about as long as a call.
fn read(stop: &AtomicBool) -> Samples {
    let mut samples = samples();
    while !stop.load(Ordering::Acquire) {
        for _ in 0..2 {
            let start = Instant::now();
            for _ in 0..10 {
                std::hint::black_box(Instant::now());
            }
            samples.saturating_record(start.elapsed().as_nanos() as u64);
        }
        thread::sleep(PAUSE);
    }
    samples
}
