//! What a listener's operations tell the listener: that a key was checked, that it is time for a recheck, and that no
//! more checks come.
//!
//! Where a recheck has found the event, the listener is gone, and its operation finds here what is left of it.

use super::reply::Between;
use super::wait_error::WaitError;
use crate::promise::{Readiness, WakeCell};
use std::any::Any;
use std::mem::{self, take};
use std::task::{Context, Poll, Waker};

/// Shared by a listener and its operations.
pub(super) struct Signal(WakeCell<Signalled>);

#[derive(Debug, Default)]
pub(super) struct Signalled {
    /// Some key was checked, any number of times.
    checked: bool,
    /// An interval is over.
    ticked: bool,
    /// There will be no more checks.
    end: Option<WaitError>,
    /// A recheck has found the event.
    found: Option<Box<Found>>,
}

/// What is left of a listener that a recheck has told of its event, until its operation ends.
pub(super) struct Found {
    /// Counts the event as one that no check has announced.
    pub(super) count_missed: Box<dyn FnOnce() + Send>,
    /// Dropped when the operation ends.
    pub(super) kept: Box<dyn Any + Send>,
}

debug_fields!([] Found, "Found", |it|);

/// Why a listener is woken: for a check, because an interval is over, or for both at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wake {
    pub(super) checked: bool,
    pub(super) ticked: bool,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self(WakeCell::new(Signalled::default()))
    }

    /// Notes a check, and wakes the task. Not after the end: while other operations of the listener are still
    /// parked, their checks would keep the waiter from it.
    pub(super) fn check(&self) {
        self.tell(|signalled| signalled.checked |= signalled.end.is_none());
    }

    /// An interval without a recheck is over. After the end there are no more.
    fn tick(&self) {
        self.tell(|signalled| signalled.ticked |= signalled.end.is_none());
    }

    /// A time has come for which the listener has asked: an interval is over, or, if it is the `last` time, the grace after
    /// a recheck that has found the event. Returns whether the operation is satisfied: the listener has ended by itself.
    #[cold]
    pub(super) fn recheck(&self, last: bool) -> bool {
        match last {
            true => self.count_if_missed(),
            false => self.tick(),
        }
        last
    }

    /// Only the first end counts.
    pub(super) fn end(&self, error: WaitError) {
        let found = self.0.change(|signalled| {
            signalled.end.get_or_insert(error);
            (signalled.found.take(), true)
        });
        drop(found);
    }

    /// The condition was true after a recheck.
    pub(super) fn keep(&self, found: Box<Found>) {
        self.0
            .change(|signalled| (signalled.found = Some(found), false));
    }

    /// The grace is over: counts the event as missed, unless a check has come.
    pub(super) fn count_if_missed(&self) {
        let count = self.0.change(|signalled| {
            let found = signalled.found.as_mut().filter(|_| !signalled.checked);
            let count = found.map(|found| mem::replace(&mut found.count_missed, Box::new(|| ())));
            (count, false)
        });
        if let Some(count) = count {
            count();
        }
    }

    /// Drops what is left of a listener whose operation has ended. (What it keeps refers to this signal.)
    pub(super) fn forget_found(&self) {
        drop(self.0.change(|signalled| (signalled.found.take(), false)));
    }

    /// Changes what is signalled, and wakes the task.
    fn tell(&self, change: impl FnOnce(&mut Signalled)) {
        self.0.change(|signalled| (change(signalled), true));
    }

    /// Takes what is noted of checks and of an interval, or else tells the end, any number of times. With `end_first`, tells
    /// the end even if something was noted before it.
    pub(super) fn poll(&self, cx: &Context<'_>, end_first: bool) -> Poll<Result<Wake, WaitError>> {
        self.0.poll(cx, |signalled| {
            let (checked, ticked) = (take(&mut signalled.checked), take(&mut signalled.ticked));
            match signalled.end {
                Some(error) if end_first => Readiness::Ready(Err(error)),
                _ if checked || ticked => Readiness::Ready(Ok(Wake { checked, ticked })),
                Some(error) => Readiness::Ready(Err(error)),
                None => Readiness::NotYet,
            }
        })
    }

    /// Whether a check is noted.
    pub(super) fn was_checked(&self) -> bool {
        self.0.change(|signalled| (signalled.checked, false))
    }
}

impl Between for Signal {
    type Unreceived = Signalled;

    fn lose(&self, lost: WaitError) {
        self.end(lost);
    }

    fn close(&self) -> (Signalled, Option<Waker>) {
        self.0.close(Signalled::default())
    }
}
