//! Examining an operation that this thread holds.

use super::inner::{Inner, Parked};
use super::reach::Located;
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::callbacks::examining::{Examinee, Examining, Trigger};
use crate::cell::slab::Held;
use crate::hash::KeyHasher;
use crate::operation::{DelayedOperation, Reach};

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Marks this thread as inside the `try_complete` of an operation, for as long as the result exists.
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

    /// Asks the operation by `ask` whether it can complete. If it cannot, and has asked for another deadline, moves the
    /// deadline. A panic of the operation unwinds from here.
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
        if let (false, Some(deadline)) = (answer, reach.deadline()) {
            self.reschedule_itself(held.address(), deadline);
        }
        answer
    }
}
