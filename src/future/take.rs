//! Taking a value that only one waiter may have, so that the value is not lost if that waiter ends before its work does:
//! the value in the hands of one waiter, and its way back.
//!
//! # Done or given back, once
//!
//! What the closure returns is put into a guard, [`Taken`], before any other code runs that could panic. The guard owns
//! the value and its way back: `give_back`, the keys, and how a handle finds the purgatory. Either [`Taken::done`] or the
//! destructor takes both out of the guard, so one of the two happens, and once. While a guard has the way back, the
//! closure is not called: a second value would have none.
//!
//! What the first examination takes lies in the future itself: there is no operation then. Later the guard lies in a
//! promise that operation and future share, under one lock. The future takes the guard out when it
//! is polled, or when it is dropped; then it drops the guard with no lock held. If another thread is examining the
//! operation while the future is dropped, a check that came before the drop may still run the closure. The promise does
//! not keep what that call takes, and the guard is dropped on the examining thread.
//!
//! Each step of a way back is contained: `give_back`, the check of each key, the destructors. A panic is counted, and
//! the next step follows.
//!
//! # No newcomer overtakes
//!
//! A value that was taken on arrival is kept only if no other operation watches one of the keys. The watchers are
//! counted under the lock of their list, after the value was taken. An operation that waits is in the list from before
//! its park returns until it ends, so the count shows it, also to a first examination, whose take watches nothing yet. If
//! there is one, the value goes back and the keys are checked
//! without a bound. A bound of one would not do: a check of another thread, for another value, may have looked at the
//! list before the newcomer was in it, and those that it found may have ended otherwise, so that value would lie beside
//! the newcomer.
//!
//! The check examines in the order of parking: first those that waited, then the newcomer, which watches by then. So the
//! second examination of its park is not lost: what the others refuse is the newcomer's. A value that is in a
//! newcomer's hands while a check examines those that wait is followed by a check of its own when it goes back.

use super::operation::WaitOperation;
use super::wait::WaitFuture;
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Trampoline, UserValues, in_turn};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::operation::Cause;
use crate::purgatory::{Inner, Purgatory, RecycledWeak, Watch};
use crate::sync::{Arc, Exclusive};
use crate::time::Deadline;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{needs_drop, take};
use std::ops::{Deref, DerefMut};

/// What a purgatory of waits consists of.
type Waiting<K, S> = Inner<WaitOperation<K>, S>;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `take` takes a value, for at most `timeout` from this call on, or until a [point in
    /// time](Deadline) (`None`: without end). As [`wait`](Self::wait), for values that only one waiter may have: a job from a queue, a connection from a pool.
    ///
    /// **A value that was taken is done or given back, never lost and never both.** The future resolves to a guard,
    /// [`Taken`]. [`Taken::done`] keeps the value. If the guard, or the future that has it, is dropped without that (the
    /// worker's task was aborted, or panicked, or another branch of a `select` was first), the value goes to `give_back`;
    /// then the keys are checked, each for one completion, so that another waiter gets the value.
    ///
    /// ```
    /// use request_purgatory::{Bound, Waits};
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex};
    ///     ///
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
    /// `take` answers `Option<T>`; or, if it can fail, `Result<Option<T>, E>` (see [`Attempt`]). An error ends this wait
    /// only, and the future resolves to it: `let job = take.await??`. The check that met the error goes on to the next
    /// waiter, or is made again when the timer is driven.
    ///
    /// **No newcomer overtakes.** Where other operations watch one of the keys already, what `take` has taken in this call
    /// goes back to `give_back` before the call returns, and the keys are checked, in the order of parking: those that
    /// waited before get it first. A `timeout` of zero makes no exception. (That check examines every operation on the keys:
    /// beside 10,000 of them, a newcomer that meets a value before its check does costs 10,000 examinations.)
    ///
    /// `take` is told the [cause](Cause) of each call. Where it watches **several keys** and a key is named, it must take
    /// only what belongs to that key: a check of a key for one completion is meant for an item of that key.
    ///
    /// `take` runs where the predicate of [`wait`](Self::wait) does, and has its duties; after it has taken a value that
    /// did not go back it is not called again. `give_back` runs on the thread that drops the guard or the future; or, if
    /// another thread was just taking the value or on its way to the future with it, on that one; or on this one, before
    /// the call returns. No lock of the library is held then, and checks and completions that it causes do not nest.
    /// Drop no future and no guard while you hold a lock that `take` or `give_back` of any waiter takes. After a shutdown
    /// values are still given back, and no key is checked. (A `take` that panics after it has taken something loses that
    /// by itself.)
    ///
    /// If `give_back` panics, the panic is caught and, until the shutdown, [counted](crate::purgatory::Stats::panicked); and the
    /// keys are checked.
    ///
    /// A take that finds a value at once, where nobody else waits, parks nothing, and reads no clock.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`](super::WaitError), also if the purgatory rejects the operation. No
    /// value was taken then.
    pub fn take<'a, A: Attempt + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
        take: impl FnMut(Cause<'_, K>) -> A + Send + 'static,
        give_back: impl FnMut(A::Value) + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, A::Found, S> {
        let mut keys = keys.into_iter().map(Into::into).fuse();
        let (first, rest) = (keys.next(), keys.collect::<Vec<Watch<'a, K>>>());
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

/// The predicate that takes, and sees to it that no newcomer overtakes.
fn taker<K: Key, A: Attempt>(
    mut take: impl FnMut(Cause<'_, K>) -> A,
    route: impl WayBack<A::Value> + 'static,
) -> impl FnMut(Cause<'_, K>) -> Option<A::Found> {
    let mut ready = Ready::Unused(route);
    let mut watches = false;
    move |cause| {
        // The second examination on arrival is the first in which this operation watches its keys.
        let own = usize::from(cause.is_parking() && std::mem::replace(&mut watches, true));
        // Nothing is taken that has no way back. (A predicate that has found something is not run again.)
        if ready.is_gone() {
            return None;
        }
        match take(cause).taken() {
            Ok(None) => None,
            Ok(Some(value)) => {
                // A guard from here on: a key that panics when its watchers are counted loses no value.
                let mut taken = Taken::new(value, ready.way()?);
                if cause.is_parking() && taken.is_watched_by_others(cause.purgatory(), own) {
                    ready = Ready::Back(taken.put_back());
                    return None;
                }
                Some(A::found(taken))
            }
            Err(failed) => {
                let mut way = ready.way()?;
                // The yes that this is may use up a check for one.
                if cause.is_check() {
                    way.get_mut().check(false);
                }
                Some(failed)
            }
        }
    }
}

/// The way back of a value that is still to be taken.
enum Ready<T, R> {
    /// It lies in a box as soon as it goes with a value.
    Unused(R),
    /// It has come back with its value.
    Back(Way<T>),
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

/// What the closure of a [`take`](Purgatory::take) answers: an `Option<T>`, or a `Result<Option<T>, E>` if it can fail.
/// `None` waits on.
///
/// | it answers | the future resolves to |
/// |---|---|
/// | `Option<T>` | `Result<Taken<T>, WaitError>` |
/// | `Result<Option<T>, E>` | `Result<Result<Taken<T>, E>, WaitError>` |
pub trait Attempt: sealed::Sealed + Sized {
    /// What is taken.
    type Value: Send + 'static;
    /// What the future resolves to, if to no [`WaitError`](super::WaitError).
    type Found: Send + 'static;

    /// What the closure took, or what the future resolves to though nothing was taken.
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

/// The future of a [take](Purgatory::take), by a short name: for a field, or the result of a function.
pub type Take<K, T, S = RandomState> = WaitFuture<WaitOperation<K>, Taken<T>, S>;

/// A value that a [take](Purgatory::take) has taken: [done](Self::done), or given back when it is dropped.
///
/// It may go to another thread. It does not keep the purgatory alive, and has no place in it. A guard that is leaked
/// (by [`std::mem::forget`]) leaks its own value, and concerns no other. One that is dropped inside another destructor
/// that the library has called gives its value back when the outermost call of the library on that thread returns: so a
/// chain of guards, each owned by another, needs no stack.
#[must_use = "a value that is dropped goes back to where it came from"]
pub struct Taken<T: 'static>(Option<(T, Way<T>)>);

impl<T> Taken<T> {
    fn new(value: T, way: Way<T>) -> Self {
        Self(Some((value, way)))
    }

    /// Returns the value, which does not go back any more.
    ///
    /// Call it when the work is done, with no `await` between the work's effect and this call: a worker that is aborted
    /// there has the work done twice.
    ///
    /// Drops the closure `give_back` and the keys. If a destructor of these panics, the panic is caught and
    /// [counted](crate::purgatory::Stats::panicked).
    pub fn done(mut self) -> T {
        self.part().0
    }

    /// Gives the value back while the operation that took it is being parked; then its keys are checked in their order
    /// of arrival.
    fn put_back(mut self) -> Way<T> {
        let (value, mut way) = self.part();
        way.get_mut().give_back(value);
        way.get_mut().check(true);
        way
    }

    fn part(&mut self) -> (T, Way<T>) {
        self.0.take().unwrap_or_else(absent)
    }

    /// Whether other operations of the `purgatory` watch one of the keys, where the one that took watches each `own` times.
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
            // Guards may own one another.
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

/// How a value goes back. Catches and counts all panics of the user's code.
///
/// Guards are `Sync`, which the user's closure need not be.
type Way<T> = Exclusive<Box<dyn WayBack<T>>>;

trait WayBack<T>: Send {
    /// Whether other operations of the `purgatory` watch one of the keys, where this one watches each `own` times.
    fn is_watched_by_others(&self, purgatory: &dyn Any, own: usize) -> bool;

    fn give_back(&mut self, value: T);

    /// Checks each key for one completion; without a bound if the value goes back while its own operation is a newcomer,
    /// because that may not have taken all that it saw, and a check that looked at the list before does not reach it.
    /// Inside an examination the check waits: that of a newcomer for the end of the outermost call, any other (and that of a
    /// newcomer inside a nested check, which could come anew in each) until the timer is driven.
    fn check(&self, is_newcomer: bool);
}

struct Route<K: Key, S: KeyHasher, G> {
    waits: RecycledWeak,
    hasher: PhantomData<fn() -> S>,
    keys: Names<K>,
    /// Until the way is dropped.
    give_back: Option<G>,
}

/// Most takes are from one key.
struct Names<K> {
    first: Option<K>,
    rest: Vec<K>,
}

impl<K> Names<K> {
    fn iter(&self) -> impl Iterator<Item = &K> {
        self.first.iter().chain(&self.rest)
    }
}

impl<K: Key, S: KeyHasher, G> Route<K, S, G> {
    /// Runs `user_code`, and ends and counts its panic here.
    #[inline(always)]
    fn contain(waits: RecycledWeak, user_code: impl FnOnce()) {
        if Panics::contain(user_code).is_none() {
            waits.with(|waits: &Arc<Waiting<K, S>>| waits.engine.count_panic());
        }
    }
}

impl<K: Key, S: KeyHasher, G> Drop for Route<K, S, G> {
    /// Each by itself: of two destructors that panic together the process would die.
    fn drop(&mut self) {
        if needs_drop::<K>() {
            let keys = self.keys.first.take().into_iter();
            let keys = UserValues(keys.chain(take(&mut self.keys.rest)).collect::<Vec<_>>());
            Self::contain(self.waits, || drop(keys));
        }
        if needs_drop::<G>() {
            let give_back = self.give_back.take();
            Self::contain(self.waits, || drop(give_back));
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
            Self::contain(self.waits, || give_back(value));
        }
    }

    fn check(&self, is_newcomer: bool) {
        self.waits.with(|waits: &Arc<Waiting<K, S>>| {
            for key in self.keys.iter() {
                // `Hash` and `Eq` of a key may panic.
                let checked = waits.engine.guarded(|| match is_newcomer {
                    true => waits.offer_to_earlier(key),
                    false => waits.offer(key),
                });
                drop(checked);
            }
        });
    }
}
