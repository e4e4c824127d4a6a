//! All that can be asked without changing anything.

use super::pair::Pair;
use crate::support::lock;
use request_purgatory::time::Clock;

/// Whose watchers are compared, whether it has any or not.
const KEYS: std::ops::Range<u8> = 0..6;

impl Pair {
    pub(crate) fn compare(&mut self) {
        let log = lock(&self.real.log);
        assert!(log.is_empty(), "out of the blue: {log:?}");
        drop(log);
        for side in 0..2 {
            self.compare_counts(side);
            self.compare_deadlines(side);
            self.compare_snapshot(side);
        }
        self.compare_handles();
    }

    fn compare_counts(&self, side: usize) {
        let (real, model) = (self.real.side(side), &self.model.sides[side]);
        assert_eq!(real.is_shut_down(), model.closed);
        assert_eq!(real.is_empty(), model.parked.is_empty());
        assert_eq!(real.watched_keys(), model.lists.len());
        for key in KEYS.chain(model.lists.keys().copied()) {
            assert_eq!(real.watchers(&key), model.count(key), "of {key}");
        }
        assert_eq!(model.places, model.parked.len());
        let mut stats = model.stats.clone();
        stats.parked = model.parked.len();
        stats.watched = model.lists.values().map(Vec::len).sum();
        assert_eq!(real.stats(), stats);
    }

    fn compare_deadlines(&self, side: usize) {
        let (real, model) = (self.real.side(side), &self.model.sides[side]);
        let earliest = model.parked.values().filter_map(|op| op.deadline).min();
        let next = real.next_deadline();
        if model.later.is_empty() {
            assert_eq!(next.is_some(), earliest.is_some());
        } else {
            assert!(next.is_some_and(|next| next <= self.real.clock.now()));
        }
        if let (Some(next), Some(earliest)) = (next, earliest) {
            let due = self.model.setup.choices.timestamp(earliest);
            assert!(next <= due, "{next:?} for {earliest}");
        }
    }

    fn compare_handles(&self) {
        let now = self.real.clock.now();
        for (number, known) in self.model.known.iter().enumerate() {
            let handle = self.real.handle(number);
            assert_eq!(handle.is_some(), known.has_handle);
            let Some(handle) = handle else { continue };
            let parked = self.model.sides[known.side].parked.get(&number);
            assert_eq!(handle.is_parked(), parked.is_some());
            let deadline = parked.and_then(|op| op.deadline);
            let deadline = deadline.map(|tick| self.model.setup.choices.timestamp(tick));
            assert_eq!(handle.deadline(), deadline);
            let remaining = deadline.map(|at| at.saturating_since(now));
            assert_eq!(handle.remaining(), remaining);
        }
    }

    fn compare_snapshot(&self, side: usize) {
        let (choices, now) = (&self.model.setup.choices, self.model.tick());
        let model = &self.model.sides[side];
        let listed = self.real.side(side).snapshot();
        let oldest_first = listed.iter().rev().map(|op| op.age);
        assert!(oldest_first.is_sorted());
        let listed = listed.into_iter().map(|op| {
            let mut keys = op.keys;
            keys.sort_unstable();
            (keys, op.age, op.remaining)
        });
        let mut listed = listed.collect::<Vec<_>>();
        let expected = model.parked.iter().map(|(number, op)| {
            let watches = |list: &&Vec<(usize, _)>| list.iter().any(|(it, _)| it == number);
            let keys = model.lists.iter().filter(|(_, list)| watches(list));
            let left = |deadline: u64| choices.ticks(deadline.saturating_sub(now));
            (
                keys.map(|(key, _)| *key).collect(),
                self.model.now.saturating_sub(op.arrived_at),
                op.deadline.map(left),
            )
        });
        let mut expected = expected.collect::<Vec<(Vec<u8>, _, _)>>();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}
