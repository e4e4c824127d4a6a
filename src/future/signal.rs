//! What a listener's operation tells the listener: that a key was checked, and that no more checks come.

use super::reply::{CompletionError, Shared};
use super::wait_error::WaitError;
use crate::promise::{Look, WakeCell};
use std::task::{Context, Poll, Waker};

/// Shared by a listener and its operation.
#[derive(Debug)]
pub(super) struct Signal(WakeCell<News>);

#[derive(Debug, Default)]
pub(super) struct News {
    /// Some key was checked, any number of times.
    checked: bool,
    /// There will be no more checks.
    end: Option<WaitError>,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self(WakeCell::new(News::default()))
    }

    /// Leaves the mark of a check, and wakes the task if it is the first.
    pub(super) fn check(&self) {
        self.0.change(|news| {
            news.checked = true;
            ((), true)
        });
    }

    /// Only the first end counts.
    pub(super) fn end(&self, error: WaitError) {
        self.0.change(|news| {
            news.end.get_or_insert(error);
            ((), true)
        });
    }

    /// Takes the mark of a check, or else tells the end, any number of times.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), WaitError>> {
        self.0.poll(cx, |news| {
            if std::mem::take(&mut news.checked) {
                return Look::Ready(Ok(()));
            }
            match news.end {
                Some(error) => Look::Ready(Err(error)),
                None => Look::Wait,
            }
        })
    }
}

impl Signal {
    /// As [`poll`](Self::poll), but tells the end even if a check came before it.
    pub(super) fn poll_end_first(&self, cx: &Context<'_>) -> Poll<Result<(), WaitError>> {
        self.0.poll(cx, |news| match news.end {
            Some(error) => Look::Ready(Err(error)),
            None if std::mem::take(&mut news.checked) => Look::Ready(Ok(())),
            None => Look::Wait,
        })
    }
}

impl Shared for Signal {
    type Unreceived = News;

    fn lose(&self, lost: CompletionError) {
        self.end(lost.into());
    }

    fn close(&self) -> (News, Option<Waker>) {
        self.0.close(News::default())
    }
}
