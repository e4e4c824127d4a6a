//! The signals from a listener's operations to the listener: a key was checked, it is time for a recheck, or no more
//! checks come.
//!
//! If a recheck finds the event, the listener ends before its operation does: the operation stays parked for a while,
//! because a late check may still come (`Recheck::find`). Until the operation ends, the parts of the listener are kept
//! here ([`Found`]).

use super::reply::Between;
use super::wait_error::WaitError;
use crate::callbacks::promise::{Readiness, WakeCell};
use crate::sync::Mutex;
use std::any::Any;
use std::mem::take;
use std::task::{Context, Poll, Waker};

/// The state that a listener and its operations share.
pub(super) struct Signal {
    signalled: WakeCell<Signalled>,
    /// Not a part of `signalled`, so that a [`Signalled`] has no destructor.
    found: Mutex<Option<Box<Found>>>,
}

#[derive(Debug, Default)]
pub(super) struct Signalled {
    /// A key was checked, and the check was not reported yet.
    checked: bool,
    /// An interval of the rechecks is over, and this was not reported yet.
    ticked: bool,
    /// The end of the listener: no more checks come.
    end: Option<WaitError>,
    /// The listener evaluates its condition once more when the deadline has come.
    evaluates_at_deadline: bool,
    /// A key was checked after `end` was set.
    checked_late: bool,
    /// The listener's operation has ended: checks of its keys do not reach the listener any more.
    is_over: bool,
    /// A recheck has found the event.
    is_found: bool,
}

/// What is left of a listener whose recheck has found the event. Kept until the listener's operation ends.
pub(super) struct Found {
    /// Counts a missed check. Called if no check has announced the event.
    pub(super) count_missed: Option<Box<dyn FnOnce() + Send>>,
    #[expect(dead_code, reason = "it is dropped when the operation ends")]
    pub(super) kept: Box<dyn Any + Send>,
}

debug_fields!([] Found, "Found", |it|);

/// Why a listener is woken: for a check, for the end of an interval, or for both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wake {
    pub(super) checked: bool,
    pub(super) ticked: bool,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self {
            signalled: WakeCell::new(Signalled::default()),
            found: Mutex::new(None),
        }
    }

    /// Notes a check, and wakes the task. After the end of the listener, the check is only noted as late, because it
    /// must not hide the end from the waiter. Such a check may come from an added key, whose operation is still parked.
    pub(super) fn check(&self) {
        self.tell(|signalled| match signalled.end {
            None => signalled.checked = true,
            Some(_) => signalled.checked_late = true,
        });
    }

    /// From now on, the listener evaluates its condition once more when the deadline has come.
    pub(super) fn evaluate_at_deadline(&self) {
        self.signalled.change(|signalled| {
            signalled.evaluates_at_deadline = true;
            ((), false)
        });
    }

    /// Notes that the deadline has come. Returns whether the operation is to stay parked until the listener has
    /// evaluated its condition once more.
    pub(super) fn expire(&self) -> bool {
        self.signalled.change(|signalled| {
            let evaluates = signalled.evaluates_at_deadline && signalled.end.is_none();
            if evaluates {
                signalled.end = Some(WaitError::Expired);
            }
            (evaluates, evaluates)
        })
    }

    /// Whether it is certain that no key was checked from the deadline until now.
    pub(super) fn is_unannounced(&self) -> bool {
        self.signalled.change(|signalled| {
            let is_unannounced = !signalled.checked_late && !signalled.is_over;
            (is_unannounced, false)
        })
    }

    /// Notes the end of a recheck interval, unless the listener has ended.
    fn tick(&self) {
        self.tell(|signalled| signalled.ticked |= signalled.end.is_none());
    }

    /// Handles the wake-up that the listener has asked for: at the end of an interval or, with `last`, at the end of
    /// the grace (the time for a late check) after a recheck that has found the event. Returns whether the operation is
    /// satisfied. At the end of the grace the operation is satisfied, because the listener has already ended.
    #[cold]
    pub(super) fn recheck(&self, last: bool) -> bool {
        match last {
            true => self.count_if_missed(),
            false => self.tick(),
        }
        last
    }

    /// Notes the end of the listener. Only the first end counts.
    pub(super) fn end(&self, error: WaitError) {
        let is_found = self.signalled.change(|signalled| {
            signalled.end.get_or_insert(error);
            signalled.is_over = true;
            (signalled.is_found, true)
        });
        if is_found {
            self.forget_found();
        }
    }

    /// Keeps what is left of a listener whose condition was true after a recheck.
    pub(super) fn keep(&self, found: Box<Found>) {
        *self.found.lock() = Some(found);
        self.signalled
            .change(|signalled| (signalled.is_found = true, false));
    }

    /// Counts the event as missed, unless a check was noted. Called when the grace has ended, or cannot begin.
    pub(super) fn count_if_missed(&self) {
        let count = self
            .found
            .lock()
            .as_mut()
            .and_then(|found| found.count_missed.take());
        if let Some(count) = count.filter(|_| !self.was_checked()) {
            count();
        }
    }

    /// Drops what is left of a listener whose operation has ended. Otherwise it would keep this signal alive for ever,
    /// because it owns a reference to the signal. If a shutdown ended the operation before the grace was over, no
    /// missed check is counted.
    pub(super) fn forget_found(&self) {
        let found = self.found.lock().take();
        drop(found);
    }

    /// Changes the signals, and wakes the task.
    fn tell(&self, change: impl FnOnce(&mut Signalled)) {
        self.signalled.change(|signalled| (change(signalled), true));
    }

    /// Takes the noted checks and the noted end of an interval. If neither was noted, returns the end of the listener,
    /// at every call. With `end_first`, returns the end even if a check or an interval was noted.
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

    /// Whether a check is noted, before the end or after it.
    pub(super) fn was_checked(&self) -> bool {
        self.signalled.change(|signalled| {
            let was_checked = signalled.checked || signalled.checked_late;
            (was_checked, false)
        })
    }
}

impl Between for Signal {
    /// A signal stores no user value but the waker.
    type Unreceived = ();

    fn lose(&self, lost: WaitError) {
        self.end(lost);
    }

    fn close(&self) -> (Option<()>, Option<Waker>) {
        let (_, waker) = self.signalled.close(Signalled::default());
        (None, waker)
    }
}
