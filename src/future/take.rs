//! Taking a value that only one waiter may have. The waiter gets the value in a guard. If the guard is dropped before
//! the work is done, the guard gives the value back.
//!
//! # Done or given back, once
//!
//! When the user's closure `take` returns a value, the value is put into a guard, [`Taken`], before any other code runs
//! that could panic. The guard also owns what is needed to give the value back, the *way back*: the closure
//! `give_back`, the keys, and a reference to the purgatory. Either [`Taken::done`] or the destructor takes the value
//! and the way back out of the guard. So each value is either kept or given back, and only once.
//!
//! An operation has only one way back. While a guard owns the way back, the operation does not call `take`: a second
//! value could not be given back.
//!
//! If the first examination takes a value, the guard lies in the future itself, because no operation is parked. The
//! guard of a value that is taken later lies in the promise that operation and future share, under the lock of the
//! promise. A poll of the future takes the guard out of the promise. The drop of the future does so too, and drops the
//! guard with no lock held. If another thread is examining the operation while the future is dropped, that thread may
//! still call `take`. The promise then refuses the guard of this value, and the examining thread drops the guard.
//!
//! Each step of a way back catches panics on its own: the call of `give_back`, the check of each key, and the
//! destructors. A panic is counted, and the next step follows.
//!
//! # No newcomer overtakes
//!
//! A newcomer is an operation that is being parked. It may keep a value that it takes during its park only if no other
//! operation watches one of the keys. The watchers of a key are counted after the value was taken, under the lock of
//! the key's watch list. A waiting operation is in this list from before its park returns until it ends, so the count
//! includes it. Both examinations of a park follow this rule, although in the first one the newcomer itself is not in
//! the list yet. If another operation watches one of the keys, the value goes back, and the keys are checked without a
//! bound.
//!
//! This check must have no bound. With a check for one completion, the following could happen:
//!
//! 1. A second value arrives. Another thread checks the key for this value, and reads the list of watchers before the
//!    newcomer is in the list.
//! 2. The operations that this thread has found in the list end without taking the second value.
//! 3. The newcomer gives the first value back, and checks the key for one completion. One other operation takes the
//!    first value, and the check stops: it does not reach the newcomer.
//!
//! The second value would then stay unused, although the newcomer waits for a value.
//!
//! The check without a bound examines in the order of parking: first the operations that waited, then the newcomer,
//! which is in the list by then. So the newcomer gets what the others refuse. While the newcomer holds the value, a
//! check by another thread may examine the waiting operations in vain, because they do not find this value. So the keys
//! need a check of their own after the value has gone back.

use super::answer::sealed;
use super::operation::{WaitOperation, Waiting, contain_and_count};
use super::wait::WaitFuture;
use crate::callbacks::trampoline::{Trampoline, in_turn};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::operation::Cause;
use crate::purgatory::{Purgatory, RecycledWeak, Watch};
use crate::sync::{Arc, Exclusive};
use crate::time::Deadline;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{needs_drop, take};
use std::ops::{Deref, DerefMut};

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `take` takes a value, for at most `timeout` from this call on, or until a [point in time](Deadline)
    /// (`None`: without end). Works as [`wait`](Self::wait), for values that only one waiter may have: a job from a
    /// queue, a connection from a pool.
    ///
    /// **A value that was taken is either kept or given back, and never lost.** The future resolves to a guard,
    /// [`Taken`]. [`Taken::done`] keeps the value. If the guard, or the future that holds it, is dropped without `done`
    /// (because the worker's task was aborted or panicked, or another branch of a `select` was first), the value goes
    /// to `give_back`. Then each key is checked, and each of these checks stops after one completion. So another waiter
    /// gets the value.
    ///
    /// ```
    /// use request_purgatory::{CheckBound, Waits};
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// let queue = Arc::new(Mutex::new(VecDeque::new()));
    /// let waits = Waits::<u32>::new("jobs");
    /// let worker = || {
    ///     let (takes, returns) = (queue.clone(), queue.clone());
    ///     waits.take(
    ///         [7],
    ///         Duration::from_secs(30),
    ///         move |_| takes.lock().unwrap().pop_front(),
    ///         move |job| returns.lock().unwrap().push_front(job),
    ///     )
    /// };
    /// let (first, second) = (worker(), worker());
    /// queue.lock().unwrap().push_back("job");
    /// waits.check_and_complete_with(&7, CheckBound::at_most(1)); // the first worker has it
    /// use request_purgatory::future::block_on; // or any executor
    /// let job = block_on(first)?;
    /// assert_eq!(*job, "job");
    /// drop(job); // the first worker has not done it: the second gets it
    /// assert_eq!(block_on(second)?.done(), "job");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `take` returns `Option<T>`, or, if it can fail, `Result<Option<T>, E>` (see [`Attempt`]). An error ends only
    /// this wait, and the future resolves to the error: `let job = take.await??`. A check counts this end as a
    /// completion. So a check that [stops after one completion](crate::CheckBound::at_most) stops here, and does not
    /// reach another waiter that could take the value. To reach that waiter, after an error in a check, the thread that
    /// drives the timer checks each key once more, and stops after one completion.
    ///
    /// **No newcomer overtakes.** If `take` takes a value in this call while other operations already watch one of the
    /// keys, the value goes to `give_back` before the call returns. Then every operation on the keys is examined, in
    /// the order of parking, so that an earlier waiter gets the value first. This may cost much. For example, 10,000
    /// operations wait, and a value was added, but its key was not checked yet. A call that takes this value then
    /// causes 10,000 examinations. The rule also holds for a `timeout` of zero.
    ///
    /// `take` gets the [cause](Cause) of each call. If the operation watches **several keys** and the cause names a
    /// key, `take` must take only what belongs to that key. For example, an item of key A arrives, and A is checked for
    /// one completion. If `take` then takes an item of key B, the check stops after this completion, and the item of A
    /// stays unused although another operation may wait for it.
    ///
    /// `take` has the duties of [`wait`](Self::wait)'s predicate, and runs on the same threads. After `take` has
    /// failed, or has taken the value that the future gets, it is not called again. If `take` panics after it has taken
    /// a value, this value is lost.
    ///
    /// `give_back` runs with no lock of the library held. Completions that `give_back` causes run after it has
    /// returned. `give_back` runs on one of these threads:
    ///
    /// * the thread that drops the guard or the future;
    /// * if another thread drops the future before the future has the value: the thread that takes the value, or the
    ///   thread that is about to hand the value to the future;
    /// * this thread, before the call returns, if the value has to go to an operation that waited before.
    ///
    /// Drop no future and no guard while you hold a lock that `take` or `give_back` of any waiter takes: the drop may
    /// run these closures on this thread, which would wait for its own lock. After a shutdown, values are still given
    /// back, but no key is checked.
    ///
    /// A panic of `give_back` is caught, and [counted](crate::purgatory::Stats::panicked) until the shutdown. The keys
    /// are checked even after such a panic.
    ///
    /// If `take` finds a value at once and no other operation watches one of the keys, nothing is parked, and no clock
    /// is read.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`](super::WaitError), for example if the purgatory rejects the operation. In
    /// this case the wait has taken no value, or has given back what it had taken.
    pub fn take<'a, A: Attempt + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
        take: impl FnMut(Cause<'_, K>) -> A + Send + 'static,
        give_back: impl FnMut(A::Value) + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, A::Found, S> {
        let mut keys = keys.into_iter().map(Into::into).fuse();
        let first = keys.next();
        let rest = keys.collect::<Vec<Watch<'a, K>>>();
        let route = Route {
            waits: self.shared.inner.weak,
            keys: Names {
                first: first.as_ref().map(|watch| watch.name().clone()),
                rest: rest.iter().map(|watch| watch.name().clone()).collect(),
            },
            give_back: Some(give_back),
            hasher: PhantomData::<fn() -> S>,
        };
        let take = taker(take, route);
        self.wait_for(first.into_iter().chain(rest), timeout.into(), take)
    }
}

/// Makes the predicate of the operation that a call of [`Purgatory::take`] parks. The predicate calls the user's
/// closure `take`. If the operation is still being parked, and others wait for one of its keys, the predicate gives the
/// value back, so that the operation does not overtake the others.
fn taker<K: Key, A: Attempt>(
    mut take: impl FnMut(Cause<'_, K>) -> A,
    route: impl WayBack<A::Value> + 'static,
) -> impl FnMut(Cause<'_, K>) -> Option<A::Found> {
    let mut ready = Ready::Unused(route);
    let mut watches = false;
    move |cause| {
        // How often this operation itself is counted among the watchers of each key: 0 or 1 times. A park examines the
        // operation twice. In the first examination, the operation is in no watch list yet, so `own` is 0. In the
        // second, it is in the list of each key, so `own` is 1.
        let own = usize::from(cause.is_parking() && std::mem::replace(&mut watches, true));
        // Without a way back (the closure `give_back`, the keys and the purgatory), do not call `take`: its value could
        // not be given back, and would be lost. This is only a safeguard. A call of this predicate uses up the way back
        // only if it returns a result or panics, and the library does not call the predicate again after that.
        if ready.is_gone() {
            return None;
        }
        match take(cause).taken() {
            Ok(None) => None,
            Ok(Some(value)) => {
                // From here on a guard owns the value: if `Hash` or `Eq` of a key panics while the watchers are
                // counted, the drop of the guard gives the value back.
                let mut taken = Taken::new(value, ready.way()?);
                if cause.is_parking() && taken.is_watched_by_others(cause.purgatory(), own) {
                    ready = Ready::Back(taken.put_back());
                    return None;
                }
                Some(A::found(taken))
            }
            Err(failed) => {
                let mut way = ready.way()?;
                // The error ends this operation, and a check counts this end as a completion. So a check for one
                // completion stops here, although nothing was taken, and another waiter could take the value. So check
                // each key once more.
                if cause.is_check() {
                    way.get_mut().check(false);
                }
                Some(failed)
            }
        }
    }
}

/// What is needed to give back the next value that the operation takes: the way back, which is the closure `give_back`,
/// the keys and the purgatory.
enum Ready<T, R> {
    /// No value was taken yet. The way back (how to give a value back) is still a [`Route`]: it is boxed, as a [`Way`],
    /// only when a value is taken.
    Unused(R),
    /// A value was taken and given back. The operation uses this way back again for the next value that it takes.
    Back(Way<T>),
    /// No way back is here: it belongs to the guard of a value that was taken, or it was dropped because `take` has
    /// failed.
    Gone,
}

impl<T, R: WayBack<T> + 'static> Ready<T, R> {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }

    fn way(&mut self) -> Option<Way<T>> {
        match std::mem::replace(self, Self::Gone) {
            Self::Unused(route) => Some(Exclusive::new(Box::new(route))),
            Self::Back(way) => Some(way),
            Self::Gone => None,
        }
    }
}

/// The return type of the closure of a [`take`](Purgatory::take): an `Option<T>`, or a `Result<Option<T>, E>` if the
/// closure can fail. With `None` or `Ok(None)` the wait continues.
///
/// | answer | the future resolves to |
/// |---|---|
/// | `Option<T>` | `Result<Taken<T>, WaitError>` |
/// | `Result<Option<T>, E>` | `Result<Result<Taken<T>, E>, WaitError>` |
pub trait Attempt: sealed::Sealed + Sized {
    /// The type of the taken value.
    type Value: Send + 'static;
    /// The result of the wait, if the closure has ended the wait by a value or by an error. If something else ends the
    /// wait, the result is a [`WaitError`](super::WaitError).
    type Found: Send + 'static;

    /// Returns the taken value, or `Ok(None)` if nothing was taken. If the closure has failed, returns `Err` with the
    /// result of the future, which contains the closure's error.
    #[doc(hidden)]
    fn taken(self) -> Result<Option<Self::Value>, Self::Found>;

    #[doc(hidden)]
    fn found(taken: Taken<Self::Value>) -> Self::Found;
}

impl<T: Send + 'static> Attempt for Option<T> {
    type Value = T;
    type Found = Taken<T>;

    fn taken(self) -> Result<Self, Taken<T>> {
        Ok(self)
    }

    fn found(taken: Taken<T>) -> Taken<T> {
        taken
    }
}

impl<T: Send + 'static, E: Send + 'static> Attempt for Result<Option<T>, E> {
    type Value = T;
    type Found = Result<Taken<T>, E>;

    fn taken(self) -> Result<Option<T>, Self::Found> {
        self.map_err(Err)
    }

    fn found(taken: Taken<T>) -> Self::Found {
        Ok(taken)
    }
}

/// A short name for the future of a [take](Purgatory::take), for a field or the result of a function.
pub type Take<K, T, S = RandomState> = WaitFuture<WaitOperation<K>, Taken<T>, S>;

/// The guard of a value that a [take](Purgatory::take) has taken. [`done`](Self::done) keeps the value; dropping the
/// guard gives the value back.
///
/// The guard may move to another thread. It does not keep the purgatory alive, and no operation is parked for it. A
/// leaked guard (by [`std::mem::forget`]) leaks its own value, and affects no other value. If a guard is dropped inside
/// another destructor that the library has called, it gives its value back only when the outermost call of the library
/// on that thread returns. So a chain of guards, each owned by another guard's value, needs no deep stack.
#[must_use = "a value that is dropped goes back to where it came from"]
pub struct Taken<T: 'static>(Option<(T, Way<T>)>);

impl<T> Taken<T> {
    fn new(value: T, way: Way<T>) -> Self {
        Self(Some((value, way)))
    }

    /// Keeps the value: returns the value, which is not given back any more.
    ///
    /// Call this method when the work is done, with no `await` between the effect of the work and this call: if the
    /// worker is aborted at such an `await`, the value is given back, and the work is done twice.
    ///
    /// This call drops the closure `give_back` and the keys. A panic of their destructors is caught and
    /// [counted](crate::purgatory::Stats::panicked).
    pub fn done(mut self) -> T {
        self.part().0
    }

    /// Gives back a value that was taken while the operation was being parked. Then checks the keys, so that operations
    /// that were parked before can take the value. Returns the way back (the closure `give_back`, the keys and the
    /// purgatory) for the next value that the operation takes.
    fn put_back(mut self) -> Way<T> {
        let (value, mut way) = self.part();
        way.get_mut().give_back(value);
        way.get_mut().check(true);
        way
    }

    fn part(&mut self) -> (T, Way<T>) {
        self.0.take().unwrap_or_else(absent)
    }

    /// Whether another operation watches one of the keys in `purgatory`: whether a key has more than `own` watchers.
    /// `own` says how often the operation that took the value is itself in the list of each key: once or not at all.
    fn is_watched_by_others(&mut self, purgatory: Option<&dyn Any>, own: usize) -> bool {
        let way = self.0.as_mut().map(|(_, way)| way.get_mut());
        way.zip(purgatory)
            .is_some_and(|(way, purgatory)| way.is_watched_by_others(purgatory, own))
    }
}

fn absent<T>() -> T {
    unreachable!("only a method that consumes the guard takes its value out")
}

impl<T> Deref for Taken<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.as_ref().unwrap_or_else(absent).0
    }
}

impl<T> DerefMut for Taken<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.as_mut().unwrap_or_else(absent).0
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        if let Some((value, mut way)) = self.0.take() {
            let _trampoline = Trampoline::enter();
            // The value of a guard may own another guard. `in_turn` runs their destructors one after another, not
            // nested, so that a long chain of guards needs no deep stack.
            in_turn(move || {
                way.get_mut().give_back(value);
                way.get_mut().check(false);
            });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Taken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&**self).finish()
    }
}

/// The way back of a taken value: how to give it back, and which keys to check then. Catches and counts all panics of
/// user code.
///
/// A guard is `Sync`, although the user's closure need not be `Sync`. So the way back lies in an [`Exclusive`], which
/// is `Sync` if its content is `Send`, because it gives no shared access to the content.
type Way<T> = Exclusive<Box<dyn WayBack<T>>>;

trait WayBack<T>: Send {
    /// Whether another operation in `purgatory` watches one of the keys: whether a key has more than `own` watchers.
    /// The operation that took the value may be one of these watchers itself: `own` is 1 if it is in the watch list of
    /// each key already, and 0 if it is in none of the lists yet.
    fn is_watched_by_others(&self, purgatory: &dyn Any, own: usize) -> bool;

    fn give_back(&mut self, value: T);

    /// Checks each key, because another operation may be able to take a value. Called in these cases:
    ///
    /// * A newcomer (an operation that is being parked) has given its value back. Only in this case `is_newcomer` is
    ///   `true`.
    /// * The guard of a value was dropped, and has given the value back.
    /// * A check has examined an operation, and `take` has failed.
    ///
    /// With `is_newcomer` the check has no bound, so that the operations that waited before come first ("No newcomer
    /// overtakes" at the head of this file). Without `is_newcomer` the check is for one completion.
    ///
    /// The check is made as follows:
    ///
    /// * Outside every examination: by this thread, at once.
    /// * Inside an examination, without `is_newcomer`: by the thread that drives the timer.
    /// * Inside an examination, with `is_newcomer`: by this thread, at the end of its outermost call of the library.
    ///   One exception: if this thread runs a nested check (a check that a `try_complete` has made), the thread that
    ///   drives the timer makes the new check. Otherwise each nested check could cause another one, without end.
    fn check(&self, is_newcomer: bool);
}

struct Route<K: Key, S: KeyHasher, G> {
    waits: RecycledWeak,
    hasher: PhantomData<fn() -> S>,
    keys: Names<K>,
    /// The user's closure. `None` only after the destructor of this value has taken the closure out, to drop it.
    give_back: Option<G>,
}

/// The keys of a take. Most takes have only one, which needs no allocation.
struct Names<K> {
    first: Option<K>,
    rest: Vec<K>,
}

impl<K> Names<K> {
    fn iter(&self) -> impl Iterator<Item = &K> {
        self.first.iter().chain(&self.rest)
    }
}

impl<K: Key, S: KeyHasher, G> Drop for Route<K, S, G> {
    fn drop(&mut self) {
        if needs_drop::<K>() {
            let keys = (self.keys.first.take(), take(&mut self.keys.rest));
            contain_and_count::<K, S>(self.waits, || drop(keys));
        }
        if needs_drop::<G>() {
            let give_back = self.give_back.take();
            contain_and_count::<K, S>(self.waits, || drop(give_back));
        }
    }
}

impl<T, K: Key, S: KeyHasher, G: FnMut(T) + Send> WayBack<T> for Route<K, S, G> {
    fn is_watched_by_others(&self, purgatory: &dyn Any, own: usize) -> bool {
        let waits = purgatory.downcast_ref::<Waiting<K, S>>();
        waits.is_some_and(|waits| self.keys.iter().any(|key| waits.watch.count(key) > own))
    }

    fn give_back(&mut self, value: T) {
        if let Some(give_back) = &mut self.give_back {
            contain_and_count::<K, S>(self.waits, || give_back(value));
        }
    }

    fn check(&self, is_newcomer: bool) {
        self.waits.with(|waits: &Arc<Waiting<K, S>>| {
            for key in self.keys.iter() {
                // `Hash` and `Eq` of a key may panic. The other keys are still checked.
                let checked = waits.engine.guarded(|| match is_newcomer {
                    true => waits.offer_to_earlier(key),
                    false => waits.offer(key),
                });
                drop(checked);
            }
        });
    }
}
