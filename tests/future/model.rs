//! G5, G6, G9, G10, G12, G16, G17 against a model: any sequence of calls on `Waits` and on a map of deadlines must end
//! each wait in the same way, wake each task once, and keep as many predicates.

use crate::support::bell::Bell;
use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen, jump, span};
use proptest::prelude::*;
use request_purgatory::{
    Bound, Waits, Watch, future::WaitError, future::WaitFuture, future::WaitOperation, time::Clock,
    time::ManualClock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::task::Poll;

const KEYS: u8 = 6;

/// Names a wait, whatever became of it: that of this number, counted round and round.
type Pick = u16;

#[derive(Debug, Clone)]
enum Call {
    WaitFuture(Vec<u8>, Starting),
    /// At ranks.
    WaitOn(Vec<(u8, Option<u64>)>, Starting),
    /// From now on the predicate answers so.
    Answer(Pick, Answer),
    Check(u8, Option<u64>),
    Force(u8),
    CancelKey(u8),
    CancelHandle(Pick),
    Reschedule(Pick, Span),
    Poll(Pick),
    Drop(Pick),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

/// A wait that begins.
#[derive(Debug, Clone, Copy)]
struct Starting {
    timeout: Span,
    /// What the predicate answers when it is asked for the first time.
    first: Answer,
    /// What it answers from then on.
    then: Answer,
}

/// What a predicate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Nothing,
    Found,
    Panic,
}

/// What it finds is the number of its wait.
type End = Result<usize, WaitError>;

/// A wait, and what is known of it.
struct Task {
    wait: WaitFuture<WaitOperation<u8>, usize>,
    bell: Arc<Bell>,
    /// It was polled and told to wait, and the wait has not ended since.
    awaited: bool,
    /// Wake-ups that were due so far.
    wakes: usize,
    end: Option<End>,
}

/// What the model knows of a wait that is parked.
struct Parked {
    keys: BTreeMap<u8, Option<u64>>,
    /// `None` never expires.
    deadline: Option<u64>,
    says: Arc<Mutex<Answer>>,
}

/// Both, side by side.
struct Pair {
    choices: Choices,
    clock: ManualClock,
    real: Waits<u8>,
    /// By number. `None` for those that were dropped, or have resolved.
    tasks: Vec<Option<Task>>,
    parked: BTreeMap<usize, Parked>,
    /// Every predicate has one.
    predicates: Arc<()>,
    closed: bool,
}

impl Pair {
    fn new(choices: Choices) -> Self {
        let (builder, clock) = chosen!(Waits::builder("model"), choices);
        Self {
            choices,
            clock,
            real: builder.build().expect("no threads to refuse"),
            tasks: Vec::new(),
            parked: BTreeMap::new(),
            predicates: Arc::default(),
            closed: false,
        }
    }

    fn deadline(&self, span: Span) -> Option<u64> {
        let now = self.clock.now().since_origin();
        self.choices.deadline(now, span.of(self.choices.tick))
    }

    fn pick(&self, pick: Pick) -> Option<usize> {
        usize::from(pick).checked_rem(self.tasks.len())
    }

    /// Those that wait on `key` at a rank up to this one, or at none.
    fn on_key(&self, key: u8, up_to: u64) -> BTreeSet<usize> {
        let met = |wait: &Parked| {
            let rank = wait.keys.get(&key);
            rank.is_some_and(|rank| rank.is_none_or(|rank| rank <= up_to))
        };
        let met = self.parked.iter().filter(|(_, wait)| met(wait));
        met.map(|(number, _)| *number).collect()
    }

    /// The wait hears of this end with the next poll.
    fn end(&mut self, number: usize, end: End) {
        self.parked.remove(&number);
        if let Some(task) = &mut self.tasks[number] {
            task.wakes += usize::from(std::mem::take(&mut task.awaited));
            task.end = Some(end);
        }
    }

    /// The predicates of `numbers` are asked. Where they find nothing, `otherwise` is the end, if any. Returns how many
    /// did not panic and have ended.
    fn ask(&mut self, numbers: BTreeSet<usize>, otherwise: Option<WaitError>) -> usize {
        let mut ended = 0;
        for number in numbers {
            let answer = *lock(&self.parked[&number].says);
            let end = match answer {
                Answer::Nothing => otherwise.map(Err),
                Answer::Found => Some(Ok(number)),
                Answer::Panic => Some(Err(WaitError::Panicked)),
            };
            ended += usize::from(end.is_some() && answer != Answer::Panic);
            end.into_iter().for_each(|end| self.end(number, end));
        }
        ended
    }

    fn end_all(&mut self, numbers: BTreeSet<usize>, error: WaitError) {
        for number in numbers {
            self.end(number, Err(error));
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::WaitFuture(keys, starting) => {
                let watched = keys.iter().map(|key| (*key, None)).collect();
                self.wait(watched, starting, |real, timeout, predicate| {
                    real.wait(keys, timeout, predicate)
                });
            }
            Call::WaitOn(on, starting) => {
                let mut watched = BTreeMap::new();
                for &(key, rank) in &on {
                    let least = watched.entry(key).or_insert(rank);
                    *least = (*least).min(rank);
                }
                let on = on
                    .into_iter()
                    .map(|(key, rank)| rank.into_iter().fold(Watch::from(key), Watch::at_rank));
                self.wait(watched, starting, |real, timeout, predicate| {
                    real.wait(on, timeout, predicate)
                });
            }
            Call::Answer(pick, answer) => {
                let wait = self.pick(pick).and_then(|number| self.parked.get(&number));
                if let Some(wait) = wait {
                    *lock(&wait.says) = answer;
                }
            }
            Call::Check(key, up_to) => {
                let met = self.on_key(key, up_to.unwrap_or(u64::MAX));
                let found = match up_to {
                    None => self.real.check_and_complete(&key),
                    Some(rank) => self
                        .real
                        .check_and_complete_with(&key, Bound::all().up_to(rank)),
                };
                assert_eq!(found, self.ask(met, None));
            }
            Call::Force(key) => {
                let met = self.on_key(key, u64::MAX);
                assert_eq!(self.real.force_complete_for_key(&key), met.len());
                self.end_all(met, WaitError::Forced);
            }
            Call::CancelKey(key) => {
                let met = self.on_key(key, u64::MAX);
                assert_eq!(self.real.cancel_for_key(&key).len(), met.len());
                self.end_all(met, WaitError::Cancelled);
            }
            Call::CancelHandle(pick) => {
                if let Some((number, parked)) = self.call_handle(pick, |wait| {
                    let handle = wait.handle();
                    handle.is_some_and(|handle| handle.cancel().is_some())
                }) {
                    let cancelled = parked.then_some(number).into_iter().collect();
                    self.end_all(cancelled, WaitError::Cancelled);
                }
            }
            Call::Reschedule(pick, span) => {
                let (timeout, deadline) = (span.of(self.choices.tick), self.deadline(span));
                if let Some((number, true)) = self.call_handle(pick, |wait| {
                    let handle = wait.handle();
                    handle.is_some_and(|handle| handle.reschedule(timeout))
                }) {
                    let wait = self.parked.get_mut(&number);
                    wait.expect("it is parked").deadline = deadline;
                }
            }
            Call::Poll(pick) => {
                if let Some(number) = self.pick(pick) {
                    self.poll(number);
                }
            }
            Call::Drop(pick) => {
                if let Some(number) = self.pick(pick) {
                    self.tasks[number] = None;
                    self.parked.remove(&number);
                }
            }
            Call::Pass(span) => self.clock.advance(span.of(self.choices.tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(self.choices.tick));
                let now = self.choices.tick_at(self.clock.now().since_origin());
                let due = |wait: &Parked| wait.deadline.is_some_and(|deadline| deadline <= now);
                let due = self.parked.iter().filter(|(_, wait)| due(wait));
                let due = due.map(|(number, _)| *number).collect();
                assert_eq!(self.real.advance(), self.ask(due, Some(WaitError::Expired)));
            }
            Call::Shutdown => {
                self.real.shutdown();
                self.closed = true;
                let all = self.parked.keys().copied().collect();
                self.end_all(all, WaitError::ShutDown);
            }
        }
    }

    /// Makes a call that should work while the wait is parked. Returns its number and whether it did.
    fn call_handle(
        &self,
        pick: Pick,
        call: impl FnOnce(&WaitFuture<WaitOperation<u8>, usize>) -> bool,
    ) -> Option<(usize, bool)> {
        let number = self.pick(pick)?;
        let done = call(&self.tasks[number].as_ref()?.wait);
        assert_eq!(done, self.parked.contains_key(&number));
        Some((number, done))
    }

    fn wait(
        &mut self,
        keys: BTreeMap<u8, Option<u64>>,
        starting: Starting,
        begin: impl FnOnce(
            &Waits<u8>,
            std::time::Duration,
            Predicate,
        ) -> WaitFuture<WaitOperation<u8>, usize>,
    ) {
        let number = self.tasks.len();
        let Starting {
            timeout,
            first,
            then,
        } = starting;
        let says = Arc::new(Mutex::new(then));
        let predicate = {
            let (says, alive) = (says.clone(), self.predicates.clone());
            let mut first = Some(first);
            move || {
                let _alive = &alive;
                match first.take().unwrap_or_else(|| *lock(&says)) {
                    Answer::Nothing => None,
                    Answer::Found => Some(number),
                    // Without the hook, which would print it.
                    Answer::Panic => resume_unwind(Box::new("intended")),
                }
            }
        };
        let wait = begin(
            &self.real,
            timeout.of(self.choices.tick),
            Box::new(predicate),
        );
        let full = self
            .choices
            .max_parked
            .is_some_and(|max| self.parked.len() >= max);
        // In the order in which that is decided.
        let end = match (first, then) {
            _ if self.closed => Some(Err(WaitError::ShutDown)),
            _ if keys.is_empty() => Some(Err(WaitError::NoKeys)),
            (Answer::Panic, _) => Some(Err(WaitError::Panicked)),
            (Answer::Found, _) => Some(Ok(number)),
            _ if full => Some(Err(WaitError::Full)),
            (Answer::Nothing, Answer::Panic) => Some(Err(WaitError::Panicked)),
            (Answer::Nothing, Answer::Found) => Some(Ok(number)),
            (Answer::Nothing, Answer::Nothing) => None,
        };
        if end.is_none() {
            let deadline = self.deadline(timeout);
            let parked = Parked {
                keys,
                deadline,
                says,
            };
            self.parked.insert(number, parked);
        }
        self.tasks.push(Some(Task {
            wait,
            bell: Bell::new(),
            awaited: false,
            wakes: 0,
            end,
        }));
    }

    fn poll(&mut self, number: usize) {
        let Some(task) = &mut self.tasks[number] else {
            return;
        };
        let poll = task.bell.poll(&mut task.wait);
        match task.end.take() {
            Some(end) => {
                assert_eq!(poll, Poll::Ready(end));
                self.tasks[number] = None;
            }
            None => {
                assert_eq!(poll, Poll::Pending);
                task.awaited = true;
            }
        }
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        assert_eq!(self.real.stats().parked, self.parked.len());
        assert_eq!(Arc::strong_count(&self.predicates), 1 + self.parked.len());
        let watched = self.parked.values().flat_map(|wait| wait.keys.keys());
        let keys = watched.clone().collect::<BTreeSet<_>>();
        assert_eq!(
            (self.real.stats().watched, self.real.watched_keys()),
            (watched.count(), keys.len())
        );
        for (number, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            assert_eq!(task.bell.rung(), task.wakes, "wait {number}");
            let parked = self.parked.get(&number);
            let handle = task.wait.handle();
            assert_eq!(
                handle.is_some_and(|handle| handle.is_parked()),
                parked.is_some()
            );
            let deadline = parked.and_then(|wait| wait.deadline);
            let deadline = deadline.map(|tick| self.choices.timestamp(tick));
            assert_eq!(handle.and_then(|handle| handle.deadline()), deadline);
        }
    }
}

type Predicate = Box<dyn FnMut() -> Option<usize> + Send>;

fn call() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS;
    let pick = any::<Pick>;
    let answer = |nothing, found| {
        prop_oneof![
            nothing => Just(Answer::Nothing),
            found => Just(Answer::Found),
            1 => Just(Answer::Panic),
        ]
    };
    let starting = || {
        let starting = (span(), answer(18, 1), answer(18, 1));
        starting.prop_map(|(timeout, first, then)| Starting {
            timeout,
            first,
            then,
        })
    };
    let rank = || prop::option::of(0..4_u64);
    let keys = prop::collection::vec(key(), 0..4);
    let on = prop::collection::vec((key(), rank()), 0..4);
    prop_oneof![
        5 => (keys, starting()).prop_map(|(keys, starting)| Call::WaitFuture(keys, starting)),
        5 => (on, starting()).prop_map(|(on, starting)| Call::WaitOn(on, starting)),
        4 => (pick(), answer(2, 7)).prop_map(|(pick, answer)| Call::Answer(pick, answer)),
        5 => (key(), rank()).prop_map(|(key, rank)| Call::Check(key, rank)),
        1 => key().prop_map(Call::Force),
        1 => key().prop_map(Call::CancelKey),
        1 => pick().prop_map(Call::CancelHandle),
        2 => (pick(), span()).prop_map(|(pick, timeout)| Call::Reschedule(pick, timeout)),
        6 => pick().prop_map(Call::Poll),
        2 => pick().prop_map(Call::Drop),
        2 => jump().prop_map(Call::Pass),
        5 => jump().prop_map(Call::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g10_any_sequence_of_calls_ends_waits_as_a_map_does(
        choices in choices(),
        calls in prop::collection::vec(call(), 1..120),
        after in prop::collection::vec(call(), 0..20),
    ) {
        let mut pair = Pair::new(choices);
        for call in calls.into_iter().chain([Call::Shutdown]).chain(after) {
            pair.call(call);
            pair.compare();
        }
        for number in 0..pair.tasks.len() {
            pair.poll(number);
            assert!(pair.tasks[number].is_none(), "{number} has no end");
        }
    }
}
