//! Examining an operation that this thread holds, and releasing it past the marks of other threads.

use super::deferred::CheckTarget;
use super::inner::{Inner, Parked};
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::cell::slab::Held;
use crate::cell::state::{Mark, Unreleased};
use crate::engine::phase::UnderwayGuard;
use crate::examining::{Examinee, Examining, Trigger};
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::panics::Panics;
use crate::stats::Ending;
use crate::sync::{Arc, MAX_EXAMINATIONS};
use crate::trampoline::drop_user_value;
use crate::watch::bound::Bound;

/// What has become of an operation that could not be released at once, because another thread had left a mark.
pub(super) enum Settled<'a, P> {
    /// It was released.
    Parked,
    /// It is to be ended so.
    End(Held<'a, P>, Ending, Option<UnderwayGuard>),
    /// Its `try_complete` has panicked.
    Panicked(Held<'a, P>, Panics),
}

impl From<Mark> for Ending {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Examine => unreachable!("an examination ends nothing by itself"),
            Mark::Force => Self::Forced,
            Mark::Cancel => Self::Cancelled,
            Mark::Expire => Self::Expired,
            Mark::ShutDown => Self::ShutDown,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// While the result exists, this thread is inside the `try_complete` of an operation.
    #[inline(always)]
    pub(super) fn enter_try_complete(
        &self,
        of: Examinee,
        trigger: Trigger,
    ) -> impl Sized + use<Op, S> {
        let examining = Examining::enter(of, trigger);
        #[cfg(debug_assertions)]
        let examining = (
            NotedCall::begin::<Op, Op::Key>(&self.engine.name),
            examining,
        );
        examining
    }

    /// Asks the operation whether it can complete, by `ask`. A panic of the operation unwinds from here.
    #[inline(always)]
    pub(super) fn examine(
        &self,
        held: &mut Held<'_, Parked<Op>>,
        trigger: Trigger,
        ask: impl FnOnce(&mut Parked<Op>) -> bool,
    ) -> bool {
        let _inside = self.enter_try_complete(held.examinee(), trigger);
        held.with(ask)
    }

    /// [Examines](Self::examine) the operation for a reason that names no key, and contains its panic.
    #[cold]
    #[inline(never)]
    pub(super) fn examine_without_key(
        &self,
        held: &mut Held<'_, Parked<Op>>,
        cause: Cause<'_, Op::Key>,
        trigger: Trigger,
    ) -> Result<bool, Panics> {
        let mut panics = Panics::default();
        let ask = |parked: &mut Parked<Op>| parked.op.try_complete_for(cause);
        let answer = panics.catch(|| self.examine(held, trigger, ask));
        answer.ok_or(panics)
    }

    /// Acts on the marks that kept this thread from releasing an operation: examines the operation again as often as
    /// marks ask for that, up to `MAX_EXAMINATIONS`, until it is released or has to end.
    #[cold]
    #[inline(never)]
    pub(super) fn settle<'a>(
        self: &Arc<Self>,
        mut held: Held<'a, Parked<Op>>,
        mut unreleased: Unreleased,
    ) -> Settled<'a, Parked<Op>> {
        let mut examinations = 1;
        loop {
            if let Unreleased::End { mark, unexamined } = unreleased {
                return self.settle_ending(held, mark, unexamined);
            }
            match self.examine_without_key(&mut held, Cause::OTHER, Trigger::Mark) {
                Ok(true) => {
                    self.drop_change(&held);
                    return Settled::End(held, Ending::Satisfied, None);
                }
                Ok(false) => examinations += 1,
                Err(panics) => return Settled::Panicked(held, panics),
            }
            let address = held.address();
            // A holder that other threads keep asking for another examination leaves that to the thread that drives the
            // timer: its own thread has other things to do.
            match held.release(examinations < MAX_EXAMINATIONS) {
                Ok(unexamined) => {
                    if unexamined {
                        self.defer(CheckTarget::Operation(address), Bound::all());
                    }
                    return Settled::Parked;
                }
                Err((again, next)) => {
                    held = again;
                    unreleased = next;
                }
            }
        }
    }

    /// An ending mark is there. An event that was reported before it is examined before it.
    fn settle_ending<'a>(
        self: &Arc<Self>,
        mut held: Held<'a, Parked<Op>>,
        mark: Mark,
        unexamined: bool,
    ) -> Settled<'a, Parked<Op>> {
        // From here on a drain or a shutdown waits until the completion is handed over or has run (`Underway`).
        let waits = matches!(mark, Mark::Expire | Mark::ShutDown);
        let underway = waits.then(|| self.engine.underway.begin());
        if unexamined {
            match self.examine_without_key(&mut held, Cause::OTHER, Trigger::Mark) {
                Ok(true) => {
                    self.drop_change(&held);
                    return Settled::End(held, Ending::Satisfied, underway);
                }
                Ok(false) => {}
                Err(panics) => return Settled::Panicked(held, panics),
            }
        }
        if mark == Mark::Force {
            self.apply_change(&mut held);
        }
        Settled::End(held, mark.into(), underway)
    }

    /// Hands a held operation that is being forced its change, if one was left for it.
    #[cold]
    pub(super) fn apply_change(&self, held: &mut Held<'_, Parked<Op>>) {
        if let Some(change) = self.changes.take(held.address()) {
            let _examining = Examining::enter(held.examinee(), Trigger::Check);
            // A panic is counted, and the operation ends all the same.
            let engine = &self.engine;
            let _ = engine.guarded(|| held.with(|parked| change(&mut parked.op)));
            let _ = engine.guarded(|| drop_user_value(change));
        }
    }

    /// Drops the change that was left for a held operation which ends without it.
    fn drop_change(&self, held: &Held<'_, Parked<Op>>) {
        let change = self.changes.take(held.address());
        let _ = self.engine.guarded(|| drop_user_value(change));
    }
}
