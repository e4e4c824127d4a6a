//! G5, G9, G10, G12, G16, G17, G18 against a model: any sequence of calls on `Requests`, from outside, from wakers, from
//! destructors and from the closure that fails requests, and on a map by id must give each request the same answer, each
//! task its wake-up, and the same counts, on whatever thread the tasks are woken of requests that expire.

mod acts;

use crate::support::expiries::{Call, Jobs, Runs, Waiting, calls, for_any, runs};
use crate::support::hashing::{Hashing, hashing};
use crate::support::spans::{Choices, choices, chosen};
use crate::support::{Mint, lock};
use acts::{Action, Answer, Did, Event, FAILED, IDS, Real, Seen, Shared, call};
use proptest::prelude::*;
use request_purgatory::WaitError;
use request_purgatory::time::Clock;
use request_purgatory_tracker::{RejectReason, Requests, Responded};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

/// What has ended a request, or is just being told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Deadline,
    Response,
    /// Also the drop of its future.
    Failure,
    Shutdown,
}

/// A call that fails requests.
struct Failing {
    /// Those that were pending when it began, by id, and that it has not asked about.
    left: BTreeMap<u8, usize>,
    /// Those that it has asked about.
    asked: Vec<(u8, usize)>,
    /// How many it has ended. `None` before the last is asked about, and for ever if a closure panics.
    failed: Option<usize>,
}

/// What is known of a request that was not refused, dropped or resolved.
#[derive(Default)]
struct Known {
    /// It was polled and told to wait, and its task has not been woken since.
    awaited: bool,
    /// Of its tasks, the one that polled it last.
    turn: usize,
    /// What it will say.
    coming: Option<Answer>,
    /// What it says.
    answer: Option<Answer>,
}

/// Both, side by side.
struct Pair {
    /// `None` once it is dropped.
    real: Option<Real>,
    shared: Arc<Shared>,
    model: Waiting,
    /// The number of the last request with each id, and the id of each number.
    last: BTreeMap<u8, usize>,
    ids: BTreeMap<usize, u8>,
    known: BTreeMap<usize, Known>,
    /// Those that have ended otherwise than by their deadline: whose task is to be woken, and who is told in silence by
    /// the end of the call.
    to_wake: BTreeMap<usize, By>,
    in_silence: BTreeMap<usize, By>,
    /// The wakers and closures in progress, the innermost last: a waker, and of what; or a closure, and for which request.
    inside: Vec<Result<By, usize>>,
    /// The calls in progress that fail requests. The last one is the innermost.
    failing: Vec<Failing>,
    /// The reading of the clock from which on each is past its deadline, whoever comes first. `None` is never.
    past: BTreeMap<usize, Option<Duration>>,
    /// Those of which it is known that they have ended without a response; and by the hash of the id, how many of these a
    /// late response may be for. With `remembers`, all of them are remembered; else none.
    noted: BTreeSet<usize>,
    unanswered: BTreeMap<u64, usize>,
    remembers: bool,
    hashing: Hashing,
    late: u64,
    unknown: u64,
}

impl Pair {
    fn new(choices: Choices, runs: Runs, hashing: Hashing, remembers: bool) -> Self {
        let jobs = Jobs::new(runs);
        let (builder, clock) = chosen!(Requests::builder("model"), choices);
        let remembered = if remembers { 8_192 } else { 0 };
        let builder = builder.remembered_ids(remembered);
        let real = builder.dispatch(jobs.dispatch()).hasher(hashing).build();
        let real = real.expect("no threads to refuse");
        let shared = Arc::new(Shared {
            real: OnceLock::new(),
            asked: Mutex::default(),
            last: Mutex::default(),
            passing: AtomicBool::new(false),
            inline: jobs.runs == Runs::Inline,
            at_once: AtomicBool::new(false),
            responses: Mutex::default(),
            log: Mutex::default(),
            tick: choices.tick,
            alive: Mint::default(),
        });
        assert!(shared.real.set(real.downgrade()).is_ok());
        Self {
            real: Some(real),
            shared,
            model: Waiting::new(choices, clock, jobs),
            last: BTreeMap::new(),
            ids: BTreeMap::new(),
            known: BTreeMap::new(),
            to_wake: BTreeMap::new(),
            in_silence: BTreeMap::new(),
            inside: Vec::new(),
            failing: Vec::new(),
            past: BTreeMap::new(),
            noted: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            remembers,
            hashing,
            late: 0,
            unknown: 0,
        }
    }

    fn call(&mut self, call: Call<Action>) {
        let before = self.model.stats.expired;
        let mut expired = None;
        let real = self.real.clone().expect("it is not dropped");
        match call {
            Call::Do(action) => {
                // What fails others says so when it begins. The others have ended when user code hears of it.
                self.shared.at_once.store(true, Ordering::SeqCst);
                let did = self.shared.perform(&real, &action);
                self.shared.at_once.store(false, Ordering::SeqCst);
                match did {
                    Some(did @ Did::Fail(_)) => {
                        self.replay();
                        self.did(did, None);
                    }
                    did => {
                        did.into_iter().for_each(|did| self.did(did, None));
                        self.replay();
                    }
                }
            }
            Call::Pass(span) => self.model.pass_time(span),
            Call::Advance(span) => {
                self.model.pass_time(span);
                self.model.begin_pass();
                self.expired();
                // Of a pass in which user code runs at once, it is not known what it has expired before it shuts down.
                let passing = &self.shared.passing;
                passing.store(self.shared.inline, Ordering::SeqCst);
                expired = Some(real.advance());
                passing.store(false, Ordering::SeqCst);
                self.replay();
                self.model.end_pass();
                self.expired();
            }
            Call::Run(which, by_drop) => self.run(which, by_drop),
        }
        let seen = self.shared.look(&real);
        self.end_call();
        self.model.end_call(before, expired);
        self.compare(seen);
    }

    /// Of jobs that no task hears of, all are run: the model does not know which is which.
    fn run(&mut self, which: usize, by_drop: bool) {
        if self.model.silent.is_empty() {
            self.model.jobs.run(which, by_drop);
            return self.replay();
        }
        let kept = self.model.ended.keys().copied().collect::<Vec<_>>();
        kept.iter().for_each(|_| self.model.jobs.run(0, by_drop));
        self.replay();
        kept.iter().for_each(|number| self.heard(*number));
    }

    /// If that has expired and was told, it was in silence.
    fn heard(&mut self, number: usize) {
        if self.model.ended.remove(&number).is_some() {
            assert!(self.model.silent.remove(&number), "{number} was not woken");
            self.note(number);
            self.arrives(number);
        }
    }

    /// By now all were told, but for jobs that are kept.
    fn end_call(&mut self) {
        assert!(self.to_wake.is_empty(), "{:?} sleep", self.to_wake);
        for number in std::mem::take(&mut self.in_silence).into_keys() {
            self.arrives(number);
        }
        if self.model.jobs.runs != Runs::Later {
            let silent = self.model.silent.clone().into_iter();
            silent.for_each(|number| self.heard(number));
        }
        let known = self.known.values();
        let ready = known.filter(|known| matches!(known.answer, Some(Ok(_))));
        assert_eq!(self.shared.alive.living(), ready.count() as u64);
        assert!(self.failing.is_empty());
    }

    /// Its answer is there.
    fn arrives(&mut self, number: usize) {
        if let Some(known) = self.known.get_mut(&number) {
            known.answer = known.coming.take();
            known.awaited = false;
        }
    }

    /// Goes through what user code did meanwhile.
    fn replay(&mut self) {
        let events = std::mem::take(&mut *lock(&self.shared.log));
        for event in events {
            match event {
                Event::Woken(number, turn, seen) => self.woken(number, turn, seen),
                Event::Failing(below) => {
                    let pending = (0..below).filter_map(|id| Some((id, self.pending(id)?)));
                    let left = pending.collect::<BTreeMap<_, _>>();
                    let failed = left.is_empty().then_some(0);
                    let asked = Vec::new();
                    self.failing.push(Failing {
                        left,
                        asked,
                        failed,
                    });
                }
                Event::Asked(id, seen) => {
                    let failing = self.failing.last_mut().expect("a call fails requests");
                    let number = failing.left.remove(&id).expect("it does not fail");
                    failing.asked.push((id, number));
                    self.inside.push(Err(number));
                    self.compare(seen);
                }
                Event::Did(did, seen) => {
                    self.did(did, seen.as_ref());
                    seen.into_iter().for_each(|seen| self.compare(seen));
                }
                Event::Saw(seen) => self.compare(seen),
                Event::Dropped(seen) => {
                    self.inside.push(Ok(By::Response));
                    self.compare(seen);
                }
                Event::Returned | Event::Panicked => {
                    let panicked = matches!(event, Event::Panicked);
                    self.returned(panicked);
                }
            }
        }
        assert!(self.inside.is_empty());
    }

    fn woken(&mut self, number: usize, turn: usize, seen: Option<Seen>) {
        let known = self.known.get(&number);
        assert!(known.is_some_and(|known| known.turn == turn));
        let by = match self.to_wake.remove(&number) {
            Some(by) => by,
            None => {
                self.model.told(number);
                self.expired();
                self.note(number);
                By::Deadline
            }
        };
        self.inside.push(Ok(by));
        self.arrives(number);
        if let Some(seen) = seen {
            self.compare(seen);
        }
    }

    /// The innermost waker or closure has returned, or panicked.
    fn returned(&mut self, panicked: bool) {
        match self.inside.pop().expect("one is in progress") {
            Ok(by) => {
                if by == By::Deadline {
                    self.model.returned();
                }
                self.model.stats.panicked += u64::from(panicked);
            }
            // The panic goes to the caller, and no request has ended.
            Err(_) if panicked => {}
            Err(_) => self.fail(),
        }
    }

    /// If all have been asked about, those end that are still pending, before any of their tasks is woken.
    fn fail(&mut self) {
        let failing = self.failing.last_mut().expect("a call fails requests");
        if !failing.left.is_empty() {
            return;
        }
        let asked = std::mem::take(&mut failing.asked).into_iter();
        let still = asked.filter(|(id, number)| self.pending(*id) == Some(*number));
        let still = still.collect::<Vec<_>>();
        for &(id, number) in &still {
            self.ends(number, By::Failure, Some(Ok(FAILED + usize::from(id))));
        }
        self.model.stats.cancelled += still.len() as u64;
        let failing = self.failing.last_mut().expect("as before");
        failing.failed = Some(still.len());
    }

    /// The answer of a request is known.
    fn says(&mut self, number: usize, answer: Answer) {
        if let Some(known) = self.known.get_mut(&number) {
            known.coming = Some(answer);
        }
    }

    /// A request ends before its deadline.
    fn ends(&mut self, number: usize, by: By, answer: Option<Answer>) {
        self.model.end(number);
        if by != By::Response {
            self.note(number);
        }
        let Some(known) = self.known.get_mut(&number) else {
            return;
        };
        known.coming = answer;
        match known.awaited {
            true => self.to_wake.insert(number, by),
            false => self.in_silence.insert(number, by),
        };
    }

    /// Notes those that have expired meanwhile.
    fn expired(&mut self) {
        for number in std::mem::take(&mut self.model.fresh) {
            self.says(number, Err(WaitError::Expired));
            if !self.is_awaited(number) && self.model.ended.contains_key(&number) {
                self.model.silent.insert(number);
            }
        }
    }

    fn now(&self) -> Duration {
        self.model.clock.now().since_origin()
    }

    /// The request with this id that is pending.
    fn pending(&self, id: u8) -> Option<usize> {
        let last = self.last.get(&id).copied();
        last.filter(|number| {
            let is_past = self.past[number].is_some_and(|end| end <= self.now());
            self.model.running.contains_key(number) && !is_past
        })
    }

    fn set_past(&mut self, number: usize, timeout: Duration) {
        let timeout = timeout.min(self.model.choices.max_timeout);
        let end = self.now().checked_add(timeout);
        // Where the timer never fires, the request never expires.
        let end = end.filter(|_| self.model.running[&number].is_some());
        self.past.insert(number, end);
    }

    fn is_awaited(&self, number: usize) -> bool {
        self.known.get(&number).is_some_and(|known| known.awaited)
    }

    fn hash_of(&self, number: usize) -> u64 {
        self.hashing.hash_one(self.ids[&number])
    }

    /// It is known that it has ended without a response.
    fn note(&mut self, number: usize) {
        if self.noted.insert(number) && self.remembers {
            *self.unanswered.entry(self.hash_of(number)).or_default() += 1;
        }
    }

    /// The last request with this id, if it has ended by its deadline, is known to have: it was found, or was before.
    fn note_last(&mut self, id: u8) {
        if let Some(last) = self.last.get(&id).copied() {
            let is_there = self.model.running.contains_key(&last);
            if is_there || self.model.ended.contains_key(&last) {
                self.note(last);
            }
        }
    }

    /// A response has come to an id that is not pending.
    fn responded(&mut self, id: u8, is_late: bool) {
        self.note_last(id);
        let hash = self.hashing.hash_one(id);
        let unanswered = self.unanswered.entry(hash).or_default();
        if is_late && *unanswered > 0 {
            *unanswered -= 1;
            return;
        }
        assert!(*unanswered == 0 || !self.remembers, "{id}");
        // Those of which no user code hears may have been told already.
        let due = self.model.due().chain(self.model.ended.keys().copied());
        let mut maybe = due.filter(|number| {
            !self.noted.contains(number)
                && !self.is_awaited(*number)
                && self.hash_of(*number) == hash
        });
        let maybe = maybe.next().filter(|_| self.remembers);
        if is_late {
            self.noted.insert(maybe.expect("it is late for none"));
        }
    }

    /// `seen` afterwards, if user code did it.
    fn did(&mut self, did: Did, seen: Option<&Seen>) {
        match did {
            Did::Request(id, number, timeout, result) => {
                let duplicate = self.pending(id).is_some();
                let quiet = self.model.due().filter(|number| !self.is_awaited(*number));
                self.model.quiet_due = quiet.count();
                let full = self.model.is_full();
                self.model.quiet_due = 0;
                match result {
                    Ok(awaited) => {
                        assert!(!self.model.closed && !duplicate && full != Some(true));
                        self.note_last(id);
                        self.model.start(number, timeout);
                        self.set_past(number, timeout);
                        self.last.insert(id, number);
                        self.ids.insert(number, id);
                        let known = Known {
                            awaited,
                            ..Known::default()
                        };
                        self.known.insert(number, known);
                    }
                    Err((reason, back)) => {
                        let expected = match full {
                            _ if self.model.closed => RejectReason::ShutDown,
                            _ if duplicate => RejectReason::Duplicate,
                            _ => RejectReason::Full,
                        };
                        assert!(expected != RejectReason::Full || full != Some(false));
                        assert_eq!((reason, back), (expected, id));
                        self.model.stats.rejected += 1;
                    }
                }
            }
            Did::Respond(id, response, responded) => match (self.pending(id), responded) {
                (Some(number), Responded::Delivered) => {
                    self.ends(number, By::Response, Some(Ok(response)));
                    self.model.stats.completed += 1;
                }
                (None, Responded::Late(back)) => {
                    assert_eq!(back, response);
                    self.responded(id, true);
                    self.late += 1;
                }
                (None, Responded::Unknown(back)) => {
                    assert_eq!(back, response);
                    self.responded(id, false);
                    self.unknown += 1;
                }
                other => panic!("{other:?}"),
            },
            Did::Reschedule(id, timeout, rescheduled) => {
                let pending = self.pending(id);
                assert_eq!(rescheduled, pending.is_some());
                if let Some(number) = pending {
                    self.model.reschedule(number, timeout);
                    self.set_past(number, timeout);
                }
            }
            Did::Fail(failed) => {
                let failing = self.failing.pop().expect("it has begun");
                assert_eq!(failed, failing.failed);
            }
            Did::Poll(number, turn, poll) => self.polled(number, turn, poll),
            Did::Drop(number) => {
                self.known.remove(&number).expect("it was there");
                // One that has just expired is left to its deadline.
                let is_due = self.model.is_due(number);
                let withdrawn = seen.map(|seen| seen.common.stats.cancelled);
                let is_withdrawn = withdrawn.is_some_and(|all| all > self.model.stats.cancelled);
                let ends = self.model.running.contains_key(&number);
                if ends && (!is_due || is_withdrawn) {
                    self.ends(number, By::Failure, None);
                    self.model.stats.cancelled += 1;
                }
                if let Some(by) = self.to_wake.remove(&number) {
                    self.in_silence.insert(number, by);
                }
                if self.model.ended.contains_key(&number) {
                    self.model.silent.insert(number);
                }
            }
            Did::Advance(expired) => {
                self.model.nested_pass(expired);
                self.expired();
            }
            Did::Shutdown => {
                for number in self.model.running.keys().copied().collect::<Vec<_>>() {
                    self.ends(number, By::Shutdown, Some(Err(WaitError::ShutDown)));
                    self.model.stats.shut_down += 1;
                }
                self.model.closed = true;
            }
        }
    }

    fn polled(&mut self, number: usize, turn: usize, poll: Poll<Answer>) {
        if poll.is_ready() && self.model.is_due(number) {
            // The pass in progress has come to it, and told it in silence.
            self.model.is_gone(number);
            self.expired();
            self.note(number);
        }
        let known = self.known.get_mut(&number).expect("it was there");
        match poll {
            Poll::Ready(answer) => {
                // One that is told in silence may have been told.
                let silent = self.model.silent.remove(&number);
                let in_silence = self.in_silence.remove(&number).is_some();
                let coming = known.coming.take().filter(|_| silent || in_silence);
                assert_eq!(Some(answer), known.answer.take().or(coming));
                self.known.remove(&number);
                if silent {
                    self.model.ended.remove(&number);
                    self.note(number);
                }
            }
            Poll::Pending => {
                assert_eq!(known.answer, None, "{number}");
                (known.awaited, known.turn) = (true, turn);
                self.model.silent.remove(&number);
                if let Some(by) = self.in_silence.remove(&number) {
                    self.to_wake.insert(number, by);
                }
            }
        }
    }

    fn compare(&mut self, seen: Seen) {
        self.model.count_hidden(&seen.common);
        let pending = (0..IDS).filter(|id| self.pending(*id).is_some());
        assert!(seen.pending.into_iter().eq(pending));
        assert_eq!((seen.late, seen.unknown), (self.late, self.unknown));
        self.model.compare(&seen.common);
    }

    /// The last handle is dropped: what is pending ends with a shutdown, and what has expired is told.
    fn drop_requests(mut self) {
        if !self.model.closed {
            self.did(Did::Shutdown, None);
        }
        let jobs = self.model.jobs.clone();
        drop(self.real.take());
        let kept = self.model.ended.keys().copied().collect::<Vec<_>>();
        jobs.run_all();
        self.replay();
        kept.iter().for_each(|number| self.heard(*number));
        self.end_call();
        for number in self.known.keys().copied().collect::<Vec<_>>() {
            let (turn, poll) = self.shared.poll(number, false).expect("it is there");
            assert!(poll.is_ready(), "{number} has no answer");
            self.polled(number, turn, poll);
        }
        assert_eq!(self.shared.alive.living(), 0);
    }
}

#[test]
fn g10_any_sequence_of_calls_answers_as_a_map_does() {
    let all = || {
        let settings = (choices(), runs(), hashing(), prop::bool::weighted(0.8));
        (settings, calls(call, Action::Shutdown))
    };
    for_any(all, |((choices, runs, hashing, remembers), calls)| {
        let mut pair = Pair::new(choices, runs, hashing, remembers);
        calls.into_iter().for_each(|call| pair.call(call));
        pair.drop_requests();
    });
}
