//! G5, G9, G10, G16, G17 against a model: any sequence of calls on a tracker and on a map of deadlines by key must give
//! the same answers, the same expiries and the same counts.

use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen, jump, span};
use proptest::prelude::*;
use request_purgatory::{
    RejectReason, Rejected, Tracker, time::Clock, time::ManualClock, time::Timestamp,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEYS: u8 = 6;

#[derive(Debug, Clone)]
enum Call {
    Track(u8, Span),
    TryTrack(u8, Span),
    Complete(u8),
    Touch(u8, Span),
    /// The clock moves, and nobody looks.
    Pass(Span),
    /// The clock moves, and the tracker is driven.
    Advance(Span),
    Shutdown,
}

/// Both, side by side.
struct Pair {
    choices: Choices,
    clock: ManualClock,
    real: Tracker<u8, u32>,
    expired: Arc<Mutex<Vec<(u8, u32)>>>,
    /// Value and deadline by key; `None` never expires.
    kept: BTreeMap<u8, (u32, Option<u64>)>,
    next_value: u32,
    closed: bool,
}

impl Pair {
    fn new(choices: Choices) -> Self {
        let (builder, clock) = chosen!(Tracker::builder("model"), choices);
        let expired = Arc::new(Mutex::new(Vec::new()));
        let log = expired.clone();
        let real = builder.build(move |key, value| lock(&log).push((key, value)));
        Self {
            choices,
            clock,
            real: real.expect("no threads to refuse"),
            expired,
            kept: BTreeMap::new(),
            next_value: 0,
            closed: false,
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().since_origin()
    }

    fn deadline(&self, timeout: Duration) -> Option<u64> {
        self.choices.deadline(self.now(), timeout)
    }

    fn call(&mut self, call: Call) {
        let tick = self.choices.tick;
        match call {
            Call::Track(key, span) => self.track(key, span.of(tick), true),
            Call::TryTrack(key, span) => self.track(key, span.of(tick), false),
            Call::Complete(key) => {
                let expected = self.kept.remove(&key).map(|(value, _)| value);
                assert_eq!(self.real.complete(&key), expected);
            }
            Call::Touch(key, span) => {
                let timeout = span.of(tick);
                let kept = self.kept.contains_key(&key);
                assert_eq!(self.real.touch(&key, timeout), kept);
                let deadline = self.deadline(timeout);
                if let Some(entry) = self.kept.get_mut(&key) {
                    entry.1 = deadline;
                }
            }
            Call::Pass(span) => self.clock.advance(span.of(tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(tick));
                self.advance();
            }
            Call::Shutdown => {
                let mut remains = self.real.shutdown();
                remains.sort_unstable();
                let kept = std::mem::take(&mut self.kept).into_iter();
                assert!(
                    remains
                        .into_iter()
                        .eq(kept.map(|(key, (value, _))| (key, value)))
                );
                self.closed = true;
            }
        }
    }

    fn track(&mut self, key: u8, timeout: Duration, replace: bool) {
        let value = self.next_value;
        self.next_value += 1;
        let max = self.choices.max_parked;
        let full = max.is_some_and(|max| self.kept.len() >= max);
        let duplicate = !replace && self.kept.contains_key(&key);
        let result = match replace {
            true => self.real.track(key, value, timeout),
            false => self.real.try_track(key, value, timeout).map(|()| None),
        };
        match result.map_err(Rejected::into_parts) {
            Err((RejectReason::ShutDown, back)) if self.closed => assert_eq!(back, value),
            Err((RejectReason::Duplicate, back)) if duplicate => assert_eq!(back, value),
            // (One that would be replaced takes its place until then.)
            Err((RejectReason::Full, back)) if full && !duplicate => assert_eq!(back, value),
            Ok(replaced) if !self.closed && !duplicate && !full => {
                let before = self.kept.insert(key, (value, self.deadline(timeout)));
                assert_eq!(replaced, before.map(|(value, _)| value));
            }
            other => panic!("{other:?}, full: {full}, duplicate: {duplicate}"),
        }
    }

    fn advance(&mut self) {
        let now = self.choices.tick_at(self.now());
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let mut expected = BTreeMap::new();
        self.kept.retain(|key, (value, deadline)| {
            if due(*deadline) {
                expected.insert(*key, *value);
            }
            !due(*deadline)
        });
        assert_eq!(self.real.advance(), expected.len());
        let mut expired = std::mem::take(&mut *lock(&self.expired));
        expired.sort_unstable();
        assert!(expired.into_iter().eq(expected));
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        assert!(lock(&self.expired).is_empty(), "an expiry out of the blue");
        assert_eq!(self.real.is_shut_down(), self.closed);
        assert_eq!(self.real.len(), self.kept.len());
        let now = Timestamp::from_origin(self.now());
        for key in 0..KEYS {
            let kept = self.kept.get(&key);
            assert_eq!(self.real.contains(&key), kept.is_some());
            let deadline = kept.and_then(|(_, deadline)| *deadline);
            let deadline = deadline.map(|tick| self.choices.timestamp(tick));
            let remaining = deadline.map(|at| at.saturating_since(now));
            assert_eq!(self.real.remaining(&key), remaining);
        }
        let earliest = self
            .kept
            .values()
            .filter_map(|(_, deadline)| *deadline)
            .min();
        let next = self.real.next_deadline();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(next <= self.choices.timestamp(earliest), "{next:?}");
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS;
    prop_oneof![
        5 => (key(), span()).prop_map(|(key, timeout)| Call::Track(key, timeout)),
        5 => (key(), span()).prop_map(|(key, timeout)| Call::TryTrack(key, timeout)),
        3 => key().prop_map(Call::Complete),
        3 => (key(), span()).prop_map(|(key, timeout)| Call::Touch(key, timeout)),
        2 => jump().prop_map(Call::Pass),
        4 => jump().prop_map(Call::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g10_any_sequence_of_calls_does_what_a_map_does(
        choices in choices(),
        calls in prop::collection::vec(call(), 1..120),
        after in prop::collection::vec(call(), 0..10),
    ) {
        let mut pair = Pair::new(choices);
        for call in calls.into_iter().chain([Call::Shutdown]).chain(after) {
            pair.call(call);
            pair.compare();
        }
    }
}
