//! Several pieces of user code, each of which runs even if one before it panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Panics of user code, until all of that has run.
#[derive(Debug, Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs `user_code`, and ends its panic here. `None` if it panics. (The payload may be the user's too, and panic
    /// when it is dropped.)
    #[inline(always)]
    pub(crate) fn contain<R>(user_code: impl FnOnce() -> R) -> Option<R> {
        Self::caught(user_code).map_err(Self::discard).ok()
    }

    /// Runs `user_code`, and returns its panic.
    #[inline(always)]
    pub(crate) fn caught<R>(user_code: impl FnOnce() -> R) -> Result<R, Self> {
        catch_unwind(AssertUnwindSafe(user_code)).map_err(|payload| Self(Some(payload)))
    }

    /// Whether there was none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Runs `user_code` now. `None` if it panics.
    pub(crate) fn catch<R>(&mut self, user_code: impl FnOnce() -> R) -> Option<R> {
        let ran = Self::caught(user_code);
        ran.map_err(|panic| match self.0 {
            None => *self = panic,
            Some(_) => panic.discard(),
        })
        .ok()
    }

    /// Ends the panics here.
    #[cold]
    pub(crate) fn discard(self) {
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(self))) {
            // The destructor of the payload has panicked, and that of this payload might.
            std::mem::forget(again);
        }
    }

    /// Lets the panic that there is go on, also if the thread unwinds already: the user's code may catch it in there.
    pub(crate) fn go_on(self) -> ! {
        match self.0 {
            Some(payload) => resume_unwind(payload),
            None => unreachable!("there is a panic"),
        }
    }

    /// Lets the first panic go on. If the thread unwinds already, a second panic would abort the process: then the
    /// first ends here.
    pub(crate) fn resume(self) {
        match self.0 {
            Some(payload) if !thread::panicking() => resume_unwind(payload),
            Some(payload) => Self(Some(payload)).discard(),
            None => {}
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    /// All of it runs, and the cause of the trouble is told.
    #[test]
    fn g14_the_first_of_several_panics_goes_on() {
        let mut panics = Panics::default();
        for number in [1, 2, 3] {
            let ran = panics.catch(|| resume_unwind(Box::new(number)));
            assert_eq!(ran, None::<()>);
        }
        let resumed = catch_unwind(AssertUnwindSafe(|| panics.resume()));
        let payload = resumed.expect_err("it goes on");
        assert_eq!(payload.downcast_ref(), Some(&1));
    }
}
