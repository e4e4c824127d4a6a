//! What has ended, on its way to the user's code.

use super::drive::Facility;
use crate::completions::{Completions, Job};
use crate::sync::Arc;
use crate::turn::Turn;

/// Where the code runs, but for what has expired, which always goes where the builder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// On the thread that ended it.
    Here,
    /// Where that of the expired does.
    Elsewhere,
}

/// What one call has ended. Most calls end none or one.
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

    #[inline(always)]
    pub(crate) fn push(&mut self, ended: E) {
        if self.first.is_none() {
            self.first = Some(ended);
        } else {
            self.rest.push(ended);
        }
    }
}

/// Runs the user's code for all of them, each where it belongs. No lock is held.
#[inline(always)]
pub(crate) fn deliver<F: Facility>(
    facility: &Arc<F>,
    turn: &Turn,
    ready: Ready<F::Ended>,
    site: Site,
) {
    if let Some(ended) = ready.first {
        deliver_one(facility, turn, ended, site);
    }
    for ended in ready.rest {
        deliver_one(facility, turn, ended, site);
    }
}

#[inline(always)]
fn deliver_one<F: Facility>(facility: &Arc<F>, turn: &Turn, ended: F::Ended, site: Site) {
    let elsewhere = site == Site::Elsewhere || F::has_expired(&ended);
    if elsewhere && !matches!(facility.engine().completions, Completions::Inline) {
        let refused = submit(facility, Delivery::new(facility, ended).into_job());
        if let Some(job) = refused {
            turn.run(job);
        }
    } else if turn.is_outermost() {
        facility.complete(ended);
    } else {
        turn.run(Delivery::new(facility, ended).into_job());
    }
}

/// Hands `job` on; gives it back if the thread for it takes no more, after the shutdown.
fn submit<F: Facility>(facility: &Arc<F>, job: Job) -> Option<Job> {
    let engine = facility.engine();
    match (&engine.completions, engine.threads.completions()) {
        (Completions::Executor(executor), _) => {
            // If it panics, the unwinding drops the job, which runs it.
            let _ = engine.guarded(|| executor.execute(job));
            None
        }
        (_, Some(thread)) => thread.submit(job).err(),
        (_, None) => Some(job),
    }
}

/// What runs the user's code when it is dropped, wherever that is: nothing that loses it can lose the ending.
struct Delivery<F: Facility> {
    facility: Arc<F>,
    ended: Option<F::Ended>,
}

impl<F: Facility> Delivery<F> {
    fn new(facility: &Arc<F>, ended: F::Ended) -> Self {
        Self {
            facility: facility.clone(),
            ended: Some(ended),
        }
    }

    fn into_job(self) -> Job {
        Box::new(move || drop(self))
    }
}

impl<F: Facility> Drop for Delivery<F> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // On a thread of another's: what this causes must not nest in it.
            let _turn = Turn::enter();
            self.facility.complete(ended);
        }
    }
}
