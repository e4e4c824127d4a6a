//! Taking a value that only one waiter may have: the value in the hands of one waiter, and its way back, so that it is
//! not lost if that waiter ends before its work does.
//!
//! # Done or given back, once
//!
//! The closure's value is put into a guard, [`Taken`], before any other code runs that could panic. The guard owns the
//! value and its way back: `give_back`, the keys, a weak reference to the purgatory. Either [`Taken::done`] or the
//! destructor takes both out of the guard, so exactly one of the two happens, once. While a guard has the way back, the
//! closure is not called, because a second value would have no way back.
//!
//! The guard is stored in a promise that operation and future share, under one lock. The future takes the guard out
//! when it is polled or dropped, and drops the guard with no lock held. If another thread is examining the operation
//! while the future is dropped, a check that came before the drop may still run the closure. The promise does not store
//! the value of that call, and its guard is dropped on the examining thread.
//!
//! Each step of a way back runs under a guard against panics: `give_back`, the check of each key, the destructors. A
//! panic is counted, and the next step follows.
//!
//! # No newcomer overtakes
//!
//! A value that was taken on arrival is kept only if no other operation watches one of the keys. The watchers are
//! counted under the lock of their list, after the value was taken. An operation that waits is in the list from before
//! its park returns until it ends, so the count shows it. If the count shows another operation, the value goes back and
//! the keys are checked without a bound.
//!
//! A check for one completion would not suffice. A check by another thread, for another value, may have read the list
//! before the newcomer was in it. If the operations that it found have ended otherwise, its value would stay unused
//! beside the newcomer.
//!
//! The check examines in the order of parking: first the operations that waited, then the newcomer, which is in the
//! list by then. So the second examination of the newcomer's park is not lost: the newcomer gets what the others
//! refuse. If a check examines the waiting operations while a newcomer holds a value, that value gets a check of its
//! own when it goes back.

use super::operation::WaitOperation;
use super::wait::WaitFuture;
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Trampoline, UserValues, in_turn, is_in_nested_check};
use crate::engine::shared_handle::WeakRef;
use crate::hash::{Key, KeyHasher};
use crate::operation::Cause;
use crate::purgatory::{Purgatory, Watch};
use crate::sync::Exclusive;
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use std::{fmt, iter};

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `take` takes a value, for at most `timeout` from this call on (`None`: without end). Like
    /// [`wait`](Self::wait), for values that only one waiter may have: a job from a queue, a connection from a pool.
    ///
    /// **A value that was taken is done or given back, never lost and never both.** The future resolves to a guard,
    /// [`Taken`]. [`Taken::done`] keeps the value. If the guard, or the future that holds it, is dropped without `done`
    /// (because the worker's task was aborted or panicked, or another branch of a `select` was first), the value goes
    /// to `give_back`. Then the keys are checked, each for one completion, so that another waiter gets the value.
    ///
    /// ```
    /// use request_purgatory::{Bound, Waits};
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
    /// waits.check_and_complete_with(&7, Bound::at_most(1)); // the first worker has it
    /// # use request_purgatory::future::block_on; // or any executor
    /// let job = block_on(first)?;
    /// assert_eq!(*job, "job");
    /// drop(job); // the first worker has not done it: the second gets it
    /// assert_eq!(block_on(second)?.done(), "job");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `take` returns `Option<T>`, or, if it can fail, `Result<Option<T>, E>` (see [`Attempt`]). An error ends only
    /// this wait, and the future resolves to the error: `let job = take.await??`. The check that met the error goes on
    /// to the next waiter, or is made again when the timer is driven.
    ///
    /// **No newcomer overtakes.** If other operations watch one of the keys already, a value taken in this call goes
    /// back to `give_back` before the call returns, and the keys are checked in the order of parking, so that earlier
    /// waiters get the value first. This holds for a `timeout` of zero too. That check examines every operation on the
    /// keys: beside 10,000 of them, a newcomer that meets a value before the value's own check costs 10,000
    /// examinations.
    ///
    /// `take` gets the [cause](Cause) of each call. If it watches **several keys** and the cause names a key, it must
    /// take only what belongs to that key: a check of a key for one completion is meant for an item of that key.
    ///
    /// `take` runs on the threads of [`wait`](Self::wait)'s predicate, and has its duties. After it has taken a value
    /// that did not go back, it is not called again. A `take` that panics after taking something loses that value.
    ///
    /// `give_back` runs with no lock of the library held, and checks and completions that it causes do not nest. It
    /// runs on one of these threads:
    ///
    /// * the thread that drops the guard or the future;
    /// * another thread that is taking the value, or is handing it to the future, at that moment;
    /// * this thread, before the call returns.
    ///
    /// Drop no future and no guard while you hold a lock that `take` or `give_back` of any waiter takes. After a
    /// shutdown values are still given back, and no key is checked.
    ///
    /// If `give_back` panics, the panic is caught and [counted](crate::purgatory::Stats::panicked), and the keys are
    /// checked.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`](super::WaitError), among others if the purgatory rejects the operation.
    /// No value was taken then.
    pub fn take<'a, A: Attempt + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
        take: impl FnMut(Cause<'_, K>) -> A + Send + 'static,
        give_back: impl FnMut(A::Value) + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, A::Found, S> {
        // If a key panics here, the park meets a panic instead of the keys, counts it, and rejects.
        let collected = Panics::contain(|| {
            let watches = keys.into_iter().map(Into::into).collect::<Vec<_>>();
            let names = watches.iter().map(|watch| watch.name().clone());
            (names.collect(), watches)
        });
        let (names, watches) = collected.unzip();
        let watches = || watches.unwrap_or_else(|| std::panic::resume_unwind(Box::new("a key")));
        let route = Route {
            waits: self.downgrade(),
            keys: UserValues(names.unwrap_or_default()),
            give_back: Some(give_back),
        };
        let take = taker(take, Exclusive::new(Box::new(route)));
        self.wait_for(iter::once_with(watches).flatten(), timeout, take)
    }
}

/// The predicate that calls `take`, and keeps a newcomer from overtaking.
fn taker<K: Key, A: Attempt>(
    mut take: impl FnMut(Cause<'_, K>) -> A,
    way: Way<A::Value>,
) -> impl FnMut(Cause<'_, K>) -> Option<A::Found> {
    let mut way = Some(way);
    let mut watches = false;
    move |cause| {
        // The second examination on arrival is the first in which this operation watches its keys.
        let own = usize::from(cause.is_parking() && std::mem::replace(&mut watches, true));
        // Take nothing without a way back. A predicate that has found something is not called again.
        way.as_ref()?;
        match take(cause).taken() {
            Ok(None) => None,
            Ok(Some(value)) => {
                // Put the value into a guard at once, so that a key that panics during the count of its watchers loses
                // no value.
                let mut taken = Taken::new(value, way.take()?);
                if cause.is_parking() && taken.is_watched_by_others(own) {
                    way = Some(taken.put_back());
                    return None;
                }
                Some(A::found(taken))
            }
            Err(failed) => {
                let mut way = way.take()?;
                // An error counts as a completion, and may use up a check for one completion.
                if cause.is_check() {
                    way.get_mut().check(false);
                }
                Some(failed)
            }
        }
    }
}

/// The answer of the closure of a [`take`](Purgatory::take): an `Option<T>`, or a `Result<Option<T>, E>` if it can
/// fail. After `None` the wait goes on.
///
/// | answer | the future resolves to |
/// |---|---|
/// | `Option<T>` | `Result<Taken<T>, WaitError>` |
/// | `Result<Option<T>, E>` | `Result<Result<Taken<T>, E>, WaitError>` |
pub trait Attempt: sealed::Sealed + Sized {
    /// The type of the taken value.
    type Value: Send + 'static;
    /// The type that the future resolves to, unless it resolves to a [`WaitError`](super::WaitError).
    type Found: Send + 'static;

    /// The taken value, if any; or the result of the future if the closure failed.
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

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Option<T> {}
    impl<T, E> Sealed for Result<Option<T>, E> {}
}

/// A value that a [take](Purgatory::take) has taken: [done](Self::done), or given back when this guard is dropped.
///
/// The guard may go to another thread. It does not keep the purgatory alive, and has no place in it. A leaked guard (by
/// [`std::mem::forget`]) leaks its own value, and affects no other. A guard that is dropped inside another destructor
/// that the library has called gives its value back when the outermost call of the library on that thread returns: so a
/// chain of guards, each owned by another, needs no stack.
#[must_use = "a value that is dropped goes back to where it came from"]
pub struct Taken<T: 'static>(Option<(T, Way<T>)>);

impl<T> Taken<T> {
    fn new(value: T, way: Way<T>) -> Self {
        Self(Some((value, way)))
    }

    /// Returns the value, which is not given back any more.
    ///
    /// Call it when the work is done, with no `await` between the work's effect and this call: if the worker is aborted
    /// at such an `await`, the work is done twice.
    ///
    /// Drops the closure `give_back` and the keys. A panic of their destructors is caught and
    /// [counted](crate::purgatory::Stats::panicked).
    pub fn done(mut self) -> T {
        self.part().0
    }

    /// Gives the value back while its operation is being parked; then its keys are checked in their order of arrival.
    fn put_back(mut self) -> Way<T> {
        let (value, mut way) = self.part();
        way.get_mut().give_back(value);
        way.get_mut().check(true);
        way
    }

    fn part(&mut self) -> (T, Way<T>) {
        self.0.take().unwrap_or_else(absent)
    }

    /// Whether other operations watch one of the keys, given that the operation of this guard is in each list `own`
    /// times.
    fn is_watched_by_others(&mut self, own: usize) -> bool {
        let way = self.0.as_mut().map(|(_, way)| way.get_mut());
        way.is_some_and(|way| way.is_watched_by_others(own))
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
            // Guards may own one another, so their destructors run one after another.
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

/// The way back of a value. Catches and counts all panics of user code.
///
/// Exclusive, because guards are `Sync`, and the user's closure need not be.
type Way<T> = Exclusive<Box<dyn WayBack<T>>>;

trait WayBack<T>: Send {
    /// Whether other operations watch one of the keys, given that this operation is in each list `own` times.
    fn is_watched_by_others(&self, own: usize) -> bool;

    fn give_back(&mut self, value: T);

    /// Checks each key for one completion; if the value goes back while its own operation is a newcomer, without a
    /// bound, because the newcomer may not have taken all that it saw, and a check that read the list before does not
    /// reach it.
    ///
    /// Inside an examination the check waits. A newcomer's check waits until the end of the outermost call. Any other
    /// check waits until the timer is driven, and so does a newcomer's check inside a nested check, because it could
    /// come again in each nested check.
    fn check(&self, is_newcomer: bool);
}

struct Route<K: Key, S: KeyHasher, G> {
    waits: WeakRef<Purgatory<WaitOperation<K>, S>>,
    keys: UserValues<Vec<K>>,
    /// `None` once the way is dropped.
    give_back: Option<G>,
}

impl<K: Key, S: KeyHasher, G> Drop for Route<K, S, G> {
    /// Drops each part separately: two destructors that panic together would abort the process.
    fn drop(&mut self) {
        let keys = std::mem::take(&mut self.keys.0);
        contain(&self.waits, || drop(UserValues(keys)));
        contain(&self.waits, || drop(self.give_back.take()));
    }
}

/// Runs `user_code`, catches its panic, and counts the panic in `waits`.
fn contain<K: Key, S: KeyHasher>(
    waits: &WeakRef<Purgatory<WaitOperation<K>, S>>,
    user_code: impl FnOnce(),
) {
    if Panics::contain(user_code).is_none() {
        waits.upgrade().inspect(Purgatory::count_panic);
    }
}

impl<T, K: Key, S: KeyHasher, G: FnMut(T) + Send> WayBack<T> for Route<K, S, G> {
    fn is_watched_by_others(&self, own: usize) -> bool {
        let waits = self.waits.upgrade();
        waits.is_some_and(|waits| self.keys.0.iter().any(|key| waits.watchers(key) > own))
    }

    fn give_back(&mut self, value: T) {
        if let Some(give_back) = &mut self.give_back {
            contain(&self.waits, || give_back(value));
        }
    }

    fn check(&self, is_newcomer: bool) {
        let Some(waits) = self.waits.upgrade() else {
            return;
        };
        for key in &self.keys.0 {
            // `Hash` or `Eq` of a key may panic.
            contain(&self.waits, || match (is_newcomer, is_in_nested_check()) {
                (true, false) => _ = waits.check_and_complete(key),
                (true, true) => waits.check_later(key.clone()),
                (false, _) => waits.offer(key),
            });
        }
    }
}
