//! Which operation's `try_complete` (or change, where it is forced) the calling thread is in, and why. A check that is
//! made in there waits on the [trampoline](crate::callbacks::trampoline), as every completion does; from here it knows
//! which operation has made it.

use std::cell::Cell;

/// Names the operation that a thread is examining, among those of all purgatories: the address of its slot in memory,
/// and which occupant of the slot it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Examinee {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// Why an operation is examined: a bit above those of its generation.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Trigger {
    /// It is being parked, or this thread checks it.
    Check = 0,
    /// It was asked for while the operation was held.
    Mark = 1 << 32,
    /// Its deadline has passed.
    Deadline = 1 << 33,
}

/// One call of an operation's `try_complete`. (Two words, since every examination writes one and restores another.)
#[derive(Debug, Clone, Copy)]
pub(crate) struct Examination {
    /// 0 if there is none.
    slot: usize,
    /// The generation, [why](Trigger) it is made, and whether one that it is inside of is made at a deadline.
    detail: u64,
}

impl Examination {
    const NONE: Self = Self { slot: 0, detail: 0 };

    pub(crate) fn examinee(self) -> Examinee {
        Examinee {
            slot: self.slot,
            generation: self.detail as u32,
        }
    }

    /// Whether another thread has asked for it.
    pub(crate) fn is_for_a_mark(self) -> bool {
        self.detail & Trigger::Mark as u64 != 0
    }

    /// Whether this one, or one that it is inside of, is made because a deadline has passed.
    pub(crate) fn is_in_expiry(self) -> bool {
        self.detail & Trigger::Deadline as u64 != 0
    }
}

crate::sync::thread_local! {
    static EXAMINING: Cell<Examination> = const { Cell::new(Examination::NONE) };
}

/// While it exists, this thread is inside the `try_complete` of an operation.
pub(crate) struct Examining {
    outer: Examination,
}

impl Examining {
    /// Stands for every operation that is not parked yet. (No slot is there.)
    pub(crate) const UNPARKED: Examinee = Examinee {
        slot: 1,
        generation: 0,
    };

    #[inline(always)]
    pub(crate) fn enter(of: Examinee, trigger: Trigger) -> Self {
        let outer = EXAMINING.try_with(|examining| {
            let outer = examining.get();
            let inherited = outer.detail & Trigger::Deadline as u64;
            examining.set(Examination {
                slot: of.slot,
                detail: u64::from(of.generation) | trigger as u64 | inherited,
            });
            outer
        });
        Self {
            outer: outer.unwrap_or(Examination::NONE),
        }
    }

    /// The `try_complete` that the calling thread is in.
    #[inline]
    pub(crate) fn current() -> Option<Examination> {
        let examination = EXAMINING.try_with(Cell::get).ok()?;
        (examination.slot != 0).then_some(examination)
    }
}

impl Drop for Examining {
    #[inline]
    fn drop(&mut self) {
        // The local may be destroyed already.
        let _ = EXAMINING.try_with(|examining| examining.set(self.outer));
    }
}
