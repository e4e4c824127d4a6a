//! A value that comes later, once: set by one side, awaited or waited for by the other. Needs no runtime.

use crate::sync::{Arc, Mutex};
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Shared by the two sides.
#[derive(Debug)]
pub(crate) struct Promise<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    /// Nobody has asked yet, or whoever asked last is to be woken.
    Open(Option<Waker>),
    Kept(T),
    /// The value was handed out.
    Spent,
}

impl<T> Promise<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::Open(None)))
    }

    /// Sets the value and wakes who waits for it, which may run code of the user's: no lock is held then. Only the
    /// first value counts; a later one comes back.
    pub(crate) fn keep(&self, value: T) -> Result<(), T> {
        let waker = {
            let mut state = self.0.lock();
            match &mut *state {
                State::Open(waker) => {
                    let waker = waker.take();
                    *state = State::Kept(value);
                    waker
                }
                State::Kept(_) | State::Spent => return Err(value),
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Whether the value is there, or was handed out.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(*self.0.lock(), State::Open(_))
    }

    /// The value, if it is there; else `cx` is woken when it comes. Pending for ever once the value was handed out.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        // Cloning or dropping a waker may run code of the user's, which may come back here: no lock is held then. An
        // unchanged waker need not be cloned again.
        let mut clone = None;
        loop {
            let mut state = self.0.lock();
            match &mut *state {
                State::Open(Some(known)) if known.will_wake(cx.waker()) => return Poll::Pending,
                State::Open(place) => {
                    if let Some(clone) = clone.take() {
                        let old = place.replace(clone);
                        drop(state);
                        drop(old);
                        return Poll::Pending;
                    }
                }
                other => {
                    return match mem::replace(other, State::Spent) {
                        State::Kept(value) => Poll::Ready(value),
                        _ => Poll::Pending,
                    };
                }
            }
            drop(state);
            clone = Some(cx.waker().clone());
        }
    }

    /// Nobody will ask for the value any more: it is refused if it comes, and wakes nobody.
    pub(crate) fn forget(&self) {
        let forgotten = mem::replace(&mut *self.0.lock(), State::Spent);
        drop(forgotten);
    }
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` to its end on this thread, which sleeps meanwhile.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // A wake-up before this is kept; one without cause only polls again.
            Poll::Pending => thread::park(),
        }
    }
}
