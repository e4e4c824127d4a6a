//! What an operation can reach during its examinations, from the first one on: its deadline, and a waker. A wake-up of
//! the waker makes a thread examine the operation again.
//!
//! Both cost nothing until an examination asks for them: they are an address and two words on the stack, which the
//! compiler removes if the operation does not look at its cause. A waker is made when an examination asks for it. In
//! the first examination the operation has no address yet, so its waker learns the address when the operation gets its
//! slot.

use super::deferred::CheckTarget;
use super::inner::Inner;
use super::recycled_weak::RecycledWeak;
use crate::cell::address::Address;
use crate::hash::KeyHasher;
use crate::operation::{DelayedOperation, Reach};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::time::Deadline;
use crate::watch::bound::CheckBound;
use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::task::{Wake, Waker};
use std::time::Duration;

/// A waker. Its wake-up makes the thread that drives the timer examine one operation.
struct OperationWaker<Op: DelayedOperation, S> {
    weak: RecycledWeak,
    /// The operation's [`Address`], or [`Address::NONE`] while it has none.
    at: AtomicU64,
    purgatory: PhantomData<fn() -> Inner<Op, S>>,
}

impl<Op: DelayedOperation, S: KeyHasher> OperationWaker<Op, S> {
    fn new(inner: &Inner<Op, S>, at: Address) -> Arc<Self> {
        Arc::new(Self {
            weak: inner.weak,
            at: AtomicU64::new(at.0),
            purgatory: PhantomData,
        })
    }

    /// Sets the address of an operation that has got its slot. After this, the parking thread examines the operation.
    fn set_address(&self, at: Address) {
        // ORDERING: AcqRel. This swap comes before or after the read-modify-write in `wake_by_ref`. If the swap comes
        // first, the wake-up finds the address, and its Acquire pairs with this Release. If the wake-up comes first,
        // this Acquire pairs with its Release: what happened before the wake-up happens before the examination that
        // follows this swap.
        self.at.swap(at.0, Ordering::AcqRel);
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Wake for OperationWaker<Op, S> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // ORDERING: AcqRel, as argued in `set_address`.
        let at = Address(self.at.fetch_add(0, Ordering::AcqRel));
        // Without an address, no wake-up is needed: the parking thread will still examine the operation, or the
        // operation never parks.
        if at != Address::NONE {
            self.weak.with(|inner: &Arc<Inner<Op, S>>| inner.wake(at));
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    fn wake(&self, at: Address) {
        if self.engine.is_parked(at) {
            self.defer(CheckTarget::Operation(at), CheckBound::all());
        }
    }
}

/// What the operation at an address can reach while it is examined.
pub(super) struct Located<'a, Op: DelayedOperation, S> {
    inner: &'a Inner<Op, S>,
    at: Address,
    /// The new deadline, if the examination has asked for one. It applies when the examination has ended.
    deadline: Cell<Option<Deadline>>,
}

impl<'a, Op: DelayedOperation, S: KeyHasher> Located<'a, Op, S> {
    #[inline(always)]
    pub(super) fn new(inner: &'a Inner<Op, S>, at: Address) -> Self {
        Self {
            inner,
            at,
            deadline: Cell::new(None),
        }
    }

    /// The deadline that the examination has asked for.
    #[inline(always)]
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.deadline.get()
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Reach for Located<'_, Op, S> {
    fn waker(&self) -> Waker {
        OperationWaker::new(self.inner, self.at).into()
    }

    fn reschedule(&self, deadline: Deadline) {
        self.deadline.set(Some(deadline));
    }

    fn purgatory(&self) -> &dyn Any {
        self.inner
    }
}

/// What an operation can reach while it is examined for its deadline.
pub(super) struct AtDeadline<'a, Op: DelayedOperation, S> {
    pub(super) located: Located<'a, Op, S>,
    /// How long the operation stays parked although its deadline has come, if it has asked for that.
    pub(super) lingers: Cell<Option<Duration>>,
}

impl<Op: DelayedOperation, S: KeyHasher> Reach for AtDeadline<'_, Op, S> {
    fn waker(&self) -> Waker {
        self.located.waker()
    }

    fn reschedule(&self, deadline: Deadline) {
        self.located.reschedule(deadline);
    }

    fn linger(&self, time: Duration) {
        self.lingers.set(Some(time));
    }

    fn purgatory(&self) -> &dyn Any {
        self.located.purgatory()
    }
}

/// What an operation can reach in its first examination, before it has an address. Consumed by [`end`](Self::end).
pub(super) struct Unparked<'a, Op: DelayedOperation, S> {
    inner: &'a Inner<Op, S>,
    /// Dropped by hand. A destructor that the unwinding might call would keep this whole struct in memory, even in
    /// parks that ask for no waker. If user code panics in a park that has asked for a waker, the waker's few words are
    /// leaked.
    waker: ManuallyDrop<OnceCell<Arc<OperationWaker<Op, S>>>>,
    deadline: Cell<Option<Deadline>>,
}

impl<'a, Op: DelayedOperation, S: KeyHasher> Unparked<'a, Op, S> {
    #[inline(always)]
    pub(super) fn new(inner: &'a Inner<Op, S>) -> Self {
        Self {
            inner,
            waker: ManuallyDrop::new(OnceCell::new()),
            deadline: Cell::new(None),
        }
    }

    /// The deadline that the examination has asked for.
    #[inline(always)]
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.deadline.get()
    }

    /// Gives the waker the address of the operation. This thread holds the operation, and will examine it again.
    #[inline(always)]
    pub(super) fn park_at(self, at: Address) {
        if let Some(waker) = self.waker.get() {
            waker.set_address(at);
        }
        self.end();
    }

    /// Drops the waker: the operation does not park, or has got its address.
    #[inline(always)]
    pub(super) fn end(self) {
        if self.waker.get().is_some() {
            drop(ManuallyDrop::into_inner(self.waker));
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Reach for Unparked<'_, Op, S> {
    fn waker(&self) -> Waker {
        let make = || OperationWaker::new(self.inner, Address::NONE);
        self.waker.get_or_init(make).clone().into()
    }

    fn reschedule(&self, deadline: Deadline) {
        self.deadline.set(Some(deadline));
    }

    fn purgatory(&self) -> &dyn Any {
        self.inner
    }
}
