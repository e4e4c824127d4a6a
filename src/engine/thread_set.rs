//! The threads that work for one engine.

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
    /// Wakes the thread that drives the timer.
    waker: Option<WakeFn>,
    /// Whether the threads belong to a shared reaper, so that they do not end with this engine.
    shared: bool,
    /// Whether the engine's own reaper was started. Always `true` if the engine has none.
    started: AtomicBool,
}

impl ThreadSet {
    /// The threads that the settings ask for: own threads, not [started](Self::start) yet, or shared ones. Also returns
    /// the dispatch, with the default filled in.
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

    /// Starts the engine's own reaper, without which no payload would expire. Called by one thread at a time. If the
    /// system refuses the thread, a later call tries again. The completion thread is not started here: it starts with
    /// its first job.
    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        if let Some(reaper) = self.own_reaper() {
            reaper.start(name)?;
        }
        // ORDERING: Release pairs with the Acquire in `reaper_is_started`.
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts the engine's own completion thread, if the engine has one.
    pub(crate) fn start_completions(&self, name: &str) -> io::Result<()> {
        self.own_completions()
            .map_or(Ok(()), |completions| completions.start(name))
    }

    /// Whether the engine's own reaper was started, or the engine has none.
    #[inline]
    pub(crate) fn reaper_is_started(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `start`.
        self.started.load(Ordering::Acquire)
    }

    /// From now on the reaper, if there is one, drives `driven`. Whenever `clock` jumps, it wakes the thread that
    /// drives the timer.
    pub(crate) fn adopt(&self, driven: Weak<dyn Driven>, clock: &dyn Clock) {
        if let Some(reaper) = &self.reaper {
            reaper.adopt(driven.clone());
        }
        if let Some(waker) = self.waker.clone() {
            clock.subscribe(WakeFn::new(move || {
                waker.wake() && driven.strong_count() > 0
            }));
        }
    }

    /// Wakes the thread that drives the timer. Does nothing with `Reaper::Manual`.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Whether a thread of the library drives the timer, now or once it is started.
    pub(crate) fn has_reaper(&self) -> bool {
        self.reaper.is_some()
    }

    fn own_reaper(&self) -> Option<&ReaperHandle> {
        self.reaper.as_deref().filter(|_| !self.shared)
    }

    fn own_completions(&self) -> Option<&CompletionThread> {
        self.completions.as_deref().filter(|_| !self.shared)
    }

    /// Ends the engine's own threads. The reaper ends first, because it makes jobs for the completion thread. The
    /// completion thread runs all queued jobs before it ends. Waits for each thread as `Worker::join` does.
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

    /// The names of the engine's own threads that are still running.
    pub(crate) fn running(&self) -> Vec<String> {
        let reaper = self.own_reaper().map(|it| &it.thread);
        let completions = self.own_completions().map(|it| &it.thread);
        let own = reaper.into_iter().chain(completions);
        own.filter_map(Worker::running).map(str::to_owned).collect()
    }
}
