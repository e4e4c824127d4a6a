//! G5, G9, G10, G12, G16, G17, G18 against a model: any sequence of calls on `Requests`, from outside, from wakers, from
//! destructors and from the closure that fails requests, and on a map by id must give each request the same answer, each
//! task its wake-up, and the same counts, on whatever thread the tasks are woken of requests that expire.

mod acts;

use crate::remembered::Remembered;
use crate::support::expiries::{Call, Jobs, Runs, Waiting, for_any, runs};
use crate::support::hashing::{Hashing, hashing};
use crate::support::spans::{Choices, choices, chosen};
use crate::support::{Mint, lock};
use acts::{Action, Answer, Did, Event, FAILED, IDS, Real, Seen, Shared, call};
use proptest::prelude::*;
use request_purgatory::WaitError;
use request_purgatory_tracker::{RejectReason, Requests, Responded};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;

/// What has ended a request, or is just being told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Deadline,
    Response,
    Failure,
    /// And its response has panicked.
    BadFailure,
    Shutdown,
    /// In another call: its task is woken at the end of that.
    ShutdownInside,
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
    /// The requests that calls in progress fail, by id. The last call is the innermost.
    failing: Vec<(usize, BTreeMap<u8, usize>)>,
    /// A panic of a waker goes through the call to its caller. What panics meanwhile ends unseen.
    unwinds: bool,
    remembered: Remembered,
    late: u64,
    unknown: u64,
}

impl Pair {
    fn new(choices: Choices, runs: Runs, hashing: Hashing, remembered: usize) -> Self {
        let jobs = Jobs::new(runs);
        let (builder, clock) = chosen!(Requests::builder("model"), choices);
        let builder = builder.remembered_ids(remembered).hasher(hashing);
        let real = builder.dispatch(jobs.dispatch()).build();
        let real = real.expect("no threads to refuse");
        let shared = Arc::new(Shared {
            real: OnceLock::new(),
            asked: Mutex::default(),
            last: Mutex::default(),
            answered_inside: Mutex::default(),
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
            unwinds: false,
            remembered: Remembered::new(remembered),
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
                match self.shared.perform(&real, &action, false) {
                    Some(did @ Did::Fail(_)) => {
                        self.replay();
                        self.did(did, false);
                    }
                    did => {
                        did.into_iter().for_each(|did| self.did(did, false));
                        self.replay();
                    }
                }
            }
            Call::Pass(span) => self.model.pass_time(span),
            Call::Advance(span) => {
                self.model.pass_time(span);
                self.model.begin_pass();
                self.expired();
                expired = Some(real.advance());
                self.replay();
            }
            Call::Run(which, by_drop) => self.run(which, by_drop),
        }
        let seen = self.shared.look(&real);
        self.notice(&seen);
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
        self.unwinds = false;
        lock(&self.shared.answered_inside).clear();
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
                    self.remembered.next_moment();
                    let pending = (0..below).filter_map(|id| Some((id, self.pending(id)?)));
                    let failed = pending.collect::<BTreeMap<_, _>>();
                    self.model.stats.cancelled += failed.len() as u64;
                    let numbers = failed.values().copied();
                    numbers.for_each(|number| self.ends(number, By::Failure, None));
                    self.failing.push((failed.len(), failed));
                    self.remembered.next_moment();
                }
                Event::Asked(id, seen) => {
                    let failing = self.failing.last_mut().expect("a call fails requests");
                    let number = failing.1.remove(&id).expect("it does not fail");
                    self.says(number, Ok(FAILED + usize::from(id)));
                    self.inside.push(Err(number));
                    self.compare(seen);
                }
                Event::Did(did, seen) => {
                    self.did(did, true);
                    self.compare(seen);
                }
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
        let inside = self.inside.pop().expect("one is in progress");
        if inside == Ok(By::Deadline) {
            self.model.returned();
        }
        let counts = match inside {
            // The panic goes on to the caller who has responded.
            Ok(By::Response) => false,
            // It counts once, after the waker.
            Ok(By::BadFailure) => true,
            Ok(_) => panicked,
            Err(number) => {
                if panicked {
                    self.says(number, Err(WaitError::Panicked));
                }
                let by = self.to_wake.get_mut(&number).filter(|_| panicked);
                let is_awaited = by.is_some();
                by.into_iter().for_each(|by| *by = By::BadFailure);
                panicked && !is_awaited
            }
        };
        self.model.stats.panicked += u64::from(counts && !self.unwinds);
        self.unwinds |= panicked && inside == Ok(By::Response);
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
            self.remembered.add(self.ids[&number]);
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
            self.remembered.add(self.ids[&number]);
            self.says(number, Err(WaitError::Expired));
            let known = self.known.get(&number);
            if known.is_none_or(|known| !known.awaited) && self.model.ended.contains_key(&number) {
                self.model.silent.insert(number);
            }
        }
    }

    /// The request with this id that is pending.
    fn pending(&self, id: u8) -> Option<usize> {
        let last = self.last.get(&id).copied();
        last.filter(|number| self.model.running.contains_key(number))
    }

    fn did(&mut self, did: Did, inside: bool) {
        self.remembered.next_moment();
        match did {
            Did::Request(id, number, timeout, result) => {
                let duplicate = self.pending(id).is_some();
                let full = self.model.is_full();
                match result {
                    Ok(awaited) => {
                        assert!(!self.model.closed && !duplicate && full != Some(true));
                        self.model.start(number, timeout);
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
                (Some(number), None | Some(Responded::Delivered)) => {
                    self.ends(number, By::Response, Some(Ok(response)));
                    self.model.stats.completed += 1;
                }
                (None, Some(Responded::Late(back))) => {
                    assert_eq!(back, response);
                    self.remembered.respond(id, true);
                    self.late += 1;
                }
                (None, Some(Responded::Unknown(back))) => {
                    assert_eq!(back, response);
                    self.remembered.respond(id, false);
                    self.unknown += 1;
                }
                other => panic!("{other:?}"),
            },
            Did::Reschedule(id, timeout, rescheduled) => {
                let pending = self.pending(id);
                assert_eq!(rescheduled, pending.is_some());
                if let Some(number) = pending {
                    self.model.reschedule(number, timeout);
                }
            }
            Did::Fail(failed) => {
                let (all, not_asked) = self.failing.pop().expect("it has begun");
                assert!(not_asked.is_empty(), "no response for {not_asked:?}");
                assert_eq!(failed, all);
            }
            Did::Poll(number, turn, poll) => self.polled(number, turn, poll),
            Did::Drop(number) => {
                self.known.remove(&number).expect("it was there");
                if self.model.running.contains_key(&number) {
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
                let by = match inside {
                    true => By::ShutdownInside,
                    false => By::Shutdown,
                };
                for number in self.model.running.keys().copied().collect::<Vec<_>>() {
                    self.ends(number, by, Some(Err(WaitError::ShutDown)));
                    self.model.stats.shut_down += 1;
                }
                self.model.closed = true;
            }
        }
        self.remembered.next_moment();
    }

    fn polled(&mut self, number: usize, turn: usize, poll: Poll<Answer>) {
        let known = self.known.get_mut(&number).expect("it was there");
        match poll {
            Poll::Ready(answer) => {
                // One that is told in silence may have been told.
                let silent = self.model.silent.remove(&number);
                let in_silence = self.in_silence.remove(&number).is_some();
                let coming = known.coming.take().filter(|_| silent || in_silence);
                assert_eq!(Some(answer), known.answer.take().or(coming));
                if silent {
                    self.model.ended.remove(&number);
                }
                self.known.remove(&number);
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

    /// Those that the pass in progress has expired meanwhile.
    fn notice(&mut self, seen: &Seen) {
        for id in 0..IDS {
            let pending = self.pending(id);
            if let Some(number) = pending.filter(|_| !seen.pending.contains(&id)) {
                self.model.is_gone(number);
            }
        }
        self.expired();
    }

    fn compare(&mut self, seen: Seen) {
        self.notice(&seen);
        let pending = (0..IDS).filter(|id| self.pending(*id).is_some());
        assert!(seen.pending.into_iter().eq(pending));
        assert_eq!((seen.late, seen.unknown), (self.late, self.unknown));
        // What a shutdown inside another call has ended is told at the end of that.
        let inside = |by: &&By| **by == By::ShutdownInside;
        let telling = self.inside.iter().flatten().filter(inside).count();
        let least = telling + self.to_wake.values().filter(inside).count();
        let most = least + self.in_silence.values().filter(inside).count();
        self.model.compare_with(&seen.common, least, most);
    }

    /// The last handle is dropped: what is pending ends with a shutdown, and what has expired is told.
    fn drop_requests(mut self) {
        if !self.model.closed {
            self.did(Did::Shutdown, false);
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
        let remembered = prop_oneof![2 => 0..6_usize, 1 => 6..20_usize, 2 => Just(8_192)];
        let settings = (choices(), runs(), hashing(), remembered);
        let calls = prop::collection::vec(call(), 1..120);
        let after = prop::option::of(prop::collection::vec(call(), 0..20));
        (settings, calls, after)
    };
    for_any(
        all,
        |((choices, runs, hashing, remembered), calls, after)| {
            let mut pair = Pair::new(choices, runs, hashing, remembered);
            calls.into_iter().for_each(|call| pair.call(call));
            if let Some(after) = after {
                pair.call(Call::Do(Action::Shutdown));
                after.into_iter().for_each(|call| pair.call(call));
            }
            pair.drop_requests();
        },
    );
}
