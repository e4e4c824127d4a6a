//! All that this crate asks of the library: a place to park predicates in, checks by key and rank, and weak handles.

use crate::error::WaitError;
use crate::key::Key;
use crate::table::Waiting;
use request_purgatory::{
    CheckBound, Watch, future::WaitError as LibraryError, future::WaitFuture,
    future::WaitOperation, purgatory::WeakRef,
};
pub(crate) use request_purgatory::{
    DelayedOperation, Purgatory, Waits, purgatory::BuildError as PurgatoryError,
    purgatory::KeyHasher,
};
use std::time::Duration;

/// A parked predicate: the library's future.
pub(crate) type Parked<K, T> = WaitFuture<WaitOperation<K>, T>;

/// A purgatory for waits.
pub(crate) fn new_waits<K: Key>(name: &str) -> Result<Waits<K>, PurgatoryError> {
    Waits::builder(name).build()
}

/// Parks `predicate` on `key` at `rank`.
pub(crate) fn park<K: Key, T: Send + 'static>(
    waits: &Waits<K>,
    key: K,
    rank: u64,
    timeout: Duration,
    predicate: impl FnMut() -> Option<T> + Send + 'static,
) -> Parked<K, T> {
    waits.wait([Watch::from(key).at_rank(rank)], timeout, predicate)
}

/// Why a parked predicate ended without a value.
pub(crate) fn translate(error: LibraryError) -> WaitError {
    match error {
        LibraryError::Expired => WaitError::Expired,
        LibraryError::ShutDown | LibraryError::Draining => WaitError::ShutDown,
        LibraryError::Full
        | LibraryError::KeyFull
        | LibraryError::Nested
        | LibraryError::Thread => WaitError::Full,
        LibraryError::Panicked => WaitError::Panicked,
        // Cancelled, or forced to end. (Every wait has its key, so it is not `NoKeys`.)
        _ => WaitError::Cancelled,
    }
}

/// A purgatory of the user's.
pub(crate) struct Attached<Op: DelayedOperation, S: KeyHasher> {
    purgatory: WeakRef<Purgatory<Op, S>>,
    /// Whether the cluster's shutdown shuts it down.
    is_ours: bool,
}

impl<Op: DelayedOperation, S: KeyHasher> Attached<Op, S> {
    pub(crate) fn new(purgatory: &Purgatory<Op, S>, is_ours: bool) -> Self {
        Self {
            purgatory: purgatory.downgrade(),
            is_ours,
        }
    }
}

impl<K: Key, Op: DelayedOperation<Key = K>, S: KeyHasher> Waiting<K> for Attached<Op, S> {
    fn check(&self, key: &K, rank: u64) -> bool {
        match self.purgatory.upgrade() {
            Some(purgatory) => {
                purgatory.check_and_complete_with(key, CheckBound::all().up_to(rank));
                true
            }
            None => false,
        }
    }

    fn is_alive(&self) -> bool {
        self.purgatory.upgrade().is_some()
    }

    fn shut_down(&self) {
        if let Some(purgatory) = self.purgatory.upgrade().filter(|_| self.is_ours) {
            purgatory.shutdown();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g24_a_wait_that_never_began_was_not_cancelled() {
        for refused in [LibraryError::Nested, LibraryError::Thread] {
            assert_eq!(translate(refused), WaitError::Full);
        }
        assert_eq!(translate(LibraryError::Panicked), WaitError::Panicked);
    }

    /// The place of it does not keep it.
    #[test]
    fn g06_a_purgatory_that_was_dropped_is_gone() {
        let waits = new_waits::<u64>("waits").unwrap();
        let place = Attached::new(&waits, false);
        assert!(place.is_alive() && place.check(&7, 0));
        let weak = waits.downgrade();
        drop(waits);
        assert!(weak.upgrade().is_none());
        assert!(!place.is_alive() && !place.check(&7, 0));
    }
}
