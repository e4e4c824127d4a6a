//! All that can be asked without changing anything.

use super::pair::Pair;
use crate::support::lock;
use request_purgatory::time::Clock;
use std::collections::BTreeSet;
use std::time::Duration;

impl Pair {
    pub(crate) fn compare(&mut self) {
        assert!(lock(&self.log).is_empty(), "an ending out of the blue");
        let endings = self.endings();
        assert!(endings.is_empty(), "out of the blue: {endings:?}");
        self.compare_counts();
        self.compare_deadlines();
        self.compare_handles();
        self.compare_snapshot();
    }

    fn compare_counts(&self) {
        let model = &self.model;
        assert_eq!(self.real.is_shut_down(), model.closed);
        assert_eq!(self.real.stats().parked, model.parked.len());
        let watched = model.parked.values().map(|op| op.keys.len());
        assert_eq!(self.real.stats().watched, watched.sum::<usize>());
        let keys = model.parked.values().flat_map(|op| op.keys.keys());
        let keys = keys.collect::<BTreeSet<_>>();
        assert_eq!(self.real.watched_keys(), keys.len());
        let (stats, counts) = (self.real.stats(), &model.counts);
        assert_eq!(
            (stats.parked, stats.watched),
            (self.real.stats().parked, self.real.stats().watched)
        );
        assert_eq!(stats.completed_at_once, counts.completed_at_once);
        assert_eq!(stats.completed, counts.completed);
        assert_eq!(stats.expired, counts.expired);
        assert_eq!(stats.cancelled, counts.cancelled);
        assert_eq!(stats.shut_down, counts.shut_down);
        assert_eq!(stats.aborted, counts.aborted);
        assert_eq!(stats.panicked, counts.panicked);
        assert_eq!(stats.rejected, counts.rejected);
        assert!(stats.checks >= counts.checks, "{stats:?}, {counts:?}");
        assert_eq!(stats.missed_checks, counts.missed_checks);
        let nanos = Duration::from_nanos;
        assert_eq!(stats.lateness_total, nanos(counts.lateness_total));
        assert_eq!(stats.lateness_max, nanos(counts.lateness_max));
    }

    fn compare_deadlines(&self) {
        let model = &self.model;
        let earliest = model.parked.values().filter_map(|op| op.deadline).min();
        let next = self.real.next_deadline();
        if model.later.is_empty() {
            assert_eq!(next.is_some(), earliest.is_some());
        } else {
            assert!(next.is_some_and(|next| next <= self.clock.now()));
        }
        if let (Some(next), Some(earliest)) = (next, earliest) {
            let due = model.choices.timestamp(earliest);
            assert!(next <= due, "{next:?} for {earliest}");
        }
    }

    fn compare_handles(&self) {
        let now = self.clock.now();
        for (number, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let parked = self.model.parked.get(&number);
            assert_eq!(handle.is_parked(), parked.is_some());
            let deadline = parked.and_then(|op| op.deadline);
            let deadline = deadline.map(|tick| self.model.choices.timestamp(tick));
            assert_eq!(handle.deadline(), deadline);
            let remaining = deadline.map(|at| at.saturating_since(now));
            assert_eq!(handle.remaining(), remaining);
        }
    }

    fn compare_snapshot(&self) {
        let now = self.model.tick();
        let listed = self.real.snapshot();
        let oldest_first = listed.iter().rev().map(|op| op.age);
        assert!(oldest_first.is_sorted());
        let listed = listed.into_iter().map(|op| {
            let mut keys = op.keys;
            keys.sort_unstable();
            (keys, op.age, op.remaining)
        });
        let mut listed = listed.collect::<Vec<_>>();
        let expected = self.model.parked.values().map(|op| {
            let left = |deadline: u64| self.model.choices.ticks(deadline.saturating_sub(now));
            (
                op.keys.keys().copied().collect(),
                self.model.choices.ticks(now.saturating_sub(op.parked_at)),
                op.deadline.map(left),
            )
        });
        let mut expected = expected.collect::<Vec<(Vec<u8>, _, _)>>();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}
