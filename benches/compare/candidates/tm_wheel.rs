//! The crate `tm-wheel`, the fastest of today's Rust wheels, behind a mutex, with a thread that
//! sleeps until its next wake-up.
//!
//! The wheel counts milliseconds since it was made, in 6 levels of 64.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tm_wheel::{TimerDriver, TimerHandle};

use super::timer_and_map::{Entry, Timer, TimerAndMap};

pub(crate) type TmWheelAndMap = TimerAndMap<TmWheelTimer>;

type Parked = Arc<Entry<TimerHandle>>;

const LEVELS: usize = 6;
const SLOTS: usize = 64;

pub(crate) struct TmWheelTimer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    origin: Instant,
    state: Mutex<State>,
    earlier: Condvar,
}

struct State {
    wheel: TimerDriver<Parked, LEVELS, SLOTS>,
    /// The tick that the thread sleeps until; an earlier timer must wake it.
    sleeps_until: u64,
    stopping: bool,
}

impl State {
    /// The tick at which the wheel must be advanced next, `u64::MAX` if never.
    ///
    /// `nearest_wakeup` looks at the lowest level first and oversleeps a timer that a higher level
    /// has not handed down yet, but which is due before the nearest one below. Waking at every
    /// turn of the lowest level hands such timers down in time.
    fn next_wakeup(&mut self) -> u64 {
        let turn = SLOTS as u64;
        match self.wheel.nearest_wakeup() {
            Some(nearest) => nearest.get().min((self.wheel.now() / turn + 1) * turn),
            None => u64::MAX,
        }
    }
}

impl Shared {
    fn run(&self, expire: impl Fn(&Parked)) {
        let mut due = Vec::new();
        let mut state = self.state.lock();
        while !state.stopping {
            let now = elapsed_ticks(self.origin.elapsed());
            due.extend(state.wheel.advance_to(now));
            if due.is_empty() {
                self.sleep(&mut state);
            } else {
                MutexGuard::unlocked(&mut state, || {
                    due.drain(..).for_each(|entry| expire(&entry))
                });
            }
        }
    }

    fn sleep(&self, state: &mut MutexGuard<'_, State>) {
        state.sleeps_until = state.next_wakeup();
        if state.sleeps_until == u64::MAX {
            self.earlier.wait(state);
        } else {
            let wakes = self.origin + Duration::from_millis(state.sleeps_until);
            self.earlier.wait_until(state, wakes);
        }
        // Awake: it will look at every timer before it sleeps again, so nobody need wake it.
        state.sleeps_until = 0;
    }
}

/// Whole ticks in `span`: what has certainly passed.
fn elapsed_ticks(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("an uptime below 500 million years")
}

impl Timer for TmWheelTimer {
    const NAME: &'static str = "tm_wheel";

    type Token = TimerHandle;

    fn new(expire: impl Fn(&Parked) + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            state: Mutex::new(State {
                wheel: TimerDriver::default(),
                sleeps_until: 0,
                stopping: false,
            }),
            earlier: Condvar::new(),
        });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(expire)
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    fn start(&self, entry: &Parked, deadline: Instant) -> TimerHandle {
        // One tick more than has fully passed by the deadline: never early.
        let due = elapsed_ticks(deadline - self.shared.origin) + 1;
        let mut state = self.shared.state.lock();
        // The wheel panics on a time in its past, which a thread delayed right here could bring.
        let due = due.max(state.wheel.now() + 1);
        let token = state.wheel.insert(Arc::clone(entry), due);
        if due < state.sleeps_until {
            self.shared.earlier.notify_one();
        }
        token
    }

    fn stop(&self, _: &Entry<TimerHandle>, token: TimerHandle) {
        self.shared.state.lock().wheel.remove(token);
    }

    fn len(&self) -> usize {
        self.shared.state.lock().wheel.len()
    }
}

impl Drop for TmWheelTimer {
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
