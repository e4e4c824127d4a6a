//! Two purgatories on one clock, and whoever calls them: the script, and the operations that it parks.

use super::call::{Act, Arriving, By, Deed, ITSELF, Pick, RECENT, Reach, Setup, Way};
use super::operation::{Caller, Event, Op, Outcome, Says, named};
use crate::support::hashing::Hashing;
use crate::support::spans::chosen;
use crate::support::{Job, bell, lock};
use request_purgatory::{
    Completion, Handle, Purgatory, ResolvedKey, Watch,
    future::{Awaited, WaitFuture},
    purgatory::{Admission, Rejected},
    threads::Dispatch,
    time::{Clock, ManualClock},
};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) type Parks = Purgatory<Awaited<Op>, Hashing>;
type ParkedHandle = Handle<Awaited<Op>, Hashing>;
type EndFuture = WaitFuture<Awaited<Op>, (Op, Completion), Hashing>;
type Resolved = ResolvedKey<Awaited<Op>, Hashing>;

/// No lock of these is held while a call is made: operations call back.
pub(crate) struct Real {
    /// Itself, for the operations.
    this: Weak<Self>,
    pub(crate) sides: Mutex<[Parks; 2]>,
    setup: Setup,
    pub(crate) clock: ManualClock,
    /// By number.
    ops: Mutex<Vec<Known>>,
    /// Each key as often as it is resolved.
    resolved: Mutex<BTreeMap<(usize, u8), Vec<Arc<Resolved>>>>,
    pub(crate) log: Mutex<Vec<Event>>,
    /// Operations do nothing but answer.
    pub(crate) calm: AtomicBool,
}

struct Known {
    says: Says,
    /// None for those that never parked, or whose handle was dropped.
    handle: Option<ParkedHandle>,
    future: Option<EndFuture>,
}

impl Caller for Real {
    fn note(&self, event: Event) {
        lock(&self.log).push(event);
    }

    fn act_all(&self, acts: &[Act], itself: usize) {
        let calm = self.calm.load(Ordering::Relaxed);
        for act in acts.iter().filter(|_| !calm) {
            self.act(act, Some(itself));
        }
    }
}

impl Real {
    pub(crate) fn new(setup: &Setup) -> Arc<Self> {
        let clock = ManualClock::starting_at(setup.choices.start);
        let sides = Mutex::new(["one", "two"].map(|name| build(name, setup, &clock)));
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            sides,
            setup: setup.clone(),
            clock,
            ops: Mutex::default(),
            resolved: Mutex::default(),
            log: Mutex::default(),
            calm: AtomicBool::new(false),
        })
    }

    pub(crate) fn side(&self, side: usize) -> Parks {
        lock(&self.sides)[side].clone()
    }

    /// Puts another purgatory in the place of this one.
    pub(crate) fn replaced(&self, side: usize, by: Parks) -> Parks {
        std::mem::replace(&mut lock(&self.sides)[side], by)
    }

    /// What is left of the log.
    pub(crate) fn take_log(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.log))
    }

    pub(crate) fn handle(&self, number: usize) -> Option<ParkedHandle> {
        lock(&self.ops)[number].handle.clone()
    }

    fn picked(&self, pick: Pick, itself: Option<usize>) -> Option<usize> {
        picked(pick, itself, lock(&self.ops).len())
    }

    fn picked_handle(&self, pick: Pick, itself: Option<usize>) -> Option<ParkedHandle> {
        self.handle(self.picked(pick, itself)?)
    }

    /// Makes a call, and notes what it returns.
    pub(crate) fn act(&self, act: &Act, itself: Option<usize>) {
        let outcome = self.made(act, itself);
        self.note(Event::Returned(outcome));
    }

    fn made(&self, act: &Act, itself: Option<usize>) -> Outcome {
        let side = act.side;
        let real = self.side(side);
        let picked_handle = |pick| self.picked_handle(pick, itself);
        match &act.deed {
            Deed::Park(arriving) => self.park(&real, side, arriving),
            Deed::Resolve(key) => {
                self.resolve_again(side, *key);
                Outcome::Nothing
            }
            Deed::Release(key) => {
                let mut resolved = lock(&self.resolved);
                let last = resolved.get_mut(&(side, *key)).and_then(Vec::pop);
                drop(resolved);
                drop(last);
                Outcome::Nothing
            }
            Deed::Answer(pick, answer) => {
                if let Some(number) = self.picked(*pick, itself) {
                    *lock(&lock(&self.ops)[number].says) = *answer;
                }
                Outcome::Nothing
            }
            Deed::AnswerRecent(answer) => {
                for known in lock(&self.ops).iter().rev().take(RECENT) {
                    *lock(&known.says) = *answer;
                }
                Outcome::Nothing
            }
            Deed::Check(key, by, reach) => self.check(side, *key, *by, *reach).into(),
            Deed::CheckLater(key) => {
                real.check_later(*key);
                Outcome::Nothing
            }
            Deed::CheckHandle(pick) => picked_handle(*pick).is_some_and(|it| it.check()).into(),
            Deed::CheckAll(keys) => real.check_and_complete_all(keys).into(),
            Deed::CheckWhere(bits) => {
                let is_concerned = |key: &u8| {
                    self.note(Event::Picked(*key));
                    is_picked(*bits, *key)
                };
                real.check_where(is_concerned).into()
            }
            Deed::CancelKey(key) => {
                let all = real.cancel_for_key(key).into_iter();
                let all = all.map(|op| op.into_operation().returned());
                Outcome::Operations(all.collect())
            }
            Deed::CancelHandle(pick) => {
                let op = picked_handle(*pick).and_then(|it| it.cancel());
                let number = op.map(|op| op.into_operation().returned());
                Outcome::Operations(number.into_iter().collect())
            }
            Deed::ForceKey(key) => real.force_complete_for_key(key).into(),
            Deed::ForceWith(key, acts) => {
                let (this, acts) = (self.this.clone(), acts.clone());
                let change = move |op: &mut Awaited<Op>| {
                    let number = named(op);
                    if let Some(real) = this.upgrade() {
                        real.note(Event::Changed(number));
                        real.act_all(&acts, number);
                    }
                };
                real.force_complete_for_key_with(key, change).into()
            }
            Deed::ForceHandle(pick) => {
                let handle = picked_handle(*pick);
                handle.is_some_and(|it| it.force_complete()).into()
            }
            Deed::Reschedule(pick, span) => {
                let timeout = span.of(self.setup.choices.tick);
                let handle = picked_handle(*pick);
                handle.is_some_and(|it| it.reschedule(timeout)).into()
            }
            Deed::DropHandle(pick) => {
                if let Some(number) = self.picked(*pick, itself) {
                    let mut ops = lock(&self.ops);
                    let known = &mut ops[number];
                    let gone = (known.handle.take(), known.future.take());
                    drop(ops);
                    drop(gone);
                }
                Outcome::Nothing
            }
            Deed::Advance => real.advance().into(),
            Deed::Drain => real.drain(Duration::ZERO).into(),
            Deed::Shutdown => {
                real.shutdown();
                Outcome::Nothing
            }
        }
    }

    fn check(&self, side: usize, key: u8, by: By, reach: Reach) -> usize {
        let all = reach == Reach::ALL;
        match by {
            By::Key if all => self.side(side).check_and_complete(&key),
            By::Key => self.side(side).check_and_complete_with(&key, reach.bound()),
            By::Resolved | By::ResolvedAfterLock => {
                let resolved = self.resolved(side, key);
                match by {
                    By::ResolvedAfterLock if all => resolved.check_and_complete_after_lock(),
                    _ if all => resolved.check_and_complete(),
                    _ => resolved.check_and_complete_with(reach.bound()),
                }
            }
        }
    }

    fn resolutions(&self, side: usize, key: u8) -> Vec<Arc<Resolved>> {
        let all = lock(&self.resolved).get(&(side, key)).cloned();
        all.unwrap_or_default()
    }

    /// The key, resolved now if it is not.
    fn resolved(&self, side: usize, key: u8) -> Arc<Resolved> {
        let first = self.resolutions(side, key).into_iter().next();
        let resolved = first.unwrap_or_else(|| self.resolve_again(side, key));
        assert_eq!(*resolved.key(), key);
        resolved
    }

    /// Every other resolution is a clone of the one before.
    fn resolve_again(&self, side: usize, key: u8) -> Arc<Resolved> {
        let all = self.resolutions(side, key);
        let last = all.last().filter(|_| all.len() % 2 == 0);
        let again = Arc::new(match last {
            Some(last) => Resolved::clone(last),
            None => self.side(side).resolve(key),
        });
        let mut resolved = lock(&self.resolved);
        let resolutions = resolved.entry((side, key)).or_default();
        resolutions.push(again.clone());
        again
    }

    fn park(&self, real: &Parks, side: usize, arriving: &Arc<Arriving>) -> Outcome {
        // Keys that are resolved for this stay so while it is made.
        let resolved = arriving.on.iter().map(|on| match on.way {
            Way::Plain => None,
            Way::Resolved => Some(self.resolved(side, on.key)),
            Way::Foreign => Some(self.resolved(1 - side, on.key)),
        });
        let resolved = resolved.collect::<Vec<_>>();
        let watches = arriving.on.iter().zip(&resolved).map(|(on, resolved)| {
            let watch = match resolved {
                Some(resolved) => resolved.watch(),
                None => Watch::from(on.key),
            };
            on.rank.into_iter().fold(watch, Watch::at_rank)
        });
        let mut ops = lock(&self.ops);
        let number = ops.len();
        let says = Says::new(arriving.then.into());
        ops.push(Known {
            says: says.clone(),
            handle: None,
            future: None,
        });
        drop(ops);
        let (now, tick) = (self.clock.now().since_origin(), self.setup.choices.tick);
        let op = Op {
            number,
            is: arriving.clone(),
            timeout: arriving.timeout.of(tick),
            arrival: arriving.arrival(now, tick),
            first: Some(arriving.first),
            says,
            caller: self.this.clone(),
            told_of_drop: !arriving.awaited,
        };
        if arriving.awaited {
            match catch_unwind(AssertUnwindSafe(|| real.completion(op, watches))) {
                Err(_) => return Outcome::Panicked(number),
                Ok(Err(rejected)) => return refused(rejected, Op::returned),
                Ok(Ok(future)) => {
                    let handle = future.handle().cloned();
                    let is_parked = handle.is_some();
                    lock(&self.ops)[number].handle = handle;
                    self.poll(number, future);
                    return Outcome::Admitted(is_parked);
                }
            }
        }
        let park = || real.try_complete_else_watch(Awaited::new(op), watches);
        match catch_unwind(AssertUnwindSafe(park)) {
            Err(_) => Outcome::Panicked(number),
            Ok(Err(rejected)) => refused(rejected, |op| op.into_operation().returned()),
            Ok(Ok(Admission::Ended)) => Outcome::Admitted(false),
            Ok(Ok(Admission::Parked(handle))) => {
                lock(&self.ops)[number].handle = Some(handle);
                Outcome::Admitted(true)
            }
        }
    }

    /// Notes what the task that awaits it is told, or keeps its future.
    fn poll(&self, number: usize, mut future: EndFuture) {
        let real = self.this.clone();
        let waker = bell::waker(move || {
            if let Some(real) = real.upgrade() {
                real.note(Event::Woken(number));
            }
        });
        let told = match Future::poll(Pin::new(&mut future), &mut Context::from_waker(&waker)) {
            Poll::Pending => {
                lock(&self.ops)[number].future = Some(future);
                return;
            }
            Poll::Ready(told) => told.map(|(op, completion)| {
                assert_eq!(op.number, number);
                completion
            }),
        };
        self.note(Event::Told(number, told));
    }

    pub(crate) fn poll_all(&self) {
        let count = lock(&self.ops).len();
        for number in 0..count {
            let future = lock(&self.ops)[number].future.take();
            if let Some(future) = future {
                self.poll(number, future);
            }
        }
    }

    /// Whether every key that is still resolved is checked in vain.
    pub(crate) fn resolved_are_empty(&self) -> bool {
        let all = lock(&self.resolved);
        let all = all.values().flatten().cloned().collect::<Vec<_>>();
        all.iter().all(|it| it.check_and_complete() == 0)
    }
}

/// The number of the operation that is meant.
pub(crate) fn picked(pick: Pick, itself: Option<usize>, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(match pick {
        ITSELF => itself.unwrap_or(last),
        _ if pick % 2 == 1 => last - usize::from(pick / 2) % count.min(RECENT),
        _ => usize::from(pick / 2) % count,
    })
}

pub(crate) fn is_picked(bits: u64, key: u8) -> bool {
    bits >> (key % 64) & 1 == 1
}

fn refused<T>(rejected: Rejected<T>, number: impl FnOnce(T) -> usize) -> Outcome {
    Outcome::Refused(rejected.reason(), number(rejected.into_inner()))
}

fn build(name: &str, setup: &Setup, clock: &ManualClock) -> Parks {
    let (builder, _) = chosen!(Purgatory::builder(name), setup.choices);
    let mut builder = builder.clock(clock.clone()).hasher(setup.hashing);
    if let Some(shards) = setup.map_shards {
        builder = builder.map_shards(shards);
    }
    if let Some(max) = setup.max_watchers {
        builder = builder.max_watchers_per_key(max);
    }
    if setup.executor {
        builder = builder.dispatch(Dispatch::Executor(Arc::new(|job: Job| job())));
    }
    builder.build().expect("no threads to refuse")
}
