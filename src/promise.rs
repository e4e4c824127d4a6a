//! A value that one side sets once, and that the other side awaits or blocks for. Needs no runtime.

mod wake_cell;

pub(crate) use wake_cell::{Look, WakeCell};

use crate::sync::Arc;
use crate::trampoline::Trampoline;
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Shared by the two sides.
#[derive(Debug)]
pub(crate) struct Promise<T>(WakeCell<State<T>>);

#[derive(Debug)]
pub(crate) enum State<T> {
    /// There is no value yet.
    Open,
    Kept(T),
    /// The value was handed out, or is not wanted any more.
    Spent,
}

impl<T> Promise<T> {
    pub(crate) fn new() -> Self {
        Self(WakeCell::new(State::Open))
    }

    /// Sets the value and wakes the task that waits for it, with no lock held: a waker may be the user's code. Only the
    /// first value counts; a later one is returned.
    pub(crate) fn keep(&self, value: T) -> Result<(), T> {
        self.0.change(|state| match state {
            State::Open => {
                *state = State::Kept(value);
                (Ok(()), true)
            }
            State::Kept(_) | State::Spent => (Err(value), false),
        })
    }

    /// The value, if there is one; else `cx` is woken when it comes. After the value was handed out, every poll is
    /// pending.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        self.0.poll(cx, |state| match state {
            State::Open => Look::Wait,
            State::Kept(_) | State::Spent => match mem::replace(state, State::Spent) {
                State::Kept(value) => Look::Ready(value),
                State::Open | State::Spent => Look::Never,
            },
        })
    }

    /// From now on a value is refused, and no task is woken. Returns the value and the waker that were there: both
    /// destructors may be the user's.
    pub(crate) fn close(&self) -> (State<T>, Option<Waker>) {
        self.0.close(State::Spent)
    }
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` to its end on this thread, which sleeps meanwhile: for programs without an async runtime.
///
/// # Panics
/// If it is called from a callback of the library (a predicate, `try_complete`, `on_complete`, the closure that gives a
/// taken value back): the call that ends the future may have to run on the thread that is blocked. A panic of `future`
/// goes on.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !Trampoline::in_progress(),
        "a callback of the library must not block in `block_on`"
    );
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
