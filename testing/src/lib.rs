//! What tests, benchmarks and tools share: an operation made of closures, one that watches itself, a watchdog, what the
//! system says of a process, an allocator that counts. Not published.

pub mod allocated;
pub mod bell;
#[cfg(feature = "strategies")]
pub mod expiries;
#[cfg(feature = "strategies")]
pub mod hashing;
pub mod keys;
pub mod noise;
pub mod patient;
pub mod process;
#[cfg(all(unix, feature = "programs"))]
pub mod program;
#[cfg(feature = "strategies")]
pub mod spans;
pub mod stall;

use process::Process;
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, purgatory::Builder, purgatory::Cause,
    purgatory::RejectReason, purgatory::Rejected, threads::Reaper, time::Clock, time::ManualClock,
    time::Timestamp, time::WakeFn,
};
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any test here waits for anything.
pub const NEVER_IN_A_TEST: Duration = Duration::from_secs(3_600);
/// What a watchdog allows unless a test says otherwise: generous, for loaded machines.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A clock that panics while it is broken.
#[derive(Clone, Default)]
pub struct FragileClock {
    is_broken: Arc<AtomicBool>,
    /// What it says otherwise.
    pub time: ManualClock,
}

impl FragileClock {
    pub fn set_broken(&self, broken: bool) {
        self.is_broken.store(broken, Ordering::SeqCst);
    }
}

impl Clock for FragileClock {
    fn now(&self) -> Timestamp {
        if self.is_broken.load(Ordering::SeqCst) {
            std::panic::panic_any("intended");
        }
        self.time.now()
    }
}

/// What an executor is given.
pub type Job = Box<dyn FnOnce() + Send>;

/// A parked operation made of closures.
pub struct Op<K = u64> {
    timeout: Duration,
    arrival: Option<Timestamp>,
    more: Option<Duration>,
    try_complete: Box<dyn FnMut(Option<Cause<'_, K>>) -> bool + Send>,
    end: Option<Box<dyn FnOnce(Completion) + Send>>,
    key: PhantomData<fn() -> K>,
}

impl<K> Op<K> {
    /// Never completes by itself, and does nothing at its end.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            arrival: None,
            more: None,
            try_complete: Box::new(|_| false),
            end: None,
            key: PhantomData,
        }
    }

    /// It arrived then.
    pub fn arrived(mut self, at: Timestamp) -> Self {
        self.arrival = Some(at);
        self
    }

    /// At its deadline, it asks for so much more time, once.
    pub fn put_off_by(mut self, more: Duration) -> Self {
        self.more = Some(more);
        self
    }

    /// Its `try_complete`.
    pub fn when(mut self, mut try_complete: impl FnMut() -> bool + Send + 'static) -> Self {
        self.try_complete = Box::new(move |_| try_complete());
        self
    }

    /// Its `try_complete_for`.
    pub fn told(mut self, mut examine: impl FnMut(Cause<'_, K>) -> bool + Send + 'static) -> Self {
        self.try_complete = Box::new(move |cause| examine(cause.expect("it is told the cause")));
        self
    }

    /// Its `on_complete`.
    pub fn then(mut self, end: impl FnOnce(Completion) + Send + 'static) -> Self {
        self.end = Some(Box::new(end));
        self
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> DelayedOperation for Op<K> {
    type Key = K;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn arrival(&self) -> Option<Timestamp> {
        self.arrival
    }

    fn try_complete(&mut self) -> bool {
        (self.try_complete)(None)
    }

    fn try_complete_for(&mut self, cause: Cause<'_, K>) -> bool {
        if let Some(more) = self.more.take_if(|_| cause.is_deadline()) {
            cause.reschedule(more);
        }
        (self.try_complete)(Some(cause))
    }

    fn on_complete(mut self, completion: Completion) {
        if let Some(end) = self.end.take() {
            end(completion);
        }
    }
}

impl<K> fmt::Debug for Op<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").finish_non_exhaustive()
    }
}

/// What one operation goes through, seen from outside. Violations are counted, not asserted: the library catches
/// panics of callbacks.
#[derive(Debug, Default)]
pub struct Probe {
    ready: AtomicBool,
    inside: AtomicBool,
    examinations: AtomicUsize,
    ends: AtomicUsize,
    violations: AtomicUsize,
    ending: Mutex<Option<Completion>>,
}

impl Probe {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The operation that this probe watches.
    pub fn op<K>(self: &Arc<Self>, timeout: Duration) -> Op<K> {
        let (examining, ending) = (self.clone(), self.clone());
        Op::new(timeout)
            .when(move || examining.examine(|| examining.is_ready()))
            .then(move |completion| ending.end(completion))
    }

    /// For operations with a hook of their own: counts one `try_complete`.
    pub fn examine(&self, decide: impl FnOnce() -> bool) -> bool {
        self.enter();
        self.examinations.fetch_add(1, Ordering::SeqCst);
        let answer = decide();
        self.leave();
        answer
    }

    /// For operations with a hook of their own: counts one `on_complete`.
    pub fn end(&self, completion: Completion) {
        self.enter();
        self.ends.fetch_add(1, Ordering::SeqCst);
        *lock(&self.ending) = Some(completion);
        self.leave();
    }

    fn enter(&self) {
        let overlap = self.inside.swap(true, Ordering::SeqCst);
        let ended = self.ends.load(Ordering::SeqCst) > 0;
        if overlap || ended {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn leave(&self) {
        self.inside.store(false, Ordering::SeqCst);
    }

    /// From now on it can complete.
    pub fn satisfy(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    pub fn examinations(&self) -> usize {
        self.examinations.load(Ordering::SeqCst)
    }

    /// How it ended, if it did. Fails if its hooks overlapped or if any ran after the end.
    pub fn ending(&self) -> Option<Completion> {
        let violations = self.violations.load(Ordering::SeqCst);
        assert_eq!(violations, 0, "hooks overlapped or ran after the end");
        assert!(self.ends.load(Ordering::SeqCst) <= 1, "ended twice");
        *lock(&self.ending)
    }
}

/// Locks, whatever a panicking test left behind.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A purgatory without threads on a clock moved by hand.
pub fn manual<K: Eq + Hash + Clone + Send + Sync + 'static>(
    configure: impl FnOnce(Builder<Purgatory<Op<K>>>) -> Builder<Purgatory<Op<K>>>,
) -> (Purgatory<Op<K>>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Purgatory::builder("manual")
        .clock(clock.clone())
        .reaper(Reaper::Manual);
    let purgatory = configure(builder).build().expect("no threads to refuse");
    (purgatory, clock)
}

/// Why it was refused, if it was.
pub fn refusal<T, Op>(result: &Result<T, Rejected<Op>>) -> Option<RejectReason> {
    result.as_ref().err().map(Rejected::reason)
}

/// Runs `test` on a thread with a stack of `kib` KiB.
pub fn on_a_stack_of<T: Send + 'static>(
    kib: usize,
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    let small = thread::Builder::new().stack_size(kib * 1_024).spawn(test);
    let small = small.expect("one thread more");
    small.join().expect("the stack suffices")
}

/// Runs `test` on a thread of its own, and fails if that has not returned in time: `limit`, or `PATIENCE_TIMES` as long
/// where something slows the tests down (`.ci/nightly`).
pub fn within<T: Send + 'static>(limit: Duration, test: impl FnOnce() -> T + Send + 'static) -> T {
    let limit = limit * patience_times();
    let (done, finished) = channel();
    let running = thread::spawn(move || {
        let result = test();
        // The watchdog may have given up.
        let _ = done.send(());
        result
    });
    match finished.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("still not done after {limit:?}: it hangs"),
        // It is done, or has panicked.
        _ => match running.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// By how much slower than usual everything may be (`PATIENCE_TIMES`): under a sanitizer, say.
pub fn patience_times() -> u32 {
    let times = std::env::var("PATIENCE_TIMES").map(|times| times.parse().expect("a number"));
    times.unwrap_or(1)
}

/// Waits until `condition` holds. Fails if that takes too long.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    found(what, || condition().then_some(()));
}

/// Looks until there is something. Fails if that takes too long.
pub fn found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let limit = PATIENCE / 2 * patience_times();
        assert!(start.elapsed() < limit, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Counts `n` arrivals.
#[derive(Debug, Default)]
pub struct Tally(AtomicU64);

impl Tally {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// A wake function that is counted.
    pub fn wake_fn(self: &Arc<Self>) -> WakeFn {
        let tally = self.clone();
        WakeFn::new(move || {
            tally.add();
            true
        })
    }
}

/// The threads of this process whose name starts with `prefix` (at most 15 bytes are kept by the system).
pub fn threads_named(prefix: &str) -> Vec<u64> {
    let threads = Process::this().threads();
    let named = threads.filter(|thread| thread.name().is_some_and(|name| name.starts_with(prefix)));
    named.filter_map(|thread| thread.id()).collect()
}

/// How often the thread went to sleep of its own accord.
pub fn sleeps(thread: u64) -> u64 {
    let sleeps = Process::thread(thread).sleeps();
    sleeps.expect("the thread is alive, and Linux counts context switches")
}

/// What the system says of the thread.
pub fn stat(thread: u64) -> procfs_core::process::Stat {
    Process::thread(thread).stat().expect("the thread is alive")
}

/// How long the thread has been running, in ticks of the system (10 ms mostly). A thread that spins need not sleep.
pub fn busy(thread: u64) -> u64 {
    let stat = stat(thread);
    stat.utime + stat.stime
}

/// Keeps the panics with the payload `"intended"` out of the output.
pub fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref() != Some(&"intended") {
                hook(panic);
            }
        }));
    });
}

/// The payload of a panic, which panics in turn when it is dropped, also while the thread unwinds.
pub struct BadPayload;

impl Drop for BadPayload {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("intended"));
    }
}

/// A payload that is counted while it lives.
#[derive(Debug)]
pub struct Token {
    pub number: u64,
    living: Arc<AtomicU64>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes tokens, and knows how many of them live.
#[derive(Debug, Clone, Default)]
pub struct Mint(Arc<AtomicU64>);

impl Mint {
    pub fn token(&self, number: u64) -> Token {
        self.0.fetch_add(1, Ordering::SeqCst);
        Token {
            number,
            living: self.0.clone(),
        }
    }

    pub fn living(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
