//! Timer schemes: the seven of Varghese & Lauck, behind one face.
//!
//! *Hashed and Hierarchical Timing Wheels: Data Structures for the Efficient Implementation of a Timer Facility*
//! (SOSP 1987) describes seven ways to keep timers. Each is a [`Scheme`] here. They file 32-bit timer ids by deadline
//! and count whole ticks; they know nothing of payloads, locks or clocks, which is what [`Timer`](crate::Timer) adds.
//! The paper's four operations are [`start`](Scheme::start), [`stop`](Scheme::stop), [`advance`](Scheme::advance)
//! (`PER_TICK_BOOKKEEPING`) and the visitor that an advance calls (`EXPIRY_PROCESSING`).
//!
//! | | scheme | start | stop | a tick | when |
//! |---|---|---|---|---|---|
//! | 1 | `UnorderedList`, a reference | O(1) | O(1) | O(n) | a handful of timers |
//! | 2 | `OrderedList`, a reference | O(n) | O(1) | O(1) | few starts, mostly the latest deadline |
//! | 3 | [`Heap`] | O(log n) | O(log n) | O(1) | few or sparse timers |
//! | 4 | `SimpleWheel`, a reference | O(1) | O(1) | O(1) | all timeouts below one revolution |
//! | 5 | `SortedHashedWheel`, a reference | O(1) to O(n) | O(1) | O(1) | fewer timers than slots |
//! | 6 | [`HashedWheel`] | O(1) | O(1) | O(n / slots) | timeouts short and dense |
//! | 7 | [`SteppedWheel`], tick by tick | O(1) | O(1) | O(1) | timeouts wide, a tick always at hand |
//! | 7 | [`HierarchicalWheel`], by bucket deadlines | O(1) | O(1) | O(1), empty ticks nothing | timeouts wide and sparse: the default |
//!
//! Those called references should not be deployed: they stand behind the feature `reference-schemes`, for tests and
//! measurements.

#[cfg(any(test, feature = "reference-schemes"))]
mod ordered_list;
#[cfg(any(test, feature = "reference-schemes"))]
mod simple_wheel;
#[cfg(any(test, feature = "reference-schemes"))]
mod sorted_hashed_wheel;
#[cfg(any(test, feature = "reference-schemes"))]
mod unordered_list;

mod bag;
mod blocks;
mod dial;
mod hashed_wheel;
mod heap;
mod hierarchical_wheel;
mod links;
mod radix;
mod stepped_wheel;
#[cfg(all(test, not(loom)))]
mod tests;

pub use hashed_wheel::HashedWheel;
pub use heap::Heap;
pub use hierarchical_wheel::HierarchicalWheel;
pub use stepped_wheel::SteppedWheel;

#[cfg(any(test, feature = "reference-schemes"))]
pub use {
    ordered_list::OrderedList, simple_wheel::SimpleWheel, sorted_hashed_wheel::SortedHashedWheel,
    unordered_list::UnorderedList,
};

use std::error::Error;
use std::fmt;

/// A number of ticks since an origin that the owner of the scheme chose.
pub type Tick = u64;

/// Where a scheme has filed a timer: a number that means something to that scheme alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position(u32);

impl Position {
    /// Not filed: never started, stopped, or handed out as due.
    pub const NONE: Self = Self(u32::MAX);

    /// The position that `number` stands for, below `u32::MAX`.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number that this position was made from.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The caller's records of its timers: a scheme keeps ids only, and asks here for the rest.
pub trait Records {
    /// The tick at which timer `id` is due.
    fn deadline(&self, id: u32) -> Tick;
    /// Remembers where timer `id` is filed now.
    fn set_position(&mut self, id: u32, position: Position);
}

/// A timer that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Where it is filed, for the caller's record.
    pub position: Position,
    /// What [`Scheme::next_deadline`] says from now on, if that is earlier than before: a sleeper must hear of it.
    pub earliest: Option<Tick>,
}

impl Started {
    /// What a start did to the scheme's next deadline.
    fn at(position: Position, before: Option<Tick>, after: Option<Tick>) -> Self {
        let earlier = |&after: &Tick| before.is_none_or(|before| after < before);
        Self {
            position,
            earliest: after.filter(earlier),
        }
    }
}

/// What one step of an advance came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// This timer is due, since the given tick. It is no longer filed, and its record says so.
    Fired(u32, Tick),
    /// Something else was done: a timer moved closer, an empty slot was passed.
    Bookkeeping,
    /// Nothing more is due.
    Idle,
}

/// The deadline lies past what the scheme can hold: one revolution of a simple wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeyondSpan {
    /// The latest deadline that can be started now.
    pub latest: Tick,
}

impl fmt::Display for BeyondSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the wheel spans no deadline past tick {}", self.latest)
    }
}

impl Error for BeyondSpan {}

/// A way to keep timers by deadline.
///
/// All of them fire a timer in the first advance whose present has reached its deadline, never before, and once. An
/// advance is a *pass*: it fires what was due when it began, and leaves for the next pass what is started meanwhile,
/// however close, so that every pass ends. Between the steps of a pass timers may be started and stopped.
///
/// The caller keeps a record of each timer ([`Records`]), and gives the same records to every call. A timer is in the
/// scheme from `start` until it is stopped or fired.
pub trait Scheme: fmt::Debug + Send + 'static {
    /// An empty one at tick `now`, with so many slots (of each level). Those without slots ignore the number; the
    /// others take 2 for less.
    fn new(slots: u32, now: Tick) -> Self
    where
        Self: Sized;

    /// Timers started and neither stopped nor fired.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latest deadline that [`start`](Self::start) takes at `now`, the present or a tick before it. A scheme that
    /// takes any need not say so.
    fn latest(&self, now: Tick) -> Tick {
        let _ = now;
        Tick::MAX
    }

    /// Starts timer `id`, due at `deadline`, which may have passed. `now` is the present, or a tick before it. The
    /// caller then remembers the position (the record need not exist before).
    ///
    /// # Errors
    /// If the deadline lies [beyond the span](BeyondSpan) of a simple wheel, past the [`latest`](Self::latest); the
    /// others take any.
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, BeyondSpan>;

    /// Stops the timer at `position`, which is where its record says; nothing happens at [`Position::NONE`]. The
    /// caller's record of it is not touched, others' may be.
    fn stop(&mut self, records: &mut impl Records, position: Position);

    /// Before this tick an advance has nothing to do. At or before the earliest deadline; `None` without timers.
    ///
    /// A scheme that goes tick by tick says the next tick, whatever the deadlines.
    fn next_deadline(&mut self) -> Option<Tick>;

    /// Begins a pass at `now`.
    fn begin_pass(&mut self, now: Tick);

    /// Does one thing that is due at `now`, in bounded time (but for scheme 1, which looks at every timer). The caller
    /// begins a pass, and repeats this until it is [`Step::Idle`]; meanwhile it may release a lock.
    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step;

    /// The timers that the next steps will come to, as far as that is known at once; they may lie far apart in memory,
    /// and the caller may want to bring the records of many close together before.
    fn upcoming(&self) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }

    /// A whole pass at `now`: calls `expire` with the id and the deadline of each timer that is due. `expire` may
    /// start and stop timers. Returns how many steps it took.
    fn advance<R: Records>(
        &mut self,
        records: &mut R,
        now: Tick,
        mut expire: impl FnMut(&mut Self, &mut R, u32, Tick),
    ) -> usize
    where
        Self: Sized,
    {
        self.begin_pass(now);
        let mut steps = 0;
        loop {
            match self.step(records, now) {
                Step::Fired(id, deadline) => expire(self, records, id, deadline),
                Step::Bookkeeping => {}
                Step::Idle => return steps,
            }
            steps += 1;
        }
    }
}
