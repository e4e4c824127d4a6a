//! Timer schemes: the seven of Varghese & Lauck, behind one trait.
//!
//! *Hashed and Hierarchical Timing Wheels: Data Structures for the Efficient Implementation of a Timer Facility* (SOSP
//! 1987) describes seven ways to keep timers. Each is a [`Scheme`] here. A scheme files 32-bit timer ids by deadline
//! and counts whole ticks. It knows no payloads, locks or clocks: [`Timer`](crate::Timer) adds these. The paper's four
//! operations are [`start`](Scheme::start), [`stop`](Scheme::stop), [`advance`](Scheme::advance)
//! (`PER_TICK_BOOKKEEPING`), and the callback of an advance (`EXPIRY_PROCESSING`).
//!
//! | | scheme | start | stop | tick | choose it for |
//! |---|---|---|---|---|---|
//! | 1 | `UnorderedList` † | O(1) | O(1) | O(n) | a handful of timers |
//! | 2 | `OrderedList` † | O(n) | O(1) | O(1) | few starts, mostly with the latest deadline |
//! | 3 | [`Heap`] | O(log n) | O(log n) | O(1) | few or sparse timers |
//! | 4 | `SimpleWheel` † | O(1) | O(1) | O(1) | timeouts below one revolution |
//! | 5 | `SortedHashedWheel` † | O(1) to O(n) | O(1) | O(1) | fewer timers than slots |
//! | 6 | [`HashedWheel`] | O(1) | O(1) | O(n / slots) | short and dense timeouts |
//! | 7 | [`SteppedWheel`], tick by tick | O(1) | O(1) | O(1) | wide timeouts in a program that runs at every tick |
//! | 7 | [`HierarchicalWheel`], by bucket deadlines | O(1) | O(1) | O(1), empty ticks cost nothing | wide and sparse timeouts: the default |
//!
//! † In `scheme::reference`, with the feature `reference-schemes`: for tests and measurements, not for deployment.
//!
//! [`Builder::scheme`](crate::Builder::scheme) chooses the scheme of a timer:
//!
//! ```
//! use request_purgatory::{Timer, scheme::HashedWheel};
//!
//! // Timeouts of up to 4 s fit one revolution: 4,096 slots of 1 ms.
//! let timer = Timer::builder("connections")
//!     .scheme::<HashedWheel>()
//!     .wheel_size(4096)
//!     .build(|connection: u64| println!("connection {connection} is idle"))?;
//! # Ok::<(), request_purgatory::purgatory::BuildError>(())
//! ```

mod hashed_wheel;
mod heap;
mod hierarchical_wheel;
mod parts;
mod record;
#[cfg(any(test, feature = "reference-schemes"))]
pub mod reference;
mod stepped_wheel;
#[cfg(all(test, not(loom)))]
mod tests;

pub use hashed_wheel::HashedWheel;
pub use heap::Heap;
pub use hierarchical_wheel::HierarchicalWheel;
pub use record::{HorizonError, Position, Records, Started, Step, Tick};
pub use stepped_wheel::SteppedWheel;

use std::fmt;

mod sealed {
    /// Implemented by the schemes of this crate.
    pub trait Sealed {}
}

/// A way to keep timers by deadline.
///
/// A timer fires in the first advance whose present has reached its deadline: never before, and exactly once. It is in
/// the scheme from [`start`](Self::start) until it fires or is stopped.
///
/// An advance is a *pass*: [`begin_pass`](Self::begin_pass), then [`step`](Self::step) until it returns [`Step::Idle`].
/// A pass fires the timers that were in the scheme when it began and whose deadline it has reached. A timer that is
/// started during the pass waits for the next one, even if its deadline has passed, so every pass ends. Between two
/// steps the caller may start and stop timers, release a lock, begin a later pass, or leave the pass unfinished.
///
/// The caller keeps the [`Records`] of its timers and passes the same records to every call. An id is at most once in a
/// scheme. Ticks are below `u64::MAX`, and the present never decreases from one pass to the next.
///
/// No method reads a clock, takes a lock or blocks, and none panics unless the records do.
///
/// # Sealed
/// Only this crate implements the trait. A scheme runs under a lock of the timer, and the guarantees of the timer (each
/// payload ends once, at most one tick late, with bounded time under the lock) hold only if the scheme keeps every rule
/// above; the compiler checks none of them. Also, the methods follow the needs of the timer, and a new required method
/// would break every implementation outside. A later release can open a sealed trait, but not seal an open one.
///
/// # Use without a timer
/// A scheme also serves a program that has its own records and its own loop:
///
/// ```
/// use request_purgatory::scheme::{Heap, Position, Records, Scheme, Tick};
///
/// /// The deadline and the position of each timer. The index is the id.
/// struct Table(Vec<(Tick, Position)>);
///
/// impl Records for Table {
///     fn deadline(&self, id: u32) -> Tick {
///         self.0[id as usize].0
///     }
///
///     fn set_position(&mut self, id: u32, position: Position) {
///         self.0[id as usize].1 = position;
///     }
/// }
///
/// let mut table = Table(vec![(5, Position::NONE), (3, Position::NONE), (7, Position::NONE)]);
/// let mut heap = Heap::new(0, 0);
/// for id in 0..3 {
///     let deadline = table.deadline(id);
///     let started = heap.start(&mut table, id, deadline, 0)?;
///     table.set_position(id, started.position);
/// }
/// let position = table.0[1].1;
/// heap.stop(&mut table, position);
/// table.set_position(1, Position::NONE);
///
/// assert_eq!(heap.next_deadline(), Some(5));
/// let mut fired = Vec::new();
/// heap.advance(&mut table, 6, |_, _, id, deadline| fired.push((id, deadline)));
/// assert_eq!(fired, [(0, 5)]);
/// assert_eq!(heap.len(), 1);
/// # Ok::<(), request_purgatory::scheme::HorizonError>(())
/// ```
pub trait Scheme: sealed::Sealed + fmt::Debug + Send + 'static {
    /// An empty scheme at tick `now`. `slots` is the number of slots per level, at least 2 (less counts as 2); a scheme
    /// without slots ignores it.
    fn new(slots: u32, now: Tick) -> Self
    where
        Self: Sized;

    /// The number of timers in the scheme.
    fn len(&self) -> usize;

    /// Whether there is no timer in the scheme.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latest deadline that [`start`](Self::start) accepts at `now`, the present or an earlier tick. It is
    /// [`Tick::MAX`] for every scheme but the simple wheel.
    fn latest(&self, now: Tick) -> Tick {
        let _ = now;
        Tick::MAX
    }

    /// Starts timer `id` with this deadline, which may have passed. `now` is the present, or an earlier tick. The
    /// caller stores the returned position in the record, which need not exist before.
    ///
    /// # Errors
    /// If the deadline is past [`latest`](Self::latest), which only a simple wheel limits. The scheme is unchanged.
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError>;

    /// Stops the timer at `position`, the one in its record; does nothing at [`Position::NONE`]. May set the positions
    /// of other timers. The position of the stopped timer stays in its record until the caller overwrites it.
    ///
    /// A position that is in no record must not be passed: another timer may be there.
    fn stop(&mut self, records: &mut impl Records, position: Position);

    /// The tick before which an advance has nothing to do: at or before the earliest deadline. `None` if the scheme is
    /// empty.
    ///
    /// The wheels that go tick by tick return the next tick, whatever the deadlines are.
    fn next_deadline(&mut self) -> Option<Tick>;

    /// Begins a pass at `now`.
    fn begin_pass(&mut self, now: Tick);

    /// Does one unit of work of a pass at `now`: fires a timer, moves a timer, or passes an empty slot. Takes bounded
    /// time.
    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step;

    /// The timers that the next steps will examine, as far as the scheme knows them without a search. The caller can
    /// prefetch their records, which may lie far apart in memory.
    fn upcoming(&self) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }

    /// Does a whole pass at `now`: calls `expire` with the id and the deadline of each timer that fires. `expire` may
    /// start and stop timers. Returns the number of steps.
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
