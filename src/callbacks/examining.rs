//! The operation that the calling thread is examining, and why. An examination is a call of `try_complete`, or of the
//! closure that changes an operation before it is forced to complete. A check made inside an examination waits on the
//! [trampoline](crate::callbacks::trampoline) until the outermost call is about to return. This module tells which
//! operation made the check.

use std::cell::Cell;

/// The identity of the operation that a thread is examining: the memory address of its slot, and its generation (which
/// occupant of the slot). Unique across all purgatories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Examinee {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// Why an operation is examined. Stored as a bit above the bits of the generation.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Trigger {
    /// The operation is being parked, or this thread checks it.
    Check = 0,
    /// Another thread asked for the examination while the operation was held.
    Mark = 1 << 32,
    /// The deadline of the operation has passed.
    Deadline = 1 << 33,
}

/// One call of an operation's `try_complete`. It has only two words, because every examination writes them at its
/// beginning, and restores the previous ones at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Examination {
    /// 0 if the thread examines no operation.
    slot: usize,
    /// The generation, the [reason](Trigger), and whether this examination or one around it is made at a deadline.
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

    /// Whether another thread asked for this examination.
    pub(crate) fn is_for_a_mark(self) -> bool {
        self.detail & Trigger::Mark as u64 != 0
    }

    /// Whether this examination, or one around it on the stack, is made because a deadline has passed.
    pub(crate) fn is_in_expiry(self) -> bool {
        self.detail & Trigger::Deadline as u64 != 0
    }
}

crate::sync::thread_local! {
    static EXAMINING: Cell<Examination> = const { Cell::new(Examination::NONE) };
}

/// While this value exists, the thread is inside the `try_complete` of an operation.
pub(crate) struct Examining {
    outer: Examination,
}

impl Examining {
    /// Stands for every operation that is not parked yet. No slot has this memory address.
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

    /// The innermost `try_complete` call that the calling thread is inside.
    #[inline]
    pub(crate) fn current() -> Option<Examination> {
        let examination = EXAMINING.try_with(Cell::get).ok()?;
        (examination.slot != 0).then_some(examination)
    }
}

impl Drop for Examining {
    #[inline]
    fn drop(&mut self) {
        // Ignore the error: the thread is ending, and the local may be destroyed.
        let _ = EXAMINING.try_with(|examining| examining.set(self.outer));
    }
}
