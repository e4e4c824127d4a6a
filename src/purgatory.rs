//! Operations that wait for an event on their keys: [`Purgatory`], its settings, and what its calls return.

// Start with `try_complete_else_watch` (a park) and `check_and_complete` (a check) below. An expiry starts with
// `ReaperLoop::run` in `src/threads/reaper.rs`, and continues in `src/engine/drive.rs` and `src/engine/expire.rs`.
// Methods of `Inner` (`inner.rs`), the state that all clones of a purgatory share, do the work. They are in these files
// of `src/purgatory`:
//
// * `collect`: makes the keys (`keys`) that an operation watches
// * `park`: `park`, `park_or_complete`, `register`
// * `check`: checks of keys and of handles; `nested`: checks made inside a `try_complete`; `deferred`: checks that wait
//   for the reaper thread
// * `examine`: asks an operation whether it can complete; `settle`: acts on marks, the requests that other threads
//   leave for the thread that holds an operation; `end`: `end_and_reclaim`, `cancel_key`, `force_key`
// * `deadline`: reads and moves deadlines; `due`: handles an operation whose timer has fired; `early`: timers that fire
//   before the deadline, to wake a listener
// * `as_handler`: the calls that the engine (`src/engine.rs`) makes: at a deadline, at the shutdown, to complete an
//   operation
//
// Other parts:
//
// * `src/cell/state.rs`, to be read first: the state word of an operation, which says whether a thread holds the
//   operation, and which marks other threads have left
// * `src/cell.rs`: the slots of parked operations; `src/watch.rs`: the watch lists
// * `src/engine.rs`: the deadlines, on top of the timing wheel in `schemes`
// * `src/engine/deliver.rs`: where `on_complete` runs; `src/callbacks/trampoline.rs`: calls that must not nest

mod as_handler;
mod check;
mod checked_key;
mod collect;
mod deadline;
mod deferred;
mod due;
mod early;
mod end;
mod examine;
mod handle;
mod inner;
mod keys;
#[cfg(debug_assertions)]
mod missed_check;
mod nested;
mod park;
mod reach;
mod recycled_weak;
mod resolved_key;
mod settle;
mod snapshot;
#[cfg(debug_assertions)]
mod stuck;

pub use crate::engine::settings::Builder;
pub use crate::engine::shared_handle::WeakRef;
pub use crate::error::{BuildError, RejectReason, Rejected, ShutdownError};
pub use crate::hash::{Key, KeyHasher, RandomState};
pub use crate::operation::Cause;
pub use crate::stats::Stats;
pub use crate::watch::bound::CheckBound;
pub use collect::Watch;
pub use equivalent::Equivalent;
pub use handle::Handle;
pub(crate) use inner::Inner;
pub use park::Admission;
pub(crate) use park::{Arrival, Arrived};
pub(crate) use recycled_weak::RecycledWeak;
pub use resolved_key::ResolvedKey;
pub use snapshot::ParkedOperation;

use crate::engine::settings::sound;
use crate::engine::shared_handle::{SharedHandle, shared_methods, shared_type};
use crate::engine::shutdown::{
    drain, shut_down, shut_down_async, shut_down_if_idle, shut_down_within,
};
use crate::engine::{Engine, cores};
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use deferred::CheckTarget;
use inner::Own;
use std::hash::Hash;
use std::io;
use std::time::Duration;

/// Parks delayed operations until a check of one of their keys completes them, or they expire.
///
/// ```
/// use request_purgatory::{Completion, DelayedOperation, Purgatory};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
///
/// /// Waits until a log has reached an offset.
/// struct Fetch {
///     end: Arc<AtomicU64>,
///     offset: u64,
///     client: mpsc::Sender<Completion>,
/// }
///
/// impl DelayedOperation for Fetch {
///     type Key = u32; // the number of the log
///
///     fn timeout(&self) -> Duration {
///         Duration::from_secs(30)
///     }
///
///     fn try_complete(&mut self) -> bool {
///         self.end.load(Ordering::Acquire) >= self.offset
///     }
///
///     fn on_complete(self, completion: Completion) {
///         let _ = self.client.send(completion); // an error means that the client has gone
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let purgatory = Purgatory::new("fetch");
/// let (end, (client, answer)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
/// let fetch = Fetch { end: end.clone(), offset: 10, client };
/// purgatory.try_complete_else_watch(fetch, [7])?; // the log has not reached 10: it is parked
///
/// end.store(10, Ordering::Release); // first the change,
/// assert_eq!(purgatory.check_and_complete(&7), 1); // then the check
/// assert_eq!(answer.recv()?, Completion::Satisfied);
/// # Ok(())
/// # }
/// ```
///
/// The guide begins with a picture and [the words](crate::guide::words): key, check, watch. For waits that are closures
/// and futures, use a [`Waits`](crate::Waits), a purgatory with operations of the library's own.
///
/// Cloning is cheap, and all clones are the same purgatory. The drop of the last clone [shuts the purgatory
/// down](Self::shutdown). Unlike `shutdown`, which waits until the threads of the purgatory have ended, the drop waits
/// at most about 10 ms for each thread, because a drop may happen in a task of an async runtime. A thread that needs
/// more time runs the completions in its queue, and then ends.
///
/// Threads and locks:
///
/// * No method holds a lock of the library while it runs your code, except [`Hash`, `Eq` and `Clone` of
///   keys](DelayedOperation::Key).
/// * Only [`drain`](Self::drain) and the shutdowns wait for your code on other threads. A check does not wait for a
///   thread that is examining an operation: that thread examines the operation once more, and the check passes on to
///   the next operation. After 16 examinations of an operation in a row, a thread leaves the next one to the thread
///   that drives the timer.
/// * All methods may be called from inside every callback.
/// * A check made inside a `try_complete` returns 0. The library makes the check before the outermost library call on
///   that thread returns. If an operation repeats a check, the library may merge, defer or ignore the repetition: see
///   [`try_complete`](DelayedOperation::try_complete).
/// * Checks made inside `deadline`, `timeout`, `arrival`, `weight` and the clock during a park, and inside the closure
///   that you pass to [`force_complete_for_key_with`](Self::force_complete_for_key_with), are queued in the same way.
///
/// Modelled on Kafka's `DelayedOperationPurgatory`. [From Kafka's API to this one](crate::guide::from_kafka) lists the
/// differences.
///
/// # Panics
/// No method panics by itself, except that a debug build notices a call from `Hash`, `Eq` or `Clone` of a
/// [key](DelayedOperation::Key). Panics of your code:
/// * If a key, the iterator of keys, the clock, or a hook of the operation other than `on_complete` panics while you
///   park the operation, the panic unwinds to you. The library undoes the park: no watch and no timer stays, no limit
///   counts the operation, and the operation is dropped.
/// * A panic of an `on_complete` is caught, and so is a panic of `try_complete` after the operation's park, in a check
///   for example. Such a panic ends only this operation, and is [counted](crate::purgatory::Stats::panicked).
/// * After a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key in any call other than a park, results for that key are
///   unspecified, as with the standard library's `HashMap`. Memory stays safe, no lock stays held, and every ended
///   operation gets its completion. If the destructors of two keys of one operation panic, the process aborts, as it
///   does for two elements of a `Vec`.
/// * Destructors of your values, except keys, do not nest: a destructor that would run inside another one waits, and
///   runs before the outermost library call returns. If that call is a check or a forced completion, it passes on the
///   first panic of the destructors that have waited, after all of them have run.
pub struct Purgatory<Op: DelayedOperation, S: KeyHasher = RandomState> {
    pub(crate) shared: SharedHandle<Inner<Op, S>>,
}

impl<Op: DelayedOperation> Purgatory<Op> {
    /// A purgatory with a tick of 1 ms, a reaper thread (which drives the timer) and a completion thread, both named
    /// after the purgatory. The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        sound(Self::builder(name).build())
    }

    /// Begins to build a purgatory with other settings: its tick, clock, threads and limits, and where completions run.
    /// The settings are methods of [`Builder`].
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        let own = Own {
            map_shards: (64 * cores()).clamp(1024, 4096),
            max_watchers: usize::MAX,
        };
        Builder::new(name, (RandomState::default(), own))
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Purgatory<Op, S> {
    /// Completes `op` at once if it can complete. Otherwise parks `op` until a check of one of `keys` finds that it can
    /// complete, or until it expires.
    ///
    /// No event that happens after this call has begun is missed: if a thread checks one of the keys after the event,
    /// the operation is examined after the event too. The only exception is an operation that a thread is already
    /// ending, at its deadline for instance. One of these threads examines the operation:
    ///
    /// * the checking thread;
    /// * the thread that was examining the operation when the check came;
    /// * the thread that drives the timer, if the examining thread has already examined the operation 16 times in a
    ///   row.
    ///
    /// A check with a bound ([`check_and_complete_with`](Self::check_and_complete_with)) examines only the operations
    /// that its [`CheckBound`] admits, so it may pass over this operation.
    ///
    /// Each item of `keys` is a key or a [`Watch`]. A [`Watch`] is of a key or of a [resolved](Self::resolve) key, and
    /// may have a [rank](Watch::at_rank). A key that is given several times counts once: without a rank if one of its
    /// items has no rank, otherwise at the lowest rank.
    ///
    /// What the call runs, locks and reads, all on this thread:
    ///
    /// * `deadline` (by default `timeout`), `arrival` and `weight`.
    /// * `try_complete`: once, a second time if the operation parks, and again if other threads check one of the keys
    ///   during the call.
    /// * `on_complete`, if the operation completes.
    /// * The lock of one timer shard (one of several groups of timers), for which the call may wait briefly.
    /// * For each plain key, the lock of its map shard (a part of the map from keys to watchers). If the key is
    ///   resolved, the call takes, inside that lock, the lock of the key's list.
    /// * For each key given by its [`ResolvedKey`], only the lock of the key's list.
    /// * One reading of the clock, unless the operation knows its [arrival](DelayedOperation::arrival). With a clock of
    ///   your own, one more to convert a deadline that is an `Instant`.
    /// * For the first finite timeout of the purgatory, the start of the reaper thread, which takes about 0.1 ms.
    ///
    /// # Errors
    /// The operation comes back in a [`Rejected`]. Its [reason](RejectReason) is decided before or after the first
    /// examination:
    ///
    /// * Before: there are no keys, too many parks are nested, or the purgatory is draining or shut down.
    /// * After, so that no operation that can complete at once is rejected: the purgatory or a key is full, the system
    ///   refuses the reaper's thread, or a drain or a shutdown has begun during this call.
    ///
    /// # Panics
    /// A panic of a hook of `op` other than `on_complete`, of a key, of the iterator of keys or of the clock is passed
    /// on. Nothing stays parked, and `op` is dropped.
    pub fn try_complete_else_watch<'a>(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<Admission<Op, S>, Rejected<Op>> {
        const {
            assert!(
                !Op::BELONGS_TO_A_WAIT,
                "an operation of `Waits` is parked by `wait`, `wait_then`, `listen` or `take`"
            );
        }
        self.shared.inner.park(op, keys)
    }

    /// Resolves a key: calls that use the result find the key's watchers without hashing. Useful for keys that are
    /// checked often, such as the partitions of a broker.
    ///
    /// Takes the lock of the key's map shard and, inside it, the lock of the key's list. Allocates memory.
    pub fn resolve(&self, key: Op::Key) -> ResolvedKey<Op, S> {
        ResolvedKey::new(&self.shared.inner, key)
    }

    /// Examines every operation that watches `key` (calls its `try_complete`), and completes those that can complete.
    /// Returns how many operations this call completed. Operations that watch the key [at a rank](Watch::at_rank) are
    /// examined first, in the order of ranks; then the others, in the order in which they were parked.
    ///
    /// Call this method after every change that could satisfy an operation on this key. Hold no lock of your own that
    /// `try_complete` or `on_complete` of *any* operation takes: otherwise this thread may deadlock. If you must hold
    /// such a lock, use [`check_later`](Self::check_later).
    ///
    /// Runs `try_complete` and `on_complete` of the examined operations on this thread. If other threads check an
    /// operation while this thread examines it, this thread examines the operation again, but at most 16 times in a
    /// row. After that, the next examination is left to the reaper thread, or to the next [`advance`](Self::advance).
    ///
    /// No lock is held while your code runs. The call takes:
    ///
    /// * the lock of the key's map shard (a part of the map from keys to watchers). Once is enough if the key is not
    ///   resolved and at most 16 operations watch it, all without a rank. Otherwise the call may take the lock once
    ///   more for every 64 operations and, if the key is resolved, the lock of the key's list inside it;
    /// * for each operation that it completes, the locks of the map shards of the operation's keys;
    /// * for each operation that it completes, the lock of the operation's timer shard, but only if that lock is free.
    ///   With the feature `tracing`, the call waits for this lock if the operation expires while this thread examines
    ///   it;
    /// * for each operation that asks for [another deadline](Cause::reschedule), the lock of its timer shard.
    ///
    /// Inside a `try_complete`, the check is made later, and this call returns 0: see [`Purgatory`].
    pub fn check_and_complete<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared
            .inner
            .check_key(key, const { &CheckBound::all() })
    }

    /// Examines operations that watch `key`, within `bound`: up to [a number of completions](CheckBound::at_most), up
    /// to [a rank](CheckBound::up_to), up to [the first operation that cannot complete](CheckBound::until_refused), or
    /// several of these. Returns how many operations this call completed.
    ///
    /// Operations with a rank are examined first, in the order of ranks; then the others, in the order in which they
    /// were parked. Within the bound, `try_complete` still decides whether an operation completes. Runs the same code
    /// and takes the same locks as [`check_and_complete`](Self::check_and_complete), with one difference. Where that
    /// method reads the operations in parts of 64, one part in each hold of the lock, a check for at most `n`
    /// completions reads `n` operations in the first part, and twice as many in each further part, up to 64.
    pub fn check_and_complete_with<Q>(&self, key: &Q, bound: CheckBound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        match bound.at_most {
            0 => 0,
            _ => self.shared.inner.check_key(key, &bound),
        }
    }

    /// Checks all of `keys` for one event: an operation that watches several of them is examined once. Returns how many
    /// operations this call completed. Inside a `try_complete`, this call returns 0, and each key gets a check of its
    /// own later: an operation that watches several of the keys may then be examined several times.
    ///
    /// Runs the same code and takes the same locks as [`check_and_complete`](Self::check_and_complete) for each key.
    pub fn check_and_complete_all<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized + 'q,
    {
        self.shared.inner.check_keys(keys.into_iter())
    }

    /// Checks every watched key for which `is_concerned` returns `true`. Use this method for an event that does not say
    /// which keys it changes. An operation that watches several of these keys is examined once. Returns how many
    /// operations this call completed.
    ///
    /// Takes the locks of the map shards one after another, each while it clones the keys of the shard. Then calls
    /// `is_concerned`, with no lock held, for each key that is watched or [resolved](Self::resolve). The cost grows
    /// with the number of these keys.
    pub fn check_where(&self, mut is_concerned: impl FnMut(&Op::Key) -> bool) -> usize {
        let inner = &self.shared.inner;
        let keys = inner.watch.all_keys();
        inner.check_keys(keys.iter().filter(|key| is_concerned(key)))
    }

    /// Defers a check of `key` to the reaper (the thread that drives the timer), or with
    /// [`Reaper::Manual`](crate::threads::Reaper::Manual) to the next [`advance`](Self::advance). The thread that makes
    /// the check runs `try_complete`; the completions run where [`Builder::dispatch`] says. Several deferred checks of
    /// one key become one check.
    ///
    /// Takes internal locks for an instant. Runs only this code of yours:
    ///
    /// * `Hash` and `Eq` of keys, under one of these locks;
    /// * the destructor of `key`, if a check of an equal key waits already;
    /// * a [reactor's wake function](crate::threads::Reaper::Reactor).
    ///
    /// So you may call this method under any lock of yours that none of these takes. After the shutdown, no check is
    /// made, and the key is dropped.
    ///
    /// The first call may start the reaper. If the system refuses the thread, the check stays deferred until a later
    /// call starts the reaper, or until the next [`advance`](Self::advance).
    pub fn check_later(&self, key: Op::Key) {
        self.shared
            .inner
            .defer(CheckTarget::key(key), CheckBound::all());
    }

    /// Cancels every operation that watches `key`: each of them ends without a completion, and is returned.
    ///
    /// An operation that another thread is examining is not returned. The examining thread ends it with
    /// [`Completion::Cancelled`](crate::Completion::Cancelled), unless that thread finds the operation satisfied or
    /// lets it expire.
    ///
    /// Takes the lock of the key's map shard. For each operation, takes the locks of the map shards of its other keys,
    /// and the lock of its timer shard only if that lock is free.
    pub fn cancel_for_key<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> Vec<Op> {
        self.shared.inner.cancel_key(key)
    }

    /// Completes every operation that watches `key` as satisfied, whether the operation can complete or not: for
    /// example, because the leader is lost or the topic is deleted. Returns how many operations this call completed. An
    /// operation that another thread is examining is not counted. The examining thread completes that operation: as
    /// expired if the thread is examining the operation at its deadline and the operation asks for no more time,
    /// otherwise as satisfied.
    ///
    /// Runs `on_complete` on this thread. Takes the lock of the key's map shard. For each operation, takes the locks of
    /// the map shards of its other keys, and the lock of its timer shard only if that lock is free.
    pub fn force_complete_for_key<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared.inner.force_key(key, None)
    }

    /// Runs `change` on every operation that watches `key`, and then completes the operation as satisfied. For example,
    /// `change` sets an error as the operation's answer. Otherwise this call does the same as
    /// [`force_complete_for_key`](Self::force_complete_for_key): it returns the same count, runs `on_complete` on this
    /// thread, and takes the same locks. It holds no lock while `change` runs. In Kafka this is
    /// `completeAllExceptionally`.
    ///
    /// The change also reaches an operation that another thread is examining: the examining thread runs `change` and
    /// completes the operation, unless that thread finds the operation satisfied or lets it expire. So `change` may run
    /// on several threads, also after this call has returned. If two calls of this method meet the same operation while
    /// it is being examined, the examining thread runs only one of their changes. A panic of `change` is counted, and
    /// its operation still ends.
    ///
    /// The captures of `change` are dropped once this call has returned and every examining thread that has to run
    /// `change` has run it. If an examining thread ends its operation without `change`, the captures may be dropped
    /// later: in the next call of this method, when the thread that drives the timer finds no deadline left, or at the
    /// shutdown.
    pub fn force_complete_for_key_with<Q: Hash + Equivalent<Op::Key> + ?Sized>(
        &self,
        key: &Q,
        change: impl Fn(&mut Op) + Send + Sync + 'static,
    ) -> usize {
        self.shared.inner.force_key(key, Some(Arc::new(change)))
    }

    /// The number of keys that at least one operation watches. Takes the locks of the map shards one after another,
    /// each while it counts the keys of the shard. While it has the lock of a shard, takes the lock of each resolved
    /// key's list in that shard, for an instant.
    pub fn watched_keys(&self) -> usize {
        self.shared.inner.watch.keys()
    }

    /// Lists the parked operations, the oldest first.
    ///
    /// Delays no completion. The cost in time and memory grows with the number of parked operations, so this method is
    /// for operators, not for the hot path. A panic of the clock or of a key is passed on. Takes these locks, one after
    /// another:
    ///
    /// * the lock of each map shard, while it clones the keys of the shard;
    /// * for each key, the lock of its map shard, for 64 watchers at a time, and inside it the lock of the key's list
    ///   if the key is resolved;
    /// * for each operation, the lock of its timer shard and, in a purgatory with [listeners](crate::Listener), the
    ///   lock of the times at which they are woken.
    pub fn snapshot(&self) -> Vec<ParkedOperation<Op::Key>> {
        self.shared.inner.snapshot()
    }

    /// Ends the purgatory: parks are rejected from now on, and every parked operation ends with
    /// [`Completion::ShutDown`](crate::Completion::ShutDown), on this thread or on the thread that is examining the
    /// operation. Then this call joins the purgatory's own threads, after the completions in their queues have run.
    ///
    /// Only the first call does this; a later call returns at once, even while the first call is still running. This
    /// method does not wait for completions on an executor or on a shared reaper's thread, but
    /// [`shutdown_timeout`](Self::shutdown_timeout) waits for them. In a callback, `shutdown` does not wait for the
    /// threads, which end when the completions in their queues have run.
    pub fn shutdown(&self) {
        shut_down(&self.shared.inner);
    }

    /// [Shuts the purgatory down](Self::shutdown) if no operation is parked. Returns whether this call has shut it
    /// down. In a race with a park on another thread, one of two things happens: the operation is parked, and this call
    /// returns `false` and changes nothing; or the park is rejected with [`RejectReason::ShutDown`]. So a thread can
    /// safely end a purgatory that it has found idle: for example one of many purgatories in a map, where each belongs
    /// to one lease.
    ///
    /// Completions of operations that have ended may still be running. Takes the locks of all timer shards (the groups
    /// of timers) at once, and looks at each slot (a place for one operation) that ever had an operation.
    pub fn shutdown_if_idle(&self) -> bool {
        shut_down_if_idle(&self.shared.inner)
    }

    /// Rejects every park from now on, with [`RejectReason::Draining`], and waits until every parked operation has
    /// ended by itself and its completion has run, or `limit` has passed. Returns how many operations are still parked;
    /// [`snapshot`](Self::snapshot) lists them. Timers still fire, and checks still complete operations. Usually a
    /// [`shutdown`](Self::shutdown) follows. A shutdown by another thread ends the wait.
    ///
    /// This call closes the timer shards (the groups of timers) one after another. A park that began on another thread
    /// before this call may still succeed, until the timer shard that the park uses is closed. When all timer shards
    /// are closed, the number of parked operations only falls.
    ///
    /// Details of the wait:
    ///
    /// * The call does not wait for a completion that another thread runs inside its own call, such as a check that
    ///   satisfied the operation.
    /// * The call polls, with pauses of at most 5 ms. If no thread of the library drives the timer, the call drives it,
    ///   as [`advance`](Self::advance) does.
    /// * In a callback the call does not wait.
    /// * `limit` is measured in the system's time, not by the [`clock`](crate::purgatory::Builder::clock).
    pub fn drain(&self, limit: Duration) -> usize {
        drain(&self.shared.inner, limit)
    }

    /// [Shuts the purgatory down](Self::shutdown) on a background thread. Waits at most `limit` for the end of the
    /// shutdown, and for the completions that were handed to an executor or to a shared reaper's thread. In a callback
    /// this method does not wait, and returns the error unless the shutdown is over already.
    ///
    /// The callbacks of the shutdown run on the background thread, so a slow callback cannot make this call exceed
    /// `limit`.
    ///
    /// # Errors
    /// * [`ShutdownError::TimedOut`], with what was still running when `limit` had passed. The shutdown continues in
    ///   the background.
    /// * [`ShutdownError::Thread`], if the system refused the background thread. The shutdown has not begun.
    pub fn shutdown_timeout(&self, limit: Duration) -> Result<(), ShutdownError> {
        shut_down_within(&self.shared.inner, limit)
    }

    /// [Shuts the purgatory down](Self::shutdown) on a background thread, so that no thread of an async runtime is
    /// blocked, and returns a [`Future`] of the end. The shutdown begins with this call, and continues whether the
    /// future is polled, dropped or neither. The future is ready when every parked operation has ended and the
    /// purgatory's own threads have been joined. The future needs no runtime.
    ///
    /// # Errors
    /// If the system refuses the thread, the error is returned, and nothing has happened.
    pub fn shutdown_async(
        &self,
    ) -> io::Result<impl Future<Output = ()> + Send + Unpin + use<Op, S>> {
        shut_down_async(&self.shared.inner)
    }

    /// The number of operations that watch `key`. Exact when no call is in progress. After many operations have expired
    /// at once, ended operations count until their watches are removed.
    ///
    /// Takes the lock of the key's map shard and, inside it, the lock of the key's list if the key is resolved.
    pub fn watchers<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared.inner.watch.count(key)
    }

    // The macro adds these methods (see `src/engine/shared_handle.rs`): `len`, `is_empty`, `stats`, `advance`,
    // `next_deadline`, `point`, `shrink`, `is_shut_down`, `downgrade`. The text below becomes a part of the
    // documentation of `advance`.
    shared_methods!("parked operations"
        /// Like the reaper, the call first makes the deferred checks: checks that wait for the thread that drives the
        /// timer, such as those of [`check_later`](Self::check_later). If a tick passes during such a check, every
        /// operation whose deadline has passed by the end of the check expires next, even an operation that your code
        /// has parked during the check. The call runs `try_complete` on this thread, for operations whose deadline has
        /// passed and for operations that a deferred check examines.
        ///
        /// Inside a `try_complete`, this call makes no deferred check. If that `try_complete` runs because a deadline
        /// has passed, this call also expires nothing, and returns 0. The checks and expiries are left to the thread
        /// that drives the timer.
    );
}

shared_type!([Op: DelayedOperation, S: KeyHasher] Purgatory, Purgatory<Op, S>, Inner<Op, S>, (S, Own));

impl<Op: DelayedOperation, S: KeyHasher> Builder<Purgatory<Op, S>> {
    /// The number of map shards (the parts of the map from keys to watchers), each with a lock of its own: rounded up
    /// to a power of two, from 2 to 65,536. More shards mean less lock contention; each takes 128 bytes. Default: 64
    /// for each processor, at least 1,024 and at most 4,096. Choose fewer if a process has hundreds of purgatories.
    pub fn map_shards(mut self, shards: usize) -> Self {
        self.own.1.map_shards = shards;
        self
    }

    /// The most operations that may watch one key at a time. A park beyond that number is rejected
    /// ([`KeyFull`](RejectReason::KeyFull)), so a client cannot make the checks of a key slow. The bound is exact; a
    /// rejected operation counts as [cancelled](Stats::cancelled). If many operations expire at once, their completions
    /// usually run before their watches are removed. With this bound (as with [`max_parked`](Self::max_parked)) the
    /// watches are removed first, so that a completion can park the next operation on the key. Default: no limit.
    pub fn max_watchers_per_key(mut self, count: usize) -> Self {
        self.own.1.max_watchers = count;
        self.settings.reclaim_first = true;
        self
    }

    /// The hasher of keys. Default: [`RandomState`], a fast hash with a random seed. Without the random seed, a client
    /// that chooses its keys could choose keys with equal hashes, and slow the purgatory down. The hasher also gets
    /// single `u64`s: if a `try_complete` checks an operation by its handle, the library hashes the number of that
    /// operation.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Purgatory<Op, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// Builds the purgatory. With the feature `metrics`, the purgatory reports to the recorder that is installed during
    /// this call.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    pub fn build(self) -> Result<Purgatory<Op, S>, BuildError> {
        let engine = Engine::new(self.settings)?.observed();
        let (hasher, own) = self.own;
        let inner = Inner::new(engine, hasher, &own);
        Ok(Purgatory {
            shared: SharedHandle::start(inner),
        })
    }
}
