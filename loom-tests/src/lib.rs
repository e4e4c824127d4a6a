//! What the models share. Each module of `tests/models` models one part of the library; see `.ci/run` for how they
//! run.
#![cfg(request_purgatory_loom)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use request_purgatory::model::{ReaperLoop, use_timer_shards};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, threads::Dispatch, threads::Reaper, time::ManualClock,
    time::WakeFn,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a model with at most two preemptions in an execution, or as many as `LOOM_MAX_PREEMPTIONS` says.
pub fn bounded(model: impl Fn() + Send + Sync + 'static) {
    with_preemptions(2, model);
}

/// Runs a model with at most one preemption in an execution: a model that takes longer than half a minute with two.
/// `.ci/models loom 2` runs it with two.
pub fn long(model: impl Fn() + Send + Sync + 'static) {
    with_preemptions(1, model);
}

fn with_preemptions(bound: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(bound));
    check(builder, model);
}

/// Runs a model through every execution there is.
pub fn exhaustive(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    check(builder, model);
}

/// Says in how many executions it found nothing, and whether `LOOM_MAX_DURATION` left others untried: `.ci/models`
/// reads it.
fn check(mut builder: loom::model::Builder, model: impl Fn() + Send + Sync + 'static) {
    builder.max_branches = 100_000;
    let begin = Instant::now();
    // Not loom's: it counts across executions.
    let executions = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    builder.check({
        let executions = executions.clone();
        move || {
            executions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            model();
        }
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    // Where loom reads the clock.
    let checkpoint = (executions + 1) % builder.checkpoint_interval == 0;
    let over = |limit| begin.elapsed() >= limit;
    let end = match checkpoint && builder.max_duration.is_some_and(over) {
        true => "cut off",
        false => "finished",
    };
    println!("model: {executions} executions, {end}");
}

/// What an operation waits for, and what became of it.
pub struct Outcome {
    pub satisfied: AtomicBool,
    completed: AtomicUsize,
    expired: AtomicUsize,
    cancelled: AtomicUsize,
    shut_down: AtomicUsize,
}

impl Outcome {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            satisfied: AtomicBool::new(false),
            completed: AtomicUsize::new(0),
            expired: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            shut_down: AtomicUsize::new(0),
        })
    }

    /// The event that the operation waits for. Relaxed: only the library's own ordering makes it visible.
    pub fn satisfy(&self) {
        self.satisfied.store(true, Ordering::Relaxed);
    }

    /// It ended, once, and this thread sees it.
    pub fn assert_over(&self) {
        assert_eq!(
            self.endings().iter().sum::<usize>(),
            1,
            "{:?}",
            self.endings()
        );
    }

    /// How many times it completed as satisfied, expired, cancelled and shut down.
    pub fn endings(&self) -> [usize; 4] {
        [
            &self.completed,
            &self.expired,
            &self.cancelled,
            &self.shut_down,
        ]
        .map(|count| count.load(Ordering::Relaxed))
    }
}

/// An operation.
pub struct Probe {
    pub outcome: Arc<Outcome>,
    pub timeout: Duration,
}

impl Probe {
    pub fn new(outcome: &Arc<Outcome>) -> Self {
        Self::with_timeout(outcome, Duration::MAX)
    }

    pub fn with_timeout(outcome: &Arc<Outcome>, timeout: Duration) -> Self {
        let outcome = outcome.clone();
        Self { outcome, timeout }
    }
}

impl DelayedOperation for Probe {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.outcome.satisfied.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        let count = match completion {
            Completion::Satisfied => &self.outcome.completed,
            Completion::Expired => &self.outcome.expired,
            Completion::Cancelled => &self.outcome.cancelled,
            _ => &self.outcome.shut_down,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A purgatory that the model drives itself.
pub fn manual<Op: DelayedOperation>(clock: &ManualClock) -> Purgatory<Op> {
    driven(clock, Reaper::Manual)
}

/// The same with two timer shards: the model's first thread parks in one, the thread that it spawns first in the other.
pub fn manual_with_two_shards(clock: &ManualClock) -> Purgatory<Probe> {
    use_timer_shards(2);
    let purgatory = manual(clock);
    use_timer_shards(1);
    purgatory
}

/// A purgatory whose reaper never comes: a drain of it only waits. The model's threads drive it, if any does.
pub fn driven_by_others(clock: &ManualClock) -> Purgatory<Probe> {
    driven(clock, ReaperLoop::new().1)
}

/// A purgatory driven by `reaper`.
pub fn driven<Op: DelayedOperation>(clock: &ManualClock, reaper: Reaper) -> Purgatory<Op> {
    Purgatory::builder("model")
        .clock(clock.clone())
        .reaper(reaper)
        .dispatch(Dispatch::Inline)
        .build()
        .expect("the settings are sound")
}

/// Nothing is left, and no panic was swallowed (loom reports what it finds by panicking, maybe inside a callback).
pub fn assert_empty<Op: DelayedOperation>(purgatory: &Purgatory<Op>) {
    let stats = purgatory.stats();
    assert_eq!(stats.panicked, 0);
    assert_eq!((stats.parked, stats.watched), (0, 0), "{stats:?}");
    assert_eq!(purgatory.watched_keys(), 0);
}

/// An operation that runs a hook of the model's in the middle of its `try_complete`, after it has read its event as
/// false. Examinations must not nest in one another.
pub struct Hooked {
    probe: Probe,
    hook: Box<dyn FnMut() + Send>,
    examining: Arc<std::sync::atomic::AtomicBool>,
}

impl Hooked {
    /// `examining` is shared by all operations of the model: it is true during an examination.
    pub fn new(
        outcome: &Arc<Outcome>,
        examining: &Arc<std::sync::atomic::AtomicBool>,
        hook: impl FnMut() + Send + 'static,
    ) -> Self {
        Self {
            probe: Probe::new(outcome),
            hook: Box::new(hook),
            examining: examining.clone(),
        }
    }
}

impl DelayedOperation for Hooked {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.probe.timeout()
    }

    fn try_complete(&mut self) -> bool {
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        assert!(!self.examining.swap(true, relaxed), "an examination nests");
        let satisfied = self.probe.try_complete();
        if !satisfied {
            (self.hook)();
        }
        self.examining.store(false, relaxed);
        satisfied
    }

    fn on_complete(self, completion: Completion) {
        self.probe.on_complete(completion);
    }
}

/// Puts a model's driver to sleep; a wake-up that comes first is kept.
#[derive(Clone, Default)]
pub struct Sleeper(Arc<(Mutex<bool>, Condvar)>);

impl Sleeper {
    pub fn sleep(&self) {
        let (woken, changed) = &*self.0;
        let mut woken = woken.lock().unwrap();
        while !*woken {
            woken = changed.wait(woken).unwrap();
        }
        *woken = false;
    }

    pub fn waker(&self) -> WakeFn {
        let sleeper = self.0.clone();
        WakeFn::new(move || {
            let (woken, changed) = &*sleeper;
            *woken.lock().unwrap() = true;
            changed.notify_one();
            true
        })
    }
}

/// A task's waker that wakes the model's driver.
pub struct DriverWaker(pub WakeFn);

impl std::task::Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}
