//! What the handle of a node and its driver share.

use crate::config::Config;
use crate::key::Key;
use crate::observe::Observer;
use crate::stats::{Stats, Troubles};
use crate::sync::Arc;
use crate::table::{Table, Time};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The table of a node, its settings, and what it tells of itself.
pub(crate) struct Shared<K: Key> {
    pub(crate) config: Config,
    pub(crate) table: Arc<Table<K>>,
    /// The table has orders.
    pub(crate) ordered: Arc<Notify>,
    pub(crate) started: Instant,
    /// Until when this node was in step; `None` while it is.
    out_of_step_since: Mutex<Option<Instant>>,
    pub(crate) feed_trouble: Troubles,
    pub(crate) store_trouble: Troubles,
    pub(crate) advice: Mutex<Option<Arc<str>>>,
    pub(crate) observer: Observer,
}

impl<K: Key> Shared<K> {
    pub(crate) fn new(config: Config) -> Self {
        let ordered = Arc::new(Notify::new());
        let wake = ordered.clone();
        let now = Instant::now();
        Self {
            table: Arc::new(Table::new(
                config.max_keys,
                config.max_lingering,
                config.rules,
                move || {
                    wake.notify_one();
                },
            )),
            ordered,
            started: now,
            out_of_step_since: Mutex::new(Some(now)),
            feed_trouble: Troubles::default(),
            store_trouble: Troubles::default(),
            advice: Mutex::default(),
            observer: Observer::new(&config.name),
            config,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Returns whether this is new.
    pub(crate) fn in_step(&self, is_in_step: bool) -> bool {
        let mut since = self.out_of_step_since.lock();
        let was_in_step = since.is_none();
        match is_in_step {
            true => *since = None,
            false if was_in_step => *since = Some(Instant::now()),
            false => {}
        }
        was_in_step != is_in_step
    }

    pub(crate) fn lag(&self) -> Duration {
        let since = *self.out_of_step_since.lock();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// What the operator should change now, if anything.
    pub(crate) fn advise(&self, advice: Option<Arc<str>>) {
        let before = std::mem::replace(&mut *self.advice.lock(), advice.clone());
        if before != advice
            && let Some(advice) = advice
        {
            // With no lock held: the subscriber may ask for the statistics.
            self.observer.advice(&advice);
        }
    }

    /// What this node has seen so far.
    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.table.counters;
        Stats {
            watched_keys: self.table.watched_keys(),
            sessions: counters.sessions.read(),
            gaps: counters.gaps.read(),
            failed: counters.failed.read(),
            heard: counters.heard.read(),
            healed: counters.healed.read(),
            resets: counters.resets.read(),
            reads: counters.reads.read(),
            lag: self.lag(),
            feed_trouble: self.feed_trouble.now(),
            store_trouble: self.store_trouble.now(),
            advice: self.advice.lock().clone(),
        }
    }

    pub(crate) fn report(&self) {
        let troubles = [&self.feed_trouble, &self.store_trouble];
        self.observer.report(&self.stats(), troubles);
    }
}
