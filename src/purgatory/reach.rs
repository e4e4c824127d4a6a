//! What an operation can reach during its examinations: its own deadline, which it may move, and a waker. A wake-up by
//! this waker makes the thread that drives the timer examine the operation again.
//!
//! An examination that asks for neither costs nothing: the struct that implements [`Reach`] is a few words on the
//! stack, and the compiler removes them if `try_complete_for` does not use its argument, the
//! [`Cause`](crate::operation::Cause). A waker is allocated when an examination asks for it. In the first examination
//! the operation has no address yet, so its waker gets the address when the operation gets its slot.

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

/// The data of a waker. A wake-up makes the thread that drives the timer examine one operation.
struct OperationWaker<Op: DelayedOperation, S> {
    weak: RecycledWeak,
    /// The operation's [`Address`], or [`Address::NONE`] as long as the operation has no slot.
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

    /// Sets the address of the operation in its waker. The parking thread calls this when the operation has got its
    /// slot, and then examines the operation again: an earlier wake-up has found no address, and so has caused no
    /// examination.
    fn set_address(&self, at: Address) {
        // ORDERING: AcqRel. This swap by the parking thread, and the read-modify-write in `wake_by_ref` by a waking
        // thread, act on the same word, so one of them comes first. If the swap comes first, its Release pairs with the
        // Acquire of the waking thread, which finds the address and defers an examination. If the wake-up comes first,
        // its Release pairs with the Acquire of this swap: what happened before the wake-up happens before the
        // examination that the parking thread makes after this swap.
        self.at.swap(at.0, Ordering::AcqRel);
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Wake for OperationWaker<Op, S> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // ORDERING: AcqRel. This read-modify-write and the swap in `set_address`, by the parking thread, act on the
        // same word. If the swap comes first, this call finds the address. If this call comes first, the swap acquires
        // this Release: what happened before this wake-up happens before the examination that the parking thread makes
        // after the swap.
        let at = Address(self.at.fetch_add(0, Ordering::AcqRel));
        // Without an address, there is no parked operation whose examination could be deferred. Either the operation
        // never parks, or the parking thread will set the address and then examine the operation.
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

/// What one examination of an operation can reach: a waker of the operation, and its deadline. The operation of a
/// listener can also ask, in the examination at its deadline, to stay parked for some time although the deadline has
/// passed.
///
/// The first examination comes before the park, so the operation has no address yet. The caller then consumes this
/// value by [`park_at`](Self::park_at) or [`end`](Self::end), otherwise the waker leaks.
pub(super) struct OperationReach<'a, Op: DelayedOperation, S> {
    inner: &'a Inner<Op, S>,
    /// The operation's address, or [`Address::NONE`] before the park.
    at: Address,
    /// The waker for which the operation has asked before the park, and which gets the address in the park.
    ///
    /// Dropped by hand in [`end`](Self::end). A destructor would also have to run when a panic unwinds, and the
    /// unwinding finds the struct only in memory. So even in examinations that ask for no waker, the compiler could not
    /// keep the fields in registers. The price is a leak of a few words, if user code panics in a park that has asked
    /// for a waker.
    waker: ManuallyDrop<OnceCell<Arc<OperationWaker<Op, S>>>>,
    /// The new deadline, if the operation has asked for one in this examination. The deadline is moved after the
    /// examination.
    deadline: Cell<Option<Deadline>>,
    /// For how long the operation has asked to stay parked after its deadline. `None` if it has not asked.
    lingers: Cell<Option<Duration>>,
}

impl<'a, Op: DelayedOperation, S: KeyHasher> OperationReach<'a, Op, S> {
    /// For the examination of the operation at this address: [`Address::NONE`] if it is not parked yet.
    #[inline(always)]
    pub(super) fn new(inner: &'a Inner<Op, S>, at: Address) -> Self {
        Self {
            inner,
            at,
            waker: ManuallyDrop::new(OnceCell::new()),
            deadline: Cell::new(None),
            lingers: Cell::new(None),
        }
    }

    /// The deadline for which the operation has asked in this examination. `None` if it has not asked.
    #[inline(always)]
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.deadline.get()
    }

    /// For how long the operation has asked to stay parked after its deadline. `None` if it has not asked.
    pub(super) fn lingers(&self) -> Option<Duration> {
        self.lingers.get()
    }

    /// Gives the waker, if there is one, the address of the operation. The calling thread holds the operation, and
    /// examines it again after this call.
    #[inline(always)]
    pub(super) fn park_at(self, at: Address) {
        if let Some(waker) = self.waker.get() {
            waker.set_address(at);
        }
        self.end();
    }

    /// Drops the reference to the waker. Called if the operation does not park, or when the waker has got the address.
    #[inline(always)]
    pub(super) fn end(self) {
        if self.waker.get().is_some() {
            drop(ManuallyDrop::into_inner(self.waker));
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Reach for OperationReach<'_, Op, S> {
    fn waker(&self) -> Waker {
        let make = || OperationWaker::new(self.inner, self.at);
        match self.at {
            Address::NONE => self.waker.get_or_init(make).clone().into(),
            _ => make().into(),
        }
    }

    fn reschedule(&self, deadline: Deadline) {
        self.deadline.set(Some(deadline));
    }

    fn linger(&self, time: Duration) {
        self.lingers.set(Some(time));
    }

    fn purgatory(&self) -> &dyn Any {
        self.inner
    }
}
