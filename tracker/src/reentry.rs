//! A mistake that would hang: a call from inside `Hash`, `Eq` or `Clone` that the library makes under a lock.
//!
//! In a debug build such a call panics, with its name; a release build does not look.

#[cfg(all(debug_assertions, not(request_purgatory_loom)))]
mod noticed {
    use std::cell::Cell;

    thread_local! {
        static UNDER_LOCK: Cell<bool> = const { Cell::new(false) };
    }

    /// This thread has the lock of a map shard.
    pub(crate) struct UnderLock(());

    impl UnderLock {
        #[track_caller]
        pub(crate) fn enter() -> Self {
            // A thread that is ending has no such local any more, and is not looked after.
            let nested = UNDER_LOCK.try_with(|inside| inside.replace(true));
            assert!(
                !nested.unwrap_or(false),
                "a tracker was called from `Hash`, `Eq` or `Clone` of a key or value, which run under its lock: \
                 without debug assertions this call may never return"
            );
            Self(())
        }
    }

    impl Drop for UnderLock {
        fn drop(&mut self) {
            let _ = UNDER_LOCK.try_with(|inside| inside.set(false));
        }
    }
}

#[cfg(not(all(debug_assertions, not(request_purgatory_loom))))]
mod noticed {
    pub(crate) struct UnderLock;

    impl UnderLock {
        #[inline(always)]
        pub(crate) fn enter() -> Self {
            Self
        }
    }
}

pub(crate) use noticed::UnderLock;
