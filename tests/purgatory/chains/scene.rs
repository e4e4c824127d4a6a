//! What the tests of chains, shutdowns, counts, bounds and panics share: parks that succeed, calls from inside, keys
//! that panic, a gate in which user code waits, and the table of endings.

use crate::support::keys::Fragile;
use crate::support::{NEVER_IN_A_TEST, Op, Probe, Tally, lock};
use request_purgatory::{Completion, DelayedOperation, Handle, Purgatory, Watch};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Parks an operation that may have ended when the call returns.
pub(crate) fn admit<'a, O: DelayedOperation>(
    purgatory: &Purgatory<O>,
    op: O,
    keys: impl IntoIterator<Item = impl Into<Watch<'a, O::Key>>>,
) -> Option<Handle<O>> {
    let admission = purgatory.try_complete_else_watch(op, keys);
    let admission = admission.map_err(|refused| refused.reason());
    admission.expect("there is room").into_handle()
}

/// Parks an operation that cannot complete yet.
pub(crate) fn park<'a, O: DelayedOperation>(
    purgatory: &Purgatory<O>,
    op: O,
    keys: impl IntoIterator<Item = impl Into<Watch<'a, O::Key>>>,
) -> Handle<O> {
    admit(purgatory, op, keys).expect("it cannot complete yet")
}

/// What a hook calls on its own purgatory, if that is still there. A hook that owned a handle would keep it alive.
pub(crate) fn inside<O: DelayedOperation, C: Fn(&Purgatory<O>)>(
    purgatory: &Purgatory<O>,
    call: C,
) -> impl Fn() + use<O, C> {
    let weak = purgatory.downgrade();
    move || {
        if let Some(purgatory) = weak.upgrade() {
            call(&purgatory);
        }
    }
}

/// An operation that never completes by itself, and makes this call in its third examination: the first one after the
/// two of its park.
pub(crate) fn once_checked<K>(timeout: Duration, call: impl FnOnce() + Send + 'static) -> Op<K> {
    let (mut examinations, mut call) = (0, Some(call));
    Op::new(timeout).when(move || {
        examinations += 1;
        if let Some(call) = call.take_if(|_| examinations == 3) {
            call();
        }
        false
    })
}

/// An operation without a deadline that matters, whose completion is counted.
pub(crate) fn counted<K>(ended: &Arc<Tally>) -> Op<K> {
    let ended = ended.clone();
    Op::new(NEVER_IN_A_TEST).then(move |_| ended.add())
}

/// A key whose hooks panic when told to, beside another key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Breaks<K>(pub(crate) Fragile, pub(crate) K);

/// Where user code waits, on whatever thread, until the test opens it or is over.
pub(crate) struct Gate {
    entered: Receiver<ThreadId>,
    _closed: Sender<()>,
}

impl Gate {
    /// The gate, and the call that waits in it.
    pub(crate) fn new() -> (Self, impl Fn() + Send + Sync + 'static) {
        let ((enter, entered), (closed, opened)) = (channel(), channel::<()>());
        let opened = Mutex::new(opened);
        let wait = move || {
            // Both fail where the test has gone on.
            let _ = enter.send(thread::current().id());
            let _ = lock(&opened).recv();
        };
        let gate = Self {
            entered,
            _closed: closed,
        };
        (gate, wait)
    }

    /// Returns when user code has come to the gate: the thread on which it waits.
    pub(crate) fn entered(&self) -> ThreadId {
        self.entered.recv().expect("user code comes to the gate")
    }

    /// Drops what keeps it closed.
    pub(crate) fn open(self) {}
}

/// Ends the one operation on key 2, that of the handle and the probe. Returns whether it says so.
pub(crate) type End<O> = fn(&Purgatory<O>, &Handle<O>, &Probe) -> bool;

/// The table of endings: a name, what it is to the operation, and the calls that end it.
pub(crate) fn endings<O>() -> [(&'static str, Completion, End<O>); 9]
where
    O: DelayedOperation<Key = u64>,
{
    use Completion::{Cancelled, Expired, Satisfied, ShutDown};
    [
        ("check", Satisfied, |all, _, probe| {
            probe.satisfy();
            all.check_and_complete(&2) == 1
        }),
        ("handle's check", Satisfied, |_, handle, probe| {
            probe.satisfy();
            handle.check()
        }),
        ("deferred check", Satisfied, |all, handle, probe| {
            probe.satisfy();
            all.check_later(2);
            all.advance();
            !handle.is_parked()
        }),
        ("force", Satisfied, |_, handle, _| handle.force_complete()),
        ("force by key", Satisfied, |all, _, _| {
            all.force_complete_for_key(&2) == 1
        }),
        ("cancel", Cancelled, |_, handle, _| {
            handle.cancel().is_some()
        }),
        ("cancel by key", Cancelled, |all, _, _| {
            all.cancel_for_key(&2).len() == 1
        }),
        ("expiry", Expired, |all, handle, _| {
            handle.reschedule(Duration::ZERO) && all.advance() == 1
        }),
        ("shutdown", ShutDown, |all, handle, _| {
            all.shutdown();
            !handle.is_parked()
        }),
    ]
}
