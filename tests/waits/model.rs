//! G1, G5, G6, G9, G10, G12, G16, G17 against a model: any sequence of calls on `Waits` and on a map of deadlines must
//! ask as many predicates, end each wait and each listener in the same way, wake each task once, and keep as many
//! predicates.
//!
//! Ranks, bounds, resolved keys and the order of a check are for the model of all purgatories (`tests/model`).

mod calls;

use self::calls::{Answer, Call, End, Handle, KEYS, Parked, Pick, Says, Task, Waiting};
use self::calls::{call, counts};
use crate::owning;
use crate::support::bell::Bell;
use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen};
use proptest::prelude::*;
use request_purgatory::future::WaitError;
use request_purgatory::time::{Clock, ManualClock};
use request_purgatory::{Waits, purgatory::Stats};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

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
    /// Those fields that are [counted](counts).
    stats: Stats,
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
            stats: Stats::default(),
            predicates: Arc::default(),
            closed: false,
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().since_origin()
    }

    fn time(&self, span: Span) -> Duration {
        span.of(self.choices.tick)
    }

    fn deadline(&self, timeout: Duration) -> Option<u64> {
        self.choices.deadline(self.now(), timeout)
    }

    /// The number of a task, if there are any.
    fn pick(&self, pick: Pick) -> usize {
        usize::from(pick) % self.tasks.len().max(1)
    }

    /// The number of the operation of the task, if that has one that is parked.
    fn parked(&self, task: usize) -> Option<usize> {
        let number = self.tasks.get(task)?.as_ref()?.parked?;
        self.parked.contains_key(&number).then_some(number)
    }

    /// Why one more operation is refused, in the order in which that is decided.
    fn refusal(&self, has_keys: bool) -> Option<WaitError> {
        let max = self.choices.max_parked;
        match () {
            () if self.closed => Some(WaitError::ShutDown),
            () if !has_keys => Some(WaitError::NoKeys),
            () if max.is_some_and(|max| self.parked.len() >= max) => Some(WaitError::Full),
            () => None,
        }
    }

    /// Those that wait on `key`, in the order of arrival.
    fn on_key(&self, key: u8) -> Vec<usize> {
        let all = self.parked.iter();
        let met = all.filter(|(_, wait)| wait.keys.contains(&key));
        met.map(|(number, _)| *number).collect()
    }

    /// What the operation ends with, its task hears with the next poll.
    fn end(&mut self, number: usize, end: End) {
        let Some(parked) = self.parked.remove(&number) else {
            return;
        };
        let stats = &mut self.stats;
        *match end {
            Ok(_) | Err(WaitError::Forced) => &mut stats.completed,
            Err(WaitError::Expired) => &mut stats.expired,
            Err(WaitError::Cancelled) => &mut stats.cancelled,
            Err(WaitError::ShutDown) => &mut stats.shut_down,
            Err(_) => &mut stats.aborted,
        } += 1;
        self.tell(parked.task, end);
    }

    /// Of a listener the first end counts.
    fn tell(&mut self, task: usize, end: End) {
        if let Some(task) = &mut self.tasks[task] {
            task.wakes += usize::from(std::mem::take(&mut task.awaited));
            task.end.get_or_insert(end);
        }
    }

    /// Returns how many have found something.
    fn check(&mut self, key: u8) -> usize {
        let met = self.on_key(key).into_iter();
        met.filter(|number| self.finds(*number)).count()
    }

    /// One is asked because of a check.
    fn finds(&mut self, number: usize) -> bool {
        let parked = &self.parked[&number];
        let task = parked.task;
        let Some(says) = parked.says.clone() else {
            let listener = self.tasks[task].as_mut().expect("it listens");
            listener.checked |= listener.end.is_none();
            listener.wakes += usize::from(std::mem::take(&mut listener.awaited));
            self.stats.checks += 1;
            return false;
        };
        let answer = *lock(&says);
        self.stats.checks += u64::from(answer != Answer::Panic);
        if let Some(end) = answer.end(task) {
            self.end(number, end);
        }
        answer == Answer::Found
    }

    /// Those whose deadline has passed are asked a last time. What a predicate finds then is told all the same.
    fn expire(&mut self) -> usize {
        let now = self.choices.tick_at(self.now());
        let due = |wait: &Parked| wait.deadline.is_some_and(|deadline| deadline <= now);
        let due = self.parked.iter().filter(|(_, wait)| due(wait));
        let due = due.map(|(number, wait)| (*number, wait.task, wait.says.clone()));
        let before = self.stats.expired;
        for (number, task, says) in due.collect::<Vec<_>>() {
            let answer = says.map_or(Answer::Nothing, |says| *lock(&says));
            if answer == Answer::Found {
                self.stats.missed_checks += 1;
                self.tell(task, Ok(task));
            }
            let end = match answer {
                Answer::Panic => WaitError::Panicked,
                Answer::Found | Answer::Nothing => WaitError::Expired,
            };
            self.end(number, Err(end));
        }
        (self.stats.expired - before) as usize
    }

    fn end_all(&mut self, numbers: Vec<usize>, error: WaitError) {
        for number in numbers {
            self.end(number, Err(error));
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Wait(keys, span, answers) => self.wait(keys, span, answers),
            Call::Answer(pick, answer) => {
                let number = self.parked(self.pick(pick));
                let wait = number.map(|number| &self.parked[&number]);
                if let Some(says) = wait.and_then(|wait| wait.says.as_ref()) {
                    *lock(says) = answer;
                }
            }
            Call::Listen(keys, span) => self.listen(&keys, span),
            Call::Also(pick, key) => self.also(self.pick(pick), key),
            Call::Satisfied(pick) => self.satisfied(self.pick(pick)),
            Call::Check(key) => {
                let found = self.real.check_and_complete(&key);
                assert_eq!(found, self.check(key));
            }
            Call::CheckLater(key) => {
                self.real.check_later(key);
                if !self.closed && !self.later.contains(&key) {
                    self.later.push_back(key);
                }
            }
            Call::Force(key) => {
                let met = self.on_key(key);
                assert_eq!(self.real.force_complete_for_key(&key), met.len());
                self.end_all(met, WaitError::Forced);
            }
            Call::CancelKey(key) => {
                let met = self.on_key(key);
                assert_eq!(self.real.cancel_for_key(&key).len(), met.len());
                self.end_all(met, WaitError::Cancelled);
            }
            Call::CancelHandle(pick) => {
                if let Some(number) = self.call_handle(pick, |it| it.cancel().is_some()) {
                    self.end_all(vec![number], WaitError::Cancelled);
                }
            }
            Call::Reschedule(pick, span) => {
                let timeout = self.time(span);
                let (now, deadline) = (self.choices.tick_at(self.now()), self.deadline(timeout));
                let number = self.parked(self.pick(pick));
                let known = number.and_then(|number| self.parked[&number].deadline);
                // Past its deadline it cannot be, whoever comes first.
                let is_past = known.is_some_and(|at| at <= now);
                self.call_handle(pick, |it| it.reschedule(timeout) != is_past);
                let wait = number.and_then(|number| self.parked.get_mut(&number));
                if let Some(wait) = wait.filter(|_| !is_past) {
                    wait.deadline = deadline;
                }
            }
            Call::Poll(pick) => self.poll(self.pick(pick)),
            Call::Drop(pick) => {
                let number = self.pick(pick);
                drop(self.tasks.get_mut(number).map(Option::take));
                self.cancel_of(number);
            }
            Call::Pass(span) => self.clock.advance(self.time(span)),
            Call::Advance(span) => {
                self.clock.advance(self.time(span));
                let expired = self.real.advance();
                while let Some(key) = self.later.pop_front() {
                    self.check(key);
                }
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

    /// Makes a call that should work while the operation is parked. Returns the number of that, if it did.
    fn call_handle(&self, pick: Pick, call: impl FnOnce(&Handle) -> bool) -> Option<usize> {
        let number = self.pick(pick);
        let task = self.tasks.get(number)?.as_ref()?;
        let done = task.waiting.handle().is_some_and(call);
        let parked = self.parked(number);
        assert_eq!(done, parked.is_some());
        parked
    }

    /// The task is gone, and with it all of its operations.
    fn cancel_of(&mut self, task: usize) {
        let before = self.parked.len();
        self.parked.retain(|_, parked| parked.task != task);
        self.stats.cancelled += (before - self.parked.len()) as u64;
    }

    /// Returns the number of the operation.
    fn park(&mut self, task: usize, keys: &[u8], timeout: Duration, says: Option<Says>) -> usize {
        let parked = Parked {
            task,
            keys: keys.iter().copied().collect(),
            deadline: self.deadline(timeout),
            says,
        };
        self.parked.insert(self.arrived, parked);
        self.arrived += 1;
        self.arrived - 1
    }

    fn listen(&mut self, keys: &[u8], span: Span) {
        let (task, timeout) = (self.tasks.len(), self.time(span));
        let listener = self.real.listen(keys.iter().copied(), timeout);
        let end = self.refusal(!keys.is_empty());
        let parked = end.is_none().then(|| self.park(task, keys, timeout, None));
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
    fn also(&mut self, number: usize, key: u8) {
        let Some(Some(task)) = self.tasks.get_mut(number) else {
            return;
        };
        let Waiting::Listener(listener) = &mut task.waiting else {
            return;
        };
        listener.also(key);
        if task.parked.is_none() || !task.also.insert(key) {
            return;
        }
        match self.refusal(true) {
            Some(refusal) => self.tell(number, Err(refusal)),
            None => _ = self.park(number, &[key], Duration::MAX, None),
        }
    }

    fn satisfied(&mut self, number: usize) {
        let listens = |task: &mut Task| matches!(task.waiting, Waiting::Listener(_));
        let task = self.tasks.get_mut(number);
        let task = task.and_then(|task| task.take_if(listens));
        let task = task.map(|task| (task.waiting, task.parked));
        if let Some((Waiting::Listener(listener), parked)) = task {
            listener.satisfied();
            self.end_all(parked.into_iter().collect(), WaitError::Forced);
            self.cancel_of(number);
        }
    }

    fn wait(&mut self, keys: Vec<u8>, span: Span, [first, then]: [Answer; 2]) {
        let (number, timeout) = (self.tasks.len(), self.time(span));
        let says = Arc::new(Mutex::new(then));
        let (answer, alive) = (says.clone(), self.predicates.clone());
        let mut at_first = Some(first);
        let predicate = owning(alive, move || {
            match at_first.take().unwrap_or_else(|| *lock(&answer)) {
                Answer::Nothing => None,
                Answer::Found => Some(number),
                // Without the hook, which would print it.
                Answer::Panic => resume_unwind(Box::new("intended")),
            }
        });
        let begin = || self.real.wait(keys.clone(), timeout, predicate);
        let wait = catch_unwind(AssertUnwindSafe(begin));
        let refusal = self.refusal(!keys.is_empty());
        let (first, then) = (first.end(number), then.end(number));
        let end = match refusal {
            // Only where room is missing, the predicate was asked before.
            None | Some(WaitError::Full) => first.or(refusal.map(Err)).or(then),
            Some(refusal) => Some(Err(refusal)),
        };
        let panics = end == Some(Err(WaitError::Panicked));
        // One that ends in its second examination was parked.
        if first.is_none() {
            let is_found = matches!(end, Some(Ok(_)));
            self.stats.completed += u64::from(is_found);
            self.stats.checks += u64::from(is_found);
            self.stats.aborted += u64::from(panics);
        }
        // Its own panic goes to the caller.
        assert_eq!(wait.is_err(), panics);
        let Ok(wait) = wait else {
            self.tasks.push(None);
            return;
        };
        let parked = end.is_none();
        let parked = parked.then(|| self.park(number, &keys, timeout, Some(says)));
        self.begin(Waiting::Wait(wait), parked, end);
    }

    fn poll(&mut self, number: usize) {
        let Some(Some(task)) = self.tasks.get_mut(number) else {
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
        let stats = self.real.stats();
        assert_eq!(stats.parked, self.parked.len());
        let predicates = self.parked.values().filter(|wait| wait.says.is_some());
        assert_eq!(Arc::strong_count(&self.predicates), 1 + predicates.count());
        assert_eq!(counts(&stats), counts(&self.stats));
        for key in 0..KEYS {
            assert_eq!(self.real.watchers(&key), self.on_key(key).len());
        }
        let watched = self.parked.values().flat_map(|wait| &wait.keys);
        let keys = watched.clone().collect::<BTreeSet<_>>();
        let real = (stats.watched, self.real.watched_keys());
        assert_eq!(real, (watched.count(), keys.len()));
        for (number, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            assert_eq!(task.bell.rung(), task.wakes, "wait {number}");
            let parked = task.parked.and_then(|number| self.parked.get(&number));
            let handle = task.waiting.handle();
            assert_eq!(handle.is_some(), task.parked.is_some());
            let is_parked = handle.is_some_and(|handle| handle.is_parked());
            assert_eq!(is_parked, parked.is_some());
            let deadline = parked.and_then(|wait| wait.deadline);
            let deadline = deadline.map(|tick| self.choices.timestamp(tick));
            assert_eq!(handle.and_then(|handle| handle.deadline()), deadline);
        }
    }
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
            let ended = pair.tasks[number].as_ref().is_none_or(|task| task.end.is_some());
            assert!(ended, "{number} has no end");
        }
    }
}
