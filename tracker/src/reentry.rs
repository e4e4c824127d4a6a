//! Detects a mistake that would deadlock: `Eq` or `Clone` of a key or value calls the tracker, while the tracker runs
//! this `Eq` or `Clone` under a lock.
//!
//! In a debug build such a call panics with a message that names the mistake. A release build does not check.

#[cfg(all(debug_assertions, not(request_purgatory_loom)))]
mod noticed {
    use std::cell::Cell;

    thread_local! {
        static UNDER_LOCK: Cell<bool> = const { Cell::new(false) };
    }

    /// While this value exists, its thread counts as a thread that holds the lock of a map shard.
    pub(crate) struct UnderLock(());

    impl UnderLock {
        #[track_caller]
        pub(crate) fn enter() -> Self {
            // A thread that is ending may have destroyed this thread-local. Then `try_with` fails, and the call is not
            // checked.
            let nested = UNDER_LOCK.try_with(|inside| inside.replace(true));
            assert!(
                !nested.unwrap_or(false),
                "a tracker was called from `Eq` or `Clone` of a key, or `Clone` of a value, which run under its lock: \
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
