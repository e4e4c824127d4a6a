//! A value that one side sets once, and that the other side awaits or blocks for. Needs no runtime.
#![allow(unreachable_pub, reason = "the models see it")]

use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Trampoline, drop_user_value};
use crate::sync::{Arc, Mutex};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A value, and the waker of the task that polled it last.
pub(crate) struct WakeCell<V>(Mutex<Contents<V>>);

struct Contents<V> {
    value: V,
    /// Of a task that found nothing to do yet.
    waker: Option<Waker>,
}

/// What a task finds when it reads the value.
pub(crate) enum Readiness<R> {
    Ready(R),
    /// Not yet.
    NotYet,
    /// It will never be ready.
    Never,
}

impl<V> WakeCell<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Mutex::new(Contents { value, waker: None }))
    }

    /// Changes the value under the lock, so `change` must run no code of the user's. If it says so, wakes the task that
    /// waits, with no lock held.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut V) -> (R, bool)) -> R {
        let (result, waker) = {
            let mut contents = self.0.lock();
            let (result, wake) = change(&mut contents.value);
            (result, contents.waker.take_if(|_| wake))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Reads the value under the lock, so `read` must run no code of the user's. If it is not ready, the task of `cx` takes
    /// the place of the task that waited before.
    pub(crate) fn poll<R>(
        &self,
        cx: &Context<'_>,
        mut read: impl FnMut(&mut V) -> Readiness<R>,
    ) -> Poll<R> {
        // Cloning or dropping a waker may run code of the user's, which may come back here: no lock is held then. An
        // unchanged waker need not be cloned again.
        let mut clone = None;
        loop {
            let mut contents = self.0.lock();
            match read(&mut contents.value) {
                Readiness::Ready(result) => return Poll::Ready(result),
                Readiness::Never => return Poll::Pending,
                Readiness::NotYet => {}
            }
            let known = contents.waker.as_ref();
            if known.is_some_and(|known| known.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(clone) = clone.take() {
                let old = contents.waker.replace(clone);
                drop(contents);
                drop(old);
                return Poll::Pending;
            }
            drop(contents);
            clone = Some(cx.waker().clone());
        }
    }

    /// Sets the value, and forgets the task that waits. Returns the old value and the waker, because the destructors of
    /// both may be the user's.
    pub(crate) fn close(&self, value: V) -> (V, Option<Waker>) {
        let mut contents = self.0.lock();
        let value = std::mem::replace(&mut contents.value, value);
        (value, contents.waker.take())
    }
}

debug_fields!([V] WakeCell<V>, "WakeCell", |it|);

/// Shared by the two sides.
#[derive(Debug)]
pub struct Promise<T>(WakeCell<Promised<T>>);

#[derive(Debug)]
pub enum Promised<T> {
    /// There is no value yet.
    Open,
    /// The value is there, and is told later: see [`Promise::hand_over`].
    Untold(Untold<T>),
    Kept(T),
    /// The value was handed out, or is not wanted any more.
    Spent,
}

/// A value that is not told yet. In a box, so that a promise is not larger for it: most values are told at once.
pub struct Untold<T>(Box<UntoldParts<T>>);

struct UntoldParts<T> {
    /// Dropped before the value is told: its destructors may be the user's, and take long.
    before: Before,
    /// Until it is told, or dropped.
    value: Option<T>,
}

/// What is dropped before a value is told.
pub type Before = Option<Box<dyn Any + Send>>;

impl<T> Drop for Untold<T> {
    /// Each by itself: of two destructors that panic together the process would die.
    fn drop(&mut self) {
        let mut panics = Panics::default();
        panics.catch(|| drop(self.0.before.take()));
        panics.catch(|| drop(self.0.value.take()));
        panics.resume();
    }
}

impl<T> fmt::Debug for Untold<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Untold")
    }
}

impl<T> Promise<T> {
    pub fn new() -> Self {
        Self(WakeCell::new(Promised::Open))
    }

    /// Sets the value and wakes the task that waits for it, with no lock held: a waker may be the user's code. Only the
    /// first value counts; a later one is returned.
    pub fn keep(&self, value: T) -> Result<(), T> {
        self.0.change(|promised| match promised {
            Promised::Open => {
                *promised = Promised::Kept(value);
                (Ok(()), true)
            }
            Promised::Untold(_) | Promised::Kept(_) | Promised::Spent => (Err(value), false),
        })
    }

    /// Leaves the value here until [`tell`](Self::tell) is called: so that the other side, if it [closes](Self::close)
    /// before, need not wait until that call has its turn in some queue. `make` makes of `source` the value, and what is to
    /// be dropped before it is told. It runs under the lock, so it must run no code of the user's. `source` comes back if
    /// there is a value already, or none is wanted.
    pub fn hand_over<S>(&self, source: S, make: impl FnOnce(S) -> (T, Before)) -> Result<(), S> {
        self.0.change(|promised| match promised {
            Promised::Open => {
                let (value, before) = make(source);
                let value = Some(value);
                *promised = Promised::Untold(Untold(Box::new(UntoldParts { before, value })));
                (Ok(()), false)
            }
            Promised::Untold(_) | Promised::Kept(_) | Promised::Spent => (Err(source), false),
        })
    }

    /// The value, if there is one; else `cx` is woken when it comes. After the value was handed out, every poll is
    /// pending.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        self.0.poll(cx, |promised| match promised {
            Promised::Open | Promised::Untold(_) => Readiness::NotYet,
            Promised::Kept(_) | Promised::Spent => match mem::replace(promised, Promised::Spent) {
                Promised::Kept(value) => Readiness::Ready(value),
                Promised::Open | Promised::Untold(_) | Promised::Spent => Readiness::Never,
            },
        })
    }

    /// From now on each value is handed back, and no task is woken. Returns the value and the waker that were there: all
    /// destructors may be the user's.
    pub fn close(&self) -> (Promised<T>, Option<Waker>) {
        self.0.close(Promised::Spent)
    }
}

impl<T: 'static> Promise<T> {
    /// Tells the value that was [handed over](Self::hand_over), if nobody has closed the promise meanwhile. The caller is
    /// inside a call of the library.
    pub fn tell(&self) {
        let untold = self
            .0
            .change(|promised| match mem::replace(promised, Promised::Open) {
                Promised::Untold(untold) => (Some(untold), false),
                other => {
                    *promised = other;
                    (None, false)
                }
            });
        if let Some(mut untold) = untold {
            let mut panics = Panics::default();
            panics.catch(|| drop(untold.0.before.take()));
            if let Some(value) = untold.0.value.take() {
                // If it was closed since, the value is not wanted.
                panics.catch(|| drop_user_value(self.keep(value).err()));
            }
            panics.resume();
        }
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
