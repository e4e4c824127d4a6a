//! G5, G9, G10, G12, G16, G17, G18 against a model: any sequence of calls on a tracker, from outside and from
//! callbacks, and on a map by key must give the same answers, the same expiries and the same counts, on whatever thread
//! the callbacks run.

mod acts;

use crate::support::expiries::{Call, Jobs, Runs, Waiting, calls, for_any, runs};
use crate::support::hashing::{Hashing, hashing};
use crate::support::spans::{Choices, choices, chosen};
use crate::support::{Mint, lock};
use acts::{Action, Did, Event, KEYS, Real, Refused, Seen, Shared, call};
use proptest::prelude::*;
use request_purgatory::time::Clock;
use request_purgatory_tracker::{FencingToken, RejectReason, Tracker};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Both, side by side.
struct Pair {
    real: Real,
    shared: Arc<Shared>,
    model: Waiting,
    /// The number and the token of the last value that was kept for each key. It is kept while it waits.
    last: BTreeMap<u8, (usize, FencingToken)>,
    /// The number of the first token, and how many were given out.
    first: u64,
    given: u64,
    /// Of every value that was ever kept.
    all: BTreeMap<usize, (u8, FencingToken)>,
    /// The reading of the clock from which on each has expired, whoever comes first. `None` is never.
    ends: BTreeMap<usize, Option<Duration>>,
}

impl Pair {
    fn new(choices: Choices, runs: Runs, hashing: Hashing, first: u64) -> Self {
        let jobs = Jobs::new(runs);
        let shared = Arc::new(Shared {
            tracker: OnceLock::new(),
            next: Mutex::default(),
            tokens: Mutex::default(),
            first,
            log: Mutex::default(),
            tick: choices.tick,
            alive: Mint::default(),
        });
        let (builder, clock) = chosen!(Tracker::builder("model").first_token(first), choices);
        let callback = shared.clone();
        let real = builder.dispatch(jobs.dispatch()).hasher(hashing);
        let real = real.build(move |key, value, token| callback.expire(key, value, token));
        let real = real.expect("no threads to refuse");
        assert!(shared.tracker.set(real.downgrade()).is_ok());
        Self {
            real,
            shared,
            model: Waiting::new(choices, clock, jobs),
            last: BTreeMap::new(),
            first,
            given: 0,
            all: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    fn call(&mut self, call: Call<Action>) {
        let before = self.model.stats.expired;
        let mut expired = None;
        match call {
            Call::Do(action) => {
                let did = self.shared.perform(&self.real, &action);
                self.did(did.expect("it is not one of a callback"));
            }
            Call::Pass(span) => self.model.pass_time(span),
            Call::Advance(span) => {
                self.model.pass_time(span);
                self.model.begin_pass();
                expired = Some(self.real.advance());
            }
            Call::Run(which, by_drop) => self.model.jobs.run(which, by_drop),
        }
        self.replay();
        self.model.end_call(before, expired);
        let alive = self.model.running.len() + self.model.ended.len();
        assert_eq!(self.shared.alive.living(), alive as u64);
        self.compare(Shared::look(&self.real));
    }

    /// Goes through what callbacks did meanwhile.
    fn replay(&mut self) {
        let events = std::mem::take(&mut *lock(&self.shared.log));
        for event in events {
            match event {
                Event::Told((key, number, token), seen) => {
                    self.model.told(number);
                    assert_eq!(self.all[&number], (key, token));
                    self.compare(seen.expect("the tracker is there"));
                }
                Event::Did(did, seen) => {
                    self.did(did);
                    self.compare(seen);
                }
                Event::Panicked => self.model.stats.panicked += 1,
            }
        }
        self.model.returned();
    }

    fn now(&self) -> Duration {
        self.model.clock.now().since_origin()
    }

    /// The value that is kept for the key, and its token.
    fn kept(&self, key: u8) -> Option<(usize, FencingToken)> {
        let last = self.last.get(&key).copied();
        last.filter(|(number, _)| {
            let is_past = self.ends[number].is_some_and(|end| end <= self.now());
            self.model.running.contains_key(number) && !is_past
        })
    }

    fn set_end(&mut self, number: usize, timeout: Duration) {
        let timeout = timeout.min(self.model.choices.max_timeout);
        let end = self.now().checked_add(timeout);
        // Where the timer never fires, the value never expires.
        let end = end.filter(|_| self.model.running[&number].is_some());
        self.ends.insert(number, end);
    }

    /// The value that is kept for the key, if it has this token.
    fn kept_with(&self, key: u8, token: Option<FencingToken>) -> Option<usize> {
        let kept = self.kept(key);
        let kept = kept.filter(|(_, own)| token.is_none_or(|token| token == *own));
        kept.map(|(number, _)| number)
    }

    /// A value has got a token: it is above all before, whatever their keys.
    fn given(&mut self, key: u8, number: usize, token: FencingToken) {
        assert_eq!(token.get(), self.first + self.given);
        self.given += 1;
        self.last.insert(key, (number, token));
        self.all.insert(number, (key, token));
    }

    fn refused(&mut self, number: usize, expected: RejectReason, refused: Refused) {
        assert_eq!(refused, (expected, number));
        self.model.stats.rejected += 1;
    }

    /// One that is kept, or none because it is gone.
    fn found(&mut self, kept: Option<usize>, found: Option<usize>) {
        match (kept, found) {
            (Some(kept), None) => self.model.is_gone(kept),
            _ => assert_eq!(found, kept),
        }
    }

    fn did(&mut self, did: Did) {
        let full = self.model.is_full() == Some(true);
        match did {
            Did::Track(_, _, number, _, Err(refused)) if self.model.closed => {
                self.refused(number, RejectReason::ShutDown, refused);
            }
            Did::Track(_, key, number, timeout, Ok((token, replaced))) => {
                assert!(!full || replaced.is_some());
                assert!(!self.model.closed);
                self.found(self.kept_with(key, None), replaced);
                if let Some(replaced) = replaced {
                    self.model.end(replaced);
                }
                self.model.start(number, timeout);
                self.set_end(number, timeout);
                self.given(key, number, token);
            }
            Did::Track(replaces, key, number, _, Err(refused)) => {
                let expected = match refused.0 {
                    RejectReason::Duplicate if !replaces => {
                        assert!(self.kept(key).is_some());
                        RejectReason::Duplicate
                    }
                    _ => {
                        assert!(full);
                        self.found(self.kept_with(key, None), None);
                        RejectReason::Full
                    }
                };
                self.refused(number, expected, refused);
            }
            Did::ReplaceIf(key, token, number, timeout, Ok((fresh, replaced))) => {
                assert_eq!(self.kept_with(key, Some(token)), Some(replaced));
                self.model.end(replaced);
                self.model.start(number, timeout);
                self.set_end(number, timeout);
                self.given(key, number, fresh);
            }
            Did::ReplaceIf(key, token, number, _, Err(refused)) => {
                self.found(self.kept_with(key, Some(token)), None);
                let expected = match self.model.closed {
                    true => RejectReason::ShutDown,
                    false => RejectReason::StaleToken,
                };
                self.refused(number, expected, refused);
            }
            Did::Complete(key, token, found) => {
                self.found(self.kept_with(key, token), found);
                if let Some(number) = found {
                    self.model.end(number);
                    self.model.stats.completed += 1;
                }
            }
            Did::Reschedule(key, token, timeout, rescheduled) => {
                let kept = self.kept_with(key, token);
                self.found(kept, kept.filter(|_| rescheduled));
                if rescheduled {
                    let number = kept.expect("the value with this token is not kept");
                    self.model.reschedule(number, timeout);
                    self.set_end(number, timeout);
                }
            }
            Did::Withdraw(below, parity, withdrawn) => {
                let wanted = |key: u8, number: usize| key < below && number % 2 == parity;
                let Some(withdrawn) = withdrawn else {
                    let kept = |key| self.kept_with(key, None).map(|number| (key, number));
                    let mut kept = (0..KEYS).filter_map(kept);
                    assert!(kept.any(|(key, number)| wanted(key, number)));
                    return;
                };
                self.model.stats.cancelled += withdrawn.len() as u64;
                for &(key, number) in &withdrawn {
                    assert_eq!(self.kept_with(key, None), Some(number));
                    self.model.end(number);
                }
                for key in 0..KEYS {
                    let left = self.kept_with(key, None);
                    if let Some(number) = left.filter(|number| wanted(key, *number)) {
                        self.model.is_gone(number);
                    }
                }
                let mut withdrawn = withdrawn.into_iter();
                assert!(withdrawn.all(|(key, number)| wanted(key, number)));
            }
            Did::Advance(expired) => self.model.nested_pass(expired),
            Did::Shutdown(remains) => {
                self.model.stats.shut_down += remains.len() as u64;
                // Also those whose deadline has passed: perhaps several of one key.
                for (key, number) in remains {
                    assert_eq!(self.all[&number].0, key);
                    self.model.end(number);
                }
                self.model.are_gone();
                self.model.closed = true;
            }
        }
    }

    fn compare(&mut self, seen: Seen) {
        for (key, of_key) in (0..KEYS).zip(seen.by_key) {
            let kept = self.kept(key);
            let remaining = kept.and_then(|(number, _)| Some(self.ends[&number]? - self.now()));
            let (number, token) = kept.unzip();
            assert_eq!(of_key, (kept.is_some(), number, token, remaining), "{key}");
        }
        let kept = (0..KEYS).filter(|key| self.kept(*key).is_some());
        assert!(seen.keys.into_iter().eq(kept));
        self.model.count_hidden(&seen.common);
        self.model.compare(&seen.common);
    }

    /// The last handle is dropped: what is kept is dropped with it, and what has expired is told.
    fn drop_tracker(self) {
        let Self { shared, model, .. } = self;
        drop(self.real);
        assert_eq!(shared.alive.living(), model.ended.len() as u64);
        model.jobs.run_all();
        let events = std::mem::take(&mut *lock(&shared.log)).into_iter();
        let told = events.map(|event| match event {
            Event::Told(told, None) => told,
            other => panic!("{other:?}"),
        });
        let mut told = told.collect::<Vec<_>>();
        told.sort_unstable_by_key(|(_, number, _)| *number);
        let of = |number: &usize| (self.all[number].0, *number, self.all[number].1);
        assert!(told.into_iter().eq(model.ended.keys().map(of)));
        assert_eq!(shared.alive.living(), 0);
    }
}

#[test]
fn g10_any_sequence_of_calls_does_what_a_map_does() {
    let all = || {
        let first = prop_oneof![Just(1), Just(1 << 32), Just(1 << 63)];
        let settings = (choices(), runs(), hashing(), first);
        (settings, calls(call, Action::Shutdown))
    };
    for_any(all, |((choices, runs, hashing, first), calls)| {
        let mut pair = Pair::new(choices, runs, hashing, first);
        calls.into_iter().for_each(|call| pair.call(call));
        pair.drop_tracker();
    });
}
