//! Counts: of one stage (its accounts) and of the whole run (the ledger).

use crate::panics::lock;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How an operation ended, as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    Open,
    /// Satisfied before it parked.
    AtOnce,
    Completed,
    Expired,
    /// Handed back to the canceller.
    TakenBack,
    /// `Completion::Cancelled`.
    Cancelled,
    ShutDown,
    /// A panic ended it after it was admitted.
    Aborted,
    /// It was refused, for whatever reason.
    Rejected,
}

impl Ending {
    pub(crate) const ALL: [Self; 9] = [
        Self::Open,
        Self::AtOnce,
        Self::Completed,
        Self::Expired,
        Self::TakenBack,
        Self::Cancelled,
        Self::ShutDown,
        Self::Aborted,
        Self::Rejected,
    ];

    pub(crate) fn of(number: u8) -> Self {
        Self::ALL[usize::from(number)]
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::SeqCst);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The ledger's own counts for one purgatory.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Operations made.
    pub(crate) made: Count,
    /// Their payloads dropped.
    pub(crate) dropped: Count,
    /// By [`Ending`].
    pub(crate) ended: [Count; Ending::ALL.len()],
    /// Calls of `try_complete_else_watch` that gave the operation back.
    pub(crate) refused: Count,
    /// Panics of operations and keys. The library must have caught those that no park has made its caller's.
    pub(crate) panics: Count,
    /// Parks out of which a panic came to the caller.
    pub(crate) unwound: Count,
    /// Operations that expired although they could complete.
    pub(crate) missed: Count,
    /// What checks said they had completed.
    pub(crate) said_completed: Count,
    /// Calls made from inside callbacks.
    pub(crate) nested: Count,
    /// Operations that a call found in the hands of another thread, and that ended only after the call.
    pub(crate) waited: Count,
}

impl Accounts {
    pub(crate) fn ended(&self, ending: Ending) -> u64 {
        self.ended[ending as usize].read()
    }

    pub(crate) fn all_ended(&self) -> u64 {
        self.ended.iter().map(Count::read).sum()
    }

    pub(crate) fn open(&self) -> u64 {
        let ended = self.all_ended();
        self.made.read().saturating_sub(ended)
    }

    fn pairs<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a Count, &'a Count)> {
        let singles = |accounts: &'a Self| {
            [
                &accounts.made,
                &accounts.dropped,
                &accounts.refused,
                &accounts.panics,
                &accounts.unwound,
                &accounts.missed,
                &accounts.said_completed,
                &accounts.nested,
                &accounts.waited,
            ]
        };
        let endings = self.ended.iter().zip(&other.ended);
        singles(self).into_iter().zip(singles(other)).chain(endings)
    }

    /// Adds the counts of a stage that is over.
    pub(crate) fn absorb(&self, stage: &Self) {
        for (mine, theirs) in self.pairs(stage) {
            mine.add(theirs.read());
        }
    }
}

/// What the whole run shares.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) totals: Accounts,
    /// In microseconds, each within 1 % of itself.
    pub(crate) lateness: Mutex<Histogram<u64>>,
    /// Whatever any thread does counts here: a run in which this stands still hangs.
    pub(crate) heartbeat: Count,
    pub(crate) epochs: Count,
    pub(crate) purgatories: Count,
    /// The accounts of the stages of this epoch.
    pub(crate) current: Mutex<Vec<Arc<Accounts>>>,
    findings: Mutex<Vec<String>>,
}

/// How long what must happen soon may take: other threads, which this one does not wait for, are at it.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of discrepancies that are printed.
const PRINTED: usize = 20;

impl Ledger {
    pub(crate) fn new() -> Self {
        const HOUR: u64 = 3_600_000_000;
        let lateness = Histogram::new_with_max(HOUR, 2).expect("good bounds");
        Self {
            totals: Accounts::default(),
            lateness: Mutex::new(lateness),
            heartbeat: Count::default(),
            epochs: Count::default(),
            purgatories: Count::default(),
            current: Mutex::new(Vec::new()),
            findings: Mutex::new(Vec::new()),
        }
    }

    /// Something does not add up.
    pub(crate) fn discrepancy(&self, what: String) {
        let mut findings = lock(&self.findings);
        if findings.len() < PRINTED {
            eprintln!("DISCREPANCY: {what}");
        }
        findings.push(what);
    }

    /// Whether waiting since `start` has taken too long. Once something is wrong, little patience is left.
    pub(crate) fn is_out_of_patience(&self, start: Instant) -> bool {
        let patience = match self.discrepancies() {
            0 => PATIENCE,
            _ => PATIENCE / 20,
        };
        start.elapsed() > patience
    }

    pub(crate) fn discrepancies(&self) -> usize {
        lock(&self.findings).len()
    }
}
