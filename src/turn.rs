//! One turn of a thread in the library: from the outermost call to its return.
//!
//! User code that the library calls may call the library again. If a completion caused in there ran on the spot, a
//! chain of operations that complete one another would recurse as deep as the chain is long, and a completion could
//! run in the middle of another operation's `try_complete`. So completions of inner calls wait in a queue of the
//! thread, and the outermost call runs them before it returns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Something to run at the end of the turn. Must not panic.
pub(crate) type Errand = Box<dyn FnOnce()>;

crate::sync::thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static WAITING: Cell<bool> = const { Cell::new(false) };
    static QUEUE: RefCell<VecDeque<Errand>> = const { RefCell::new(VecDeque::new()) };
}

/// A call of the library in progress on this thread.
#[derive(Debug)]
pub(crate) struct Turn {
    outermost: bool,
}

impl Turn {
    /// Begins a call that may run user code.
    #[inline(always)]
    pub(crate) fn enter() -> Self {
        // While the thread's locals are being destroyed there is no queue: each call then is an outermost one.
        let nested = ACTIVE.try_with(|active| active.replace(true));
        Self {
            outermost: !nested.unwrap_or(false),
        }
    }

    /// Whether the calling thread is inside of a call of the library.
    pub(crate) fn in_progress() -> bool {
        ACTIVE.try_with(Cell::get).unwrap_or(false)
    }

    /// Whether no other call of the library is below this one on the stack.
    #[inline(always)]
    pub(crate) fn is_outermost(&self) -> bool {
        self.outermost
    }

    /// Runs `errand` outside of every callback: now, or when the outermost call is about to return. (Now in any case
    /// if the thread is just ending.)
    pub(crate) fn run(&self, errand: Errand) {
        if self.outermost {
            return errand();
        }
        let mut errand = Some(errand);
        let left = QUEUE.try_with(|queue| {
            if let Some(errand) = errand.take() {
                queue.borrow_mut().push_back(errand);
            }
        });
        if left.is_ok() {
            WAITING.with(|waiting| waiting.set(true));
        } else if let Some(errand) = errand {
            errand();
        }
    }
}

impl Drop for Turn {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        if WAITING.try_with(Cell::get).unwrap_or(false) {
            run_errands();
        }
        // Nothing to reset where the local is gone already.
        let _ = ACTIVE.try_with(|active| active.set(false));
    }
}

#[cold]
fn run_errands() {
    while let Some(errand) = QUEUE.with(|queue| queue.borrow_mut().pop_front()) {
        errand();
    }
    WAITING.with(|waiting| waiting.set(false));
}
