//! A thread of the library: how it is named and started, and how another thread waits for its end.

use crate::callbacks::trampoline::Trampoline;
use crate::sync::thread::{self, JoinHandle};
use crossbeam::channel::{Receiver, TryRecvError, bounded};
use parking_lot::Mutex;
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// How long the drop of the last clone of a purgatory waits for a thread. Short, because the drop may happen in a task
/// of an async runtime, which must not block.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

#[cfg(debug_assertions)]
std::thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A thread that is started at most once.
#[derive(Default)]
pub(crate) struct Worker(OnceLock<Started>);

struct Started {
    name: String,
    id: thread::ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Shows whether the thread has ended: no message is ever sent, and the channel is disconnected when the thread
    /// ends.
    ended: Receiver<Infallible>,
}

impl Worker {
    /// Starts the thread, unless it was started before. Its name is made of `owner` (the purgatory that it works for)
    /// and `work`. Called by one thread at a time. `Err` if the system refuses the thread.
    pub(crate) fn start(
        &self,
        owner: &str,
        work: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if self.0.get().is_some() {
            return Ok(());
        }
        // Replace NUL, which the system rejects in the name of a thread.
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
        // `set` cannot fail: the cell is empty, because only one thread at a time calls this function.
        let _ = self.0.set(Started {
            name,
            id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
            ended,
        });
        Ok(())
    }

    /// Whether the calling thread is a thread of the library.
    #[cfg(debug_assertions)]
    pub(crate) fn is_current() -> bool {
        IS_WORKER.get()
    }

    /// The name of the thread, if it was started and has not ended.
    pub(crate) fn running(&self) -> Option<&str> {
        let Started { name, ended, .. } = self.0.get()?;
        (ended.try_recv() != Err(TryRecvError::Disconnected)).then_some(name)
    }

    /// Waits for the thread to end, for at most `limit` if given. If the thread needs longer, it ends by itself. If another
    /// call has begun to wait already, a call without a limit waits for the end of the thread's work, and a call with a
    /// limit does not wait: the waits with a limit are those of a drop. In a callback, this call does nothing: the
    /// callback may run on the thread itself, or the thread may be waiting for the callback. On the thread itself, this
    /// call does nothing either: the thread may drop the last reference to its owner.
    pub(crate) fn join(&self, limit: Option<Duration>) {
        let Some(started) = self.0.get().filter(|_| !Trampoline::in_progress()) else {
            return;
        };
        if started.id == thread::current().id() {
            return;
        }
        let handle = started.thread.lock().take();
        match (handle, limit) {
            // Ignore the error of a thread that has panicked: the thread catches panics of user code, and the panic
            // hook has reported any other panic.
            (Some(handle), None) => _ = handle.join(),
            // Ignore the result: the thread has ended, or needs longer. Do not join it in either case, because a join
            // also waits for the destructors of the thread's thread-local values, which run after its work. A callback
            // may have made such values, and their destructors may take as long as they like.
            (Some(_), Some(limit)) => _ = started.ended.recv_timeout(limit),
            (None, None) => _ = started.ended.recv(),
            (None, Some(_)) => {}
        }
    }
}

/// For tests: makes the system seem to refuse threads that the calling thread starts.
#[cfg(all(test, not(request_purgatory_loom)))]
pub(crate) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many more threads the calling thread may start.
        static GRANTED: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// From now on, lets the calling thread start only this many threads.
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

    /// A join in a callback does not wait, and a later join outside a callback still waits for the thread.
    #[test]
    fn g15_a_join_in_a_callback_leaves_the_thread_to_a_later_one() {
        let (worker, (end, ending)) = (Worker::default(), mpsc::channel::<()>());
        let run = move || {
            // Wait until the sender is dropped.
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
