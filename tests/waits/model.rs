//! G1, G5, G6, G9, G10, G12, G16, G17, G22 against a model: any sequence of calls on `Waits` and on a map of deadlines
//! must ask the predicates in the same order, end each wait and each listener in the same way, wake each task once, and
//! keep as many predicates.

mod calls;

use self::calls::{
    ALL, Answer, By, Call, Counts, End, Handle, KEYS, Parked, Pick, Reach, Starting, Task, Waiting,
    call,
};
use crate::support::bell::Bell;
use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen};
use proptest::prelude::*;
use request_purgatory::{
    ResolvedKey, Waits, Watch, future::WaitError, future::WaitFuture, future::WaitOperation,
    time::Clock, time::ManualClock,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// Both, side by side.
struct Pair {
    choices: Choices,
    clock: ManualClock,
    real: Waits<u8>,
    /// By number. `None` for those that were dropped, or have resolved.
    tasks: Vec<Option<Task>>,
    /// In the order of their arrival.
    parked: BTreeMap<usize, Parked>,
    arrived: usize,
    later: VecDeque<u8>,
    resolved: BTreeMap<u8, ResolvedKey<WaitOperation<u8>>>,
    counts: Counts,
    /// The predicates that were asked.
    asked: Arc<Mutex<Vec<usize>>>,
    /// Those that should have been, by checks.
    expected: Vec<usize>,
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
            arrived: 0,
            later: VecDeque::new(),
            resolved: BTreeMap::new(),
            counts: Counts::default(),
            asked: Arc::default(),
            expected: Vec::new(),
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

    fn is_full(&self) -> bool {
        let max = self.choices.max_parked;
        max.is_some_and(|max| self.parked.len() >= max)
    }

    /// Those that wait on `key`: by rank, up to this one, and then those without, in the order of arrival. Among equal
    /// ranks there is no order; which one the library took, the predicates tell.
    fn on_key(&self, key: u8, up_to: Option<u64>) -> Vec<usize> {
        let asked = lock(&self.asked);
        let met = self.parked.iter().filter_map(|(number, wait)| {
            let rank = *wait.keys.get(&key)?;
            let next = &asked[self.expected.len().min(asked.len())..];
            let place = next.iter().position(|it| *it == wait.task);
            let turn = rank.map(|rank| (rank, place.unwrap_or(usize::MAX)));
            let is_met = rank.is_none_or(|rank| rank <= up_to.unwrap_or(u64::MAX));
            is_met.then_some(((turn.is_none(), turn, *number), *number))
        });
        let met = met.collect::<BTreeMap<_, _>>();
        met.into_values().collect()
    }

    /// What the operation ends with, its task hears with the next poll.
    fn end(&mut self, number: usize, end: End) -> Option<Parked> {
        let parked = self.parked.remove(&number)?;
        let counts = &mut self.counts;
        *match end {
            Ok(_) | Err(WaitError::Forced) => &mut counts.completed,
            Err(WaitError::Expired) => &mut counts.expired,
            Err(WaitError::Cancelled) => &mut counts.cancelled,
            Err(WaitError::ShutDown) => &mut counts.shut_down,
            Err(_) => &mut counts.aborted,
        } += 1;
        self.tell(parked.task, end);
        Some(parked)
    }

    /// (Of a listener the first end counts.)
    fn tell(&mut self, task: usize, end: End) {
        if let Some(task) = &mut self.tasks[task] {
            task.wakes += usize::from(std::mem::take(&mut task.awaited));
            task.end.get_or_insert(end);
        }
    }

    /// One is asked because of a check. Returns whether it has found something, and whether it has refused.
    fn ask(&mut self, number: usize) -> (bool, bool) {
        let Some(parked) = self.parked.get(&number) else {
            return (false, false);
        };
        let task = parked.task;
        let Some(says) = parked.says.clone() else {
            let listener = self.tasks[task].as_mut().expect("it listens");
            listener.checked |= listener.end.is_none();
            listener.wakes += usize::from(std::mem::take(&mut listener.awaited));
            self.counts.checks += 1;
            return (false, true);
        };
        self.expected.push(task);
        let answer = *lock(&says);
        self.counts.checks += u64::from(answer != Answer::Panic);
        match answer {
            Answer::Nothing => return (false, true),
            Answer::Found => self.end(number, Ok(task)),
            Answer::Panic => self.end(number, Err(WaitError::Panicked)),
        };
        (answer == Answer::Found, false)
    }

    fn check(&mut self, key: u8, reach: Reach) -> usize {
        let mut found = 0;
        if reach.at_most == Some(0) {
            return 0;
        }
        for number in self.on_key(key, reach.up_to) {
            let (has_found, refused) = self.ask(number);
            found += usize::from(has_found);
            if Some(found) == reach.at_most || refused && reach.until_refused {
                break;
            }
        }
        found
    }

    fn check_all(&mut self, keys: Vec<u8>) -> usize {
        let (mut met, mut found) = (BTreeSet::new(), 0);
        for key in keys {
            for number in self.on_key(key, None) {
                if met.insert(number) {
                    found += usize::from(self.ask(number).0);
                }
            }
        }
        found
    }

    /// Those whose deadline has passed are asked a last time. (What a predicate finds then is told all the same.)
    fn expire(&mut self) -> usize {
        let now = self.choices.tick_at(self.clock.now().since_origin());
        let due = |wait: &Parked| wait.deadline.is_some_and(|deadline| deadline <= now);
        let due = self.parked.iter().filter(|(_, wait)| due(wait));
        let due = due.map(|(number, wait)| (*number, wait.task, wait.says.clone()));
        let mut expired = 0;
        for (number, task, says) in due.collect::<Vec<_>>() {
            let answer = says.map_or(Answer::Nothing, |says| *lock(&says));
            expired += usize::from(answer != Answer::Panic);
            match answer {
                Answer::Nothing => _ = self.end(number, Err(WaitError::Expired)),
                Answer::Panic => _ = self.end(number, Err(WaitError::Panicked)),
                Answer::Found => {
                    self.parked.remove(&number);
                    self.counts.expired += 1;
                    self.counts.missed_checks += 1;
                    self.tell(task, Ok(task));
                }
            }
        }
        expired
    }

    fn end_all(&mut self, numbers: Vec<usize>, error: WaitError) {
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
                let number = self
                    .pick(pick)
                    .and_then(|task| self.tasks[task].as_ref()?.parked);
                let wait = number.and_then(|number| self.parked.get(&number));
                if let Some(says) = wait.and_then(|wait| wait.says.as_ref()) {
                    *lock(says) = answer;
                }
            }
            Call::Listen(keys, span) => self.listen(&keys, span),
            Call::Also(pick, key) => self.also(pick, key),
            Call::Satisfied(pick) => self.satisfied(pick),
            Call::Check(key, by, reach) => {
                let real = self.real.clone();
                let found = match by {
                    By::Key => real.check_and_complete_with(&key, reach.bound()),
                    By::Resolved => {
                        let resolved = self.resolved.entry(key);
                        let resolved = resolved.or_insert_with(|| real.resolve(key));
                        resolved.check_and_complete_with(reach.bound())
                    }
                    By::ResolvedAnew => {
                        self.resolved.remove(&key);
                        real.resolve(key).check_and_complete_with(reach.bound())
                    }
                };
                assert_eq!(found, self.check(key, reach));
                self.compare_asked();
            }
            Call::CheckLater(key) => {
                self.real.check_later(key);
                if !self.closed && !self.later.contains(&key) {
                    self.later.push_back(key);
                }
            }
            Call::CheckAll(keys) => {
                let found = self.real.check_and_complete_all(&keys);
                assert_eq!(found, self.check_all(keys));
                self.compare_asked();
            }
            Call::Force(key) => {
                let met = self.on_key(key, None);
                assert_eq!(self.real.force_complete_for_key(&key), met.len());
                self.end_all(met, WaitError::Forced);
            }
            Call::CancelKey(key) => {
                let met = self.on_key(key, None);
                assert_eq!(self.real.cancel_for_key(&key).len(), met.len());
                self.end_all(met, WaitError::Cancelled);
            }
            Call::CancelHandle(pick) => {
                if let Some(number) = self.call_handle(pick, |it| it.cancel().is_some()) {
                    self.end_all(vec![number], WaitError::Cancelled);
                }
            }
            Call::Reschedule(pick, span) => {
                let (timeout, deadline) = (span.of(self.choices.tick), self.deadline(span));
                let now = self.choices.tick_at(self.clock.now().since_origin());
                let number = self
                    .pick(pick)
                    .and_then(|task| self.tasks[task].as_ref()?.parked);
                let wait = number.and_then(|number| self.parked.get(&number));
                let is_past = wait.is_some_and(|wait| wait.deadline.is_some_and(|at| at <= now));
                // Past its deadline it cannot be, whoever comes first.
                let reschedule = |it: &Handle| it.reschedule(timeout) != is_past;
                let rescheduled = self.call_handle(pick, reschedule);
                if let Some(number) = rescheduled.filter(|_| !is_past) {
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
                if let Some(task) = self.pick(pick) {
                    self.tasks[task] = None;
                    self.cancel_of(task);
                }
            }
            Call::Pass(span) => self.clock.advance(span.of(self.choices.tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(self.choices.tick));
                let expired = self.real.advance();
                while let Some(key) = self.later.pop_front() {
                    self.check(key, ALL);
                }
                let asked = lock(&self.asked).len();
                assert!(asked >= self.expected.len(), "deferred checks come first");
                lock(&self.asked).truncate(self.expected.len());
                self.compare_asked();
                assert_eq!(expired, self.expire());
            }
            Call::Shutdown => {
                self.real.shutdown();
                self.closed = true;
                self.later.clear();
                let all = self.parked.keys().copied().collect();
                self.end_all(all, WaitError::ShutDown);
            }
        }
    }

    /// The predicates were asked in this order, by checks alone.
    fn compare_asked(&mut self) {
        let expected = std::mem::take(&mut self.expected);
        assert_eq!(std::mem::take(&mut *lock(&self.asked)), expected);
    }

    /// Makes a call that should work while the operation is parked. Returns the number of that, if it did.
    fn call_handle(&self, pick: Pick, call: impl FnOnce(&Handle) -> bool) -> Option<usize> {
        let task = self.tasks[self.pick(pick)?].as_ref()?;
        let done = task.waiting.handle().is_some_and(call);
        let parked = task
            .parked
            .filter(|number| self.parked.contains_key(number));
        assert_eq!(done, parked.is_some());
        parked
    }

    /// The task is gone, and with it all of its operations.
    fn cancel_of(&mut self, task: usize) {
        let before = self.parked.len();
        self.parked.retain(|_, parked| parked.task != task);
        self.counts.cancelled += (before - self.parked.len()) as u64;
    }

    fn park(&mut self, parked: Parked) -> usize {
        self.parked.insert(self.arrived, parked);
        self.arrived += 1;
        self.arrived - 1
    }

    fn listen(&mut self, keys: &[u8], span: Span) {
        let task = self.tasks.len();
        let listener = self
            .real
            .listen(keys.iter().copied(), span.of(self.choices.tick));
        let end = match () {
            () if self.closed => Some(WaitError::ShutDown),
            () if keys.is_empty() => Some(WaitError::NoKeys),
            () if self.is_full() => Some(WaitError::Full),
            () => None,
        };
        let parked = end.is_none().then(|| {
            let deadline = self.deadline(span);
            self.park(Parked {
                task,
                keys: keys.iter().map(|key| (*key, None)).collect(),
                deadline,
                says: None,
            })
        });
        self.begin(Waiting::Listener(listener), parked, end.map(Err));
    }

    fn begin(&mut self, waiting: Waiting, parked: Option<usize>, end: Option<End>) {
        self.tasks.push(Some(Task {
            waiting,
            parked,
            checked: false,
            also: BTreeSet::new(),
            bell: Bell::new(),
            awaited: false,
            wakes: 0,
            end,
        }));
    }

    /// One more operation, until the listener is dropped, unless the key was added before.
    fn also(&mut self, pick: Pick, key: u8) {
        let Some(number) = self.pick(pick) else {
            return;
        };
        let Some(task) = &mut self.tasks[number] else {
            return;
        };
        let Waiting::Listener(listener) = &mut task.waiting else {
            return;
        };
        listener.also(key);
        if task.parked.is_none() || !task.also.insert(key) {
            return;
        }
        let refusal = match () {
            () if self.closed => Some(WaitError::ShutDown),
            () if self.is_full() => Some(WaitError::Full),
            () => None,
        };
        if let Some(refusal) = refusal {
            return self.tell(number, Err(refusal));
        }
        let deadline = self.deadline(Span::Exactly(std::time::Duration::MAX));
        self.park(Parked {
            task: number,
            keys: BTreeMap::from([(key, None)]),
            deadline,
            says: None,
        });
    }

    fn satisfied(&mut self, pick: Pick) {
        let Some(number) = self.pick(pick) else {
            return;
        };
        match self.tasks[number].take() {
            Some(Task {
                waiting: Waiting::Listener(listener),
                parked,
                ..
            }) => {
                listener.satisfied();
                self.end_all(parked.into_iter().collect(), WaitError::Forced);
                self.cancel_of(number);
            }
            other => self.tasks[number] = other,
        }
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
            let asked = self.asked.clone();
            let mut first = Some(first);
            move || {
                let _alive = &alive;
                lock(&asked).push(number);
                match first.take().unwrap_or_else(|| *lock(&says)) {
                    Answer::Nothing => None,
                    Answer::Found => Some(number),
                    // Without the hook, which would print it.
                    Answer::Panic => resume_unwind(Box::new("intended")),
                }
            }
        };
        let timeout_in_ticks = timeout.of(self.choices.tick);
        let begin = || begin(&self.real, timeout_in_ticks, Box::new(predicate));
        let wait = catch_unwind(AssertUnwindSafe(begin));
        lock(&self.asked).clear();
        let full = self.is_full();
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
        // (One that ends in its second examination was parked.)
        match (&end, first) {
            (Some(Ok(_)), Answer::Nothing) => {
                self.counts.completed += 1;
                self.counts.checks += 1;
            }
            (Some(Err(WaitError::Panicked)), Answer::Nothing) => self.counts.aborted += 1,
            _ => {}
        }
        let Ok(wait) = wait else {
            // Its own panic goes to the caller.
            assert_eq!(end, Some(Err(WaitError::Panicked)));
            self.tasks.push(None);
            return;
        };
        assert_ne!(end, Some(Err(WaitError::Panicked)));
        let parked = end.is_none().then(|| {
            let deadline = self.deadline(timeout);
            self.park(Parked {
                task: number,
                keys,
                deadline,
                says: Some(says),
            })
        });
        self.begin(Waiting::Wait(wait), parked, end);
    }

    fn poll(&mut self, number: usize) {
        let Some(task) = &mut self.tasks[number] else {
            return;
        };
        let poll = match &mut task.waiting {
            Waiting::Wait(wait) => task.bell.poll(wait),
            Waiting::Listener(listener) => {
                let poll = task.bell.poll(&mut Box::pin(listener.checked()));
                let expected = match (std::mem::take(&mut task.checked), &task.end) {
                    (true, _) => Poll::Ready(Ok(())),
                    (false, Some(end)) => Poll::Ready(end.map(|_| ())),
                    (false, None) => Poll::Pending,
                };
                task.awaited = expected.is_pending();
                assert_eq!(poll, expected);
                return;
            }
        };
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
        let predicates = self.parked.values().filter(|wait| wait.says.is_some());
        assert_eq!(Arc::strong_count(&self.predicates), 1 + predicates.count());
        let stats = self.real.stats();
        let counts = Counts {
            completed: stats.completed,
            expired: stats.expired,
            cancelled: stats.cancelled,
            shut_down: stats.shut_down,
            aborted: stats.aborted,
            checks: stats.checks,
            missed_checks: stats.missed_checks,
        };
        assert_eq!(counts, self.counts);
        for key in 0..KEYS {
            let watches = |wait: &&Parked| wait.keys.contains_key(&key);
            let watchers = self.parked.values().filter(watches).count();
            assert_eq!(self.real.watchers(&key), watchers);
        }
        let watched = self.parked.values().flat_map(|wait| wait.keys.keys());
        let keys = watched.clone().collect::<BTreeSet<_>>();
        assert_eq!(
            (self.real.stats().watched, self.real.watched_keys()),
            (watched.count(), keys.len())
        );
        for (number, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            assert_eq!(task.bell.rung(), task.wakes, "wait {number}");
            let parked = task.parked.and_then(|number| self.parked.get(&number));
            let handle = task.waiting.handle();
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
            let ended = pair.tasks[number].as_ref().is_none_or(|task| task.end.is_some());
            assert!(ended, "{number} has no end");
        }
    }
}
