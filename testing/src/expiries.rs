//! Expiries in the property tests: where user code hears of them, and how they are counted.

use super::spans::{Choices, Span, jump};
use super::{Job, lock};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRunner};
use request_purgatory::{
    purgatory::Stats, threads::Dispatch, time::Clock, time::ManualClock, time::Timestamp,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where user code hears of an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// In the pass itself.
    Inline,
    /// An executor runs each job as it gets it.
    AtOnce,
    /// An executor drops each job.
    ByDrop,
    /// An executor panics with each job.
    ByPanic,
    /// An executor keeps the jobs.
    Later,
}

/// What user code does when the library calls it: nothing, or some of `action`; seldom it drives the timer, panics or
/// shuts down. Within that, the library calls user code again, of one depth less; at depth 0 it does nothing.
pub fn planned<A: Clone + std::fmt::Debug + 'static>(
    depth: u32,
    action: impl FnOnce(u32) -> BoxedStrategy<A>,
    [advance, panic, shutdown]: [A; 3],
) -> BoxedStrategy<Vec<A>> {
    let Some(within) = depth.checked_sub(1) else {
        return Just(Vec::new()).boxed();
    };
    let action = prop_oneof![
        24 => action(within),
        3 => Just(advance),
        2 => Just(panic),
        1 => Just(shutdown),
    ];
    prop_oneof![
        1 => Just(Vec::new()),
        1 => prop::collection::vec(action, 1..4),
    ]
    .boxed()
}

/// What is done to a timer, a tracker or requests, from outside.
#[derive(Debug, Clone)]
pub enum Call<A> {
    Do(A),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    /// One of the jobs that an executor keeps is run, or dropped.
    Run(usize, bool),
}

/// A call, each kind as often beside the others as `weights` say, in their order.
pub fn call<A: Clone + std::fmt::Debug + 'static>(
    action: BoxedStrategy<A>,
    weights: [u32; 4],
) -> impl Strategy<Value = Call<A>> {
    prop_oneof![
        weights[0] => action.prop_map(Call::Do),
        weights[1] => jump().prop_map(Call::Pass),
        weights[2] => jump().prop_map(Call::Advance),
        weights[3] => (any::<usize>(), any::<bool>()).prop_map(|(which, by_drop)| Call::Run(which, by_drop)),
    ]
}

/// Any calls. Often one of them is `last`, a shutdown say, and a few follow it.
pub fn calls<A: Clone + std::fmt::Debug + 'static, S: Strategy<Value = Call<A>>>(
    call: impl Fn() -> S,
    last: A,
) -> impl Strategy<Value = Vec<Call<A>>> {
    let after = prop::option::of(prop::collection::vec(call(), 0..20));
    let all = (prop::collection::vec(call(), 1..120), after);
    all.prop_map(move |(mut calls, after)| {
        if let Some(after) = after {
            calls.push(Call::Do(last.clone()));
            calls.extend(after);
        }
        calls
    })
}

pub fn runs() -> impl Strategy<Value = Runs> {
    prop_oneof![
        4 => Just(Runs::Inline),
        1 => Just(Runs::AtOnce),
        1 => Just(Runs::ByDrop),
        1 => Just(Runs::ByPanic),
        3 => Just(Runs::Later),
    ]
}

/// An executor, and the jobs that it keeps.
pub struct Jobs {
    pub runs: Runs,
    kept: Mutex<VecDeque<Job>>,
}

impl Jobs {
    pub fn new(runs: Runs) -> Arc<Self> {
        super::quietly();
        Arc::new(Self {
            runs,
            kept: Mutex::default(),
        })
    }

    pub fn dispatch(self: &Arc<Self>) -> Dispatch {
        if self.runs == Runs::Inline {
            return Dispatch::Inline;
        }
        let jobs = self.clone();
        Dispatch::Executor(Arc::new(move |job: Job| match jobs.runs {
            Runs::Inline | Runs::AtOnce => job(),
            Runs::ByDrop => drop(job),
            Runs::ByPanic => {
                // The unwinding drops the job.
                let _job = job;
                std::panic::panic_any("intended");
            }
            Runs::Later => lock(&jobs.kept).push_back(job),
        }))
    }

    /// Runs one of the jobs that it keeps, if there are any, counted round and round; perhaps by dropping it.
    pub fn run(&self, which: usize, by_drop: bool) {
        let job = {
            let mut kept = lock(&self.kept);
            let at = which.checked_rem(kept.len());
            at.and_then(|at| kept.remove(at))
        };
        match job {
            Some(job) if by_drop => drop(job),
            Some(job) => job(),
            None => {}
        }
    }

    /// Runs all jobs that it keeps, the oldest first.
    pub fn run_all(&self) {
        while self.kept() > 0 {
            self.run(0, false);
        }
    }

    /// How many jobs it keeps.
    pub fn kept(&self) -> usize {
        lock(&self.kept).len()
    }
}

/// Tries `test` with any values of `all`. What draws calls within calls needs a larger stack than a test has.
pub fn for_any<S: Strategy>(
    all: impl FnOnce() -> S + Send + 'static,
    test: impl Fn(S::Value) + Send + 'static,
) {
    let config = ProptestConfig {
        failure_persistence: None,
        // In milliseconds. A case may wait for a thread that never comes.
        max_shrink_time: 60_000,
        // What draws one thing of several makes a generator of its own: let that be cheap.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    };
    let tried = super::on_a_stack_of(64 * 1_024, move || {
        let mut runner = TestRunner::new(config);
        let tried = runner.run(&all(), |values| {
            test(values);
            Ok(())
        });
        tried.map_err(|error| error.to_string())
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
}

/// Numbered values that wait for their deadline, as a model knows them.
pub struct Waiting {
    pub choices: Choices,
    pub clock: ManualClock,
    pub jobs: Arc<Jobs>,
    /// The deadline of each that waits; `None` never expires.
    pub running: BTreeMap<usize, Option<u64>>,
    /// Those that wait and that the pass in progress must expire. (How many at a time is its business.)
    due: BTreeSet<usize>,
    /// How many of them have expired by now, where only their number can be told.
    hidden: usize,
    /// How many have expired in the present call of which it is not known whether they were handed over: in one of two
    /// passes, one inside the other.
    unsure: usize,
    /// Those that have expired and of which user code has not heard; and whether that was handed over.
    pub ended: BTreeMap<usize, bool>,
    /// The user code in progress: whether it was handed over.
    telling: Option<bool>,
    /// Those of `ended` of which no user code hears: they may be told already.
    pub silent: BTreeSet<usize>,
    /// How many that the pass in progress has to expire have no user code to hear of it: they may be told already.
    pub quiet_due: usize,
    /// Those that have expired since the model took this list last.
    pub fresh: Vec<usize>,
    /// Expiries in passes that user code has made, in the present call.
    nested: u64,
    pub closed: bool,
    /// But for what is counted now.
    pub stats: Stats,
}

impl Waiting {
    pub fn new(choices: Choices, clock: ManualClock, jobs: Arc<Jobs>) -> Self {
        Self {
            choices,
            clock,
            jobs,
            running: BTreeMap::new(),
            due: BTreeSet::new(),
            hidden: 0,
            unsure: 0,
            ended: BTreeMap::new(),
            telling: None,
            silent: BTreeSet::new(),
            quiet_due: 0,
            fresh: Vec::new(),
            nested: 0,
            closed: false,
            stats: Stats::default(),
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().since_origin()
    }

    pub fn pass_time(&self, span: Span) {
        self.clock.advance(span.of(self.choices.tick));
    }

    /// Whether there is no room for one more. It may not be known.
    pub fn is_full(&self) -> Option<bool> {
        // Those whose callback has not returned have their place still.
        let callbacks = self.ended.len() + usize::from(self.telling.is_some());
        let most = self.running.len() + callbacks;
        let least = most - self.silent.len() - self.quiet_due;
        let full = |taken| self.choices.max_parked.is_some_and(|max| taken >= max);
        (full(least) == full(most)).then(|| full(most))
    }

    pub fn start(&mut self, number: usize, timeout: Duration) {
        let deadline = self.choices.deadline(self.now(), timeout);
        self.running.insert(number, deadline);
    }

    pub fn reschedule(&mut self, number: usize, timeout: Duration) {
        self.end(number);
        // However close, it is for the next pass.
        self.start(number, timeout);
    }

    /// Whether its deadline has passed, and it has not expired yet.
    pub fn is_overdue(&self, number: usize) -> bool {
        self.overdue().contains(&number)
    }

    /// It has ended, and not by its deadline.
    pub fn end(&mut self, number: usize) {
        assert!(self.running.remove(&number).is_some(), "{number} was gone");
        self.due.remove(&number);
    }

    /// It is not there: it had ended, or the pass in progress has expired it meanwhile.
    pub fn is_gone(&mut self, number: usize) {
        if self.due.contains(&number) {
            self.expire(number, false);
        }
        assert!(!self.running.contains_key(&number), "{number} waits");
    }

    /// Everything was ended, but for what the pass in progress has expired before.
    pub fn are_gone(&mut self) {
        for number in self.due.clone() {
            self.expire(number, false);
        }
        assert!(self.running.is_empty(), "{:?} are lost", self.running);
    }

    /// Those that wait and whose deadline has passed.
    fn overdue(&self) -> BTreeSet<usize> {
        let now = self.choices.tick_at(self.now());
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let all = self.running.iter();
        let all = all.filter(|(_, deadline)| due(**deadline));
        all.map(|(number, _)| *number).collect()
    }

    /// A pass begins, from outside.
    pub fn begin_pass(&mut self) {
        self.due = self.overdue();
        if self.jobs.runs != Runs::Inline {
            // Each is handed over before user code runs.
            let due = self.due.clone().into_iter();
            due.for_each(|number| self.expire(number, true));
        }
    }

    /// A pass that user code has made is over: what was due by then has expired, also what user code has started in the
    /// pass around it.
    pub fn nested_pass(&mut self, expired: usize) {
        let overdue = self.overdue();
        let hidden = std::mem::take(&mut self.hidden);
        assert_eq!(expired + hidden, overdue.len());
        self.nested += expired as u64;
        if 0 < hidden && hidden < overdue.len() {
            self.unsure += overdue.len();
        }
        let handed_over = hidden < overdue.len();
        let overdue = overdue.into_iter();
        overdue.for_each(|it| self.expire(it, handed_over));
    }

    /// The pass in progress is over: it has expired all that it had to.
    pub fn end_pass(&mut self) {
        for number in self.due.clone() {
            self.expire(number, false);
        }
    }

    /// A call from outside is over, before which `before` had expired; if it was a pass, it said that `expired` did.
    pub fn end_call(&mut self, before: u64, expired: Option<usize>) {
        assert!(self.due.is_empty(), "{:?} did not expire", self.due);
        self.unsure = 0;
        let nested = std::mem::take(&mut self.nested);
        if let Some(expired) = expired {
            assert_eq!(expired as u64, self.stats.expired - before - nested);
        }
        assert_eq!(self.jobs.kept(), self.ended.len(), "user code did not hear");
    }

    /// It has expired, though user code has not heard of it.
    fn expire(&mut self, number: usize, handed_over: bool) {
        self.due.remove(&number);
        let deadline = self.running.remove(&number).flatten();
        let deadline = deadline.expect("one that never expires does not");
        let now = Timestamp::from_origin(self.now());
        let late = now.saturating_since(self.choices.timestamp(deadline));
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (stats, late) = (&mut self.stats, nanos(late));
        let total = nanos(stats.lateness_total).saturating_add(late);
        stats.expired += 1;
        stats.lateness_total = Duration::from_nanos(total);
        stats.lateness_max = Duration::from_nanos(late).max(stats.lateness_max);
        stats.panicked += u64::from(self.jobs.runs == Runs::ByPanic);
        self.ended.insert(number, handed_over);
        self.fresh.push(number);
    }

    /// User code hears of it now.
    pub fn told(&mut self, number: usize) {
        if self.due.contains(&number) {
            self.expire(number, false);
        }
        self.telling = self.ended.remove(&number);
        assert!(self.telling.is_some(), "{number}: early, or twice");
        assert!(!self.silent.contains(&number), "{number}: not asked for");
    }

    /// The user code in progress has returned.
    pub fn returned(&mut self) {
        self.telling = None;
    }

    /// Finds out how many of those have expired that the pass in progress has to expire, and that cannot be asked for: past
    /// their deadlines they are not found, whether they have expired or not.
    pub fn count_hidden(&mut self, seen: &Common) {
        let hidden = seen.stats.expired.checked_sub(self.stats.expired);
        self.hidden = hidden.expect("one has expired") as usize;
        assert!(self.hidden <= self.due.len());
    }

    /// Compares the counts, and the rest of what every kind can be asked.
    pub fn compare(&self, seen: &Common) {
        self.compare_with(seen, 0, 0);
    }

    /// The same where user code may yet hear of others because of a shutdown: of `least` to `most` of them.
    pub fn compare_with(&self, seen: &Common, least: usize, most: usize) {
        let handed_over = self.ended.values().chain(&self.telling);
        let handed_over = handed_over.filter(|handed_over| **handed_over).count();
        let (least, most) = (
            least + handed_over.saturating_sub(self.silent.len() + self.unsure),
            most + handed_over,
        );
        let pending = seen.stats.completions_pending;
        let mut stats = self.stats.clone();
        stats.parked = self.running.len() - self.hidden;
        if self.hidden > 0 {
            // Which ones, and so how late, is not known.
            stats.expired = seen.stats.expired;
            stats.lateness_total = seen.stats.lateness_total;
            stats.lateness_max = seen.stats.lateness_max;
        }
        stats.completions_pending = pending.clamp(least, most);
        assert_eq!(seen.stats, stats);
        assert_eq!(
            (seen.empty, seen.closed),
            (seen.stats.parked == 0, self.closed)
        );
        if self.hidden > 0 {
            return;
        }
        let earliest = self.running.values().flatten().min();
        let earliest = earliest.map(|&tick| self.choices.timestamp(tick));
        assert_eq!(seen.next.is_some(), earliest.is_some());
        assert!(seen.next <= earliest, "{:?}", seen.next);
    }

    /// Those that the pass in progress has to expire.
    pub fn due(&self) -> impl Iterator<Item = usize> {
        self.due.iter().copied()
    }

    /// The deadline, and the time until then.
    pub fn times(&self, number: usize) -> (Option<Timestamp>, Option<Duration>) {
        let deadline = self.running.get(&number).copied().flatten();
        let deadline = deadline.map(|tick| self.choices.timestamp(tick));
        let now = Timestamp::from_origin(self.now());
        (deadline, deadline.map(|at| at.saturating_since(now)))
    }

    /// Whether the pass in progress is to expire it, or has done so: that is for it to say.
    pub fn is_due(&self, number: usize) -> bool {
        self.due.contains(&number)
    }
}

/// What timers, trackers and requests can be asked alike.
#[derive(Debug)]
pub struct Common {
    pub stats: Stats,
    pub empty: bool,
    pub closed: bool,
    pub next: Option<Timestamp>,
}

/// Asks for it.
#[macro_export]
macro_rules! common {
    ($real:expr) => {
        $crate::expiries::Common {
            stats: $real.stats(),
            empty: $real.is_empty(),
            closed: $real.is_shut_down(),
            next: $real.next_deadline(),
        }
    };
}

pub use crate::common;
