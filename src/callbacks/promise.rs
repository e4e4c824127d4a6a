//! Promises: values that one side sets once, and that the other side awaits or blocks for. Needs no async runtime.
use crate::callbacks::trampoline::Trampoline;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A value, and the waker of the task that polled it last.
pub(crate) struct WakeCell<V> {
    contents: Mutex<Contents<V>>,
    /// A guess: whether the next poll will find the value not ready, and so will leave a waker. Such a poll clones its
    /// waker before it takes the lock.
    ///
    /// ORDERING: Relaxed on all accesses: a wrong guess only costs time. The poll takes the lock a second time, or has
    /// cloned a waker in vain.
    will_wait: AtomicBool,
}

struct Contents<V> {
    value: V,
    /// The waker of the task that has polled last, and has found the value not ready.
    waker: Option<Waker>,
}

/// What a poll finds when it reads the value.
pub(crate) enum Readiness<R> {
    Ready(R),
    /// The value is not ready yet.
    NotYet,
    /// The value will never be ready.
    Never,
}

impl<V> WakeCell<V> {
    pub(crate) fn new(value: V) -> Self {
        Self {
            contents: Mutex::new(Contents { value, waker: None }),
            will_wait: AtomicBool::new(true),
        }
    }

    /// Calls `change` with the value, under the lock. `change` must not run user code: user code might call a method of
    /// this `WakeCell`, and wait for the lock for ever. `change` returns the result, and whether to wake the waiting
    /// task. The task is woken after the lock is released.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut V) -> (R, bool)) -> R {
        let (result, waker) = {
            let mut contents = self.contents.lock();
            let (result, wake) = change(&mut contents.value);
            // ORDERING: Relaxed: by `will_wait`, the next poll only guesses whether it will need a clone of its waker.
            self.will_wait.store(false, Ordering::Relaxed);
            (result, contents.waker.take_if(|_| wake))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Calls `read` with the value, under the lock. `read` must not run user code: user code might call a method of
    /// this `WakeCell`, and wait for the lock for ever. If the value is not ready, the task of `cx` is the one that
    /// will be woken, and replaces the task that waited before.
    pub(crate) fn poll<R>(
        &self,
        cx: &Context<'_>,
        mut read: impl FnMut(&mut V) -> Readiness<R>,
    ) -> Poll<R> {
        // Cloning or dropping a waker may run user code, and that code may call this method again. So the lock is not
        // held during either. No clone is needed if the value is ready, or if the waker of this task is stored already.
        // Whether this is so can only be seen under the lock, and then it is too late for a clone. So guess before the
        // lock is taken.
        //
        // ORDERING: Relaxed: `will_wait` is only a guess.
        let will_wait = self.will_wait.load(Ordering::Relaxed);
        let mut clone = will_wait.then(|| cx.waker().clone());
        loop {
            let mut contents = self.contents.lock();
            match read(&mut contents.value) {
                Readiness::Ready(result) => {
                    let will_wait = contents.waker.is_none();
                    // ORDERING: Relaxed: `will_wait` is only a guess.
                    self.will_wait.store(will_wait, Ordering::Relaxed);
                    return Poll::Ready(result);
                }
                Readiness::Never => return Poll::Pending,
                Readiness::NotYet => {}
            }
            let known = contents.waker.as_ref();
            if known.is_some_and(|known| known.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(clone) = clone.take() {
                // ORDERING: Relaxed: `will_wait` is only a guess.
                self.will_wait.store(false, Ordering::Relaxed);
                let old = contents.waker.replace(clone);
                drop(contents);
                drop(old);
                return Poll::Pending;
            }
            drop(contents);
            clone = Some(cx.waker().clone());
        }
    }

    /// Replaces the value, and removes the waker, so that the waiting task is not woken. Returns the old value and the
    /// waker: their destructors may be user code, which must not run under the lock.
    pub(crate) fn close(&self, value: V) -> (V, Option<Waker>) {
        let mut contents = self.contents.lock();
        let value = std::mem::replace(&mut contents.value, value);
        (value, contents.waker.take())
    }
}

debug_fields!([V] WakeCell<V>, "WakeCell", |it|);

/// A value that one side sets once, and that a task of the other side awaits. Both sides share the promise, for example
/// in an `Arc`. One side [keeps](Self::keep) the promise: for example an operation that ends, or a callback of a
/// tracker. The other side is a future of your own, which [polls](Self::poll) the promise, and is ready when the
/// promise is kept.
///
/// None of your code runs under the promise's lock: wakers are cloned, woken and dropped without the lock. A value or
/// waker that is not wanted any more is returned to you. You drop it at a place where its destructor may run.
///
/// ```
/// use request_purgatory::future::{Promise, block_on};
/// use std::future::poll_fn;
/// use std::sync::Arc;
///
/// let promise = Arc::new(Promise::new());
/// let keeps = promise.clone();
/// std::thread::spawn(move || keeps.keep("a value"));
/// assert_eq!(block_on(poll_fn(|cx| promise.poll(cx))), "a value");
/// assert_eq!(promise.keep("another"), Err("another"));
/// ```
pub struct Promise<T>(WakeCell<Promised<T>>);

pub(crate) enum Promised<T> {
    /// There is no value yet.
    Open,
    /// What will keep the promise lies here until its turn comes. Until then polls are pending. See
    /// [`Promise::hand_over`].
    Untold(Box<dyn Untold>),
    Kept(T),
    /// The task has got the value, or the promise was closed.
    Spent,
}

/// What will keep a promise, for example a predicate with the value that it has found. See [`Promise::hand_over`].
pub(crate) trait Untold: Send {
    /// [Keeps](Promise::keep) the promise. Before that, drops what must be gone when the task is woken.
    fn tell(self: Box<Self>);
}

impl<T> Promise<T> {
    /// A promise without a value.
    pub fn new() -> Self {
        Self(WakeCell::new(Promised::Open))
    }

    /// Sets the value, and wakes the task that waits for it. The waker runs on this thread, with no lock held.
    ///
    /// # Errors
    /// Returns `value` if the promise has had a value already, or was [closed](Self::close).
    pub fn keep(&self, value: T) -> Result<(), T> {
        self.0.change(|promised| match promised {
            Promised::Open => {
                *promised = Promised::Kept(value);
                (Ok(()), true)
            }
            Promised::Untold(_) | Promised::Kept(_) | Promised::Spent => (Err(value), false),
        })
    }

    /// Stores what will keep the promise later. Until it is [taken back](Self::take_back), polls are pending. If the
    /// other side [closes](Self::close) the promise before, that side gets it, and drops it. So the other side need not
    /// wait until this thread has time to keep the promise.
    ///
    /// Returns `untold` as `Err` if the promise has had a value already, or was closed.
    pub(crate) fn hand_over<U: Untold + 'static>(&self, untold: Box<U>) -> Result<(), Box<U>> {
        self.0.change(|promised| match promised {
            Promised::Open => {
                *promised = Promised::Untold(untold);
                (Ok(()), false)
            }
            Promised::Untold(_) | Promised::Kept(_) | Promised::Spent => (Err(untold), false),
        })
    }

    /// Takes back what was [handed over](Self::hand_over). `None` if the promise was closed meanwhile.
    pub(crate) fn take_back(&self) -> Option<Box<dyn Untold>> {
        self.0
            .change(|promised| match mem::replace(promised, Promised::Open) {
                Promised::Untold(untold) => (Some(untold), false),
                other => {
                    *promised = other;
                    (None, false)
                }
            })
    }

    /// The value, if it was set. Otherwise the poll is pending, and the task of `cx` is woken when the value is set.
    /// Only the task that polled last is woken. After the value was handed out, or after a [`close`](Self::close),
    /// every poll is pending.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        self.0.poll(cx, |promised| match promised {
            Promised::Open | Promised::Untold(_) => Readiness::NotYet,
            Promised::Kept(_) | Promised::Spent => match mem::replace(promised, Promised::Spent) {
                Promised::Kept(value) => Readiness::Ready(value),
                Promised::Open | Promised::Untold(_) | Promised::Spent => Readiness::Never,
            },
        })
    }

    /// Closes the promise: from now on [`keep`](Self::keep) returns every value as an error, and no task is woken.
    /// Returns the value and the waker that were there.
    pub fn close(&self) -> (Option<T>, Option<Waker>) {
        match self.close_promised() {
            (Promised::Kept(value), waker) => (Some(value), waker),
            // Only the futures of this crate have an `Untold`, and they call `close_promised`.
            (Promised::Open | Promised::Untold(_) | Promised::Spent, waker) => (None, waker),
        }
    }

    /// [Closes](Self::close) the promise, and returns its former contents and the waker. The contents may be what was
    /// [handed over](Self::hand_over). The destructors of the contents and of the waker may be user code.
    pub(crate) fn close_promised(&self) -> (Promised<T>, Option<Waker>) {
        self.0.close(Promised::Spent)
    }
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self::new()
    }
}

debug_fields!([T] Promise<T>, "Promise", |it|);

/// Runs `future` to its end on this thread. Calls `wait` again and again while the future is pending and not woken. Each
/// wake-up of the future calls `also`, and unparks this thread: one of the two must make `wait` return.
pub(crate) fn run_future<F: Future, W: Fn() + Send + Sync + 'static>(
    future: F,
    also: W,
    wait: impl Fn(&Waking<W>),
) -> F::Output {
    let waking = Arc::new(Waking {
        woken: AtomicBool::new(false),
        also,
        thread: thread::current(),
    });
    let waker = waking.clone().into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // ORDERING: Acquire pairs with the Release in `wake`: the poll that follows sees what the waking thread did
        // before. A wake-up that comes after this swap makes `wait` return later, and then another swap sees it.
        while !waking.woken.swap(false, Ordering::Acquire) {
            wait(&waking);
        }
    }
}

/// The waker of a future that a thread runs in [`run_future`].
pub(crate) struct Waking<W> {
    /// Set by each wake-up. The token of [`thread::park`] does not suffice: code that blocks inside the poll, for
    /// example another `block_on` or a channel, may use it up.
    woken: AtomicBool,
    also: W,
    thread: Thread,
}

impl<W> Waking<W> {
    /// Whether the future was woken since it was polled last.
    pub(crate) fn is_woken(&self) -> bool {
        // ORDERING: Relaxed: by this answer the caller only decides how long to wait. Before the poll, `run_future`
        // acquires.
        self.woken.load(Ordering::Relaxed)
    }
}

impl<W: Fn() + Send + Sync + 'static> Wake for Waking<W> {
    fn wake(self: Arc<Self>) {
        // ORDERING: Release pairs with the Acquire in `run_future`: the poll that follows sees what this thread did
        // before.
        self.woken.store(true, Ordering::Release);
        (self.also)();
        self.thread.unpark();
    }
}

/// Runs `future` to its end on this thread, which sleeps while the future is pending. For programs without an async
/// runtime.
///
/// # Panics
/// If the caller is inside a callback of the library (a predicate, `try_complete`, `on_complete`, or the closure
/// `give_back` of a [`take`](crate::Purgatory::take)). The future might wait for a call that only this thread can run,
/// after the callback has returned. Also passes on a panic of `future`.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !Trampoline::in_progress(),
        "a callback of the library must not block in `block_on`"
    );
    run_future(future, || {}, |_| thread::park())
}
