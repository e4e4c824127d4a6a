//! The threads that work for one engine.

use crate::dispatch::{CompletionThread, Dispatch};
use crate::reaper::{Driven, Reaper, Sleeper};
use crate::sync::{Arc, Weak};
use crate::time::{Clock, WakeFn};
use std::io;

pub(crate) struct ThreadSet {
    reaper: Option<Arc<Sleeper>>,
    completions: Option<Arc<CompletionThread>>,
    /// Wakes the thread that drives the timer.
    waker: Option<WakeFn>,
    /// Shared threads go on without this engine.
    own_reaper: bool,
    own_completions: bool,
}

impl ThreadSet {
    /// Starts the threads that the settings ask for, or joins shared ones. Returns the dispatch, also where that was
    /// left open.
    pub(crate) fn start(
        name: &str,
        reaper: Reaper,
        dispatch: Option<Dispatch>,
    ) -> io::Result<(Self, Dispatch)> {
        let dispatch = dispatch.unwrap_or(match reaper {
            Reaper::Manual | Reaper::Reactor(_) => Dispatch::Inline,
            Reaper::Own | Reaper::Shared(_) => Dispatch::OwnThread,
        });
        let wants_thread = matches!(dispatch, Dispatch::OwnThread);
        let own_reaper = matches!(reaper, Reaper::Own);
        let (sleeper, waker, shared_completions) = match reaper {
            Reaper::Own => {
                let sleeper = Sleeper::spawn(name)?;
                let waker = sleeper.waker();
                (Some(Arc::new(sleeper)), Some(waker), None)
            }
            Reaper::Shared(thread) => {
                let waker = thread.sleeper.waker();
                (Some(thread.sleeper), Some(waker), Some(thread.completions))
            }
            Reaper::Reactor(waker) => (None, Some(waker), None),
            Reaper::Manual => (None, None, None),
        };
        let own_completions = wants_thread && shared_completions.is_none();
        let completion_thread = if own_completions {
            Some(Arc::new(CompletionThread::spawn(name)?))
        } else {
            shared_completions.filter(|_| wants_thread)
        };
        let threads = Self {
            waker,
            reaper: sleeper,
            completions: completion_thread,
            own_reaper,
            own_completions,
        };
        Ok((threads, dispatch))
    }

    /// Lets the reaper drive `driven`, and `clock` wake the reaper.
    pub(crate) fn drive(&self, driven: Weak<dyn Driven>, clock: &dyn Clock) {
        if let Some(reaper) = &self.reaper {
            reaper.adopt(driven.clone());
        }
        if let Some(waker) = self.waker.clone() {
            clock.subscribe(WakeFn::new(move || {
                waker.wake() && driven.strong_count() > 0
            }));
        }
    }

    /// Wakes the thread that drives the timer. (With `Reaper::Manual`, there is none to wake.)
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Whether a thread of the library drives the timer.
    pub(crate) fn has_reaper(&self) -> bool {
        self.reaper.is_some()
    }

    pub(crate) fn completions(&self) -> Option<&CompletionThread> {
        self.completions.as_deref()
    }

    /// Ends the engine's own threads and waits for them, unless this is called from a callback: the reaper
    /// first, so that it gives no more to the completion thread, which runs all that it has before it ends.
    pub(crate) fn stop(&self) {
        if let Some(reaper) = self.reaper.as_deref().filter(|_| self.own_reaper) {
            reaper.stop();
        }
        if let Some(thread) = self.completions.as_deref().filter(|_| self.own_completions) {
            thread.finish();
        }
    }
}
