//! A timer queue behind a mutex, with a thread that sleeps until its next wake-up: what one writes
//! around a timer that is told the time.
//!
//! The queue counts milliseconds since it was made.

use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::timer_and_map::{Entry, Timer};
use crate::timer_queue::{Sleepable, Tick};

/// `Q` is a queue of [`Entry`]s, `T` its token, which these keep.
pub(crate) struct Driven<T, Q> {
    shared: Arc<Shared<Q>>,
    thread: Option<JoinHandle<()>>,
    token: PhantomData<fn() -> T>,
}

/// A queue of what [`TimerAndMap`](super::timer_and_map::TimerAndMap) parks.
pub(crate) trait Queue<T>: Sleepable<Arc<Entry<T>>, Token = T> + Send + 'static {}

impl<T, Q: Sleepable<Arc<Entry<T>>, Token = T> + Send + 'static> Queue<T> for Q {}

struct Shared<Q> {
    origin: Instant,
    state: Mutex<State<Q>>,
    earlier: Condvar,
}

struct State<Q> {
    queue: Q,
    /// The tick that the thread sleeps until; an earlier timer must wake it.
    sleeps_until: Tick,
    stopping: bool,
}

impl<Q> Shared<Q> {
    fn run<T>(&self, expire: impl Fn(&Arc<Entry<T>>))
    where
        Q: Queue<T>,
    {
        let mut due = Vec::new();
        let mut state = self.state.lock();
        while !state.stopping {
            let now = elapsed_ticks(self.origin.elapsed());
            state.queue.advance(now, &mut |entry| due.push(entry));
            if due.is_empty() {
                self.sleep(&mut state);
            } else {
                MutexGuard::unlocked(&mut state, || {
                    due.drain(..).for_each(|entry| expire(&entry))
                });
            }
        }
    }

    fn sleep<T>(&self, state: &mut MutexGuard<'_, State<Q>>)
    where
        Q: Queue<T>,
    {
        state.sleeps_until = state.queue.next_wakeup().unwrap_or(Tick::MAX);
        if state.sleeps_until == Tick::MAX {
            self.earlier.wait(state);
        } else {
            let wakes = self.origin + Duration::from_millis(state.sleeps_until);
            self.earlier.wait_until(state, wakes);
        }
        // Awake: it will look at every timer before it sleeps again, so no wake-up is needed.
        state.sleeps_until = 0;
    }
}

/// Whole ticks in `span`: what has certainly passed.
fn elapsed_ticks(span: Duration) -> Tick {
    Tick::try_from(span.as_millis()).expect("an uptime below 500 million years")
}

impl<T: Send + 'static, Q: Queue<T>> Timer for Driven<T, Q> {
    const NAME: &'static str = Q::NAME;

    type Token = T;

    fn new(expire: impl Fn(&Arc<Entry<T>>) + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            state: Mutex::new(State {
                queue: Q::new(),
                sleeps_until: 0,
                stopping: false,
            }),
            earlier: Condvar::new(),
        });
        let body = {
            let shared: Arc<Shared<Q>> = Arc::clone(&shared);
            move || shared.run(expire)
        };
        let thread = thread::Builder::new().name("timer".to_owned()).spawn(body);
        let thread = thread.expect("a thread can start");
        Self {
            shared,
            thread: Some(thread),
            token: PhantomData,
        }
    }

    fn start(&self, entry: &Arc<Entry<T>>, deadline: Instant) -> T {
        // One tick more than has fully passed by the deadline: never early.
        let due = elapsed_ticks(deadline - self.shared.origin) + 1;
        let mut state = self.shared.state.lock();
        let token = state.queue.start(Arc::clone(entry), due);
        if due < state.sleeps_until {
            self.shared.earlier.notify_one();
        }
        token
    }

    fn stop(&self, _: &Entry<T>, token: T) {
        self.shared.state.lock().queue.stop(token);
    }

    fn len(&self) -> usize {
        self.shared.state.lock().queue.len()
    }
}

impl<T, Q> Drop for Driven<T, Q> {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.earlier.notify_one();
        if let Some(thread) = self.thread.take() {
            thread
                .join()
                .expect("the timer's thread ends without a panic");
        }
    }
}
