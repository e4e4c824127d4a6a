//! G5, G6, G9, G10, G16, G17, G18 against a model: any sequence of calls on a purgatory and on a plain sorted map of
//! deadlines must give the same answers, the same endings and the same counts.
//!
//! `PROPTEST_CASES` says how many sequences are tried.

mod support;

use proptest::prelude::*;
use proptest::sample::Index;
use request_purgatory::{
    Clock, Completion, DelayedOperation, Handle, ManualClock, Purgatory, Reaper, Rejected,
    ResolvedKey, Timestamp, Watch, WatchOn,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::lock;
use support::spans::{Choices, Span, choices, jump, span};

/// Endings in the order in which they came.
type Log = Arc<Mutex<Vec<(usize, Completion)>>>;

struct Op {
    number: usize,
    timeout: Duration,
    ready: Arc<AtomicBool>,
    log: Log,
}

impl DelayedOperation for Op {
    type Key = u8;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        lock(&self.log).push((self.number, completion));
    }
}

#[derive(Debug, Clone)]
enum Call {
    Park(Vec<u8>, Span, bool, Arrival),
    ParkOn(Vec<On>, Span, bool, Arrival),
    /// The key is not kept resolved any more.
    Release(u8),
    Satisfy(Index),
    CheckKey(u8),
    CheckResolved(u8),
    CheckUpTo(u8, u64, bool),
    CheckLater(u8),
    CheckHandle(Index),
    CancelKey(u8),
    CancelHandle(Index),
    ForceKey(u8),
    ForceHandle(Index),
    RescheduleKey(u8, Span),
    RescheduleHandle(Index, Span),
    /// The clock moves, and nobody looks.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

/// One key to watch, perhaps resolved.
#[derive(Debug, Clone, Copy)]
struct On {
    key: u8,
    rank: Option<u64>,
    resolved: bool,
}

/// What is said about the time of an arrival.
#[derive(Debug, Clone, Copy)]
enum Arrival {
    Unsaid,
    Ago(Span),
    Ahead(Span),
}

/// What the model knows of a parked operation.
#[derive(Debug, Clone)]
struct Parked {
    /// With the ranks that count.
    keys: BTreeMap<u8, Option<u64>>,
    parked_at: u64,
    /// `None` never expires.
    deadline: Option<u64>,
    /// Its deadline had come already when it got it: among such, there is no order.
    overdue: bool,
}

struct Model {
    choices: Choices,
    now: Duration,
    parked: BTreeMap<usize, Parked>,
    later: VecDeque<u8>,
    closed: bool,
}

impl Model {
    fn tick(&self) -> u64 {
        self.choices.tick_at(self.now)
    }

    fn tick_at(&self, reading: Duration) -> u64 {
        self.choices.tick_at(reading)
    }

    fn deadline(&self, reading: Duration, timeout: Duration) -> Option<u64> {
        self.choices.deadline(reading, timeout)
    }

    fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.tick())
    }

    fn on_key(&self, key: u8) -> BTreeSet<usize> {
        self.on_key_up_to(key, u64::MAX)
    }

    fn on_key_up_to(&self, key: u8, up_to: u64) -> BTreeSet<usize> {
        let met = |op: &Parked| op.keys.get(&key).is_some_and(|rank| *rank <= Some(up_to));
        let met = self.parked.iter().filter(|(_, op)| met(op));
        met.map(|(number, _)| *number).collect()
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
    }
}

/// Both, side by side.
struct Pair {
    model: Model,
    real: Purgatory<Op>,
    clock: ManualClock,
    handles: Vec<Option<Handle<Op>>>,
    resolved: BTreeMap<u8, ResolvedKey<Op>>,
    ready: Vec<Arc<AtomicBool>>,
    log: Log,
}

impl Pair {
    fn new(choices: Choices) -> Self {
        let clock = ManualClock::starting_at(choices.start);
        let mut builder = Purgatory::builder("model")
            .tick(choices.tick)
            .wheel_size(choices.wheel_size)
            .max_timeout(choices.max_timeout)
            .clock(clock.clone())
            .reaper(Reaper::Manual);
        if let Some(max) = choices.max_parked {
            builder = builder.max_parked(max);
        }
        Self {
            real: builder.build().expect("no threads to refuse"),
            model: Model {
                now: choices.start,
                choices,
                parked: BTreeMap::new(),
                later: VecDeque::new(),
                closed: false,
            },
            clock,
            handles: Vec::new(),
            resolved: BTreeMap::new(),
            ready: Vec::new(),
            log: Log::default(),
        }
    }

    /// The endings since the last question, by number.
    fn endings(&self) -> BTreeMap<usize, Completion> {
        let log = std::mem::take(&mut *lock(&self.log));
        let count = log.len();
        let endings = log.into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(endings.len(), count, "one ended twice");
        endings
    }

    /// Those of `numbers` that can complete leave the model, satisfied.
    fn satisfied(&mut self, numbers: BTreeSet<usize>) -> BTreeMap<usize, Completion> {
        let ready = |number: &usize| self.ready[*number].load(Ordering::Relaxed);
        let satisfied = numbers.into_iter().filter(ready).collect::<Vec<_>>();
        self.end(satisfied, Completion::Satisfied)
    }

    fn end(
        &mut self,
        numbers: impl IntoIterator<Item = usize>,
        how: Completion,
    ) -> BTreeMap<usize, Completion> {
        let ended = numbers
            .into_iter()
            .filter(|number| self.model.parked.remove(number).is_some());
        ended.map(|number| (number, how)).collect()
    }

    /// The operation meant by `index`, whatever became of it, and its handle if it ever parked.
    fn pick(&self, index: Index) -> Option<(usize, Option<Handle<Op>>)> {
        if self.handles.is_empty() {
            return None;
        }
        let number = index.index(self.handles.len());
        Some((number, self.handles[number].clone()))
    }

    fn call(&mut self, call: Call) {
        let tick = self.model.choices.tick;
        match call {
            Call::Park(keys, span, ready, arrival) => {
                let ranks = keys.iter().map(|key| (*key, None)).collect();
                let reading = self.reading(arrival);
                self.park(
                    span.of(tick),
                    ready,
                    reading,
                    ranks,
                    |real, op| match reading {
                        None => real.try_complete_else_watch(op, keys),
                        Some(reading) => real.at(reading).try_complete_else_watch(op, keys),
                    },
                );
            }
            Call::ParkOn(on, span, ready, arrival) => {
                self.park_on(&on, span.of(tick), ready, arrival);
            }
            Call::Release(key) => drop(self.resolved.remove(&key)),
            Call::Satisfy(index) => {
                if let Some((number, _)) = self.pick(index) {
                    self.ready[number].store(true, Ordering::Relaxed);
                }
            }
            Call::CheckKey(key) => {
                self.check(key, u64::MAX, |real, _| real.check_and_complete(&key));
            }
            Call::CheckResolved(key) => {
                self.check(key, u64::MAX, |_, resolved| resolved.check_and_complete());
            }
            Call::CheckUpTo(key, rank, false) => {
                self.check(key, rank, |real, _| {
                    real.check_and_complete_up_to(&key, rank)
                });
            }
            Call::CheckUpTo(key, rank, true) => {
                self.check(key, rank, |_, resolved| {
                    resolved.check_and_complete_up_to(rank)
                });
            }
            Call::CheckLater(key) => {
                self.real.check_later(key);
                if !self.model.closed {
                    self.model.later.push_back(key);
                }
            }
            Call::CheckHandle(index) => {
                let Some((number, Some(handle))) = self.pick(index) else {
                    return;
                };
                let parked = self.model.parked.contains_key(&number);
                let expected = self.satisfied(parked.then_some(number).into_iter().collect());
                assert_eq!(handle.check(), !expected.is_empty());
                assert_eq!(self.endings(), expected);
            }
            Call::CancelKey(key) => {
                let returned = self.real.cancel_for_key(&key);
                let returned = returned.iter().map(|op| op.number).collect::<BTreeSet<_>>();
                assert_eq!(returned, self.model.on_key(key));
                self.end(returned, Completion::Cancelled);
            }
            Call::CancelHandle(index) => {
                let Some((number, Some(handle))) = self.pick(index) else {
                    return;
                };
                let returned = handle.cancel().map(|op| op.number);
                let expected = self.model.parked.remove(&number).map(|_| number);
                assert_eq!(returned, expected);
            }
            Call::ForceKey(key) => {
                let expected = self.end(self.model.on_key(key), Completion::Satisfied);
                assert_eq!(self.real.force_complete_for_key(&key), expected.len());
                assert_eq!(self.endings(), expected);
            }
            Call::ForceHandle(index) => {
                let Some((number, Some(handle))) = self.pick(index) else {
                    return;
                };
                let expected = self.end([number], Completion::Satisfied);
                assert_eq!(handle.force_complete(), !expected.is_empty());
                assert_eq!(self.endings(), expected);
            }
            Call::RescheduleKey(key, span) => {
                let timeout = span.of(tick);
                let on_key = self.model.on_key(key);
                assert_eq!(self.real.reschedule_for_key(&key, timeout), on_key.len());
                on_key
                    .iter()
                    .for_each(|number| self.reschedule(*number, timeout));
            }
            Call::RescheduleHandle(index, span) => {
                let Some((number, Some(handle))) = self.pick(index) else {
                    return;
                };
                let timeout = span.of(tick);
                let parked = self.model.parked.contains_key(&number);
                assert_eq!(handle.reschedule(timeout), parked);
                self.reschedule(number, timeout);
            }
            Call::Pass(span) => self.pass(span.of(tick)),
            Call::Advance(span) => {
                self.pass(span.of(tick));
                self.advance();
            }
            Call::Shutdown => {
                self.real.shutdown();
                self.model.closed = true;
                self.model.later.clear();
                let all = self.model.parked.keys().copied().collect::<Vec<_>>();
                let expected = self.end(all, Completion::ShutDown);
                assert_eq!(self.endings(), expected);
            }
        }
    }

    /// The key, resolved now if it is not.
    fn resolve(&mut self, key: u8) -> &ResolvedKey<Op> {
        self.resolved
            .entry(key)
            .or_insert_with(|| self.real.key(key))
    }

    fn check(
        &mut self,
        key: u8,
        up_to: u64,
        check: impl FnOnce(&Purgatory<Op>, &ResolvedKey<Op>) -> usize,
    ) {
        let met = self.model.on_key_up_to(key, up_to);
        let ranks = met.iter().map(|number| {
            let rank = self.model.parked[number].keys[&key];
            // Those without a rank come last.
            (*number, rank.map_or((1, 0), |rank| (0, rank)))
        });
        let ranks = ranks.collect::<BTreeMap<_, _>>();
        let expected = self.satisfied(met);
        let real = self.real.clone();
        assert_eq!(check(&real, self.resolve(key)), expected.len());
        let order = lock(&self.log).clone();
        assert!(
            order
                .iter()
                .map(|(number, _)| ranks.get(number))
                .is_sorted()
        );
        assert_eq!(self.endings(), expected);
    }

    /// The reading that is said, if any.
    fn reading(&self, arrival: Arrival) -> Option<Timestamp> {
        let (now, tick) = (self.model.now, self.model.choices.tick);
        let reading = match arrival {
            Arrival::Unsaid => return None,
            Arrival::Ago(span) => now.saturating_sub(span.of(tick)),
            Arrival::Ahead(span) => now.saturating_add(span.of(tick)),
        };
        Some(Timestamp::from_origin(reading))
    }

    fn park_on(&mut self, on: &[On], timeout: Duration, ready: bool, arrival: Arrival) {
        let mut ranks = BTreeMap::new();
        for on in on {
            let rank = ranks.entry(on.key).or_insert(on.rank);
            *rank = (*rank).min(on.rank);
            self.resolve(on.key);
        }
        let resolved = std::mem::take(&mut self.resolved);
        let watches = on.iter().map(|on| {
            let watch = match on.resolved {
                true => WatchOn::from(&resolved[&on.key]),
                false => WatchOn::key(on.key),
            };
            on.rank.into_iter().fold(watch, WatchOn::at_rank)
        });
        let reading = self.reading(arrival);
        self.park(timeout, ready, reading, ranks, |real, op| match reading {
            None => real.try_complete_else_watch_on(op, watches),
            Some(reading) => real.at(reading).try_complete_else_watch_on(op, watches),
        });
        self.resolved = resolved;
    }

    fn park(
        &mut self,
        timeout: Duration,
        ready: bool,
        reading: Option<Timestamp>,
        keys: BTreeMap<u8, Option<u64>>,
        park: impl FnOnce(&Purgatory<Op>, Op) -> Result<Watch<Op>, Rejected<Op>>,
    ) {
        let number = self.handles.len();
        let flag = Arc::new(AtomicBool::new(ready));
        self.ready.push(flag.clone());
        let op = Op {
            number,
            timeout,
            ready: flag,
            log: self.log.clone(),
        };
        let full = self
            .model
            .choices
            .max_parked
            .is_some_and(|max| self.model.parked.len() >= max);
        let result = park(&self.real, op);
        let handle = match result {
            Err(Rejected::NoKeys(op)) if keys.is_empty() && op.number == number => None,
            Err(Rejected::ShutDown(op)) if self.model.closed && op.number == number => None,
            Ok(Watch::Completed) if ready && !self.model.closed => {
                assert_eq!(self.endings(), [(number, Completion::Satisfied)].into());
                None
            }
            Err(Rejected::Full(op)) if full && !ready && op.number == number => None,
            Ok(Watch::Parked(handle)) if !ready && !full && !self.model.closed => {
                let reading = reading.map_or(self.model.now, Timestamp::since_origin);
                let deadline = self.model.deadline(reading, timeout);
                let parked = Parked {
                    keys,
                    parked_at: self.model.tick_at(reading),
                    deadline,
                    overdue: self.model.is_past(deadline),
                };
                self.model.parked.insert(number, parked);
                Some(handle)
            }
            other => panic!("{other:?}, full: {full}, ready: {ready}, {keys:?}"),
        };
        self.handles.push(handle);
    }

    fn reschedule(&mut self, number: usize, timeout: Duration) {
        let deadline = self.model.deadline(self.model.now, timeout);
        let overdue = self.model.is_past(deadline);
        if let Some(op) = self.model.parked.get_mut(&number) {
            (op.deadline, op.overdue) = (deadline, overdue);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.model.pass(time);
        assert_eq!(self.clock.now().since_origin(), self.model.now);
    }

    fn advance(&mut self) {
        let mut expected = BTreeMap::new();
        while let Some(key) = self.model.later.pop_front() {
            expected.extend(self.satisfied(self.model.on_key(key)));
        }
        let now = self.model.tick();
        let due = |op: &Parked| op.deadline.is_some_and(|deadline| deadline <= now);
        let deadlines = self.model.parked.iter().filter(|(_, op)| due(op));
        let deadlines = deadlines.map(|(number, op)| (*number, (op.deadline, op.overdue)));
        let deadlines = deadlines.collect::<BTreeMap<_, _>>();
        expected.extend(self.end(deadlines.keys().copied(), Completion::Expired));
        assert_eq!(self.real.advance(), deadlines.len());
        let order = lock(&self.log).clone();
        let order = order.iter().filter_map(|(number, _)| deadlines.get(number));
        let order = order.filter(|(_, overdue)| !overdue);
        assert!(order.is_sorted(), "not in the order of their deadlines");
        assert_eq!(self.endings(), expected);
        let next = self.real.next_deadline();
        let ahead = next.is_none_or(|next| next > self.clock.now());
        assert!(ahead || self.model.now == Duration::MAX, "{next:?}");
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        let model = &self.model;
        assert!(lock(&self.log).is_empty(), "an ending out of the blue");
        assert_eq!(self.real.is_shut_down(), model.closed);
        assert_eq!(self.real.delayed(), model.parked.len());
        let watched = model.parked.values().map(|op| op.keys.len());
        assert_eq!(self.real.watched(), watched.sum::<usize>());
        let keys = model.parked.values().flat_map(|op| op.keys.keys());
        let keys = keys.collect::<BTreeSet<_>>();
        assert_eq!(self.real.watched_keys(), keys.len());
        let earliest = model.parked.values().filter_map(|op| op.deadline).min();
        let next = self.real.next_deadline();
        if model.later.is_empty() {
            assert_eq!(next.is_some(), earliest.is_some());
        } else {
            assert!(next.is_some_and(|next| next <= self.clock.now()));
        }
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(
                next <= model.choices.timestamp(earliest),
                "{next:?} for {earliest}"
            );
        }
        for (number, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let parked = model.parked.get(&number);
            assert_eq!(handle.is_parked(), parked.is_some());
            let deadline = parked.and_then(|op| op.deadline);
            let deadline = deadline.map(|tick| model.choices.timestamp(tick));
            assert_eq!(handle.deadline(), deadline);
            let remaining = deadline.map(|at| at.saturating_since(self.clock.now()));
            assert_eq!(handle.remaining(), remaining);
        }
        self.compare_snapshot();
    }

    fn compare_snapshot(&self) {
        let now = self.model.tick();
        let listed = self.real.snapshot();
        let oldest_first = listed.iter().rev().map(|op| op.age);
        assert!(oldest_first.is_sorted());
        let listed = listed.into_iter().map(|op| {
            let mut keys = op.keys;
            keys.sort_unstable();
            (keys, op.age, op.remaining)
        });
        let mut listed = listed.collect::<Vec<_>>();
        let expected = self.model.parked.values().map(|op| {
            let left = |deadline: u64| self.model.choices.ticks(deadline.saturating_sub(now));
            (
                op.keys.keys().copied().collect(),
                self.model.choices.ticks(now.saturating_sub(op.parked_at)),
                op.deadline.map(left),
            )
        });
        let mut expected = expected.collect::<Vec<(Vec<u8>, _, _)>>();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}

fn call() -> impl Strategy<Value = Call> {
    let keys = prop::collection::vec(0..6_u8, 0..5);
    let many = prop::collection::vec(0..40_u8, 20..40);
    let keys = prop_oneof![15 => keys, 1 => many];
    let key = || 0..6_u8;
    let rank = || prop_oneof![0..4_u64, Just(u64::MAX)];
    let on = (key(), prop::option::of(rank()), any::<bool>());
    let on = on.prop_map(|(key, rank, resolved)| On {
        key,
        rank,
        resolved,
    });
    let on = prop::collection::vec(on, 0..6);
    let arrival = || {
        prop_oneof![
            4 => Just(Arrival::Unsaid),
            2 => span().prop_map(Arrival::Ago),
            1 => span().prop_map(Arrival::Ahead),
        ]
    };
    let index = any::<Index>;
    prop_oneof![
        6 => (keys, span(), prop::bool::weighted(0.1), arrival())
            .prop_map(|(keys, timeout, ready, at)| Call::Park(keys, timeout, ready, at)),
        8 => (on, span(), prop::bool::weighted(0.1), arrival())
            .prop_map(|(on, timeout, ready, at)| Call::ParkOn(on, timeout, ready, at)),
        1 => key().prop_map(Call::Release),
        2 => key().prop_map(Call::CheckResolved),
        3 => (key(), rank(), any::<bool>())
            .prop_map(|(key, rank, resolved)| Call::CheckUpTo(key, rank, resolved)),
        4 => index().prop_map(Call::Satisfy),
        3 => key().prop_map(Call::CheckKey),
        2 => key().prop_map(Call::CheckLater),
        2 => index().prop_map(Call::CheckHandle),
        1 => key().prop_map(Call::CancelKey),
        2 => index().prop_map(Call::CancelHandle),
        1 => key().prop_map(Call::ForceKey),
        1 => index().prop_map(Call::ForceHandle),
        1 => (key(), span()).prop_map(|(key, timeout)| Call::RescheduleKey(key, timeout)),
        3 => (index(), span()).prop_map(|(index, timeout)| Call::RescheduleHandle(index, timeout)),
        2 => jump().prop_map(Call::Pass),
        6 => jump().prop_map(Call::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g10_any_sequence_of_calls_does_what_a_sorted_map_does(
        choices in choices(),
        calls in prop::collection::vec(call(), 1..120),
        end in prop_oneof![Just(Call::Shutdown), jump().prop_map(Call::Advance)],
        after in prop::collection::vec(call(), 0..10),
    ) {
        let mut pair = Pair::new(choices);
        for call in calls.into_iter().chain([end]).chain(after) {
            pair.call(call);
            pair.compare();
        }
    }
}

/// Many timers at once, so that buckets grow over blocks and slices, and nothing but deadlines.
#[test]
fn g10_crowded_buckets_fire_in_their_ticks() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let timeouts = prop::collection::vec(prop_oneof![0..10_u64, 0..5_000_u64], 200..1_500);
    let jumps = prop::collection::vec(prop_oneof![0..3_u64, 0..2_000_u64], 1..12);
    let result = runner.run(
        &(2..70_usize, timeouts, jumps),
        |(size, timeouts, jumps)| {
            let mut pair = Pair::new(Choices {
                tick: Duration::from_millis(1),
                wheel_size: size,
                max_parked: None,
                max_timeout: Duration::MAX,
                start: Duration::ZERO,
            });
            let share = timeouts.len().div_ceil(jumps.len());
            for (timeouts, jump) in timeouts.chunks(share).zip(jumps) {
                for timeout in timeouts {
                    let keys = vec![(*timeout % 200) as u8];
                    let span = Span::Exactly(Duration::from_millis(*timeout));
                    pair.call(Call::Park(keys, span, false, Arrival::Unsaid));
                }
                pair.call(Call::Advance(Span::Ticks(jump, 0)));
                pair.compare();
            }
            pair.call(Call::Advance(Span::Ticks(10_000, 0)));
            assert_eq!(pair.real.delayed(), 0);
            Ok(())
        },
    );
    if let Err(error) = result {
        panic!("{error}");
    }
}
