//! What was posted, and who was told of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An answer that comes later than this after its post is late. (Far above what a healthy cluster takes, and what a
/// user notices.)
pub(super) const LATE: Duration = Duration::from_secs(1);

/// One POST. A post that is not acknowledged is tried again as another attempt.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Instant,
    node: usize,
    phase: usize,
}

#[derive(Debug, Default)]
struct Topic {
    /// Versions that the gateway answered a post with, and when.
    acknowledged: BTreeMap<u64, Instant>,
}

/// Figures of one phase.
#[derive(Debug, Default, Clone)]
pub(super) struct Figures {
    pub(super) name: &'static str,
    pub(super) events: u64,
    /// Polls answered with events.
    pub(super) wakeups: u64,
    /// Pairs of a poll and an acknowledged event that the poll was not told of in time.
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) longest: Duration,
    /// From the POST to the answer of a poll on another node.
    pub(super) elsewhere: Vec<Duration>,
}

#[derive(Debug)]
pub(super) struct Ledger {
    attempts: Mutex<Vec<Attempt>>,
    topics: Vec<Mutex<Topic>>,
    /// For each poller, the versions it was told.
    told: Vec<Mutex<HashSet<u64>>>,
    phases: Mutex<Vec<Figures>>,
    phase: AtomicUsize,
    bound: Duration,
    pub(super) reconnects: AtomicU64,
    pub(super) resets: AtomicU64,
    failures: Mutex<Vec<String>>,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    pub(super) fn new(pollers: usize, topics: usize, bound: Duration) -> Self {
        Self {
            attempts: Mutex::default(),
            topics: (0..topics).map(|_| Mutex::default()).collect(),
            told: (0..pollers).map(|_| Mutex::default()).collect(),
            phases: Mutex::default(),
            phase: AtomicUsize::new(0),
            bound,
            reconnects: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            failures: Mutex::default(),
        }
    }

    pub(super) fn topic_of(&self, poller: usize) -> usize {
        poller % self.topics.len()
    }

    pub(super) fn topics(&self) -> usize {
        self.topics.len()
    }

    pub(super) fn pollers(&self) -> usize {
        self.told.len()
    }

    pub(super) fn begin(&self, name: &'static str) {
        let mut phases = lock(&self.phases);
        phases.push(Figures {
            name,
            ..Figures::default()
        });
        self.phase.store(phases.len() - 1, Ordering::SeqCst);
    }

    /// A POST to `node` begins. Its body is the number that this returns.
    pub(super) fn attempt(&self, node: usize) -> usize {
        let mut attempts = lock(&self.attempts);
        attempts.push(Attempt {
            at: Instant::now(),
            node,
            phase: self.phase.load(Ordering::SeqCst),
        });
        attempts.len() - 1
    }

    /// A POST was answered.
    pub(super) fn acknowledge(&self, topic: usize, version: u64) {
        let mut log = lock(&self.topics[topic]);
        log.acknowledged.insert(version, Instant::now());
        lock(&self.phases)[self.phase.load(Ordering::SeqCst)].events += 1;
    }

    /// A poll was answered on `node` with these versions and the numbers of their attempts.
    pub(super) fn tell(&self, poller: usize, node: usize, events: &[(u64, usize)]) {
        let now = Instant::now();
        let attempts = lock(&self.attempts);
        let posted = |&(_, number): &(u64, usize)| attempts.get(number).copied();
        let posted = events.iter().filter_map(posted).collect::<Vec<_>>();
        drop(attempts);
        let mut told = lock(&self.told[poller]);
        told.extend(events.iter().map(|(version, _)| version));
        drop(told);
        let mut phases = lock(&self.phases);
        phases[self.phase.load(Ordering::SeqCst)].wakeups += 1;
        for attempt in posted {
            let took = now - attempt.at;
            let figures = &mut phases[attempt.phase];
            figures.late += u64::from(took > LATE);
            figures.longest = figures.longest.max(took);
            if attempt.node != node {
                figures.elsewhere.push(took);
            }
        }
    }

    /// A poll after `seen` ran out of time. If an event was there for longer than the bound, its wake-up was lost, and
    /// the next poll hides it.
    pub(super) fn expire(&self, poller: usize, seen: u64) {
        let log = lock(&self.topics[self.topic_of(poller)]);
        let outstanding = log.acknowledged.range(seen + 1..);
        let lost = outstanding.filter(|(_, at)| at.elapsed() > self.bound);
        let lost = lost.count() as u64;
        drop(log);
        if lost > 0 {
            lock(&self.phases)[self.phase.load(Ordering::SeqCst)].lost += lost;
        }
    }

    /// How many pairs of a poll and an acknowledged event there are that the poll was not told of.
    pub(super) fn behind(&self) -> u64 {
        let mut behind = 0;
        for (number, topic) in self.topics.iter().enumerate() {
            let log = lock(topic);
            for poller in (number..self.told.len()).step_by(self.topics.len()) {
                let told = lock(&self.told[poller]);
                let missing = log.acknowledged.keys().filter(|it| !told.contains(it));
                behind += missing.count() as u64;
            }
        }
        behind
    }

    /// The present phase lost these; later phases do not count them again.
    pub(super) fn lose(&self, lost: u64) {
        lock(&self.phases)[self.phase.load(Ordering::SeqCst)].lost += lost;
        if lost > 0 {
            for topic in &self.topics {
                lock(topic).acknowledged.clear();
            }
        }
    }

    /// Something happened that no fault explains.
    pub(super) fn fail(&self, why: String) {
        lock(&self.failures).push(why);
    }

    pub(super) fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    pub(super) fn phases(&self) -> Vec<Figures> {
        lock(&self.phases).clone()
    }

    pub(super) fn last(&self) -> (u64, u64) {
        let phases = lock(&self.phases);
        phases.last().map_or((0, 0), |it| (it.events, it.wakeups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_poll_is_not_told_of_is_behind_and_then_lost_once() {
        let ledger = Ledger::new(4, 2, Duration::ZERO);
        ledger.begin("calm");
        let number = ledger.attempt(0);
        ledger.acknowledge(1, 7);
        assert_eq!(ledger.behind(), 2); // of pollers 1 and 3
        ledger.tell(1, 2, &[(7, number)]);
        assert_eq!(ledger.behind(), 1);
        ledger.expire(1, 7);
        assert_eq!(ledger.phases()[0].lost, 0);
        ledger.expire(3, 0);
        assert_eq!(ledger.phases()[0].lost, 1);
        ledger.lose(ledger.behind());
        assert_eq!((ledger.behind(), ledger.phases()[0].lost), (0, 2));
        assert_eq!(ledger.phases()[0].elsewhere.len(), 1);
    }
}
