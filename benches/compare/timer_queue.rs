//! What a timer alone must offer.

/// A number of milliseconds since an origin.
pub(crate) type Tick = u64;

/// A timer without a thread, a lock or a clock: it is told the time.
///
/// Ground rules, the same for all: a value fires in the first advance that reaches its deadline
/// (or up to [`LATE`](Self::LATE) ticks after), never before, and once.
pub(crate) trait TimerQueue<V>: Sized {
    /// Its name in the tables and for `--candidates`.
    const NAME: &'static str;

    /// By how many ticks it may be late.
    const LATE: Tick = 0;

    /// The only timeout that it takes, where it is not a queue for any deadline.
    const ONE_TIMEOUT: Option<Tick> = None;

    /// What stops a timer that was started.
    type Token;

    /// At tick 0.
    fn new() -> Self;

    /// Runs `body` with a new one, where its callers would run.
    fn with<T>(body: impl FnOnce(Self) -> T) -> T {
        body(Self::new())
    }

    /// `deadline` may have passed: then it fires in the next advance.
    fn start(&mut self, value: V, deadline: Tick) -> Self::Token;

    /// Harmless if the timer has fired.
    fn stop(&mut self, token: Self::Token);

    /// Lets the token of a timer go that has fired.
    fn release(&mut self, token: Self::Token) {
        drop(token);
    }

    /// Moves on to `now`, never back, and passes the expired timers to `fire`.
    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V));

    /// Started and neither stopped nor fired.
    fn len(&self) -> usize;

    /// Nanoseconds of an advance that the harness causes, and a user would not pay.
    fn overhead() -> f64 {
        0.0
    }
}

/// A timer queue that a thread can sleep for.
pub(crate) trait Sleepable<V>: TimerQueue<V> {
    /// The tick by which the next advance must come, `None` without timers.
    fn next_wakeup(&mut self) -> Option<Tick>;
}
