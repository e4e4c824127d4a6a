//! Examining an operation that this thread holds.

use super::inner::{Inner, Parked};
use super::reach::Located;
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::cell::slab::Held;
use crate::examining::{Examinee, Examining, Trigger};
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation, Reach};
use crate::panics::Panics;

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

    /// Asks the operation whether it can complete, by `ask`, and gives it another deadline if it has asked for one. A
    /// panic of the operation unwinds from here.
    #[inline(always)]
    pub(super) fn examine(
        &self,
        held: &mut Held<'_, Parked<Op>>,
        trigger: Trigger,
        ask: impl FnOnce(&mut Parked<Op>, &dyn Reach) -> bool,
    ) -> bool {
        let reach = Located::new(self, held.address());
        let inside = self.enter_try_complete(held.examinee(), trigger);
        let answer = held.with(
            #[inline(always)]
            |parked| ask(parked, &reach),
        );
        drop(inside);
        if let (false, Some(timeout)) = (answer, reach.timeout()) {
            self.reschedule_itself(held.address(), timeout);
        }
        answer
    }

    /// [Examines](Self::examine) the operation because another thread has asked for it, and contains its panic.
    #[cold]
    #[inline(never)]
    pub(super) fn examine_for_mark(&self, held: &mut Held<'_, Parked<Op>>) -> Result<bool, Panics> {
        let mut panics = Panics::default();
        let answer = panics.catch(|| {
            self.examine(held, Trigger::Mark, |parked, reach| {
                parked.op.try_complete_for(Cause::other(reach))
            })
        });
        answer.ok_or(panics)
    }
}
