//! What is known of one purgatory: plain maps and lists.

use super::call::{Act, Answer, Arriving, Reach};
use super::operation::Event;
use request_purgatory::{Completion, purgatory::Stats};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Side {
    pub(crate) parked: BTreeMap<usize, Parked>,
    /// Watchers of each key in the order of their arrival. One that expires leaves with the others that do.
    pub(crate) lists: BTreeMap<u8, Vec<(usize, Option<u64>)>>,
    /// How often a key is resolved.
    pub(crate) resolved: BTreeMap<u8, usize>,
    /// Resolved keys that calls in progress use, whether they are released meanwhile or not.
    pub(crate) used: Vec<u8>,
    /// Deferred checks.
    pub(crate) later: VecDeque<u8>,
    /// Operations that count for `max_parked`.
    pub(crate) places: usize,
    pub(crate) draining: bool,
    pub(crate) closed: bool,
    /// But for what is counted now.
    pub(crate) stats: Stats,
}

/// What is known of a parked operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parked {
    /// The reading at which it arrived, since the clock's origin.
    pub(crate) arrived_at: Duration,
    /// `None` never expires.
    pub(crate) deadline: Option<u64>,
    /// Its deadline had come already when it got it: among such, there is no order.
    pub(crate) overdue: bool,
    /// It is being examined or changed, or is not parked yet.
    pub(crate) held: bool,
    /// Ends that were asked for meanwhile.
    pub(crate) marks: BTreeSet<End>,
    /// For the end of that, if it is forced.
    pub(crate) change: Option<Arc<[Act]>>,
}

/// How an operation ends. Of several marks the first here counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Satisfied,
    Forced,
    Cancelled,
    Expired,
    ShutDown,
    Aborted,
}

impl End {
    /// (Nothing of a panic.)
    pub(crate) fn completion(self) -> Option<Completion> {
        match self {
            Self::Satisfied | Self::Forced => Some(Completion::Satisfied),
            Self::Expired => Some(Completion::Expired),
            Self::Cancelled => Some(Completion::Cancelled),
            Self::ShutDown => Some(Completion::ShutDown),
            Self::Aborted => None,
        }
    }
}

/// What is known of any operation.
pub(crate) struct Known {
    pub(crate) side: usize,
    pub(crate) is: Arc<Arriving>,
    pub(crate) says: Answer,
    pub(crate) has_handle: bool,
    /// A task awaits its end.
    pub(crate) has_future: bool,
    /// It is due to be told this.
    pub(crate) ended: Option<End>,
    pub(crate) lost: bool,
}

impl Side {
    pub(crate) fn count(&self, key: u8) -> usize {
        self.lists.get(&key).map_or(0, Vec::len)
    }

    /// Whom a visit of `key` meets: ranks first, up to that of `reach`. Among equal ranks there is no order: the one that
    /// the purgatory takes shows in what comes next, where `place` finds it.
    pub(crate) fn turns(
        &self,
        key: u8,
        reach: Reach,
        place: impl Fn(usize) -> usize,
    ) -> Vec<usize> {
        let list = self.lists.get(&key).cloned().unwrap_or_default();
        let up_to = reach.up_to.unwrap_or(u64::MAX);
        let (mut ranked, unranked): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|(_, rank)| rank.is_some());
        ranked.retain(|(_, rank)| rank.is_some_and(|rank| rank <= up_to));
        ranked.sort_by_key(|(number, rank)| (*rank, place(*number)));
        let all = ranked.into_iter().chain(unranked);
        all.map(|(number, _)| number).collect()
    }

    pub(crate) fn unwatch(&mut self, number: usize) {
        for list in self.lists.values_mut() {
            list.retain(|(watcher, _)| *watcher != number);
        }
        self.lists.retain(|_, list| !list.is_empty());
    }

    /// It is parked no more.
    pub(crate) fn count_end(&mut self, end: End) {
        let stats = &mut self.stats;
        *match end {
            End::Satisfied | End::Forced => &mut stats.completed,
            End::Expired => &mut stats.expired,
            End::Cancelled => &mut stats.cancelled,
            End::Aborted => &mut stats.aborted,
            End::ShutDown => &mut stats.shut_down,
        } += 1;
        stats.checks += u64::from(end == End::Satisfied);
    }
}

/// What the purgatories have told, as far as the model has followed.
#[derive(Default)]
pub(crate) struct Followed {
    pub(crate) log: Vec<Event>,
    pub(crate) at: usize,
}

impl Followed {
    /// This happens next.
    pub(crate) fn expect(&mut self, event: &Event) {
        let before = &self.log[..self.at];
        assert_eq!(self.log.get(self.at), Some(event), "after {before:?}");
        self.at += 1;
    }

    pub(crate) fn next(&self) -> Option<&Event> {
        self.log.get(self.at)
    }

    /// How far off the first event is that `is_it`.
    pub(crate) fn place(&self, is_it: impl Fn(&Event) -> bool) -> usize {
        let ahead = &self.log[self.at..];
        ahead.iter().position(is_it).unwrap_or(usize::MAX)
    }
}
