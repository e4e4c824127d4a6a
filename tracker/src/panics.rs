//! Panics of user code: of wakers and of destructors. A call catches each panic separately, because two panics that
//! unwind at once abort the process.

use std::any::Any;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Catches panics of user code, and counts them. The timer does not count these panics, because they never reach it.
#[derive(Default)]
pub(crate) struct Panics(AtomicU64);

impl Panics {
    /// Runs user code, and catches and counts its panic.
    pub(crate) fn contain(&self, user_code: impl FnOnce()) {
        if !contained(user_code) {
            // ORDERING: Relaxed: this is a statistic. No thread infers from it that another thread has written other
            // memory. A thread that needs the exact count synchronises with this thread by other means, as `count`
            // explains.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops a value whose destructor is user code. Catches and counts a panic of the destructor.
    #[inline(always)]
    pub(crate) fn discard<T>(&self, value: T) {
        if needs_drop::<T>() {
            self.contain(|| drop(value));
        }
    }

    /// The number of panics so far.
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. The count needs to be exact only if no call is in progress. By other synchronisation (a
        // join, a lock, a channel), every `fetch_add` in an earlier `contain` then happens before this load.
        self.0.load(Ordering::Relaxed)
    }
}

/// Drops a value whose destructor is user code. If the destructor panics, returns the panic as `Err`.
#[inline]
pub(crate) fn try_drop<T>(value: T) -> thread::Result<()> {
    catch_unwind(AssertUnwindSafe(|| drop(value)))
}

/// Passes the first panic on, and discards the others. If the thread is unwinding already, discards all of them.
#[inline]
pub(crate) fn resume_first<const N: usize>(results: [thread::Result<()>; N]) {
    let mut panics = results.into_iter().filter_map(Result::err);
    let first = match thread::panicking() {
        true => None,
        false => panics.next(),
    };
    panics.for_each(discard);
    if let Some(first) = first {
        resume_unwind(first);
    }
}

/// Runs user code and catches its panic. Returns `false` if the code panicked. The payload of the panic is dropped,
/// because the panic hook has already reported the panic.
pub(crate) fn contained(user_code: impl FnOnce()) -> bool {
    let ran = catch_unwind(AssertUnwindSafe(user_code));
    ran.map_err(discard).is_ok()
}

/// Drops the payload of a panic. The destructor of the payload may be user code, and may panic too.
#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = try_drop(payload) {
        // The destructor of the panic's payload has panicked too. Leak the payload of the second panic, because its
        // destructor might panic as well.
        std::mem::forget(again);
    }
}
