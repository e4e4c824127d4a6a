//! The common part of [`Tracker`](crate::Tracker) and [`Requests`](crate::Requests): methods over their shared state,
//! and weak references.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

/// A public handle, [`Tracker`](crate::Tracker) or [`Requests`](crate::Requests), over shared state.
pub(crate) trait Handle: Sized {
    /// The type of the shared state.
    type Shared: Any + Send + Sync;

    /// Makes a handle over this shared state.
    fn over(shared: Arc<Self::Shared>) -> Self;
}

/// A reference that does not keep its [`Tracker`](crate::Tracker) or [`Requests`](crate::Requests) running. Made by
/// [`Tracker::downgrade`](crate::Tracker::downgrade) or [`Requests::downgrade`](crate::Requests::downgrade).
#[expect(private_bounds, reason = "it refers only to `Tracker` or `Requests`")]
pub struct WeakRef<T: Handle> {
    /// The shared state with its type erased. A value `V` may hold a `WeakRef` to its own tracker. If the type were not
    /// erased, the compiler would find a cycle: `V` is `Send` only if the `WeakRef` is `Send`, and the `WeakRef` only
    /// if `V` is.
    shared: Weak<dyn Any + Send + Sync>,
    to: PhantomData<fn() -> T>,
}

#[expect(private_bounds, reason = "it refers only to `Tracker` or `Requests`")]
impl<T: Handle> WeakRef<T> {
    pub(crate) fn to(shared: &Arc<T::Shared>) -> Self {
        let shared: Weak<T::Shared> = Arc::downgrade(shared);
        Self {
            shared,
            to: PhantomData,
        }
    }

    /// A new handle of the [`Tracker`](crate::Tracker) or of the [`Requests`](crate::Requests). `None` if the last
    /// clone has been dropped.
    pub fn upgrade(&self) -> Option<T> {
        let shared: Arc<T::Shared> = self.shared.upgrade()?.downcast().ok()?;
        Some(T::over(shared))
    }
}

impl<T: Handle> Clone for WeakRef<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            to: PhantomData,
        }
    }
}

impl<T: Handle> fmt::Debug for WeakRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WeakRef");
        let alive = self.shared.strong_count() > 0;
        shown.field("alive", &alive).finish_non_exhaustive()
    }
}

/// Implements the common methods of tracker and requests, and [`Clone`], [`Debug`](fmt::Debug) and [`Handle`].
macro_rules! handle {
    ([$($generics:tt)*] $type:ty, $name:literal, $shared:ty, $what:literal) => {
        impl<$($generics)*> $type {
            #[doc = concat!("The number of ", $what, " now. Each of them counts until a call ends it or its timer fires, which")]
            /// may be a little after the deadline. Takes no lock.
            pub fn len(&self) -> usize {
                self.shared.timer.len()
            }

            #[doc = concat!("Whether there are no ", $what, " now, as [`len`](Self::len) counts them. Takes no lock.")]
            pub fn is_empty(&self) -> bool {
                self.shared.timer.is_empty()
            }

            #[doc = concat!("The counts so far, and how many ", $what, " there are now, as [`len`](Self::len) counts")]
            /// them. Takes no lock.
            pub fn stats(&self) -> Stats {
                self.shared.stats()
            }

            #[doc = concat!("Expires ", $what, " whose deadline has passed. Returns how many expired. Needed only without a")]
            /// reaper, but harmless with a reaper.
            ///
            /// Your code runs on the thread that [`Dispatch`](request_purgatory::threads::Dispatch) chooses. A value or
            /// request that your code adds during this call expires in a later call at the earliest.
            ///
            /// Takes the lock of one timer shard after another, for at most 64 timers per hold, and the locks of the
            /// map shards of the expired keys. Reads the clock; a panic of the clock is passed on.
            pub fn advance(&self) -> usize {
                self.shared.timer.advance()
            }

            /// The time, on the clock in use, at which [`advance`](Self::advance) is to be called next. This time is at
            /// or before the earliest deadline, and in the past if there is work now. `None` if no call of `advance` is
            /// needed.
            ///
            /// Takes the lock of one timer shard after another. May wake the reaper, or call the wake function of a
            /// reactor, if either sleeps until a later time.
            pub fn next_deadline(&self) -> Option<Timestamp> {
                self.shared.timer.next_deadline()
            }

            /// The point of the clock at which `timeout` will have passed, as
            /// [`Timer::point`](request_purgatory::Timer::point) computes it. Reads the clock once, and takes no lock.
            ///
            /// # Panics
            /// A panic of the clock is passed on.
            pub fn point(&self, timeout: impl Into<Deadline>) -> Deadline {
                self.shared.timer.point(timeout)
            }

            /// Releases memory of the timer that is not needed now, as
            /// [`Timer::shrink`](request_purgatory::Timer::shrink) does. Does not touch the tables of the map: a large
            /// table is released when it becomes empty. May be called at any time, from any thread; runs no code of
            /// yours. Takes the lock of one timer shard after another, for an instant.
            pub fn shrink(&self) {
                self.shared.timer.shrink();
            }

            /// Whether the tracker or the requests have been shut down. Takes no lock.
            pub fn is_shut_down(&self) -> bool {
                self.shared.timer.is_shut_down()
            }

            /// A weak reference for use in callbacks. Unlike a clone, it does not keep the tracker or requests running.
            pub fn downgrade(&self) -> WeakRef<Self> {
                WeakRef::to(&self.shared)
            }
        }

        impl<$($generics)*> Handle for $type {
            type Shared = $shared;

            fn over(shared: Arc<$shared>) -> Self {
                Self { shared }
            }
        }

        impl<$($generics)*> Clone for $type {
            fn clone(&self) -> Self {
                Self {
                    shared: self.shared.clone(),
                }
            }
        }

        impl<$($generics)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct($name);
                shown.field("timer", &self.shared.timer);
                shown.field("stats", &self.stats()).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use handle;
