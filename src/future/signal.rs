//! What a listener's operations tell the listener: that a key was checked, that it is time for a recheck, and that no
//! more checks come.

use super::reply::Between;
use super::wait_error::WaitError;
use crate::promise::{Readiness, WakeCell};
use std::mem::take;
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
}

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
    pub(super) fn tick(&self) {
        self.tell(|signalled| signalled.ticked |= signalled.end.is_none());
    }

    /// Only the first end counts.
    pub(super) fn end(&self, error: WaitError) {
        self.tell(|signalled| _ = signalled.end.get_or_insert(error));
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
