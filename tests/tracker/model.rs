//! G5, G9, G10, G16, G17 against a model: any sequence of calls on a tracker and on a map of deadlines by key must give
//! the same answers, the same expiries and the same counts.

use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen, jump, span};
use proptest::prelude::*;
use request_purgatory::{
    Tracker, purgatory::RejectReason, purgatory::Rejected, time::Clock, time::ManualClock,
    time::Timestamp, tracker::FencingToken,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEYS: u8 = 6;
const FIRST: u64 = 1 << 32;

#[derive(Debug, Clone)]
enum Call {
    Track(u8, Span),
    TryTrack(u8, Span),
    Complete(u8),
    Touch(u8, Span),
    /// By one of the key's tokens: the last one if the number is 0, else an older one.
    TouchIf(u8, usize, Span),
    CompleteIf(u8, usize),
    ReplaceIf(u8, usize, Span),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the tracker is driven.
    Advance(Span),
    /// Every value of a key below goes, if it is of this parity.
    Withdraw(u8, u32),
    Shutdown,
}

/// Both, side by side.
struct Pair {
    choices: Choices,
    clock: ManualClock,
    real: Tracker<u8, u32>,
    expired: Arc<Mutex<Vec<(u8, u32, FencingToken)>>>,
    /// Value and deadline by key; `None` never expires.
    kept: BTreeMap<u8, (u32, Option<u64>)>,
    next_value: u32,
    /// All tokens that each key has had, the last one at the end, and the highest of all.
    tokens: BTreeMap<u8, Vec<FencingToken>>,
    highest: u64,
    closed: bool,
}

impl Pair {
    fn new(choices: Choices) -> Self {
        let (builder, clock) = chosen!(Tracker::builder("model").first_token(FIRST), choices);
        let expired = Arc::new(Mutex::new(Vec::new()));
        let log = expired.clone();
        let real = builder.build(move |key, value, token| lock(&log).push((key, value, token)));
        Self {
            choices,
            clock,
            real: real.expect("no threads to refuse"),
            expired,
            kept: BTreeMap::new(),
            next_value: 0,
            tokens: BTreeMap::new(),
            highest: FIRST - 1,
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
                assert_eq!(self.real.reschedule(&key, timeout), kept);
                let deadline = self.deadline(timeout);
                if let Some(entry) = self.kept.get_mut(&key) {
                    entry.1 = deadline;
                }
            }
            Call::TouchIf(key, back, span) => {
                let timeout = span.of(tick);
                let (token, mine) = self.token(key, back);
                assert_eq!(self.real.reschedule_if(&key, token, timeout), mine);
                let deadline = self.deadline(timeout);
                if let Some(entry) = self.kept.get_mut(&key).filter(|_| mine) {
                    entry.1 = deadline;
                }
            }
            Call::CompleteIf(key, back) => {
                let (token, mine) = self.token(key, back);
                let expected = mine.then(|| self.kept.remove(&key)).flatten();
                let completed = self.real.complete_if(&key, token);
                assert_eq!(completed, expected.map(|(value, _)| value));
            }
            Call::ReplaceIf(key, back, span) => self.replace(key, back, span.of(tick)),
            Call::Pass(span) => self.clock.advance(span.of(tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(tick));
                self.advance();
            }
            Call::Withdraw(below, parity) => {
                let wanted = |key: &u8, value: &u32| *key < below && value % 2 == parity;
                let mut withdrawn = self.real.withdraw_where(wanted);
                withdrawn.sort_unstable();
                let before = std::mem::take(&mut self.kept).into_iter();
                let gone: BTreeMap<_, _>;
                (gone, self.kept) = before.partition(|(key, (value, _))| wanted(key, value));
                let gone = gone.into_iter().map(|(key, (value, _))| (key, value));
                assert!(withdrawn.into_iter().eq(gone));
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
            false => {
                let tracked = self.real.try_track(key, value, timeout);
                tracked.map(|token| (token, None))
            }
        };
        match result.map_err(Rejected::into_parts) {
            Err((RejectReason::ShutDown, back)) if self.closed => assert_eq!(back, value),
            Err((RejectReason::Duplicate, back)) if duplicate => assert_eq!(back, value),
            // One that would be replaced takes its place until then.
            Err((RejectReason::Full, back)) if full && !duplicate => assert_eq!(back, value),
            Ok((token, replaced)) if !self.closed && !duplicate && !full => {
                self.given(key, token);
                let before = self.kept.insert(key, (value, self.deadline(timeout)));
                assert_eq!(replaced, before.map(|(value, _)| value));
            }
            other => panic!("{other:?}, full: {full}, duplicate: {duplicate}"),
        }
    }

    /// One of the key's tokens, and whether it is that of the value that is kept. Or one that was never given out.
    fn token(&self, key: u8, back: usize) -> (FencingToken, bool) {
        let known = self.tokens.get(&key).map_or(&[][..], Vec::as_slice);
        match known.iter().rev().nth(back) {
            Some(token) => (*token, back == 0 && self.kept.contains_key(&key)),
            None => (FencingToken::from(self.highest + 1), false),
        }
    }

    /// A token came: it is above all before, whatever their keys.
    fn given(&mut self, key: u8, token: FencingToken) {
        assert_eq!(token.get(), self.highest + 1);
        self.highest = token.get();
        self.tokens.entry(key).or_default().push(token);
    }

    fn replace(&mut self, key: u8, back: usize, timeout: Duration) {
        let value = self.next_value;
        self.next_value += 1;
        let (token, mine) = self.token(key, back);
        match self.real.replace_if(key, token, value, timeout) {
            Ok(tracked) => {
                assert!(mine, "replaced by a stale token");
                let before = self.kept.insert(key, (value, self.deadline(timeout)));
                assert_eq!(Some(tracked.1), before.map(|(value, _)| value));
                self.given(key, tracked.0);
            }
            Err(rejected) => {
                let expected = match self.closed {
                    true => RejectReason::ShutDown,
                    false => RejectReason::StaleToken,
                };
                assert!(!mine);
                assert_eq!(rejected.into_parts(), (expected, value));
            }
        }
    }

    fn advance(&mut self) {
        let now = self.choices.tick_at(self.now());
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let mut expected = Vec::new();
        self.kept.retain(|key, (value, deadline)| {
            if due(*deadline) {
                let token = self.tokens[key].last().expect("it was tracked");
                expected.push((*key, *value, *token));
            }
            !due(*deadline)
        });
        assert_eq!(self.real.advance(), expected.len());
        let mut expired = std::mem::take(&mut *lock(&self.expired));
        expired.sort_unstable();
        assert_eq!(expired, expected);
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        assert!(lock(&self.expired).is_empty(), "an expiry out of the blue");
        assert_eq!(self.real.is_shut_down(), self.closed);
        assert_eq!(self.real.stats().parked, self.kept.len());
        let mut keys = self.real.keys();
        keys.sort_unstable();
        assert!(keys.iter().eq(self.kept.keys()));
        let now = Timestamp::from_origin(self.now());
        for key in 0..KEYS {
            let kept = self.kept.get(&key);
            assert_eq!(self.real.contains(&key), kept.is_some());
            assert_eq!(self.real.get(&key), kept.map(|(value, _)| *value));
            let token = self.tokens.get(&key).and_then(|all| all.last());
            assert_eq!(
                self.real.token(&key),
                token.copied().filter(|_| kept.is_some())
            );
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
    let back = || prop_oneof![3 => Just(0), 2 => 1..4_usize];
    prop_oneof![
        5 => (key(), span()).prop_map(|(key, timeout)| Call::Track(key, timeout)),
        5 => (key(), span()).prop_map(|(key, timeout)| Call::TryTrack(key, timeout)),
        3 => key().prop_map(Call::Complete),
        3 => (key(), span()).prop_map(|(key, timeout)| Call::Touch(key, timeout)),
        3 => (key(), back(), span()).prop_map(|(key, back, timeout)| Call::TouchIf(key, back, timeout)),
        2 => (key(), back()).prop_map(|(key, back)| Call::CompleteIf(key, back)),
        3 => (key(), back(), span()).prop_map(|(key, back, timeout)| Call::ReplaceIf(key, back, timeout)),
        1 => (0..=KEYS, 0..2_u32).prop_map(|(below, parity)| Call::Withdraw(below, parity)),
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
