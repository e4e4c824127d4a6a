//! The protocol of one session: what to watch and what to read next, and what follows from what was heard and read.
//!
//! Nothing here waits, sends or knows a clock: the caller says what time it is, carries out what is asked for, and
//! reports back. The driver does that with a store, the simulation with a model of one.
//!
//! Why no wait is lost, while the store can be read. Versions only grow within a history, and marks hold versions that
//! were committed; so what is heard twice, late or in disorder does no harm. Take a wait for a version beyond `v` of a
//! key, and the commit of `v + 1`.
//!
//! * The session has watched the key before the commit: it is [heard](Session::heard), the mark is raised, and the wait
//!   is checked (`Table::reached`).
//! * The commit was acknowledged before the watch began: the read that follows the watch begins after the commit, and
//!   [shows](Session::read) it.
//! * There was no session, or it broke: the next one watches all keys, then reads them; the two cases above apply.
//! * The feed loses the message and stays silent: the [audit](audit) finds the version, at most a period and a read
//!   later.
//! * Other servers learn of the watch a little later than `watch` returns: the key is read once more, `settle` later.
//! * The history ends: every mark begins again, and every wait that was begun in it ends with `Reset`.

mod audit;
mod ticket;

use crate::config::Config;
use crate::feed::Change;
use crate::key::Key;
use crate::rules::Rule;
use crate::source::{Epoch, Reading};
use crate::sync::{Arc, KeyHash};
use crate::table::entry::Learned;
use crate::table::{Order, Table, Time};
use audit::{Audit, Wish};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::time::Duration;
pub use ticket::{Ticket, Why};

/// What the feed is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tell<K> {
    /// To watch these keys. [`Session::watched`] when it does.
    Watch(Vec<K>),
    /// To end the watches of these.
    Unwatch(Vec<K>),
}

/// What there is to do next.
#[derive(Debug)]
pub enum Next<T> {
    /// This.
    Do(T),
    /// Nothing before this time, or before something is reported or ordered.
    Wait(Option<Time>),
}

/// Why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt {
    /// The store has another epoch.
    Epoch,
    /// A version went back.
    WentBack,
    /// Two audits in a row found versions of which nothing was heard.
    Unheard,
    /// The number of versions read is not the number of keys asked for.
    Malformed,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Epoch => "the store has another epoch: its data was lost",
            Self::WentBack => "a version went back: an older copy of the store took over",
            Self::Unheard => "two audits in a row found versions of which nothing was heard",
            Self::Malformed => {
                "the source returned another number of versions than it was asked for"
            }
        })
    }
}

impl std::error::Error for Doubt {}

/// One session with the feed.
pub struct Session<K> {
    table: Arc<Table<K>>,
    config: Config,
    is_exact: bool,
    /// Keys whose first watch and read this session still owes.
    owed: usize,
    live_since: Option<Time>,
    tell: VecDeque<Tell<K>>,
    to_read: VecDeque<(Why, Vec<K>)>,
    to_settle: VecDeque<(Time, Vec<K>)>,
    audit: Option<Audit<K>>,
    reads_in_flight: usize,
    /// Orders that a test carries out too late.
    out_of_step: Vec<K>,
    /// Keys that were there before the session began, and that the feed does not watch yet.
    inherited: usize,
}

impl<K: Key> Session<K> {
    /// A session that was just opened: the store's `epoch` was read after that. `is_exact` is what the feed says of its
    /// watches.
    pub fn begin(
        table: Arc<Table<K>>,
        config: &Config,
        epoch: Epoch,
        is_exact: bool,
        now: Time,
    ) -> Self {
        match table.history().epoch {
            // ORDERING: the epoch is read before the first watch, so nothing that this session hears is of an earlier
            // history than the one it begins with.
            None => table.adopt(epoch),
            Some(known) if known != epoch && config.rules.keep(Rule::ResetOnEpoch) => {
                table.reset(epoch);
            }
            Some(_) => {}
        }
        let keys = table.begin();
        let mut session = Self {
            table,
            is_exact,
            owed: keys.len(),
            live_since: None,
            tell: VecDeque::new(),
            to_read: VecDeque::new(),
            to_settle: VecDeque::new(),
            audit: None,
            reads_in_flight: 0,
            out_of_step: Vec::new(),
            inherited: keys.len(),
            config: config.clone(),
        };
        match config.rules.keep(Rule::WatchAtNewSession) {
            true => session.tell_to_watch(keys, Why::Inherited),
            false => (session.owed, session.inherited) = (0, 0),
        }
        session.note_progress(now);
        session
    }

    /// Since when every key that was watched before has been watched and read. `None`: not yet.
    pub fn live_since(&self) -> Option<Time> {
        self.live_since
    }

    /// What to tell the feed next. One at a time: the next one is asked for when the feed has done the last.
    pub fn next_tell(&mut self, now: Time) -> Next<Tell<K>> {
        if let Some(tell) = self.tell.pop_front() {
            return Next::Do(tell);
        }
        let mut orders = Vec::new();
        let lingers = self.table.tend(now, self.config.linger, &mut orders);
        self.sort(orders);
        match self.tell.pop_front() {
            Some(tell) => Next::Do(tell),
            None => Next::Wait(lingers),
        }
    }

    /// Makes batches of orders. Of several for one key the last one decides: to watch a key that is watched, and to end
    /// a watch that is none, does nothing.
    fn sort(&mut self, orders: Vec<Order<K>>) {
        let mut last = HashMap::<K, bool, KeyHash>::default();
        let mut verify = Vec::new();
        for order in orders {
            match order {
                Order::Verify(key) => verify.push(key),
                Order::Watch(key) => drop(last.insert(key, true)),
                Order::Unwatch(key) => drop(last.insert(key, false)),
            }
        }
        let (mut watch, mut unwatch) = (Vec::new(), Vec::new());
        for (key, is_watched) in last {
            match is_watched {
                true => watch.push(key),
                false => unwatch.push(key),
            }
        }
        if !self.config.rules.keep(Rule::OrdersInStep) {
            std::mem::swap(&mut unwatch, &mut self.out_of_step);
            self.tell_to_watch(std::mem::take(&mut watch), Why::New);
        }
        for batch in batches(unwatch, self.config.read_batch) {
            self.tell.push_back(Tell::Unwatch(batch));
        }
        self.tell_to_watch(watch, Why::New);
        self.queue_reads(Why::Verify, verify);
    }

    fn tell_to_watch(&mut self, keys: Vec<K>, why: Why) {
        if !self.config.rules.keep(Rule::ReadAfterWatch) {
            self.queue_reads(why, keys.clone());
        }
        for batch in batches(keys, self.config.read_batch) {
            self.tell.push_back(Tell::Watch(batch));
        }
    }

    fn queue_reads(&mut self, why: Why, keys: Vec<K>) {
        for batch in batches(distinct(keys), self.config.read_batch) {
            self.to_read.push_back((why, batch));
        }
    }

    /// The feed watches `keys` now.
    pub fn watched(&mut self, keys: Vec<K>, now: Time) {
        // The batches of the keys that were there before come first.
        let is_inherited = self.inherited > 0;
        self.inherited = self.inherited.saturating_sub(keys.len());
        if is_inherited && !self.config.rules.keep(Rule::ReadAtNewSession) {
            self.owed = self.owed.saturating_sub(keys.len());
            self.note_progress(now);
            return;
        }
        let why = match is_inherited {
            true => Why::Inherited,
            false => Why::New,
        };
        if !self.is_exact && self.config.rules.keep(Rule::ReadAfterSettle) {
            let due = now.saturating_add(self.config.settle);
            self.to_settle.push_back((due, keys.clone()));
        }
        // ORDERING: the read comes after the watch: a commit before the read begins is seen by it, one after the watch
        // is heard. There is no moment in between.
        if self.config.rules.keep(Rule::ReadAfterWatch) {
            self.to_read.push_back((why, keys));
        }
    }

    /// What to read next. Several reads may be on their way.
    ///
    /// # Errors
    /// The audit found that the session is broken.
    pub fn next_read(&mut self, now: Time) -> Result<Next<Ticket<K>>, Doubt> {
        if self.reads_in_flight >= self.config.concurrent_reads {
            return Ok(Next::Wait(None));
        }
        if let Some((why, keys)) = self.to_read.pop_front() {
            return Ok(Next::Do(self.ticket(keys, why)));
        }
        if self.to_settle.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, keys)) = self.to_settle.pop_front()
        {
            return Ok(Next::Do(self.ticket(keys, Why::Settled)));
        }
        let settles = self.to_settle.front().map(|(due, _)| *due);
        loop {
            let Some(audit) = &mut self.audit else {
                return Ok(Next::Wait(settles));
            };
            let audits = match audit.wish(now) {
                Wish::Keys => {
                    audit.begin(self.table.all_keys(), now);
                    continue;
                }
                Wish::Read(keys) => return Ok(Next::Do(self.ticket(keys, Why::Audit))),
                Wish::End => return Err(Doubt::Unheard),
                Wish::Nothing => None,
                Wish::Wait(until) => Some(until),
            };
            return Ok(Next::Wait([settles, audits].into_iter().flatten().min()));
        }
    }

    fn ticket(&mut self, keys: Vec<K>, why: Why) -> Ticket<K> {
        self.reads_in_flight += 1;
        Ticket::new(&self.table, keys, why)
    }

    /// What a read found.
    ///
    /// # Errors
    /// The history ended: all that waited in it has been told. Or the source is not to be trusted.
    pub fn read(&mut self, ticket: Ticket<K>, reading: &Reading, now: Time) -> Result<(), Doubt> {
        self.reads_in_flight -= 1;
        if reading.versions.len() != ticket.keys.len() {
            return Err(Doubt::Malformed);
        }
        let history = self.table.history();
        if history.generation != ticket.generation {
            // Another read has ended the history meanwhile.
            return Err(Doubt::Epoch);
        }
        if history.epoch != Some(reading.epoch) && self.config.rules.keep(Rule::ResetOnEpoch) {
            self.table.reset(reading.epoch);
            return Err(Doubt::Epoch);
        }
        if ticket.shows_loss(reading) && self.config.rules.keep(Rule::ResetWhenBack) {
            // Of the other keys, some went back and have since been overtaken by new commits; it is not known which. So
            // all waits end.
            self.table.reset(reading.epoch);
            return Err(Doubt::WentBack);
        }
        let (why, count) = (ticket.why, ticket.keys.len());
        let finds = ticket.apply(&self.table, reading);
        match why {
            Why::Inherited => {
                self.owed = self.owed.saturating_sub(count);
                self.note_progress(now);
            }
            Why::Audit => {
                if let Some(audit) = &mut self.audit {
                    audit.read(finds, now);
                }
            }
            Why::New | Why::Verify | Why::Settled => {}
        }
        Ok(())
    }

    /// The feed tells of changes.
    ///
    /// # Errors
    /// One of them is of another history than is known.
    pub fn heard(&mut self, changes: &[Change<K>]) -> Result<(), Doubt> {
        let epoch = self.table.history().epoch;
        for change in changes {
            if change.epoch.is_some()
                && change.epoch != epoch
                && self.config.rules.keep(Rule::ResetOnEpoch)
            {
                // Not to be believed before the store says the same.
                return Err(Doubt::Epoch);
            }
            if let Some(entry) = self.table.entry(&change.key) {
                self.table.counters.heard.add(1);
                self.table
                    .reached(&change.key, &entry, change.version, Learned::Heard);
            }
        }
        Ok(())
    }

    fn note_progress(&mut self, now: Time) {
        if self.owed > 0 || self.live_since.is_some() {
            return;
        }
        self.live_since = Some(now);
        let config = &self.config;
        self.audit = config.rules.keep(Rule::Audit).then(|| {
            Audit::new(
                config.audit,
                config.settle,
                config.read_batch,
                config.rules.keep(Rule::EndWhenUnheard),
                now,
            )
        });
    }
}

impl<K> fmt::Debug for Session<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("live_since", &self.live_since)
            .field("owed", &self.owed)
            .field("reads_in_flight", &self.reads_in_flight)
            .finish_non_exhaustive()
    }
}

/// The pause before the next session: it doubles with each attempt that failed, and a random part of up to half of it
/// is left out.
pub fn pause(config: &Config, failed: u32) -> Duration {
    let (first, longest) = config.backoff;
    let pause = first
        .saturating_mul(2u32.saturating_pow(failed))
        .min(longest);
    pause.mul_f64(0.5 + 0.5 * fastrand::f64())
}

fn batches<K>(mut keys: Vec<K>, size: usize) -> Vec<Vec<K>> {
    let mut batches = Vec::new();
    while !keys.is_empty() {
        let rest = keys.len().saturating_sub(size);
        batches.push(keys.split_off(rest));
    }
    batches
}

fn distinct<K: Eq + Hash>(mut keys: Vec<K>) -> Vec<K> {
    if keys.len() > 1 {
        let set = keys.drain(..).collect::<HashSet<_, KeyHash>>();
        keys.extend(set);
    }
    keys
}
