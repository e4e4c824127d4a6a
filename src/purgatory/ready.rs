//! Operations that have ended and wait for their completion to run.

use super::core::Core;
use crate::completions::{Completions, Job};
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::sync::Arc;
use crate::turn::Turn;

/// Where completions run, but for those of expired operations, which always go where the builder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// On the thread that ended the operation.
    Here,
    /// Where those of expired operations do.
    Elsewhere,
}

/// Ended operations on their way to `on_complete`. Most calls end none or one.
pub(crate) struct Ready<Op> {
    first: Option<(Op, Completion)>,
    rest: Vec<(Op, Completion)>,
}

impl<Op> Ready<Op> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, op: Op, completion: Completion) {
        if self.first.is_none() {
            self.first = Some((op, completion));
        } else {
            self.rest.push((op, completion));
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Runs the completions, each where it belongs. No lock is held.
    #[inline(always)]
    pub(crate) fn deliver(self: &Arc<Self>, turn: &Turn, ready: Ready<Op>, site: Site) {
        if let Some((op, completion)) = ready.first {
            self.deliver_one(turn, op, completion, site);
        }
        for (op, completion) in ready.rest {
            self.deliver_one(turn, op, completion, site);
        }
    }

    #[inline(always)]
    fn deliver_one(self: &Arc<Self>, turn: &Turn, op: Op, completion: Completion, site: Site) {
        let elsewhere = site == Site::Elsewhere || completion == Completion::Expired;
        if elsewhere && !matches!(self.completions, Completions::Inline) {
            let delivery = Delivery::new(self, op, completion);
            self.submit(Box::new(move || drop(delivery)));
        } else if turn.is_outermost() {
            self.complete(op, completion);
        } else {
            let delivery = Delivery::new(self, op, completion);
            turn.leave(Box::new(move || drop(delivery)));
        }
    }

    /// The one place that calls `on_complete`.
    #[inline(always)]
    fn complete(&self, op: Op, completion: Completion) {
        // A panic is counted, and ends this operation only.
        let _ = self.guarded(|| op.on_complete(completion));
    }

    fn submit(&self, job: Job) {
        match (&self.completions, self.threads.completions()) {
            (Completions::Executor(executor), _) => {
                // If it panics, the unwinding drops the job, which runs it.
                let _ = self.guarded(|| executor.execute(job));
            }
            (_, Some(thread)) => {
                // After the shutdown the thread takes no more: then the job runs here.
                if let Err(refused) = thread.submit(job) {
                    refused();
                }
            }
            (_, None) => job(),
        }
    }
}

/// A completion that runs when it is dropped, wherever that is: nothing that loses it can lose the operation.
struct Delivery<Op: DelayedOperation, S: KeyHasher> {
    core: Arc<Core<Op, S>>,
    ended: Option<(Op, Completion)>,
}

impl<Op: DelayedOperation, S: KeyHasher> Delivery<Op, S> {
    fn new(core: &Arc<Core<Op, S>>, op: Op, completion: Completion) -> Self {
        Self {
            core: core.clone(),
            ended: Some((op, completion)),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Drop for Delivery<Op, S> {
    fn drop(&mut self) {
        if let Some((op, completion)) = self.ended.take() {
            // On a thread of another's: completions caused by this one must not nest in it.
            let _turn = Turn::enter();
            self.core.complete(op, completion);
        }
    }
}
