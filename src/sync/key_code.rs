//! A debug build's guard against key code (`Hash`, `Eq`, `Clone`) that calls the library: the key code runs under a
//! lock of a map, and such a call would wait for that lock without end.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
std::thread_local! {
    /// Whether this thread is in a method of a map that runs code of a key.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as running code of a key, for as long as the value exists. Does nothing in a release build.
pub(crate) struct KeyCode(());

impl KeyCode {
    /// # Panics
    /// In a debug build, if this thread runs code of a key already: that code has then made this call, whose name is
    /// `call`.
    #[inline(always)]
    #[cfg_attr(not(debug_assertions), allow(unused_variables))]
    pub(crate) fn enter(call: &'static str) -> Self {
        #[cfg(debug_assertions)]
        assert!(
            !RUNNING.replace(true),
            "request-purgatory: `Hash`, `Eq`, `Equivalent` or `Clone` of a key has called `{call}`. It runs under a lock of \
             the library, and must not call it. (Only debug builds notice; others hang.)"
        );
        Self(())
    }
}

#[cfg(debug_assertions)]
impl Drop for KeyCode {
    fn drop(&mut self) {
        RUNNING.set(false);
    }
}
