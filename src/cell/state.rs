//! The state word of a slot: which thread holds the operation, and what other threads ask of the holder.
//!
//! | bits | name | set by | meaning |
//! |---|---|---|---|
//! | 0 | `PARKED` | `occupy` | the slot holds an operation |
//! | 1 | `HELD` | `occupy`, `claim_or_mark` | one thread, the *holder*, has exclusive access |
//! | 2 | `EXAMINE` | `claim_or_mark` | a check came while the operation was held: the holder must examine it (again) |
//! | 3 | `Mark::Force` | `claim_or_mark` | the holder must end it as satisfied |
//! | 4 | `Mark::Cancel` | `claim_or_mark` | the holder must end it as cancelled |
//! | 5 | `Mark::Expire` | `claim_or_mark` | its timer has fired: the holder ends it as expired, or extends its wait |
//! | 6 | `Mark::ShutDown` | `claim_or_mark` | the holder must end it as shut down |
//! | 32.. | generation | `end` | the number of the occupant: an address with another generation is stale |
//!
//! Truth table (`-` is 0):
//!
//! | PARKED | HELD | marks | state | who may use the operation |
//! |---|---|---|---|---|
//! | - | - | - | vacant | no thread: there is no operation |
//! | 1 | - | - | parked | no thread, until one claims it |
//! | 1 | 1 | - | held | the holder |
//! | 1 | 1 | any | held, with marks | the holder, which finds the marks when it releases the operation |
//!
//! ```text
//!                   occupy                      release, no mark
//!   vacant -----------------------> held ---------------------------> parked
//!   (gen g)                         ^  | <---------------------------
//!      ^                            |  |              claim
//!      |   release finds EXAMINE:   |  |
//!      |   examine again            |  |  mark, by other threads
//!      |                            |  v
//!      |                      held, with marks
//!      |                            |
//!      |   end, from either "held"  |  try_complete says yes or panics; or release finds an ending mark; or
//!      +----------------------------+  the holder has claimed it in order to end it; or the park fails
//!          gen g+1, no marks
//! ```
//!
//! An *ending mark* is any mark but `EXAMINE`. If several are set, the holder acts on the first of `Force`, `Cancel`,
//! `Expire` and `ShutDown`. When a holder releases an operation, the first line that fits applies:
//!
//! | the state word has | the holder | the next state |
//! |---|---|---|
//! | `EXAMINE`, and fewer than `MAX_EXAMINATIONS` examinations in a row | examines it again | held, without `EXAMINE` |
//! | an ending mark | examines it once more if `EXAMINE` is set, then acts on the mark | held |
//! | `EXAMINE` | leaves a check of this operation to the thread that drives the timer | parked |
//! | no mark | is done | parked |
//!
//! The third line bounds the work of one thread: if a key is checked all the time, its checks do not keep one holder
//! examining for ever.
//!
//! No thread waits for a holder. A thread that finds the operation held leaves a mark. The mark makes the holder's
//! release fail, and the holder then acts on the mark.
//!
//! INVARIANT: after each check of the operation comes an examination that begins after the check, or the end of the
//! operation. Otherwise an event could be missed, and the operation would wait until its deadline.
//!
//! A holder rarely leaves a mark on its own operation. It runs no check during an examination, because a check that is
//! made inside a `try_complete` waits for the end of the thread's outermost call (see `trampoline`). But user code that
//! the holder runs may leave a mark in these cases:
//!
//! * `EXAMINE`: at the deadline, the holder may call the user's clock or wake function outside an examination. This
//!   code may check a key of the operation. The cost is one more examination.
//! * An ending mark: a `try_complete` may cancel its own operation. During a park, the user's wake function or tracing
//!   subscriber may drive the timer or shut the purgatory down.
#![allow(unreachable_pub, reason = "the models see it")]

use crate::sync::{AtomicU64, LAST_GENERATION, Ordering, overwrite};

const PARKED: u64 = 1;
const HELD: u64 = 1 << 1;
const EXAMINE: u64 = Mark::Examine as u64;
const GENERATION: u32 = 32;
/// The generation in the state word of a *retired* slot, which gets no other occupant: after the last generation, the
/// count wraps to 0. A slot from which no operation has ended yet has generation 0 too, but [`State::last_generation`],
/// which tests for `RETIRED`, is called only after an end.
const RETIRED: u32 = 0;

/// A bit in the state word: a request to the holder (the thread with exclusive access to the operation) to examine the
/// operation, or to end it. A thread that cannot claim the operation, because it is held, sets the bit and does not
/// wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    /// Examine the operation once more.
    Examine = 1 << 2,
    /// End the operation as satisfied.
    Force = 1 << 3,
    /// End the operation as cancelled.
    Cancel = 1 << 4,
    /// The operation's timer has fired. End the operation as expired, or give it another deadline.
    Expire = 1 << 5,
    /// The purgatory or timer is shutting down. End the operation because of that.
    ShutDown = 1 << 6,
}

impl Mark {
    /// The ending marks, by precedence: the first of these that is set decides how the operation ends.
    const ENDING: [Self; 4] = [Self::Force, Self::Cancel, Self::Expire, Self::ShutDown];
}

/// The answer of [`State::claim_or_mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The caller is the holder now.
    Held,
    /// The operation was held already, perhaps by this thread further down its stack. The mark is set, and the holder
    /// acts on it when it releases the operation.
    Marked,
    /// The address is stale: the operation that it names has ended.
    Stale,
}

/// Why the caller of [`State::release`] is still the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreleased {
    /// Whether another examination was asked for. The holder must make it first.
    pub examine: bool,
    /// The ending mark on which the holder must act. If it is `None`, `examine` is `true`, and the next release finds
    /// an ending mark that another thread may have left.
    pub ending: Option<Mark>,
}

/// The state word of one slot.
#[derive(Debug)]
pub struct State(AtomicU64);

#[derive(Clone, Copy)]
struct Snapshot(u64);

impl Snapshot {
    fn of(generation: u32, bits: u64) -> Self {
        Self(u64::from(generation) << GENERATION | bits)
    }

    fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    fn without(self, bits: u64) -> Self {
        Self(self.0 & !bits)
    }

    fn generation(self) -> u32 {
        (self.0 >> GENERATION) as u32
    }

    /// Whether the occupant with `generation` is still parked, held or not.
    fn is(self, generation: u32) -> bool {
        self.has(PARKED) && self.generation() == generation
    }
}

impl State {
    /// The state word of a slot that was never used.
    pub fn vacant() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The only compare-and-swap loop on the state word. `now` is the value that the caller expects in the word. The
    /// closure `step` gets the present value. It returns two things: what this function is to return, and the next
    /// value of the word (`None` if the word stays as it is).
    #[inline(always)]
    fn transition_from<A>(
        &self,
        mut now: u64,
        step: impl Fn(Snapshot) -> (A, Option<Snapshot>),
    ) -> A {
        loop {
            let (answer, next) = step(Snapshot(now));
            let Some(next) = next else {
                return answer;
            };
            // ORDERING: AcqRel: the Release of each transition pairs with the Acquire of the later ones. There are two
            // cases:
            //
            // * What a holder did to the operation before `release` happens before the accesses of the next holder,
            //   which come after its `claim_or_mark`.
            // * A thread causes an event, and then leaves a mark: a bit that asks the holder for an examination or an
            //   ending. What this thread did before it left the mark happens before the holder finds the mark in
            //   `release`, and so before the examination or the ending that follows.
            match self
                .0
                .compare_exchange_weak(now, next.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return answer,
                Err(changed) => now = changed,
            }
        }
    }

    /// The first attempt at a transition, for the most likely value `from` of the state word. `Err` has the value that
    /// was found instead.
    #[inline(always)]
    fn exchange(&self, from: Snapshot, to: Snapshot) -> Result<u64, u64> {
        // ORDERING: AcqRel, as argued in `transition_from`: what one holder did to the operation happens before the
        // accesses of the next holder, and what a thread did before it left a mark happens before the holder acts on
        // the mark.
        self.0
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire)
    }

    /// vacant -> held. The caller has taken the slot off the free list. Returns the generation of the new occupant.
    #[inline]
    pub fn occupy(&self) -> u32 {
        // ORDERING: Relaxed on the load and the store. The load: the end of the previous occupant happens before this
        // call, by the lock under which the slot was put back. The store: another thread needs the address of the new
        // occupant to claim or mark it. The address is published after this store, and always by a Release: by the
        // unlock of the timer shard, by the unlock of a key's watch list, or by the exchange in `ResolvedList::swap`,
        // which adds a watcher to a `ResolvedKey`.
        let vacant = Snapshot(self.0.load(Ordering::Relaxed));
        debug_assert!(!vacant.has(PARKED | HELD));
        self.0
            .store(vacant.with(PARKED | HELD).0, Ordering::Relaxed);
        vacant.generation()
    }

    /// parked -> held. If the operation is held already: held -> held with `mark`, and the holder acts on the mark.
    #[inline(always)]
    pub fn claim_or_mark(&self, generation: u32, mark: Mark) -> Claim {
        // Try the exchange at once, for the most likely value: most operations are parked and not held. A load before
        // it would fetch the cache line as shared, and the exchange would have to fetch it once more as exclusive.
        let parked = Snapshot::of(generation, PARKED);
        match self.exchange(parked, parked.with(HELD)) {
            Ok(_) => Claim::Held,
            Err(found) => self.claim_from(found, generation, mark),
        }
    }

    #[cold]
    fn claim_from(&self, found: u64, generation: u32, mark: Mark) -> Claim {
        self.transition_from(found, |now| {
            if !now.is(generation) {
                (Claim::Stale, None)
            } else if !now.has(HELD) {
                (Claim::Held, Some(now.with(HELD)))
            } else {
                // Write even if the mark is set already. The write publishes to the holder what this thread did before
                // the write (such as the change that a check announces). The earlier write, which set the mark,
                // published only what another thread did.
                (Claim::Marked, Some(now.with(mark as u64)))
            }
        })
    }

    /// held -> parked, unless a mark forbids it. Called only by the holder, after an examination that did not complete
    /// the operation. `examine_again` says that the holder is ready for one more examination: then [`Mark::Examine`]
    /// forbids the release too. If it is `false` (for example after `MAX_EXAMINATIONS` in a row), only an ending mark
    /// forbids the release.
    ///
    /// * `Ok(false)`: the operation is released, and there was no mark.
    /// * `Ok(true)`: the operation is released, but [`Mark::Examine`] was set, and the caller must arrange for that
    ///   examination. Returned only if `examine_again` is `false` and no mark asks for an ending.
    /// * `Err`: the caller is still the holder, and must act on the mark.
    #[inline(always)]
    pub fn release(&self, generation: u32, examine_again: bool) -> Result<bool, Unreleased> {
        // First expect a state word without marks: most operations have none.
        let held = Snapshot::of(generation, PARKED | HELD);
        match self.exchange(held, held.without(HELD)) {
            Ok(_) => Ok(false),
            Err(found) => self.release_from(found, examine_again),
        }
    }

    #[cold]
    fn release_from(&self, found: u64, examine_again: bool) -> Result<bool, Unreleased> {
        self.transition_from(found, |now| {
            debug_assert!(now.has(PARKED) && now.has(HELD));
            let unexamined = now.has(EXAMINE);
            // First examine, then end: the check that set `EXAMINE` may have come before the request for the ending,
            // and may complete the operation.
            if unexamined && examine_again {
                let unreleased = Unreleased {
                    examine: true,
                    ending: None,
                };
                return (Err(unreleased), Some(now.without(EXAMINE)));
            }
            let ending = Mark::ENDING.into_iter().find(|mark| now.has(*mark as u64));
            if ending.is_none() {
                return (Ok(unexamined), Some(now.without(HELD | EXAMINE)));
            }
            let unreleased = Unreleased {
                examine: unexamined,
                ending,
            };
            (Err(unreleased), None)
        })
    }

    /// Clears [`Mark::Expire`]; the operation stays held. Called only by the holder, before it starts the operation's
    /// timer again. If the new timer fires while the operation is held, the mark is set again.
    #[cold]
    pub(crate) fn forget_expiry(&self) {
        // ORDERING: Relaxed: the load is only a guess, and the exchange in `transition_from` fails if the guess is
        // wrong.
        let now = self.0.load(Ordering::Relaxed);
        self.transition_from(now, |now| ((), Some(now.without(Mark::Expire as u64))));
    }

    /// held -> vacant, whatever marks are set. Called only by the holder.
    #[inline(always)]
    pub fn end(&self, generation: u32) {
        // ORDERING: Release pairs with the Acquire in `transition_from`, `is_parked` and `occupant`: what the holder
        // did before the end happens before everything that a thread does after it has seen the end.
        //
        // This plain store may overwrite a mark that another thread is leaving. No request is lost: each mark asks for
        // an examination or an ending, and the end of the operation answers both.
        let next = match generation {
            LAST_GENERATION => RETIRED,
            _ => generation + 1,
        };
        overwrite(&self.0, Snapshot::of(next, 0).0, Ordering::Release);
    }

    /// The generation of the last occupant of the slot, which is vacant now.
    pub(crate) fn last_generation(&self) -> u32 {
        // ORDERING: Relaxed: `end` happens before this load. The thread that called `end` has pushed the slot on the
        // remote free list (the lock-free stack of ended slots), from which a holder of the slab's lock has taken it.
        match Snapshot(self.0.load(Ordering::Relaxed)).generation() {
            RETIRED => LAST_GENERATION,
            next => next - 1,
        }
    }

    /// Whether the occupant with `generation` is still parked, held or not.
    pub fn is_parked(&self, generation: u32) -> bool {
        // ORDERING: Acquire pairs with the Release in `end`: a thread that finds the operation ended sees what its
        // holder did before.
        Snapshot(self.0.load(Ordering::Acquire)).is(generation)
    }

    /// The generation of the present occupant, held or not. `None` if the slot is vacant.
    pub(crate) fn occupant(&self) -> Option<u32> {
        // ORDERING: Acquire pairs with the Release in `end`: a thread that finds the slot vacant sees what the holder
        // did before.
        let now = Snapshot(self.0.load(Ordering::Acquire));
        now.has(PARKED).then(|| now.generation())
    }

    #[cfg(all(test, not(request_purgatory_loom)))]
    pub(crate) fn skip_to_generation(&self, generation: u32) {
        self.0
            .store(Snapshot::of(generation, 0).0, Ordering::Relaxed);
    }
}

/// Tests of the state word on one thread, compared with its truth table in plain variables. The loom models test the
/// races between threads.
#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::{Claim, Mark, State, Unreleased};
    use crate::sync::LAST_GENERATION;
    use proptest::prelude::*;

    const MARKS: [Mark; 5] = [
        Mark::Examine,
        Mark::Force,
        Mark::Cancel,
        Mark::Expire,
        Mark::ShutDown,
    ];

    /// The contents that the state word should have.
    #[derive(Debug, Default)]
    struct Table {
        generation: u32,
        parked: bool,
        held: bool,
        /// One flag for each of [`MARKS`].
        marks: [bool; 5],
    }

    impl Table {
        fn release(&mut self, examine_again: bool) -> Result<bool, Unreleased> {
            let asked = std::mem::take(&mut self.marks[0]);
            if asked && examine_again {
                return Err(Unreleased {
                    examine: true,
                    ending: None,
                });
            }
            if let Some(first) = (1..5).find(|mark| self.marks[*mark]) {
                self.marks[0] = asked;
                return Err(Unreleased {
                    examine: asked,
                    ending: Some(MARKS[first]),
                });
            }
            self.held = false;
            Ok(asked)
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// A claim. The first number says how many generations old the claimed address is. The second number is the
        /// index of the claim's mark in [`MARKS`].
        Claim(u32, usize),
        Release(bool),
        End,
        Occupy,
    }

    fn step() -> impl Strategy<Value = Step> {
        let distant = || (0..u32::BITS).prop_map(|bit| 1 << bit);
        let back = || prop_oneof![5 => Just(0), 1 => 1..3_u32, 1 => distant()];
        prop_oneof![
            7 => (back(), 0..5_usize).prop_map(|(back, mark)| Step::Claim(back, mark)),
            3 => any::<bool>().prop_map(Step::Release),
            1 => Just(Step::End),
            2 => Just(Step::Occupy),
        ]
    }

    proptest! {
        #[test]
        fn every_transition_is_as_in_the_table(
            first in prop_oneof![Just(0), Just(7), Just(LAST_GENERATION - 3)],
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let word = State::vacant();
            word.skip_to_generation(first);
            let mut table = Table { generation: first, ..Table::default() };
            for step in steps {
                match step {
                    Step::Claim(back, mark) => {
                        let expected = match () {
                            () if !table.parked || back != 0 => Claim::Stale,
                            () if table.held => Claim::Marked,
                            () => Claim::Held,
                        };
                        table.held |= expected == Claim::Held;
                        table.marks[mark] |= expected == Claim::Marked;
                        let generation = table.generation.wrapping_sub(back);
                        prop_assert_eq!(word.claim_or_mark(generation, MARKS[mark]), expected);
                    }
                    Step::Release(examine_again) if table.held => {
                        let expected = table.release(examine_again);
                        prop_assert_eq!(word.release(table.generation, examine_again), expected);
                    }
                    Step::End if table.held => {
                        word.end(table.generation);
                        // The generation after the last one is 0.
                        let generation = table.generation.wrapping_add(1);
                        table = Table { generation, ..Table::default() };
                        let last = generation.checked_sub(1).unwrap_or(LAST_GENERATION);
                        prop_assert_eq!(word.last_generation(), last);
                        if generation == 0 {
                            return Ok(());
                        }
                    }
                    Step::Occupy if !table.parked => {
                        (table.parked, table.held) = (true, true);
                        prop_assert_eq!(word.occupy(), table.generation);
                    }
                    _ => {}
                }
                prop_assert_eq!(word.is_parked(table.generation), table.parked);
                prop_assert!(!word.is_parked(table.generation.wrapping_sub(1)));
                prop_assert_eq!(word.occupant(), table.parked.then_some(table.generation));
            }
        }
    }
}
