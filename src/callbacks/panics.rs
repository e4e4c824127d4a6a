//! Catches the panics of user code, so that several pieces of user code all run, even if an earlier one panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// The first panic of several pieces of user code, kept until all of them have run.
#[derive(Debug, Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs `user_code`, and returns its result. If it panics, discards the panic and returns `None`. The destructor of
    /// the panic's payload may be user code too. If that panics, the second panic is discarded as well.
    #[inline(always)]
    pub(crate) fn contain<R>(user_code: impl FnOnce() -> R) -> Option<R> {
        Self::caught(user_code).map_err(Self::discard).ok()
    }

    /// Runs `user_code`. If it panics, returns the panic as `Err`.
    #[inline(always)]
    pub(crate) fn caught<R>(user_code: impl FnOnce() -> R) -> Result<R, Self> {
        catch_unwind(AssertUnwindSafe(user_code)).map_err(|payload| Self(Some(payload)))
    }

    /// Whether no panic is kept.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Runs `user_code`. If it panics, returns `None`. Keeps the first panic, and discards each later one.
    pub(crate) fn catch<R>(&mut self, user_code: impl FnOnce() -> R) -> Option<R> {
        let ran = Self::caught(user_code);
        ran.map_err(|panic| match self.0 {
            None => *self = panic,
            Some(_) => panic.discard(),
        })
        .ok()
    }

    /// Runs `user_code` for each value, also after a panic. [Resumes](Self::resume) the first panic after the last
    /// value.
    pub(crate) fn for_each<T>(values: impl IntoIterator<Item = T>, mut user_code: impl FnMut(T)) {
        let mut panics = Self::default();
        for value in values {
            panics.catch(|| user_code(value));
        }
        panics.resume();
    }

    /// Drops the payload of the panic. If the payload's destructor panics, discards that panic too.
    #[cold]
    pub(crate) fn discard(self) {
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(self))) {
            // Leak the second payload: the destructor of the first one panicked, and the destructor of the second
            // might.
            std::mem::forget(again);
        }
    }

    /// Resumes the panic. If the thread is unwinding from another panic already, this call must be inside a destructor,
    /// and the destructor must catch the resumed panic. Otherwise the process aborts.
    pub(crate) fn go_on(self) -> ! {
        match self.0 {
            Some(payload) => resume_unwind(payload),
            None => unreachable!("there is a panic"),
        }
    }

    /// Resumes the kept panic, if there is one. If the thread is unwinding already, discards the kept panic instead,
    /// because a second panic that unwinds would abort the process.
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

    /// Every piece of user code runs. The first panic, which may have caused the others, is the one that is resumed.
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
