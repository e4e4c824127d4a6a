//! What has ended, on its way to the user's code.

use super::drive::Facility;
use crate::completions::{Completions, Job};
use crate::sync::Arc;
use crate::turn::Turn;
use std::iter::Chain;
use std::{option, vec};

/// Where the code runs, but for what has expired, which always goes where the builder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// On the thread that ended it.
    Here,
    /// Where that of the expired does.
    Elsewhere,
}

/// Where a call puts what it has ended, until it has let go of everything.
pub(crate) trait Outbox<E> {
    fn push(&mut self, ended: E);

    /// What is in it, if that is one at most.
    fn single(self) -> Result<Option<E>, Ready<E>>;
}

/// For calls that end one at most.
impl<E> Outbox<E> for Option<E> {
    #[inline(always)]
    fn push(&mut self, ended: E) {
        debug_assert!(self.is_none());
        *self = Some(ended);
    }

    #[inline(always)]
    fn single(self) -> Result<Self, Ready<E>> {
        Ok(self)
    }
}

/// For calls that may end any number. Most of them end none or one.
pub(crate) struct Ready<E> {
    first: Option<E>,
    rest: Vec<E>,
}

impl<E> Ready<E> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }

    fn of(ended: E) -> Self {
        Self {
            first: Some(ended),
            rest: Vec::new(),
        }
    }
}

impl<E> Outbox<E> for Ready<E> {
    #[inline(always)]
    fn push(&mut self, ended: E) {
        if self.first.is_none() {
            self.first = Some(ended);
        } else {
            self.rest.push(ended);
        }
    }

    #[inline(always)]
    fn single(self) -> Result<Option<E>, Self> {
        if self.rest.is_empty() {
            Ok(self.first)
        } else {
            Err(self)
        }
    }
}

impl<E> IntoIterator for Ready<E> {
    type Item = E;
    type IntoIter = Chain<option::IntoIter<E>, vec::IntoIter<E>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

/// Runs the user's code for all of them, each where it belongs. No lock is held.
#[inline(always)]
pub(crate) fn deliver<F: Facility>(
    facility: &Arc<F>,
    turn: &Turn,
    outbox: impl Outbox<F::Ended>,
    site: Site,
) {
    match outbox.single() {
        Ok(None) => {}
        Ok(Some(ended)) if !goes_elsewhere::<F>(facility, &ended, site) => {
            run_here(facility, turn, ended);
        }
        Ok(Some(ended)) => deliver_all(facility, turn, Ready::of(ended), site),
        Err(ready) => deliver_all(facility, turn, ready, site),
    }
}

fn deliver_all<F: Facility>(facility: &Arc<F>, turn: &Turn, ready: Ready<F::Ended>, site: Site) {
    let mut elsewhere = Ready::new();
    for ended in ready {
        if !goes_elsewhere::<F>(facility, &ended, site) {
            run_here(facility, turn, ended);
            continue;
        }
        match &facility.engine().completions {
            // One job for each: they may run side by side.
            Completions::Executor(executor) => {
                let job = Delivery::new(facility, Ready::of(ended)).into_job();
                // If it panics, the unwinding drops the job, which runs it.
                let _ = facility.engine().guarded(|| executor.execute(job));
            }
            // One job for all: a thread runs them in turn anyway.
            _ => elsewhere.push(ended),
        }
    }
    if elsewhere.first.is_some() {
        let job = Delivery::new(facility, elsewhere).into_job();
        // After the shutdown the thread takes no more.
        let refused = match facility.engine().threads.completions() {
            Some(thread) => thread.submit(job).err(),
            None => Some(job),
        };
        if let Some(job) = refused {
            turn.run(job);
        }
    }
}

#[inline(always)]
fn goes_elsewhere<F: Facility>(facility: &F, ended: &F::Ended, site: Site) -> bool {
    (site == Site::Elsewhere || F::has_expired(ended))
        && !matches!(facility.engine().completions, Completions::Inline)
}

/// Runs the user's code for one on this thread, outside of every callback.
#[inline(always)]
fn run_here<F: Facility>(facility: &Arc<F>, turn: &Turn, ended: F::Ended) {
    if turn.is_outermost() {
        facility.complete(ended);
    } else {
        turn.run(Delivery::new(facility, Ready::of(ended)).into_job());
    }
}

/// What runs the user's code when it is dropped, wherever that is: nothing that loses it can lose the ending.
struct Delivery<F: Facility> {
    facility: Arc<F>,
    ready: Ready<F::Ended>,
}

impl<F: Facility> Delivery<F> {
    fn new(facility: &Arc<F>, ready: Ready<F::Ended>) -> Self {
        Self {
            facility: facility.clone(),
            ready,
        }
    }

    fn into_job(self) -> Job {
        Box::new(move || drop(self))
    }
}

impl<F: Facility> Drop for Delivery<F> {
    fn drop(&mut self) {
        // On a thread of another's: what this causes must not nest in it.
        let _turn = Turn::enter();
        for ended in std::mem::replace(&mut self.ready, Ready::new()) {
            self.facility.complete(ended);
        }
    }
}
