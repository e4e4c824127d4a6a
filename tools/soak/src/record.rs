//! What the ledger knows of one operation. Both the operation and the ledger have it, so it outlives the operation.

use crate::ledger::{Accounts, Count, Ending};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A moment that never comes.
pub(crate) const NEVER: u64 = u64::MAX;
/// After this many examinations in a row the library may defer the next one, and a deadline may come first.
pub(crate) const PUT_OFF_AFTER: u32 = 16;

#[derive(Debug)]
pub(crate) struct Record {
    /// Each once.
    pub(crate) keys: Vec<u32>,
    /// A key, and the offset of it that satisfies the operation.
    pub(crate) wait: Option<(u32, u64)>,
    ready: AtomicBool,
    inside: AtomicBool,
    looks: AtomicU32,
    answer: AtomicBool,
    ending: AtomicU8,
    /// It expires at this moment or later, in nanoseconds of the stage's clock.
    deadline: AtomicU64,
    /// When a check was over that began after the operation was made ready, with the operation parked until then.
    checked: AtomicU64,
    /// One new deadline at a time, so that the ledger knows which one counts.
    pub(crate) rescheduling: Mutex<()>,
}

// Everything is SeqCst: this is the judge, and must not be the one that is wrong.
const ORDER: Ordering = Ordering::SeqCst;

impl Record {
    pub(crate) fn new(keys: &[u32], wait: Option<(u32, u64)>, deadline: u64) -> Self {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        Self {
            keys,
            wait,
            ready: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            answer: AtomicBool::new(false),
            ending: AtomicU8::new(Ending::Open as u8),
            deadline: AtomicU64::new(deadline),
            checked: AtomicU64::new(NEVER),
            rescheduling: Mutex::new(()),
        }
    }

    pub(crate) fn make_ready(&self) {
        self.ready.store(true, ORDER);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(ORDER)
    }

    /// A hook begins. False if another one is running.
    pub(crate) fn enter(&self) -> bool {
        !self.inside.swap(true, ORDER)
    }

    pub(crate) fn leave(&self) {
        self.inside.store(false, ORDER);
    }

    /// Counts one more `try_complete`.
    pub(crate) fn look(&self) -> u32 {
        self.looks.fetch_add(1, ORDER) + 1
    }

    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(ORDER)
    }

    pub(crate) fn answered(&self, answer: bool) {
        self.answer.store(answer, ORDER);
    }

    /// What the last `try_complete` said.
    pub(crate) fn answer(&self) -> bool {
        self.answer.load(ORDER)
    }

    /// Books the ending. The earlier one, if there was one.
    pub(crate) fn end(&self, ending: Ending, accounts: &Accounts) -> Result<(), Ending> {
        self.ending
            .compare_exchange(Ending::Open as u8, ending as u8, ORDER, ORDER)
            .map_err(Ending::of)?;
        Count::add(&accounts.ended[ending as usize], 1);
        Ok(())
    }

    pub(crate) fn ending(&self) -> Ending {
        Ending::of(self.ending.load(ORDER))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.ending() == Ending::Open
    }

    /// Whether the library has ended it. (A panic is booked before the library has caught it.)
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.ending(), Ending::Open | Ending::Aborted)
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(ORDER)
    }

    pub(crate) fn set_deadline(&self, deadline: u64) {
        self.deadline.store(deadline, ORDER);
    }

    /// A check that came after the event is over.
    pub(crate) fn was_checked(&self, now: u64) {
        if self.is_open() {
            self.checked.fetch_min(now, ORDER);
        }
    }

    /// Whether a check before `moment` should have completed the operation.
    pub(crate) fn should_have_ended_before(&self, moment: u64) -> bool {
        self.checked.load(ORDER) < moment && self.looks() < PUT_OFF_AFTER
    }
}
