//! A purgatory and the model of it, side by side.

use super::call::{Answer, Arriving, By, Call, On, Pick, Reading, Way};
use super::operation::{Log, Op, Says, Told};
use super::sorted_map::{End, Endings, Model, Parked};
use crate::support::Job;
use crate::support::lock;
use crate::support::spans::{Choices, Span, chosen};
use request_purgatory::{
    Bound, Completion, Handle, Purgatory, ResolvedKey, Watch, future::Awaited, future::WaitFuture,
    purgatory::Admission, purgatory::RejectReason, purgatory::Rejected, threads::Dispatch,
    threads::Reaper, time::Clock, time::ManualClock, time::Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Real = Purgatory<Awaited<Op>>;

pub(crate) struct Pair {
    pub(crate) model: Model,
    pub(crate) real: Real,
    /// For keys that are not of `real`.
    foreign: Real,
    pub(crate) clock: ManualClock,
    /// By number. None for those that never parked, or whose handle was dropped.
    pub(crate) handles: Vec<Option<Handle<Awaited<Op>>>>,
    futures: BTreeMap<usize, EndFuture>,
    says: Vec<Says>,
    /// Each key as often as it is resolved.
    resolved: BTreeMap<u8, Vec<ResolvedKey<Awaited<Op>>>>,
    pub(crate) log: Log,
}

/// The future of an end.
type EndFuture = WaitFuture<Awaited<Op>, (Op, Completion)>;

/// Answer of a park, whatever kind it was of.
enum Arrived {
    Ended,
    Parked(Handle<Awaited<Op>>),
    Awaited(EndFuture),
}

impl From<Admission<Awaited<Op>>> for Arrived {
    fn from(watch: Admission<Awaited<Op>>) -> Self {
        watch.into_handle().map_or(Self::Ended, Self::Parked)
    }
}

/// Why a park was refused, without the operation.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NoKeys,
    Full,
    ShutDown,
    Panicked,
}

fn refusal<T>(rejected: Rejected<T>, op: impl FnOnce(T) -> Op) -> (Refusal, usize) {
    let refusal = match rejected.reason() {
        RejectReason::NoKeys => Refusal::NoKeys,
        RejectReason::Full => Refusal::Full,
        RejectReason::ShutDown => Refusal::ShutDown,
        RejectReason::Panicked => Refusal::Panicked,
        other => panic!("{other:?}"),
    };
    (refusal, op(rejected.into_inner()).number)
}

impl Pair {
    pub(crate) fn new(choices: Choices, executor: bool) -> Self {
        let (mut builder, clock) = chosen!(Purgatory::builder("model"), choices);
        if executor {
            builder = builder.dispatch(Dispatch::Executor(Arc::new(|job: Job| job())));
        }
        let foreign = Purgatory::builder("foreign").reaper(Reaper::Manual);
        Self {
            real: builder.build().expect("no threads to refuse"),
            foreign: foreign.build().expect("no threads to refuse"),
            model: Model::new(choices),
            clock,
            handles: Vec::new(),
            futures: BTreeMap::new(),
            says: Vec::new(),
            resolved: BTreeMap::new(),
            log: Log::default(),
        }
    }

    /// What was told since the last question.
    pub(crate) fn endings(&mut self) -> Endings {
        let log = std::mem::take(&mut *lock(&self.log));
        let count = log.len();
        let told = |(number, completion)| (number, Told::Completion(completion));
        let mut endings = log.into_iter().map(told).collect::<Endings>();
        assert_eq!(endings.len(), count, "one ended twice");
        let mut context = Context::from_waker(Waker::noop());
        self.futures.retain(|&number, future| {
            let told = match Future::poll(Pin::new(future), &mut context) {
                Poll::Pending => return true,
                Poll::Ready(Ok((op, completion))) => {
                    assert_eq!(op.number, number);
                    Told::Completion(completion)
                }
                Poll::Ready(Err(lost)) => Told::Lost(lost),
            };
            assert!(endings.insert(number, told).is_none(), "one ended twice");
            false
        });
        endings
    }

    /// Numbers without an end lie by the model's; `expected` is what is told of the others.
    fn expect(&mut self, expected: Endings) {
        assert_eq!(self.endings(), expected);
    }

    /// The operation meant by `pick`, and its handle if there is one.
    fn pick(&self, pick: Pick) -> Option<(usize, Option<Handle<Awaited<Op>>>)> {
        let number = usize::from(pick).checked_rem(self.handles.len())?;
        Some((number, self.handles[number].clone()))
    }

    fn pick_handle(&self, pick: Pick) -> Option<(usize, Handle<Awaited<Op>>)> {
        let (number, handle) = self.pick(pick)?;
        Some((number, handle?))
    }

    pub(crate) fn call(&mut self, call: Call) {
        match call {
            Call::Park(keys, op) => self.park_plain(&keys, op),
            Call::ParkOn(on, op) => self.park_on(&on, op),
            Call::Resolve(key) => self.resolve_again(key),
            Call::Release(key) => self.release(key),
            Call::Answer(pick, answer) => {
                if let Some((number, _)) = self.pick(pick) {
                    self.says[number].set(answer);
                }
            }
            Call::Check(key, by, rank) => self.check(key, by, rank),
            Call::CheckLater(key) => {
                self.real.check_later(key);
                // Deferred checks of one key are merged.
                if !self.model.closed && !self.model.later.contains(&key) {
                    self.model.later.push_back(key);
                }
            }
            Call::CancelKey(key) => self.cancel_key(key),
            Call::ForceKey(key) => {
                let on_key = self.model.on_key(key);
                let count = on_key.len();
                let expected = self.model.end_all(on_key, End::Forced);
                assert_eq!(self.real.force_complete_for_key(&key), count);
                self.expect(expected);
            }
            Call::RescheduleKey(key, span) => {
                let on_key = self.model.on_key(key);
                for number in on_key {
                    if let Some(handle) = self.handles[number].clone() {
                        self.call_handle(Call::RescheduleHandle(0, span), number, &handle);
                    }
                }
            }
            Call::CheckHandle(pick)
            | Call::CancelHandle(pick)
            | Call::ForceHandle(pick)
            | Call::RescheduleHandle(pick, _) => {
                if let Some((number, handle)) = self.pick_handle(pick) {
                    self.call_handle(call, number, &handle);
                }
            }
            Call::DropHandle(pick) => self.drop_handle(pick),
            Call::Pass(span) => self.pass(span),
            Call::Advance(span) => {
                self.pass(span);
                self.advance();
            }
            Call::Shutdown => {
                self.real.shutdown();
                self.shut_down();
            }
        }
    }

    fn call_handle(&mut self, call: Call, number: usize, handle: &Handle<Awaited<Op>>) {
        let parked = self.model.parked.contains_key(&number);
        match call {
            Call::CheckHandle(_) => {
                let this = parked.then_some(number).into_iter().collect();
                let (satisfied, expected) = self.model.check(this);
                assert_eq!(handle.check(), satisfied == 1);
                self.expect(expected);
            }
            Call::CancelHandle(_) => {
                let returned = handle.cancel().map(|op| op.into_operation().number);
                assert_eq!(returned, parked.then_some(number));
                let expected = self.model.end_all([number], End::Cancelled);
                self.expect(expected);
            }
            Call::ForceHandle(_) => {
                let expected = self.model.end_all([number], End::Forced);
                assert_eq!(handle.force_complete(), parked);
                self.expect(expected);
            }
            Call::RescheduleHandle(_, span) => {
                let timeout = span.of(self.model.choices.tick);
                assert_eq!(handle.reschedule(timeout), parked);
                self.reschedule(number, timeout);
            }
            other => unreachable!("{other:?} is not for handles"),
        }
    }

    fn drop_handle(&mut self, pick: Pick) {
        let Some((number, _)) = self.pick(pick) else {
            return;
        };
        self.handles[number] = None;
        if let Some(future) = self.futures.remove(&number) {
            drop(future);
            // No task is left to be told.
            self.model.end(number, End::Cancelled);
        }
    }

    fn cancel_key(&mut self, key: u8) {
        let returned = self.real.cancel_for_key(&key).into_iter();
        let returned = returned.map(|op| op.into_operation().number);
        let returned = returned.collect::<BTreeSet<_>>();
        assert_eq!(returned, self.model.on_key(key));
        let expected = self.model.end_all(returned, End::Cancelled);
        self.expect(expected);
    }

    /// The key, resolved now if it is not.
    fn resolve(&mut self, key: u8) -> &ResolvedKey<Awaited<Op>> {
        let resolved = self.resolved.entry(key).or_default();
        if resolved.is_empty() {
            resolved.push(self.real.resolve(key));
        }
        assert_eq!(*resolved[0].key(), key);
        &resolved[0]
    }

    fn resolve_again(&mut self, key: u8) {
        let resolved = self.resolved.entry(key).or_default();
        let again = match resolved.last() {
            Some(last) if resolved.len() % 2 == 0 => last.clone(),
            _ => self.real.resolve(key),
        };
        resolved.push(again);
    }

    fn release(&mut self, key: u8) {
        if let Some(resolved) = self.resolved.get_mut(&key) {
            resolved.pop();
        }
    }

    fn check(&mut self, key: u8, by: By, rank: Option<u64>) {
        let met = self.model.on_key_up_to(key, rank.unwrap_or(u64::MAX));
        let ranks = met.iter().map(|number| {
            let rank = self.model.parked[number].keys[&key];
            // Those without a rank come last.
            (*number, rank.map_or((1, 0), |rank| (0, rank)))
        });
        let ranks = ranks.collect::<BTreeMap<_, _>>();
        let (satisfied, expected) = self.model.check(met);
        let completed = match (by, rank) {
            (By::Key, None) => self.real.check_and_complete(&key),
            (By::Key, Some(rank)) => self
                .real
                .check_and_complete_with(&key, Bound::all().up_to(rank)),
            (By::Resolved, None) => self.resolve(key).check_and_complete(),
            (By::ResolvedAfterLock, None) => self.resolve(key).check_and_complete_after_lock(),
            (_, Some(rank)) => self
                .resolve(key)
                .check_and_complete_with(Bound::all().up_to(rank)),
        };
        assert_eq!(completed, satisfied);
        let order = lock(&self.log).clone();
        let mut order = order.iter().map(|(number, _)| ranks.get(number));
        assert!(
            order.by_ref().is_sorted(),
            "not in the order of their ranks"
        );
        self.expect(expected);
    }

    /// The reading that is said, if any.
    fn reading(&self, op: &Arriving) -> Option<Timestamp> {
        let (now, tick) = (self.model.now, self.model.choices.tick);
        let reading = match op.reading {
            Reading::Ago(span) if !op.awaited => now.saturating_sub(span.of(tick)),
            Reading::Ahead(span) if !op.awaited => now.saturating_add(span.of(tick)),
            _ => return None,
        };
        Some(Timestamp::from_origin(reading))
    }

    fn park_plain(&mut self, keys: &[u8], arriving: Arriving) {
        let ranks = keys.iter().map(|key| (*key, None)).collect();
        let reading = self.reading(&arriving);
        let keys = keys.iter().copied();
        self.park(arriving, reading, ranks, |real, op| {
            match arriving.awaited {
                true => awaited(real.completion(op, keys)),
                false => plain(real.try_complete_else_watch(Awaited::new(op), keys)),
            }
        });
    }

    fn park_on(&mut self, on: &[On], arriving: Arriving) {
        let mut ranks = BTreeMap::new();
        let mut foreign = Vec::new();
        for on in on {
            let rank = ranks.entry(on.key).or_insert(on.rank);
            *rank = (*rank).min(on.rank);
            match on.way {
                Way::Plain => {}
                Way::Resolved => drop(self.resolve(on.key)),
                Way::Foreign => foreign.push(self.foreign.resolve(on.key)),
            }
        }
        let resolved = std::mem::take(&mut self.resolved);
        let mut foreigners = foreign.iter();
        let watches = on.iter().map(|on| {
            let watch = match on.way {
                Way::Plain => Watch::from(on.key),
                Way::Resolved => resolved[&on.key][0].watch(),
                Way::Foreign => foreigners.next().expect("one for each").watch(),
            };
            on.rank.into_iter().fold(watch, Watch::at_rank)
        });
        let reading = self.reading(&arriving);
        self.park(arriving, reading, ranks, |real, op| {
            match arriving.awaited {
                true => awaited(real.completion(op, watches)),
                false => plain(real.try_complete_else_watch(Awaited::new(op), watches)),
            }
        });
        self.resolved = resolved;
    }

    fn park(
        &mut self,
        arriving: Arriving,
        reading: Option<Timestamp>,
        keys: BTreeMap<u8, Option<u64>>,
        park: impl FnOnce(&Real, Op) -> Result<Arrived, (Refusal, usize)>,
    ) {
        let number = self.handles.len();
        let Arriving {
            first,
            then,
            awaited,
            fragile,
            ..
        } = arriving;
        let timeout = arriving.timeout.of(self.model.choices.tick);
        let says = Says::new(then);
        self.says.push(says.clone());
        let result = park(
            &self.real,
            Op {
                number,
                timeout,
                arrival: if arriving.awaited { None } else { reading },
                first: Some(first),
                says: says.clone(),
                fragile,
                log: self.log.clone(),
            },
        );
        // What should have become of it, in the order in which that is decided.
        let (closed, full) = (self.model.closed, self.model.is_full());
        let counts = &mut self.model.counts;
        let (refusal, expected) = if closed {
            (Some(Refusal::ShutDown), Endings::new())
        } else if keys.is_empty() {
            (Some(Refusal::NoKeys), Endings::new())
        } else if first == Answer::Panic {
            counts.panicked += 1;
            (Some(Refusal::Panicked), Endings::new())
        } else if first == Answer::Yes {
            (None, self.model.complete_at_once(number, awaited, fragile))
        } else if full {
            (Some(Refusal::Full), Endings::new())
        } else {
            let reading = reading.map_or(self.model.now, Timestamp::since_origin);
            let deadline = self.model.choices.deadline(reading, timeout);
            let parked = Parked {
                keys,
                parked_at: self.model.choices.tick_at(reading),
                deadline,
                overdue: self.model.is_past(deadline),
                says,
                awaited,
                fragile,
            };
            self.model.parked.insert(number, parked);
            match then {
                Answer::No => (None, Endings::new()),
                Answer::Yes => (None, self.model.end_all([number], End::Satisfied)),
                Answer::Panic => {
                    self.model.end(number, End::Aborted);
                    (Some(Refusal::Panicked), Endings::new())
                }
            }
        };
        self.model.counts.rejected += u64::from(refusal.is_some());
        let parked = self.model.parked.contains_key(&number);
        let handle = match result {
            Err(got) => {
                assert_eq!((Some(got.0), got.1), (refusal, number));
                None
            }
            Ok(arrived) => {
                assert_eq!(None, refusal, "it was not refused");
                match arrived {
                    Arrived::Ended => {
                        assert!(!parked && !awaited);
                        None
                    }
                    Arrived::Parked(handle) => {
                        assert!(parked && !awaited);
                        Some(handle)
                    }
                    Arrived::Awaited(future) => {
                        assert_eq!(future.handle().is_some(), parked);
                        let handle = future.handle().cloned();
                        self.futures.insert(number, future);
                        handle
                    }
                }
            }
        };
        self.handles.push(handle);
        self.expect(expected);
    }

    fn reschedule(&mut self, number: usize, timeout: Duration) {
        let deadline = self.model.choices.deadline(self.model.now, timeout);
        let overdue = self.model.is_past(deadline);
        if let Some(op) = self.model.parked.get_mut(&number) {
            (op.deadline, op.overdue) = (deadline, overdue);
        }
    }

    fn pass(&mut self, span: Span) {
        let time = span.of(self.model.choices.tick);
        self.clock.advance(time);
        self.model.pass(time);
        assert_eq!(self.clock.now().since_origin(), self.model.now);
    }

    pub(crate) fn advance(&mut self) {
        let mut expected = Endings::new();
        while let Some(key) = self.model.later.pop_front() {
            let on_key = self.model.on_key(key);
            expected.extend(self.model.check(on_key).1);
        }
        let now = self.model.tick();
        let due = self.model.parked.iter().filter_map(|(number, op)| {
            let deadline = op.deadline.filter(|deadline| *deadline <= now)?;
            Some((*number, (deadline, op.overdue)))
        });
        let due = due.collect::<BTreeMap<_, _>>();
        let mut expired = 0;
        for (&number, &(deadline, _)) in &due {
            let (has_expired, told) = self.model.expire(number, deadline);
            expired += usize::from(has_expired);
            expected.extend(told.map(|told| (number, told)));
        }
        assert_eq!(self.real.advance(), expired);
        let order = lock(&self.log).clone();
        let order = order.iter().filter_map(|(number, _)| due.get(number));
        let order = order.filter(|(_, overdue)| !overdue);
        assert!(order.is_sorted(), "not in the order of their deadlines");
        self.expect(expected);
        let next = self.real.next_deadline();
        let ahead = next.is_none_or(|next| next > self.clock.now());
        assert!(ahead || self.model.now == Duration::MAX, "{next:?}");
    }

    fn shut_down(&mut self) {
        self.model.closed = true;
        self.model.later.clear();
        let all = self.model.parked.keys().copied().collect::<Vec<_>>();
        let expected = self.model.end_all(all, End::ShutDown);
        self.expect(expected);
    }

    /// The last strong handle goes, and what refers to the purgatory stays a while.
    pub(crate) fn finish(self) {
        let mut rest = self;
        let weak = rest.real.downgrade();
        assert_eq!(
            weak.upgrade().map(|real| real.stats().parked),
            Some(rest.real.stats().parked)
        );
        // Another handle takes its place, so that the rest can be asked.
        drop(std::mem::replace(&mut rest.real, rest.foreign.clone()));
        rest.shut_down();
        assert!(weak.upgrade().is_none());
        for handle in rest.handles.iter().flatten() {
            assert!(!handle.is_parked() && !handle.check() && handle.cancel().is_none());
        }
        for resolved in rest.resolved.values().flatten() {
            assert_eq!(resolved.check_and_complete(), 0);
        }
    }
}

fn plain(
    result: Result<Admission<Awaited<Op>>, Rejected<Awaited<Op>>>,
) -> Result<Arrived, (Refusal, usize)> {
    result
        .map(Arrived::from)
        .map_err(|rejected| refusal(rejected, Awaited::into_operation))
}

fn awaited(result: Result<EndFuture, Rejected<Op>>) -> Result<Arrived, (Refusal, usize)> {
    result
        .map(Arrived::Awaited)
        .map_err(|rejected| refusal(rejected, |op| op))
}
