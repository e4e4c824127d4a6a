//! A thread of the library's own: its name, and how its end is waited for.

use crate::callbacks::trampoline::Trampoline;
use crate::sync::thread::{self, JoinHandle};
use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use parking_lot::Mutex;
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// How long the drop of the last clone waits for a thread. (A task of an async runtime may drop it.)
pub(crate) const GRACE: Duration = Duration::from_millis(10);

#[cfg(debug_assertions)]
std::thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A thread that is started once.
#[derive(Default)]
pub(crate) struct Worker(OnceLock<Started>);

struct Started {
    name: String,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Nothing is ever sent: the channel ends with the thread.
    ended: Receiver<Infallible>,
}

impl Worker {
    /// Starts the thread, which works for `owner`, unless it was started before. To be called by one thread at a time.
    pub(crate) fn start(
        &self,
        owner: &str,
        work: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if self.0.get().is_some() {
            return Ok(());
        }
        // The system cannot have a NUL in the name.
        let name = format!("{owner}-{work}").replace('\0', "?");
        #[cfg(all(test, not(request_purgatory_loom)))]
        refusal::refused()?;
        let (alive, ended) = bounded(0);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let _alive = alive;
            #[cfg(debug_assertions)]
            IS_WORKER.set(true);
            run();
        })?;
        // It is empty, by the contract of this function.
        let _ = self.0.set(Started {
            name,
            thread: Mutex::new(Some(thread)),
            ended,
        });
        Ok(())
    }

    /// Whether the calling thread is one of the library.
    #[cfg(debug_assertions)]
    pub(crate) fn is_current() -> bool {
        IS_WORKER.get()
    }

    /// Its name, if it was started and has not ended.
    pub(crate) fn running(&self) -> Option<&str> {
        let Started { name, ended, .. } = self.0.get()?;
        (ended.try_recv() != Err(TryRecvError::Disconnected)).then_some(name)
    }

    /// Waits for the thread to end, for at most `limit` if there is one. A thread that needs longer ends by itself, and no
    /// later call waits for it. Inside a callback this does not wait, because the callback may run on that thread, or on
    /// one for which that thread waits; a later call still may.
    pub(crate) fn join(&self, limit: Option<Duration>) {
        if let (Some(started), Some(handle)) = (self.0.get(), self.take_handle()) {
            let ended = limit.map(|limit| started.ended.recv_timeout(limit));
            if ended != Some(Err(RecvTimeoutError::Timeout)) {
                // Our threads catch every panic. If one ended by a panic all the same, the panic hook has reported it.
                let _ = handle.join();
            }
        }
    }

    /// The handle to join: not in a callback, nor if another thread has taken it, nor if this is the thread itself (which
    /// drops the last reference to its owner, outside of a callback).
    fn take_handle(&self) -> Option<JoinHandle<()>> {
        let started = self.0.get().filter(|_| !Trampoline::in_progress())?;
        let handle = started.thread.lock().take();
        handle.filter(|handle| handle.thread().id() != thread::current().id())
    }
}

/// For tests: a system that refuses threads to the calling thread.
#[cfg(all(test, not(request_purgatory_loom)))]
pub(crate) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// The threads that are still granted.
        static GRANTED: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Grants this many threads to the calling thread from now on.
    pub(crate) fn grant(threads: usize) {
        GRANTED.set(threads);
    }

    pub(super) fn refused() -> io::Result<()> {
        let left = GRANTED.get().checked_sub(1);
        let left = left.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        GRANTED.set(left);
        Ok(())
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// It does not wait, and leaves that to the next one.
    #[test]
    fn g15_a_join_in_a_callback_leaves_the_thread_to_a_later_one() {
        let (worker, (end, ending)) = (Worker::default(), mpsc::channel::<()>());
        let run = move || {
            // Until the sender is dropped.
            let _ = ending.recv();
            thread::sleep(Duration::from_millis(50));
        };
        worker.start("g15", "worker", run).expect("a thread");
        {
            let _callback = Trampoline::enter();
            worker.join(None);
        }
        assert_eq!(worker.running(), Some("g15-worker"));
        drop(end);
        worker.join(None);
        assert_eq!(worker.running(), None);
    }
}
