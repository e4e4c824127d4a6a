//! Panics on purpose.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// What an intended panic carries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intended;

/// Keeps intended panics out of the output, and only these.
pub(crate) fn silence() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Intended>() {
            hook(info);
        }
    }));
}

/// Panics, unless the thread does so already: a second panic out of a destructor would end the process. `count` is
/// called first if it will.
pub(crate) fn raise(count: impl FnOnce()) {
    if !thread::panicking() {
        count();
        panic::panic_any(Intended);
    }
}

/// Runs what may panic on purpose. `None` if it did; any other panic goes on.
pub(crate) fn tolerate<T>(run: impl FnOnce() -> T) -> Option<T> {
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<Intended>() => None,
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Locks, whatever an intended panic left behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
