//! A thread of the library's own: its name, and how its end is waited for.

use crate::trampoline::Trampoline;
use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use parking_lot::Mutex;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// For how long the drop of the last handle waits for threads: most have ended by then, and a task of an async runtime
/// may be what drops it.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

/// Nothing is ever sent: the channel ends with the thread.
#[derive(Debug, PartialEq, Eq)]
enum Never {}

#[derive(Debug)]
pub(crate) struct Worker {
    name: String,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Receiver<Never>,
}

impl Worker {
    /// Starts a thread that works for `owner`.
    pub(crate) fn spawn(
        owner: &str,
        work: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        // (The system cannot have a NUL in the name.)
        let name = format!("{owner}-{work}").replace('\0', "?");
        let (alive, ended) = bounded(0);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let _alive = alive;
            run();
        })?;
        Ok(Self {
            name,
            thread: Mutex::new(Some(thread)),
            ended,
        })
    }

    /// Its name, if it has not ended.
    pub(crate) fn running(&self) -> Option<&str> {
        let has_ended = self.ended.try_recv() == Err(TryRecvError::Disconnected);
        (!has_ended).then_some(&self.name)
    }

    /// Waits for the thread to end, unless this is called from a callback: that could run on this very thread, or on one
    /// that the thread waits for in turn. It then ends by itself, and a later call may still wait for it.
    pub(crate) fn join(&self) {
        if Trampoline::in_progress() {
            return;
        }
        if let Some(handle) = self.take_handle() {
            // Our threads catch every panic; what one died of nevertheless, the panic hook has reported.
            let _ = handle.join();
        }
    }

    /// The same for at most `limit`. A thread that needs longer ends by itself, and no later call waits for it.
    pub(crate) fn join_within(&self, limit: Duration) {
        if Trampoline::in_progress() {
            return;
        }
        if let Some(handle) = self.take_handle() {
            if self.ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                let _ = handle.join();
            }
        }
    }

    /// What to join, unless another thread does, or this is the thread itself: that drops the last reference to what it
    /// works for, outside of a callback.
    fn take_handle(&self) -> Option<JoinHandle<()>> {
        let handle = self.thread.lock().take();
        handle.filter(|handle| handle.thread().id() != thread::current().id())
    }
}
