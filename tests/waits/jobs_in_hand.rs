//! G23, G26 and G27: what was taken is received, done or given back, once and in order.

mod newcomers;
mod storms;
mod take;

use crate::support::{NEVER_IN_A_TEST, lock};
use crate::{by_hand, now};
use request_purgatory::{CheckBound, Deadline, future::Attempt, purgatory::Cause};
use request_purgatory::{Take, Taken, Wait, WaitError, Waits, Watch};
use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// Jobs, as users keep them: a worker takes the first one, and gives it back to the front.
#[derive(Clone, Default)]
pub(crate) struct Jobs(Arc<Mutex<VecDeque<usize>>>);

impl Jobs {
    pub(crate) fn put(&self, job: usize) {
        lock(&self.0).push_back(job);
    }

    /// Puts the job, and checks key 1 for one completion.
    pub(crate) fn push(&self, waits: &Waits<u64>, job: usize) -> usize {
        self.put(job);
        waits.check_and_complete_with(&1, CheckBound::at_most(1))
    }

    pub(crate) fn pop(&self) -> Option<usize> {
        lock(&self.0).pop_front()
    }

    pub(crate) fn give_back(&self, job: usize) {
        lock(&self.0).push_front(job);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// A worker's take on key 1.
    pub(crate) fn take(&self, waits: &Waits<u64>) -> Take<u64, usize> {
        self.take_on(waits, [1], NEVER_IN_A_TEST)
    }

    pub(crate) fn take_on<'a, K: Eq + Hash + Clone + Send + Sync + 'static>(
        &self,
        waits: &Waits<K>,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
    ) -> Take<K, usize> {
        let (takes, returns) = (self.clone(), self.clone());
        let give_back = move |job| returns.give_back(job);
        waits.take(keys, timeout, move |_| takes.pop(), give_back)
    }

    /// A take by closures that are told of these jobs.
    pub(crate) fn take_by<A: Attempt<Value = usize> + 'static>(
        &self,
        waits: &Waits<u64>,
        keys: impl IntoIterator<Item = u64>,
        mut take: impl FnMut(&Self, Cause<'_, u64>) -> A + Send + 'static,
        mut give_back: impl FnMut(&Self, usize) + Send + 'static,
    ) -> Wait<u64, A::Found> {
        let (takes, returns) = (self.clone(), self.clone());
        waits.take(
            keys,
            NEVER_IN_A_TEST,
            move |cause| take(&takes, cause),
            move |job| give_back(&returns, job),
        )
    }
}

fn waits_and_jobs() -> (Waits<u64>, Jobs) {
    (by_hand().0, Jobs::default())
}

/// The guard of a job that is there.
fn in_hand<K: Eq + Hash + Clone + Send + Sync + 'static>(take: Take<K, usize>) -> Taken<usize> {
    now(take).expect("a job")
}

/// Receives the job, and keeps it.
pub(crate) fn done(take: Take<u64, usize>) -> Result<usize, WaitError> {
    now(take).map(Taken::done)
}

/// A job that was taken, and goes back when this is dropped: in its guard, or in the future that holds the guard.
fn held<K: Eq + Hash + Clone + Send + Sync + 'static>(
    take: Take<K, usize>,
    received: bool,
) -> Box<dyn Send> {
    match received {
        true => Box::new(in_hand(take)),
        false => Box::new(take),
    }
}
