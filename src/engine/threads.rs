//! The threads that work for a purgatory.

use crate::completions::{CompletionThread, Completions};
use crate::reaper::{Driven, Reaper, Sleeper};
use crate::sync::{Arc, Weak};
use crate::time::{Clock, Waker};
use std::io;

pub(crate) struct Threads {
    reaper: Option<Arc<Sleeper>>,
    completions: Option<Arc<CompletionThread>>,
    /// Wakes whoever drives the timer.
    waker: Option<Waker>,
    /// Shared threads go on without this purgatory.
    own_reaper: bool,
    own_completions: bool,
}

impl Threads {
    /// Starts what the choices ask for, or joins what is there. Returns where completions go, if that was left open.
    pub(crate) fn start(
        name: &str,
        reaper: Reaper,
        completions: Option<Completions>,
    ) -> io::Result<(Self, Completions)> {
        let completions = completions.unwrap_or(match reaper {
            Reaper::Manual | Reaper::Reactor(_) => Completions::Inline,
            Reaper::Own | Reaper::Shared(_) => Completions::OwnThread,
        });
        let wants_thread = matches!(completions, Completions::OwnThread);
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
        Ok((threads, completions))
    }

    /// Lets the reaper drive `driven`, and `clock` wake the reaper.
    pub(crate) fn drive(&self, driven: Weak<dyn Driven>, clock: &dyn Clock) {
        if let Some(reaper) = &self.reaper {
            reaper.adopt(driven.clone());
        }
        if let Some(waker) = self.waker.clone() {
            clock.subscribe(Waker::new(move || {
                waker.wake() && driven.strong_count() > 0
            }));
        }
    }

    /// Wakes whoever drives the timer, if that is not left to the user altogether.
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

    /// Ends the purgatory's own threads and waits for them, unless this is called from a callback: the reaper
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
