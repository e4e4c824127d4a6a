//! The examination of an operation that the calling thread holds: a call of its `try_complete`.

use super::inner::{Inner, Parked};
use super::reach::OperationReach;
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::callbacks::examining::{Examinee, Examining, Trigger};
use crate::cell::slab::Held;
use crate::hash::KeyHasher;
use crate::operation::{DelayedOperation, Reach};

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Notes that this thread is inside the `try_complete` of the operation `of`, until the returned guard is dropped.
    /// Meanwhile each check that this thread makes is queued as a nested check. A debug build also reports a call that
    /// does not return.
    #[inline(always)]
    pub(super) fn enter_try_complete(
        &self,
        of: Examinee,
        trigger: Trigger,
    ) -> impl Sized + use<Op, S> {
        let examining = Examining::enter(of, trigger);
        #[cfg(debug_assertions)]
        let examining = (NotedCall::begin(self.names), examining);
        examining
    }

    /// Asks a held operation, by the closure `ask`, whether it can complete, and returns the answer. If the answer is
    /// no, and the operation has asked for another deadline during the call, moves the deadline. A panic of the
    /// operation or of the clock is passed on.
    #[inline(always)]
    pub(super) fn examine(
        &self,
        held: &mut Held<'_, Parked<Op>>,
        trigger: Trigger,
        ask: impl FnOnce(&mut Parked<Op>, &dyn Reach) -> bool,
    ) -> bool {
        let reach = OperationReach::new(self, held.address());
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
