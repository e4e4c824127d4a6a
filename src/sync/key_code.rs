//! A guard of debug builds against key code (`Hash`, `Eq`, `Clone` of a user's key) that calls the library. Key code
//! runs under a lock of a map, and the call would wait for that lock for ever.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
std::thread_local! {
    /// Whether this thread is inside a method of a map. Such a method runs key code: `Hash`, `Eq` or `Clone` of the
    /// user's key.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// While this value exists, this thread counts as running key code (`Hash`, `Eq` or `Clone` of a user's key). Does
/// nothing in a release build.
pub(crate) struct KeyCode(());

impl KeyCode {
    /// Begins a method of a map that runs key code (`Hash`, `Eq` or `Clone` of a user's key). `call` is the name of the
    /// user's call, for the message of the panic.
    ///
    /// # Panics
    /// In a debug build, if this thread is running key code already: then that key code has called the library.
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
