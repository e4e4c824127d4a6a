//! What a listener's operations tell the listener: that a key was checked, that it is time for a recheck, and that no
//! more checks come.

use super::reply::Between;
use super::wait_error::WaitError;
use crate::promise::{Look, WakeCell};
use std::mem::take;
use std::task::{Context, Poll, Waker};

/// Shared by a listener and its operations.
pub(super) struct Signal(WakeCell<News>);

#[derive(Debug, Default)]
pub(super) struct News {
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
        Self(WakeCell::new(News::default()))
    }

    /// Leaves the mark of a check, and wakes the task. Not after the end: while other operations of the listener are still
    /// parked, their checks would keep the waiter from it.
    pub(super) fn check(&self) {
        self.tell(|news| news.checked |= news.end.is_none());
    }

    /// An interval without a recheck is over. After the end there are no more.
    pub(super) fn tick(&self) {
        self.tell(|news| news.ticked |= news.end.is_none());
    }

    /// Only the first end counts.
    pub(super) fn end(&self, error: WaitError) {
        self.tell(|news| _ = news.end.get_or_insert(error));
    }

    /// Leaves news, and wakes the task.
    fn tell(&self, news: impl FnOnce(&mut News)) {
        self.0.change(|known| (news(known), true));
    }

    /// Takes the marks of a check and of an interval, or else tells the end, any number of times. With `end_first`, tells
    /// the end even if a mark came before it.
    pub(super) fn poll(&self, cx: &Context<'_>, end_first: bool) -> Poll<Result<Wake, WaitError>> {
        self.0.poll(cx, |news| {
            let (checked, ticked) = (take(&mut news.checked), take(&mut news.ticked));
            match news.end {
                Some(error) if end_first => Look::Ready(Err(error)),
                _ if checked || ticked => Look::Ready(Ok(Wake { checked, ticked })),
                Some(error) => Look::Ready(Err(error)),
                None => Look::Wait,
            }
        })
    }

    /// Whether there is the mark of a check.
    pub(super) fn was_checked(&self) -> bool {
        self.0.change(|news| (news.checked, false))
    }
}

impl Between for Signal {
    type Unreceived = News;

    fn lose(&self, lost: WaitError) {
        self.end(lost);
    }

    fn close(&self) -> (News, Option<Waker>) {
        self.0.close(News::default())
    }
}
