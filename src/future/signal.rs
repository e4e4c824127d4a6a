//! The signals from a listener's operations to the listener: a key was checked, an interval of the rechecks (wake-ups
//! after an interval, without a check) is over, or no more checks come.
//!
//! If the condition is true after a recheck, the listener ends before its operation: the operation stays parked for a
//! while, because a late check may still come (`Recheck::find`). Until the operation ends, the parts of the listener
//! are kept here ([`Signal::keep`]).

use super::reply::{Between, Recipient};
use super::wait_error::WaitError;
use crate::callbacks::promise::{Readiness, WakeCell};
use crate::sync::{Arc, Mutex};
use std::any::Any;
use std::convert::Infallible;
use std::mem::take;
use std::task::{Context, Poll, Waker};

/// The state that a listener and its operations share.
pub(super) struct Signal {
    signalled: WakeCell<Signalled>,
    /// What [`keep`](Self::keep) has stored. Under a lock of its own, and not a part of `signalled`: the destructor of
    /// the parts locks `signalled`, so it must not run while `signalled` is locked.
    kept: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Debug, Default)]
pub(super) struct Signalled {
    /// Whether a key was checked, and the listener has not yet reported the check to the waiter.
    checked: bool,
    /// Whether a recheck (a wake-up of the listener after an interval, without a check) was due, and the listener has
    /// not yet reported this to the waiter.
    ticked: bool,
    /// Why the listener has ended. `None` while it listens.
    end: Option<WaitError>,
    /// Whether the listener evaluates its condition once more when the deadline has come.
    evaluates_at_deadline: bool,
    /// Whether a key was checked after `end` was set.
    checked_late: bool,
    /// Whether one of the listener's operations (its own, and one for each added key) has ended. Later checks of that
    /// operation's keys do not reach the listener.
    is_over: bool,
    /// Whether the condition was true after a recheck.
    is_found: bool,
}

/// Why a listener is woken: a key was checked, or the interval until a recheck (a wake-up without a check) is over, or
/// both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wake {
    pub(super) checked: bool,
    pub(super) ticked: bool,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self {
            signalled: WakeCell::new(Signalled::default()),
            kept: Mutex::new(None),
        }
    }

    /// Notes a check, and wakes the task. If the listener has ended, the check is only noted as late: otherwise the
    /// waiter would learn of this check, and not why the listener has ended. Such a check may come because an operation
    /// of the listener is still parked, for example that of an added key.
    pub(super) fn check(&self) {
        self.tell(|signalled| match signalled.end {
            None => signalled.checked = true,
            Some(_) => signalled.checked_late = true,
        });
    }

    /// Notes that the listener will evaluate its condition once more when the deadline has come.
    pub(super) fn evaluate_at_deadline(&self) {
        self.signalled.change(|signalled| {
            signalled.evaluates_at_deadline = true;
            ((), false)
        });
    }

    /// Called at the deadline of one of the listener's operations. Returns whether this operation must stay parked:
    ///
    /// * The listener evaluates its condition once more. The first call notes that the listener has expired, and wakes
    ///   the task. The operation stays parked until the evaluation is over, but only once: if the operation
    ///   `has_lingered`, it expires.
    /// * The condition was true after a recheck, so the listener has ended. The operation belongs to an added key, and
    ///   stays parked until the listener's own operation ends: a late check of the key may still come.
    ///
    /// Otherwise the operation expires.
    pub(super) fn expire(&self, has_lingered: bool) -> bool {
        self.signalled.change(|signalled| {
            let evaluates = signalled.evaluates_at_deadline;
            let is_first = evaluates && signalled.end.is_none();
            if is_first {
                signalled.end = Some(WaitError::Expired);
            }
            let is_expired = evaluates && signalled.end == Some(WaitError::Expired);
            let stays = is_first || (is_expired && !has_lingered) || signalled.is_found;
            (stays, is_first)
        })
    }

    /// Whether it is certain that no key was checked from the deadline until now. `false` also if one of the listener's
    /// operations has ended, because later checks of that operation's keys are not noted.
    pub(super) fn is_unannounced(&self) -> bool {
        self.signalled.change(|signalled| {
            let is_unannounced = !signalled.checked_late && !signalled.is_over;
            (is_unannounced, false)
        })
    }

    /// Notes the end of a recheck interval, and wakes the task. If the listener has ended, notes nothing.
    fn tick(&self) {
        self.tell(|signalled| signalled.ticked |= signalled.end.is_none());
    }

    /// Called when the operation's timer has fired at a time that the listener has asked for, not at the deadline.
    /// Returns whether the caller is to count a missed check.
    ///
    /// * `last` is `false`: an interval of the rechecks is over. Wakes the listener. The operation stays parked.
    /// * `last` is `true`: the grace is over. A recheck had found the condition true, and the listener has ended. Since
    ///   then the operation was parked only so that a late check would still reach it: this time is the grace. A check
    ///   was missed if none has come. The operation is satisfied.
    #[cold]
    pub(super) fn recheck(&self, last: bool) -> bool {
        if !last {
            self.tick();
        }
        last && self.has_missed_check()
    }

    /// Notes that one of the listener's operations has ended, which ends the listener, and wakes the task. `error` is
    /// the reason that the waiter gets. If the listener had ended before, the earlier reason stays.
    pub(super) fn end(&self, error: WaitError) {
        let is_found = self.signalled.change(|signalled| {
            signalled.end.get_or_insert(error);
            signalled.is_over = true;
            (signalled.is_found, true)
        });
        if is_found {
            self.forget_kept();
        }
    }

    /// Keeps `parts`, those of a listener that has ended because its condition was true after a recheck (a wake-up
    /// without a check). Its operation stays parked for a while, because a late check may still come. The parts are
    /// dropped when the operation ends.
    pub(super) fn keep(&self, parts: Box<dyn Any + Send>) {
        *self.kept.lock() = Some(parts);
        self.signalled
            .change(|signalled| (signalled.is_found = true, false));
    }

    /// Whether it is certain that no key was checked although the condition was true after a recheck (a wake-up without
    /// a check). Called when the grace, the time in which a late check may still come, is over or cannot begin. `false`
    /// also if one of the listener's operations has ended, because later checks of that operation's keys are not noted:
    /// if a shutdown ends the operation within the grace, for example, no missed check is counted.
    pub(super) fn has_missed_check(&self) -> bool {
        self.signalled.change(|signalled| {
            let may_be_checked = signalled.checked || signalled.checked_late || signalled.is_over;
            (signalled.is_found && !may_be_checked, false)
        })
    }

    /// Whether the listener has ended because its condition was true after a recheck: [`keep`](Self::keep) was called.
    pub(super) fn is_found(&self) -> bool {
        self.signalled
            .change(|signalled| (signalled.is_found, false))
    }

    /// Drops the parts of the listener that [`keep`](Self::keep) has stored, which ends all operations of the listener,
    /// and [closes](Between::close) this signal. Called when one of them has ended, or when the grace (the time in
    /// which a late check may still come) cannot begin. Without this call, the parts would keep this signal alive for
    /// ever, because they own references to the signal.
    pub(super) fn forget_kept(&self) {
        let parts = self.kept.lock().take();
        drop(parts);
    }

    /// Calls `change` under the lock, and wakes the task.
    fn tell(&self, change: impl FnOnce(&mut Signalled)) {
        self.signalled.change(|signalled| (change(signalled), true));
    }

    /// Returns what was noted for the waiter since the last call (a check, the end of a recheck interval, or both), and
    /// clears it. If nothing was noted, returns the reason for the listener's end. This reason is not cleared, so later
    /// calls return it again. With `end_first`, returns the reason even if something was noted.
    pub(super) fn poll(&self, cx: &Context<'_>, end_first: bool) -> Poll<Result<Wake, WaitError>> {
        self.signalled.poll(cx, |signalled| {
            let (checked, ticked) = (take(&mut signalled.checked), take(&mut signalled.ticked));
            match signalled.end {
                Some(error) if end_first => Readiness::Ready(Err(error)),
                _ if checked || ticked => Readiness::Ready(Ok(Wake { checked, ticked })),
                Some(error) => Readiness::Ready(Err(error)),
                None => Readiness::NotYet,
            }
        })
    }

    /// Notes again what a [`poll`](Self::poll) has returned, because the waiter was not told. Wakes no task: the waiter
    /// is being polled.
    #[cold]
    pub(super) fn note_again(&self, wake: Wake) {
        self.signalled.change(|signalled| {
            signalled.checked |= wake.checked;
            signalled.ticked |= wake.ticked;
            ((), false)
        });
    }

    /// Whether there was a check of a key that was not reported to the waiter (the code that owns the listener). A
    /// check counts whether it was made before or after the end of the listener.
    pub(super) fn was_checked(&self) -> bool {
        self.signalled.change(|signalled| {
            let was_checked = signalled.checked || signalled.checked_late;
            (was_checked, false)
        })
    }
}

impl Recipient for Arc<Signal> {
    /// A listener has no predicate, so its operation finds nothing.
    type Found = Infallible;

    fn receive(&self, result: Result<Infallible, WaitError>) {
        let Err(lost) = result;
        self.end(lost);
    }
}

impl Between for Arc<Signal> {
    /// No result needs a drop: a signal stores only why the listener has ended, a plain [`WaitError`].
    type Unreceived = ();

    fn close(&self) -> (Option<()>, Option<Waker>) {
        let (_, waker) = self.signalled.close(Signalled::default());
        (None, waker)
    }
}
