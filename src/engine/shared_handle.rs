//! Shared handles: a handler is shut down when its last strong handle is dropped.

use super::handler::Handler;
use super::shutdown::shut_down_on_drop;
use crate::sync::{Arc, Weak};
use crate::threads::reaper::Driven;
use std::any::Any;
use std::marker::PhantomData;

/// Exists as long as some [`SharedHandle`] does.
struct ShutdownOnDrop<H: Handler> {
    inner: Arc<H>,
}

impl<H: Handler> Drop for ShutdownOnDrop<H> {
    fn drop(&mut self) {
        shut_down_on_drop(&self.inner);
    }
}

/// The strong handle inside a public type of the library. (The reaper holds the handler weakly, and callbacks in a
/// queue hold it strongly: neither keeps it from being shut down.)
pub(crate) struct SharedHandle<H: Handler> {
    pub(crate) inner: Arc<H>,
    shutdown: Arc<ShutdownOnDrop<H>>,
}

impl<H: Handler> SharedHandle<H> {
    /// Lets the handler's reaper drive it from now on, and its clock wake the thread that does.
    pub(crate) fn start(inner: Arc<H>) -> Self {
        let shutdown = Arc::new(ShutdownOnDrop {
            inner: inner.clone(),
        });
        let driven: Weak<dyn Driven> = Arc::<H>::downgrade(&inner);
        let engine = inner.engine();
        // If the clock panics in here, the threads end.
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

/// A public type over a [`SharedHandle`].
pub(crate) trait OverHandle: Sized {
    type Handler: Handler;

    fn over(shared: SharedHandle<Self::Handler>) -> Self;
}

/// A reference to a [`Purgatory`](crate::Purgatory) or a [`Timer`](crate::Timer) that does not keep it running.
/// `downgrade` of the type makes it.
pub struct WeakRef<T> {
    /// Any [`ShutdownOnDrop`], without its type: an operation may hold a reference to its own purgatory, and with the type
    /// the compiler would have to know whether `Op` is [`Send`] to find out whether `Op` is.
    shutdown: Weak<dyn Any + Send + Sync>,
    to: PhantomData<fn() -> T>,
}

#[expect(private_bounds, reason = "the two types are all that it can refer to")]
impl<T: OverHandle> WeakRef<T> {
    pub(crate) fn to(shared: &SharedHandle<T::Handler>) -> Self {
        let shutdown: Weak<ShutdownOnDrop<T::Handler>> = Arc::downgrade(&shared.shutdown);
        Self {
            shutdown,
            to: PhantomData,
        }
    }

    /// What it refers to, if that is not shut down by the drop of its last clone.
    pub fn upgrade(&self) -> Option<T> {
        let shutdown: Arc<ShutdownOnDrop<T::Handler>> = self.shutdown.upgrade()?.downcast().ok()?;
        Some(T::over(SharedHandle {
            inner: shutdown.inner.clone(),
            shutdown,
        }))
    }
}

impl<T> Clone for WeakRef<T> {
    fn clone(&self) -> Self {
        Self {
            shutdown: self.shutdown.clone(),
            to: PhantomData,
        }
    }
}

debug_fields!([T] WeakRef<T>, "WeakRef", |it| alive: it.shutdown.strong_count() > 0);

/// The methods that every public type over a [`SharedHandle`] in its field `shared` has, written once.
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
        /// Your code runs where [`Dispatch`](crate::threads::Dispatch) says. Timers that your code starts meanwhile are
        /// left for the next call, unless a tick passes between deferred checks and they are due then.
        $(#[$checks])*
        ///
        /// Takes the lock of every timer shard in turn, for 64 timers at a time, and those of the map shards of the keys
        /// of what has expired. Reads the clock; if that panics, so does this call.
        pub fn advance(&self) -> usize {
            crate::engine::drive::advance(&self.shared.inner)
        }

        /// The time of the next call of [`advance`](Self::advance), on the clock in use: at or before the earliest
        /// deadline; a time that has passed if there is something to do now. `None` if there is nothing to do.
        ///
        /// Takes the lock of every timer shard in turn, and may wake the reaper, or call the reactor's wake function.
        pub fn next_deadline(&self) -> Option<crate::time::Timestamp> {
            crate::engine::drive::next_deadline(&*self.shared.inner)
        }

        /// The point of the clock at which `timeout` has passed: for a request that waits in several rounds, each until the
        /// same moment. A point is returned as it is, an [`Instant`](std::time::Instant) as the point of this clock that it
        /// is, `None` and what is beyond all readings as [`Deadline::Never`](crate::Deadline::Never).
        ///
        /// Reads the clock once. Takes no lock.
        ///
        /// # Panics
        /// If the clock does.
        pub fn point(&self, timeout: impl Into<crate::time::Deadline>) -> crate::time::Deadline {
            self.shared.inner.engine.point(timeout.into())
        }

        /// Gives back memory that was needed for more than there is now.
        ///
        #[doc = concat!("Slots go by themselves, in blocks of about 4 KiB, as soon as no slot of a block is taken by ", $what, ";")]
        /// so this call is for the rest: the last such block, the wheels of timer shards without a timer, and tables of
        /// which less than an eighth is used. A thread that drives the timer does the same when no deadline is left.
        ///
        /// What stays until the drop: the first slots of each timer shard, a mebibyte at most, and none of payloads of a
        /// kibibyte or more; and for each slot that was ever needed at the same time about 9 bytes, by which a stale handle
        /// knows that it is stale (40 bytes where a block has one slot).
        ///
        /// May be called at any time, from any thread. Takes the lock of every timer shard in turn, for an instant, and
        /// that of each map shard with a large table, where it is free. Hashes the keys that are left in such a table; a
        /// panic is caught and counted, and the table stays.
        pub fn shrink(&self) {
            crate::engine::drive::shrink(&*self.shared.inner)
        }

        /// Whether it has been shut down. Takes no lock.
        pub fn is_shut_down(&self) -> bool {
            self.shared.inner.engine.phase.is_closed()
        }

        /// A reference that does not keep it running, for callbacks.
        pub fn downgrade(&self) -> crate::engine::shared_handle::WeakRef<Self> {
            crate::engine::shared_handle::WeakRef::to(&self.shared)
        }
    };
}
pub(crate) use shared_methods;

/// What [`Clone`] and the like are for a public type over a [`SharedHandle`].
macro_rules! shared_type {
    ([$($generics:tt)*] $name:ident, $type:ty, $handler:ty, $own_settings:ty) => {
        impl<$($generics)*> crate::engine::settings::Built for $type {
            type Own = $own_settings;
        }

        impl<$($generics)*> crate::engine::shared_handle::OverHandle for $type {
            type Handler = $handler;

            fn over(shared: SharedHandle<$handler>) -> Self {
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
