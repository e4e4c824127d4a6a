//! Strong and weak references to a [`Handler`] (the inside of a purgatory or timer). The drop of the last strong
//! reference shuts the handler down.

use super::handler::Handler;
use super::shutdown::shut_down_on_drop;
use crate::sync::{Arc, Weak};
use crate::threads::reaper::Driven;

/// Exists as long as any [`SharedHandle`] of the handler exists. Its drop shuts the handler down.
struct ShutdownOnDrop<H: Handler> {
    inner: Arc<H>,
}

impl<H: Handler> Drop for ShutdownOnDrop<H> {
    fn drop(&mut self) {
        shut_down_on_drop(&self.inner);
    }
}

/// A strong reference to a handler. Every clone of a public type over a handler (a purgatory or a timer) has one. The
/// field `shutdown` counts these references, and the drop of the last one shuts the handler down.
///
/// Other references to the handler do not prevent the shutdown: the reaper has a `Weak`, and a queued callback has an
/// `Arc`, which only keeps the handler in memory.
pub(crate) struct SharedHandle<H: Handler> {
    pub(crate) inner: Arc<H>,
    shutdown: Arc<ShutdownOnDrop<H>>,
}

impl<H: Handler> SharedHandle<H> {
    /// Makes the first reference to `inner`. From now on the reaper drives the handler. Whenever the handler's clock
    /// jumps, the clock wakes the thread that drives the handler.
    pub(crate) fn start(inner: Arc<H>) -> Self {
        let shutdown = Arc::new(ShutdownOnDrop {
            inner: inner.clone(),
        });
        let driven: Weak<dyn Driven> = Arc::<H>::downgrade(&inner);
        let engine = inner.engine();
        // If the clock panics here, the unwinding drops `shutdown`, which ends the threads.
        engine.threads.adopt(driven, &*engine.clock);
        Self { inner, shutdown }
    }
}

impl<H: Handler> Clone for SharedHandle<H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shutdown: self.shutdown.clone(),
        }
    }
}

/// What a [`WeakRef`] refers to: it makes another clone of the purgatory or timer `T`.
trait Upgrade<T>: Send + Sync {
    fn upgrade(self: Arc<Self>) -> T;
}

impl<H: Handler, T: From<SharedHandle<H>>> Upgrade<T> for ShutdownOnDrop<H> {
    fn upgrade(self: Arc<Self>) -> T {
        T::from(SharedHandle {
            inner: self.inner.clone(),
            shutdown: self,
        })
    }
}

/// A reference to a [`Purgatory`](crate::Purgatory) or a [`Timer`](crate::Timer) that does not keep it running. Made by
/// [`Purgatory::downgrade`](crate::Purgatory::downgrade) or [`Timer::downgrade`](crate::Timer::downgrade).
pub struct WeakRef<T> {
    /// A weak reference to a [`ShutdownOnDrop`] whose type is erased. An operation type may contain a `WeakRef` to its
    /// own purgatory. If the operation type were named here, the compiler could not decide whether it is `Send`,
    /// because the answer would depend on itself.
    shutdown: Weak<dyn Upgrade<T>>,
}

impl<T> WeakRef<T> {
    pub(crate) fn to<H: Handler>(shared: &SharedHandle<H>) -> Self
    where
        T: From<SharedHandle<H>>,
    {
        let shutdown: Weak<ShutdownOnDrop<H>> = Arc::downgrade(&shared.shutdown);
        Self { shutdown }
    }

    /// The purgatory or timer. `None` if all its clones were dropped, which has shut it down.
    pub fn upgrade(&self) -> Option<T> {
        self.shutdown.upgrade().map(Upgrade::upgrade)
    }
}

impl<T> Clone for WeakRef<T> {
    fn clone(&self) -> Self {
        Self {
            shutdown: self.shutdown.clone(),
        }
    }
}

debug_fields!([T] WeakRef<T>, "WeakRef", |it| alive: it.shutdown.strong_count() > 0);

/// The methods of every public type that has a [`SharedHandle`] in its field `shared`. `$checks` is a further part of
/// the documentation of `advance`, for a purgatory: what the call does besides.
macro_rules! shared_methods {
    ($what:literal $(#[$checks:meta])*) => {
        #[doc = concat!("The number of ", $what, " now. Takes no lock.")]
        pub fn len(&self) -> usize {
            self.stats().parked
        }

        #[doc = concat!("Whether the number of ", $what, " is zero. Takes no lock.")]
        pub fn is_empty(&self) -> bool {
            self.stats().parked == 0
        }

        #[doc = concat!("The counts so far, and the number of ", $what, " now. Takes no lock.")]
        pub fn stats(&self) -> crate::stats::Stats {
            self.shared.inner.engine.stats()
        }

        #[doc = concat!("Expires ", $what, " whose deadline has passed. For use without a reaper (with one, it is")]
        /// harmless). Returns how many expired.
        ///
        /// Your code runs on the thread that [`Dispatch`](crate::threads::Dispatch) names. Timers that your code starts
        /// during this call are left for the next call.
        $(#[$checks])*
        ///
        /// Takes the locks of the timer shards one by one, each for 64 timers at a time, and the locks of the map
        /// shards that have the keys of expired operations. Reads the clock; a panic of the clock is passed on.
        pub fn advance(&self) -> usize {
            crate::engine::drive::advance(&self.shared.inner)
        }

        /// The time at which to call [`advance`](Self::advance) next, on the clock in use: at or before the earliest
        /// deadline, and in the past if there is work now. `None` if there is no work.
        ///
        /// Takes the locks of the timer shards one by one. May wake the reaper, or call the reactor's wake function.
        pub fn next_deadline(&self) -> Option<crate::time::Timestamp> {
            crate::engine::drive::next_deadline(&*self.shared.inner)
        }

        /// The point of the clock at which `timeout` will have passed. A request that waits in several rounds passes
        /// this point to each round, so that the rounds together last no longer than `timeout`. A
        /// [`Timestamp`](crate::time::Timestamp) is returned unchanged. An [`Instant`](std::time::Instant) is converted
        /// to a point of this clock. `None` becomes [`Deadline::Never`](crate::Deadline::Never), and so does a point or
        /// the end of a timeout that no tick of the clock reaches, 584 years after its origin.
        ///
        /// Reads the clock once. Takes no lock.
        ///
        /// # Panics
        /// If the clock panics.
        #[inline]
        pub fn point(&self, timeout: impl Into<crate::time::Deadline>) -> crate::time::Deadline {
            self.shared.inner.engine.point(timeout.into())
        }

        /// Releases memory that is not needed any more.
        ///
        #[doc = concat!("The slots of ", $what, " lie in blocks of about 4 KiB.")]
        /// A block of which no slot is taken is released at once, without this call. The exception is one such block in
        /// each timer shard, which is kept as a spare. This call releases the spare blocks, and the wheel of each timer
        /// shard that may have had many timers and has none now. If the hash table of a map shard is large, and at most
        /// an eighth of it is filled, this call moves the entries to a smaller table. When the thread that drives the
        /// timer has had work and finds no deadline left, it does all that this call does. So this call is of use where
        /// some deadline is always left, or where there never is one.
        ///
        /// Two parts of the memory stay until the drop:
        ///
        /// * the first slots of each timer shard, which take a mebibyte at most. If a payload has a kibibyte or more,
        ///   no slots of this kind exist;
        /// * 8 bytes for each slot and 24 bytes for each block, for as many slots as were ever needed at the same time.
        ///   The library recognises stale handles by these bytes.
        ///
        /// May be called at any time, from any thread. Takes the locks of the timer shards one by one, for an instant
        /// each. Tries the lock of each map shard, and leaves the table of a locked shard as it is. Hashes the keys of
        /// a table that it moves. If that panics, the panic is caught and counted, and the table stays.
        pub fn shrink(&self) {
            crate::engine::drive::shrink(&*self.shared.inner)
        }

        /// Whether the purgatory or timer has been shut down. Takes no lock.
        pub fn is_shut_down(&self) -> bool {
            self.shared.inner.engine.phase.is_closed()
        }

        /// A weak reference, for callbacks: it does not keep the purgatory or timer running.
        pub fn downgrade(&self) -> crate::engine::shared_handle::WeakRef<Self> {
            crate::engine::shared_handle::WeakRef::to(&self.shared)
        }
    };
}
pub(crate) use shared_methods;

/// Implements [`Clone`], `Debug` and the internal traits of a public type that consists of a [`SharedHandle`].
macro_rules! shared_type {
    ([$($generics:tt)*] $name:ident, $type:ty, $handler:ty, $own_settings:ty) => {
        impl<$($generics)*> crate::engine::settings::Built for $type {
            type Own = $own_settings;
        }

        impl<$($generics)*> From<SharedHandle<$handler>> for $type {
            fn from(shared: SharedHandle<$handler>) -> Self {
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

        debug_fields!(
            [$($generics)*] $type, stringify!($name),
            |it| name: it.shared.inner.engine.name, stats: it.stats()
        );
    };
}
pub(crate) use shared_type;
