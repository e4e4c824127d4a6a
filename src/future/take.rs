//! Taking a value that only one waiter may have, so that the value is not lost if that waiter ends before its work does.

use super::operation::WaitOperation;
use super::taken::{Taken, Way};
use super::wait::WaitFuture;
use crate::hash::{Key, KeyHasher};
use crate::operation::Cause;
use crate::purgatory::{Purgatory, Watch};
use std::time::Duration;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `take` takes a value, for at most `timeout` from this call on (`None`: without end). As
    /// [`wait`](Self::wait), for values that only one waiter may have: a job from a queue, a connection from a pool.
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
    /// `take` answers `Option<T>`; or, if it can fail, `Result<Option<T>, E>` (see [`Attempt`]). An error ends this wait
    /// only, and the future resolves to it: `let job = take.await??`. The check that met the error goes on to the next
    /// waiter, or is made again when the timer is driven.
    ///
    /// **No newcomer overtakes.** Where other operations watch one of the keys already, what `take` has taken on arrival
    /// goes back to `give_back` before this call returns, and the keys are checked in the order of arrival: those that
    /// waited before get it first. A `timeout` of zero makes no exception.
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
    /// If `give_back` panics, the panic is caught and [counted](crate::purgatory::Stats::panicked), and the keys are
    /// checked.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`](super::WaitError), also if the purgatory refuses to park the operation. No
    /// value was taken then.
    pub fn take<'a, A: Attempt + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
        take: impl FnMut(Cause<'_, K>) -> A + Send + 'static,
        give_back: impl FnMut(A::Value) + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, A::Found, S> {
        let watches = keys.into_iter().map(Into::into).collect::<Vec<_>>();
        let names = watches.iter().map(|watch| watch.name().clone()).collect();
        let way = Way::new(self.downgrade(), names, give_back);
        self.wait_for(watches, timeout, taker(take, way))
    }
}

/// The predicate that takes, and sees to it that no newcomer overtakes.
fn taker<K: Key, A: Attempt>(
    mut take: impl FnMut(Cause<'_, K>) -> A,
    way: Way<A::Value>,
) -> impl FnMut(Cause<'_, K>) -> Option<A::Found> {
    let mut way = Some(way);
    let mut watches = false;
    move |cause| {
        // The second examination on arrival is the first in which this operation watches its keys.
        let own = usize::from(cause.is_parking() && std::mem::replace(&mut watches, true));
        // Nothing is taken that has no way back. (A predicate that has found something is not asked again.)
        way.as_ref()?;
        match take(cause).taken() {
            Ok(None) => None,
            Ok(Some(value)) => {
                // A guard from here on: a key that panics when its watchers are counted loses no value.
                let mut taken = Taken::new(value, way.take()?);
                if cause.is_parking() && taken.is_watched_by_others(own) {
                    way = Some(taken.put_back());
                    return None;
                }
                Some(A::found(taken))
            }
            Err(failed) => {
                let way = way.take()?;
                // The yes that this is may use up a check for one.
                match cause.is_check() {
                    true => way.offer(),
                    false => way.close(),
                }
                Some(failed)
            }
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
pub trait Attempt: sealed::Attempt<Self::Value, Self::Found> {
    /// What is taken.
    type Value: Send + 'static;
    /// What the future resolves to, if to no [`WaitError`](super::WaitError).
    type Found: Send + 'static;
}

impl<T: Send + 'static> Attempt for Option<T> {
    type Value = T;
    type Found = Taken<T>;
}

impl<T: Send + 'static, E: Send + 'static> Attempt for Result<Option<T>, E> {
    type Value = T;
    type Found = Result<Taken<T>, E>;
}

mod sealed {
    use super::Taken;

    pub trait Attempt<T, F>: Sized {
        /// What the closure took, or what the future resolves to though nothing was taken.
        fn taken(self) -> Result<Option<T>, F>;

        fn found(taken: Taken<T>) -> F;
    }

    impl<T: Send + 'static> Attempt<T, Taken<T>> for Option<T> {
        fn taken(self) -> Result<Self, Taken<T>> {
            Ok(self)
        }

        fn found(taken: Taken<T>) -> Taken<T> {
            taken
        }
    }

    impl<T: Send + 'static, E> Attempt<T, Result<Taken<T>, E>> for Result<Option<T>, E> {
        fn taken(self) -> Result<Option<T>, Result<Taken<T>, E>> {
            self.map_err(Err)
        }

        fn found(taken: Taken<T>) -> Result<Taken<T>, E> {
            Ok(taken)
        }
    }
}
