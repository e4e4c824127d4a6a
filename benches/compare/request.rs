//! The delayed request that every candidate parks: 16 bytes, ready when its flag says so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(PARKED))
    }

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

    /// Makes the flag look like one whose request has come and gone.
    pub(crate) fn mark_ended(&self) {
        self.0.store(SATISFIED, Ordering::Relaxed);
    }

    /// The event that the request waits for has happened.
    pub(crate) fn mark_completable(&self) {
        // ORDERING: pairs with `is_completable`, as a broker's offset would.
        self.0.store(COMPLETABLE, Ordering::Release);
    }

    /// The same where the timeout may fire meanwhile; `false` if it has.
    pub(crate) fn try_mark_completable(&self) -> bool {
        let marked =
            self.0
                .compare_exchange(PARKED, COMPLETABLE, Ordering::AcqRel, Ordering::Acquire);
        marked.is_ok()
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

    /// Whether the request has ended, one way or the other.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.0.load(Ordering::Acquire), PARKED | COMPLETABLE)
    }

    fn end(&self, ending: Ending) {
        // A load and a store rather than a read-modify-write: an ending is exclusive already, and
        // one that is not is a fault of the candidate that the load sees sooner or later.
        let ended = match (self.0.load(Ordering::Acquire), ending) {
            (COMPLETABLE, Ending::Satisfied) => SATISFIED,
            // It may become completable just when its timeout fires.
            (PARKED | COMPLETABLE, Ending::Expired) => EXPIRED,
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
/// not be: the call that ends it must have moved it out of where it was parked.
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

    /// One whose ending [`ended_at`] remembers, with a number of its own below [`TIMED`].
    pub(crate) fn timed(number: u32, flag: &'static Flag, timeout: Duration) -> Self {
        END_TIMES.get_or_init(|| (0..TIMED_MOST).map(|_| AtomicU64::new(0)).collect());
        ORIGIN.get_or_init(Instant::now);
        assert!(
            (number as usize) < TIMED_MOST,
            "more requests than are remembered"
        );
        Self::new(number | TIMED, flag, timeout)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.timeout))
    }

    pub(crate) fn try_complete(&mut self) -> bool {
        self.flag.is_completable()
    }

    pub(crate) fn on_complete(self, ending: Ending) {
        if self.id & TIMED != 0 {
            remember_end(self.id & !TIMED);
        }
        self.flag.end(ending);
    }
}

/// The bit of an id that says that the ending is timed.
const TIMED: u32 = 1 << 31;

const TIMED_MOST: usize = 1 << 17;

static END_TIMES: OnceLock<Vec<AtomicU64>> = OnceLock::new();
static ORIGIN: OnceLock<Instant> = OnceLock::new();

fn remember_end(number: u32) {
    if let (Some(times), Some(origin)) = (END_TIMES.get(), ORIGIN.get()) {
        let time = origin.elapsed().as_nanos() as u64;
        times[number as usize].store(time, Ordering::Relaxed);
    }
}

/// When the [timed](Request::timed) request of this number ended last.
pub(crate) fn ended_at(number: u32) -> Option<Instant> {
    let time = END_TIMES
        .get()?
        .get(number as usize)?
        .load(Ordering::Relaxed);
    Some(*ORIGIN.get()? + Duration::from_nanos(time))
}
