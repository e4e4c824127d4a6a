//! The operation that the calling thread is examining, and why. An examination is a call of `try_complete`, or of the
//! user's closure `change` (of `force_complete_for_key_with`), which may change an operation before it is forced to
//! complete. A check made inside an examination waits on the [trampoline](crate::callbacks::trampoline) until the
//! thread's outermost call is about to return. From this module, the check learns which operation has made it.

use std::cell::Cell;

/// The identity of the operation that a thread is examining: the memory address of the state word of its slot, and its
/// generation (which occupant of the slot it is). Unique across all purgatories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Examinee {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// Why an operation is examined. Stored in `Examination::detail` as a bit above the low 32 bits, which contain the
/// operation's generation.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Trigger {
    /// The operation is being parked, or this thread checks it, or this thread forces it to complete and first runs the
    /// closure `change` of `force_complete_for_key_with`.
    Check = 0,
    /// Another thread asked for the examination by a mark (a bit in the state word), because the operation was held.
    Mark = 1 << 32,
    /// The timer of the operation has fired: at the deadline, or earlier, for a recheck that a listener has asked for.
    Deadline = 1 << 33,
}

/// One examination of an operation. Kept as small as two words, because every examination writes them to a thread-local
/// value at its beginning, and puts the words that were there before back at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Examination {
    /// The memory address of the operation's state word. 0 if the thread examines no operation.
    slot: usize,
    /// The generation of the operation and the [reason](Trigger) of the examination. An examination may be nested in
    /// another one on the stack, if a `try_complete` parks a further operation. If the outer examination has the bit of
    /// [`Trigger::Deadline`], the inner one has it too.
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

    /// Whether another thread has asked for this examination, by a mark: a bit that it has left in the operation's
    /// state word, because this thread was holding the operation.
    pub(crate) fn is_for_a_mark(self) -> bool {
        self.detail & Trigger::Mark as u64 != 0
    }

    /// Whether this examination, or one around it on the stack, is made because the timer of an operation has fired.
    pub(crate) fn is_in_expiry(self) -> bool {
        self.detail & Trigger::Deadline as u64 != 0
    }
}

crate::sync::thread_local! {
    static EXAMINING: Cell<Examination> = const { Cell::new(Examination::NONE) };
}

/// While this value exists, the thread is inside an examination. The destructor restores the examination around it.
pub(crate) struct Examining {
    outer: Examination,
}

impl Examining {
    /// Stands for every operation that is not parked yet: such an operation has no slot. No state word lies at the
    /// memory address 1.
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

    /// The innermost examination that the calling thread is inside. `None` if there is none.
    #[inline]
    pub(crate) fn current() -> Option<Examination> {
        let examination = EXAMINING.try_with(Cell::get).ok()?;
        (examination.slot != 0).then_some(examination)
    }
}

impl Drop for Examining {
    #[inline]
    fn drop(&mut self) {
        // Ignore the error: it says that the thread is ending and has destroyed this local value.
        let _ = EXAMINING.try_with(|examining| examining.set(self.outer));
    }
}
