//! Detects a mistake that would deadlock: `Eq` or `Clone` of a key or value calls the tracker, while the tracker runs
//! this `Eq` or `Clone` under a lock.
//!
//! In a debug build such a call panics with a message that names the mistake. A release build does not check. The
//! models under loom do not check either: one thread of the system runs all threads of a model, so they would share the
//! thread-local value.

#[cfg(all(debug_assertions, not(request_purgatory_loom)))]
std::thread_local! {
    /// Whether this thread holds the lock of a map shard.
    static UNDER_LOCK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// While this value exists, its thread counts as a thread that holds the lock of a map shard.
pub(crate) struct UnderLock(());

impl UnderLock {
    #[inline(always)]
    pub(crate) fn enter() -> Self {
        #[cfg(all(debug_assertions, not(request_purgatory_loom)))]
        assert!(
            !UNDER_LOCK.replace(true),
            "a tracker was called from `Eq` or `Clone` of a key, or `Clone` of a value, which run under its lock: \
             without debug assertions this call may never return"
        );
        Self(())
    }
}

#[cfg(all(debug_assertions, not(request_purgatory_loom)))]
impl Drop for UnderLock {
    fn drop(&mut self) {
        UNDER_LOCK.set(false);
    }
}
