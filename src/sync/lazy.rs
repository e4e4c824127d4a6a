//! A value that is made when it is first needed, and whose absence is an answer.

use super::{AtomicBool, OnceLock, Ordering};

/// A collection that is empty until it is made.
///
/// A thread that finds it empty has looked, as if it had taken the lock of a collection that is there: what it did
/// before is seen by every thread that uses the collection later. So an event that a check has announced in vain is
/// seen by the operation that comes to watch for it.
pub(crate) struct Lazy<T> {
    value: OnceLock<T>,
    /// Whether a thread has begun to make it.
    begun: AtomicBool,
}

impl<T> Lazy<T> {
    pub(crate) fn new() -> Self {
        Self {
            value: OnceLock::new(),
            begun: AtomicBool::new(false),
        }
    }

    /// `None` if no thread has begun to make it. `make` makes it if one has.
    #[inline(always)]
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> Option<&T> {
        match self.value.get() {
            None if self.look(make) => self.value.get(),
            made => made,
        }
    }

    /// `None` if no thread has made it: for what says nothing about the contents.
    pub(crate) fn get_made(&self) -> Option<&T> {
        self.value.get()
    }

    #[cold]
    #[inline(never)]
    fn look(&self, make: impl FnOnce() -> T) -> bool {
        // ORDERING: AcqRel, a read-modify-write: either it finds that of `begin`, or that one comes later, pairs with
        // this one, and is seen by all threads that find the value.
        let begun = self.begun.fetch_or(false, Ordering::AcqRel);
        if begun {
            self.value.get_or_init(make);
        }
        begun
    }

    #[inline(always)]
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        match self.value.get() {
            None => self.begin(make),
            Some(made) => made,
        }
    }

    #[cold]
    #[inline(never)]
    fn begin(&self, make: impl FnOnce() -> T) -> &T {
        // ORDERING: AcqRel, see `look`. It comes before the value can be found.
        self.begun.swap(true, Ordering::AcqRel);
        self.value.get_or_init(make)
    }
}
