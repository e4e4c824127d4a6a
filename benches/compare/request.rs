//! The delayed request that every candidate parks: 16 bytes, ready when its flag says so.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

const PARKED: u8 = 0;
const COMPLETABLE: u8 = 1;
const SATISFIED: u8 = 2;
const EXPIRED: u8 = 3;
const BROKEN: u8 = 4;

/// What the outside world says about one request, and how the request ended.
///
/// The second half is what keeps a candidate honest: a request that ends twice, or is satisfied
/// before its flag says that it may, leaves `BROKEN` behind and the workload's assertion fails.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicU8);

impl Flag {
    /// A board of flags that lives as long as the process, so that a request can hold a plain
    /// reference: counting references would charge every candidate for the harness.
    ///
    /// The same memory each time, as far as it goes: a board is good until the next call.
    pub(crate) fn board(len: usize) -> &'static [Self] {
        static BOARD: Mutex<&[Flag]> = Mutex::new(&[]);
        let mut board = BOARD.lock();
        if board.len() < len {
            let longer: Vec<Self> = (0..len).map(|_| Self::default()).collect();
            *board = longer.leak();
        }
        board.iter().for_each(Self::reset);
        &board[..len]
    }

    /// Makes the flag good for a new request.
    pub(crate) fn reset(&self) {
        self.0.store(PARKED, Ordering::Relaxed);
    }

    /// The event that the request waits for has happened.
    pub(crate) fn mark_completable(&self) {
        // ORDERING: pairs with `is_completable`, as a broker's offset would.
        self.0.store(COMPLETABLE, Ordering::Release);
    }

    pub(crate) fn is_completable(&self) -> bool {
        self.0.load(Ordering::Acquire) == COMPLETABLE
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        self.0.load(Ordering::Acquire) == SATISFIED
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.0.load(Ordering::Acquire) == EXPIRED
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.0.load(Ordering::Acquire) == PARKED
    }

    fn end(&self, ending: Ending) {
        // A load and a store rather than a read-modify-write: an ending is exclusive already, and
        // one that is not is a fault of the candidate that the load sees sooner or later.
        let ended = match (self.0.load(Ordering::Acquire), ending) {
            (COMPLETABLE, Ending::Satisfied) => SATISFIED,
            (PARKED, Ending::Expired) => EXPIRED,
            _ => BROKEN,
        };
        // ORDERING: pairs with `is_satisfied` and `is_expired`.
        self.0.store(ended, Ordering::Release);
    }
}

/// How a request left the candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Satisfied,
    Expired,
}

/// One delayed request. Neither `Clone` nor `Copy`, as a real one (it owns a reply channel) would
/// not be: whoever ends it must have moved it out of where it was parked.
#[derive(Debug)]
pub(crate) struct Request {
    flag: &'static Flag,
    /// In milliseconds, which keeps the request at 16 bytes.
    timeout: u32,
    /// Stands for the payload that a reply needs.
    id: u32,
}

const _: () = assert!(size_of::<Request>() == 16);

impl Request {
    pub(crate) fn new(id: u32, flag: &'static Flag, timeout: Duration) -> Self {
        let timeout = u32::try_from(timeout.as_millis()).expect("a timeout below 49 days");
        Self { flag, timeout, id }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.timeout))
    }

    pub(crate) fn try_complete(&mut self) -> bool {
        self.flag.is_completable()
    }

    pub(crate) fn on_complete(self, ending: Ending) {
        std::hint::black_box(self.id);
        self.flag.end(ending);
    }
}
