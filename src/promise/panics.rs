//! Several pieces of user code, each of which runs even if one before it panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Panics of user code, until all of that has run.
#[derive(Debug, Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs `user_code` now. `None` if it panics.
    pub(crate) fn catch<R>(&mut self, user_code: impl FnOnce() -> R) -> Option<R> {
        let ran = catch_unwind(AssertUnwindSafe(user_code));
        ran.map_err(|payload| {
            if self.0.is_none() {
                self.0 = Some(payload);
            } else if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                // The destructor of a payload is the user's, and has panicked too.
                std::mem::forget(again);
            }
        })
        .ok()
    }

    /// Ends the panics here.
    pub(crate) fn discard(self) {
        if let Some(Err(again)) = self
            .0
            .map(|payload| catch_unwind(AssertUnwindSafe(|| drop(payload))))
        {
            std::mem::forget(again);
        }
    }

    /// Lets the first panic go on. If the thread unwinds already, a second panic would abort the process: then the
    /// first ends here.
    pub(crate) fn resume(self) {
        match self.0 {
            Some(payload) if !thread::panicking() => resume_unwind(payload),
            Some(payload) => std::mem::forget(payload),
            None => {}
        }
    }
}
