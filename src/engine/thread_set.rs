//! The threads that work for one engine: the reaper, which drives the timer, and the completion thread.

use crate::sync::{Arc, AtomicBool, Ordering, Weak};
use crate::threads::dispatch::{CompletionThread, Dispatch};
use crate::threads::reaper::{Driven, Reaper, ReaperHandle};
use crate::threads::worker::Worker;
use crate::time::{Clock, WakeFn};
use std::io;
use std::time::Duration;

pub(crate) struct ThreadSet {
    reaper: Option<Arc<ReaperHandle>>,
    pub(super) completions: Option<Arc<CompletionThread>>,
    /// Wakes the thread that drives the timer: the reaper, or the user's reactor. `None` with `Reaper::Manual`.
    waker: Option<WakeFn>,
    /// Whether the threads belong to a shared reaper. Shared threads do not end with this engine.
    shared: bool,
    /// Whether the engine's own reaper was started. `true` from the beginning if the engine has no reaper of its own.
    started: AtomicBool,
}

impl ThreadSet {
    /// Returns the threads for these settings: own threads, which [`start`](Self::start) starts later, or shared
    /// threads. Also returns the [`Dispatch`], which says on which thread completions of expired operations run:
    /// `dispatch`, or if that is `None`, the default for this reaper.
    pub(crate) fn new(reaper: Reaper, dispatch: Option<Dispatch>) -> (Self, Dispatch) {
        let dispatch = dispatch.unwrap_or(match reaper {
            Reaper::Manual | Reaper::Reactor(_) => Dispatch::Inline,
            Reaper::Own | Reaper::Shared(_) => Dispatch::OwnThread,
        });
        let wants_thread = matches!(dispatch, Dispatch::OwnThread);
        let own_reaper = matches!(reaper, Reaper::Own);
        let (reaper, waker, shared) = match reaper {
            Reaper::Own => (Some(Arc::new(ReaperHandle::new())), None, None),
            Reaper::Shared(thread) => (Some(thread.handle), None, Some(thread.completions)),
            Reaper::Reactor(waker) => (None, Some(waker), None),
            Reaper::Manual => (None, None, None),
        };
        let threads = Self {
            waker: waker.or_else(|| reaper.as_deref().map(ReaperHandle::waker)),
            reaper,
            shared: shared.is_some(),
            completions: wants_thread.then(|| shared.unwrap_or_default()),
            started: AtomicBool::new(!own_reaper),
        };
        (threads, dispatch)
    }

    /// Starts the engine's own reaper, if the engine has one. Called by one thread at a time. If the system refuses the
    /// thread, returns `Err`, and a later call tries again. Does not start the completion thread, which starts with its
    /// first job.
    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        if let Some(reaper) = self.own_reaper() {
            reaper.start(name)?;
        }
        // ORDERING: Release pairs with the Acquire in `reaper_is_started`. If a load there finds the flag set, the
        // start of the reaper happens before everything that follows this load.
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts the engine's own completion thread, if the engine has one. `Err` if the system refuses the thread.
    pub(crate) fn start_completions(&self, name: &str) -> io::Result<()> {
        self.own_completions()
            .map_or(Ok(()), |completions| completions.start(name))
    }

    /// Whether the engine's own reaper was started. Also `true` if the engine has no reaper of its own.
    #[inline]
    pub(crate) fn reaper_is_started(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `start`: if this load finds the flag set, the start of the reaper
        // happens before what follows the load.
        self.started.load(Ordering::Acquire)
    }

    /// From now on the reaper, if the engine has one, drives `driven`, a purgatory or timer. Whenever `clock` jumps,
    /// the clock wakes the thread that drives the timer.
    pub(crate) fn adopt(&self, driven: Weak<dyn Driven>, clock: &dyn Clock) {
        if let Some(reaper) = &self.reaper {
            reaper.adopt(driven.clone());
        }
        if let Some(waker) = self.waker.clone() {
            // First check whether `driven` still exists. If it is gone, do not call its reactor's wake function: that
            // function is user code, and could panic in every jump of the clock.
            clock.subscribe(WakeFn::new(move || {
                driven.strong_count() > 0 && waker.wake()
            }));
        }
    }

    /// Wakes the thread that drives the timer. Does nothing with `Reaper::Manual`.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Whether the engine has a reaper of the library: its own thread, even if that was not started yet; a shared
    /// thread; or the reaper of a manual clock, which has no thread.
    pub(crate) fn has_reaper(&self) -> bool {
        self.reaper.is_some()
    }

    fn own_reaper(&self) -> Option<&ReaperHandle> {
        self.reaper.as_deref().filter(|_| !self.shared)
    }

    fn own_completions(&self) -> Option<&CompletionThread> {
        self.completions.as_deref().filter(|_| !self.shared)
    }

    /// Ends the engine's own threads, the reaper first, because it makes jobs for the completion thread. The completion
    /// thread runs all queued jobs before it ends. Waits for the end of each thread, for at most `limit` if given. In a
    /// callback, does not wait.
    pub(crate) fn stop(&self, limit: Option<Duration>) {
        if let Some(reaper) = self.own_reaper() {
            reaper.close();
            reaper.thread.join(limit);
        }
        if let Some(completions) = self.own_completions() {
            completions.close();
            completions.thread.join(limit);
        }
    }

    /// The names of the engine's own threads that were started and have not ended.
    pub(crate) fn running(&self) -> Vec<String> {
        let reaper = self.own_reaper().map(|it| &it.thread);
        let completions = self.own_completions().map(|it| &it.thread);
        let own = reaper.into_iter().chain(completions);
        own.filter_map(Worker::running).map(str::to_owned).collect()
    }
}
