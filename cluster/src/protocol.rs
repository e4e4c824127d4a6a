//! The protocol of a node: what to watch and what to read next, and what follows from what was heard and read.
//!
//! Nothing here waits, sends or knows a clock: the caller says what time it is, carries out what is asked for, and
//! reports back. Reads go on for the life of the node, with a session of the feed or without one; a session adds what
//! is to be watched.
//!
//! Why no wait is lost, while the store can be read. Versions only grow within a history, and marks hold versions that
//! were committed; so what is heard twice, late or in disorder does no harm. Take a wait for a version beyond `v` of a
//! key, and the commit of `v + 1`.
//!
//! * The session has watched the key before the commit: it is [heard](hear), the mark is raised, and the wait is checked
//!   (`Table::reached`).
//! * The commit was acknowledged before the watch began: the read that follows the watch begins after the commit, and
//!   [shows](Ticket::apply) it.
//! * There was no session, or it broke: the next one watches all keys, then has them read; the two cases above apply.
//! * There is no session at all (the user may not subscribe, subscriptions are too few, an output buffer is too small
//!   for the keys), or the feed loses the message and stays silent: the [audit](audit) finds the version, at most a
//!   period and a read later. It asks for no session.
//! * Other servers learn of the watch a little later than `watch` returns: the key is read once more, `settle` later.
//! * The store no longer keeps the event, and does not say the key's version: the wait ends with `Reset`, if events that
//!   it has not seen were discarded (`table::entry`).
//! * The history ends: every mark begins again, and every wait that was begun in it ends with `Reset`.

mod audit;
mod doubt;
mod queue;
mod ticket;

use crate::config::Config;
use crate::feed::Change;
use crate::key::Key;
use crate::position::Epoch;
use crate::rules::Rule;
use crate::sync::Arc;
use crate::table::entry::Learned;
use crate::table::{Order, Table, Time};
use audit::{Audit, Wish};
pub use doubt::Doubt;
use queue::Queue;
use std::fmt;
use std::time::Duration;
pub use ticket::{Applied, Ticket};
use ticket::{Outcome, Want};

/// What the feed is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tell<K> {
    /// To watch these keys. [`Protocol::watched`] when it does.
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

/// One session of the feed.
struct Session<K> {
    number: u64,
    is_exact: bool,
    /// Keys that were watched before the session began, and that the feed is not told of yet. They come first.
    inherited: Vec<K>,
    /// Whether what the feed is told now are such keys.
    tells_inherited: bool,
    /// Such keys whose first read in this session has not returned.
    owed: usize,
    live_since: Option<Time>,
    /// Whether to watch, by key.
    tell: Queue<K, bool>,
}

/// What a node does and knows of its reads, and of its session if there is one.
pub struct Protocol<K> {
    table: Arc<Table<K>>,
    config: Config,
    /// No more keys than are watched, however long the store cannot be read.
    to_read: Queue<K, Want>,
    /// Such as were watched a moment ago, with the time of one more read.
    to_settle: Queue<K, Time>,
    audit: Option<Audit<K>>,
    reads_in_flight: usize,
    /// How many reads in a row have failed, and when the next one may begin.
    failed: u32,
    resumes: Time,
    session: Option<Session<K>>,
    /// How many sessions have begun.
    sessions: u64,
    was_live_since: Option<Time>,
    /// Orders that a test carries out too late.
    out_of_step: Vec<K>,
}

impl<K: Key> Protocol<K> {
    /// A node that begins now.
    pub fn new(table: Arc<Table<K>>, config: &Config, now: Time) -> Self {
        Self {
            table,
            to_read: Queue::default(),
            to_settle: Queue::default(),
            audit: (config.audits() && config.rules.keep(Rule::Audit))
                .then(|| Audit::new(config, now)),
            reads_in_flight: 0,
            failed: 0,
            resumes: now,
            session: None,
            sessions: 0,
            was_live_since: None,
            out_of_step: Vec::new(),
            config: config.clone(),
        }
    }

    /// A session has [entered](enter) the history. `is_exact` is what the feed says of its watches.
    pub fn begin(&mut self, is_exact: bool, now: Time) {
        let mut orders = Vec::new();
        let keys = self.table.begin(&mut orders);
        self.sort(orders);
        self.sessions += 1;
        let inherited = match self.config.rules.keep(Rule::WatchAtNewSession) {
            true => keys,
            false => Vec::new(),
        };
        if !self.config.rules.keep(Rule::ReadAfterWatch) {
            let owed = Want::owed(self.sessions);
            inherited
                .iter()
                .for_each(|key| self.want(key.clone(), owed));
        }
        self.session = Some(Session {
            number: self.sessions,
            is_exact,
            tells_inherited: false,
            owed: inherited.len(),
            inherited,
            live_since: None,
            tell: Queue::default(),
        });
        self.note_progress(now);
    }

    /// The session is over. Until the next one, an audit finds no fault.
    pub fn end(&mut self) {
        self.session = None;
        if let Some(audit) = &mut self.audit {
            audit.forget();
        }
    }

    /// Whether there is a session.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Since when a session was live, if one has been since this was asked before.
    pub fn take_was_live_since(&mut self) -> Option<Time> {
        self.was_live_since.take()
    }

    /// Since when every key that was watched before has been watched and read. `None`: not yet, or there is no session.
    pub fn live_since(&self) -> Option<Time> {
        self.session.as_ref()?.live_since
    }

    /// Whether the session has shown that it hears: it has been live for the longest pause, and for two audits that
    /// found nothing unheard.
    pub fn has_proved(&self, now: Time) -> bool {
        let longest = self.config.backoff.1;
        let has_lasted = self.live_since().is_some_and(|since| since + longest < now);
        has_lasted && self.audit.as_ref().is_none_or(Audit::is_passed)
    }

    /// Whether this node is in step with the store.
    pub fn is_in_step(&self) -> bool {
        self.live_since().is_some() && self.failed == 0
    }

    /// Takes the table's orders. Returns when a linger is over.
    pub fn tend(&mut self, now: Time) -> Option<Time> {
        let mut orders = Vec::new();
        let lingers = self.table.tend(now, self.config.linger, &mut orders);
        self.sort(orders);
        self.note_progress(now);
        lingers
    }

    /// Of several orders for one key the last one decides: to watch a key that is watched, and to end a watch that is
    /// none, does nothing.
    fn sort(&mut self, orders: Vec<Order<K>>) {
        let mut late = Vec::new();
        for order in orders {
            if let Order::Unwatch(key) = &order {
                self.forget(key);
            }
            match order {
                Order::Verify(key) => self.want(key, Want::default()),
                Order::Watch(key) => {
                    // What is not watched at once is read at once: the read asks for no session.
                    let reads_first = self.live_since().is_none()
                        && self.config.rules.keep(Rule::ReadWithoutSession);
                    if reads_first || !self.config.rules.keep(Rule::ReadAfterWatch) {
                        self.want(key.clone(), Want::default());
                    }
                    self.tell(key, true);
                }
                Order::Unwatch(key) if self.config.rules.keep(Rule::OrdersInStep) => {
                    self.tell(key, false);
                }
                Order::Unwatch(key) => late.push(key),
            }
        }
        for key in std::mem::replace(&mut self.out_of_step, late) {
            self.tell(key, false);
        }
    }

    fn tell(&mut self, key: K, watch: bool) {
        if let Some(session) = &mut self.session {
            session.tell.push(key, |_| watch);
        }
    }

    /// Nothing is read of a key that the table has forgotten. (Its `Unwatch` may have come before this.)
    fn want(&mut self, key: K, want: Want) {
        if self.table.entry(&key).is_none() {
            return self.spare(want);
        }
        self.to_read.push(key, |earlier| match earlier {
            Some(earlier) => earlier.and(want),
            None => want,
        });
    }

    /// The table has forgotten the key: it need not be read.
    fn forget(&mut self, key: &K) {
        self.to_settle.remove(key);
        if let Some(want) = self.to_read.remove(key) {
            self.spare(want);
        }
    }

    /// A read that is not made is owed no more.
    fn spare(&mut self, want: Want) {
        if let Some(session) = &mut self.session
            && want.owed_by == Some(session.number)
        {
            session.owed = session.owed.saturating_sub(1);
        }
    }

    /// What to tell the feed next, in this session. One at a time: the next one is asked for when the feed has done the
    /// last.
    pub fn next_tell(&mut self) -> Option<Tell<K>> {
        let batch = self.config.read_batch;
        let session = self.session.as_mut()?;
        session.tells_inherited = !session.inherited.is_empty();
        if session.tells_inherited {
            let rest = session.inherited.len().saturating_sub(batch);
            return Some(Tell::Watch(match rest {
                // With the room that all of them took.
                0 => std::mem::take(&mut session.inherited),
                _ => session.inherited.split_off(rest),
            }));
        }
        let watch = *session.tell.first()?;
        let mut keys = Vec::new();
        while keys.len() < batch
            && session.tell.first() == Some(&watch)
            && let Some((key, _)) = session.tell.pop()
        {
            keys.push(key);
        }
        Some(match watch {
            true => Tell::Watch(keys),
            false => Tell::Unwatch(keys),
        })
    }

    /// The feed watches `keys` now.
    pub fn watched(&mut self, keys: Vec<K>, now: Time) {
        let Some(session) = &mut self.session else {
            return;
        };
        let want = match session.tells_inherited {
            true => Want::owed(session.number),
            false => Want::after_watch(),
        };
        if session.tells_inherited && !self.config.rules.keep(Rule::ReadAtNewSession) {
            session.owed = session.owed.saturating_sub(keys.len());
            return self.note_progress(now);
        }
        if !session.is_exact && self.config.rules.keep(Rule::ReadAfterSettle) {
            let due = now.saturating_add(self.config.settle);
            for key in &keys {
                // Behind all that are due earlier.
                self.to_settle.remove(key);
                if self.table.entry(key).is_some() {
                    self.to_settle.push(key.clone(), |_| due);
                }
            }
        }
        // ORDERING: the read comes after the watch: a commit before the read begins is seen by it, one after the watch
        // is heard. There is no moment in between. (A read that is queued already begins later, too.)
        if self.config.rules.keep(Rule::ReadAfterWatch) {
            keys.into_iter().for_each(|key| self.want(key, want));
        }
        self.note_progress(now);
    }

    /// What to read next. Several reads may be on their way.
    ///
    /// # Errors
    /// The audit found that the session is broken.
    pub fn next_read(&mut self, now: Time) -> Result<Next<Ticket<K>>, Doubt> {
        if self.reads_in_flight >= self.config.concurrent_reads || !self.may_read() {
            return Ok(Next::Wait(None));
        }
        if self.resumes > now {
            return Ok(Next::Wait(Some(self.resumes)));
        }
        while self.to_settle.first().is_some_and(|due| *due <= now)
            && let Some((key, _)) = self.to_settle.pop()
        {
            self.want(key, Want::after_watch());
        }
        let mut batch = Vec::new();
        while batch.len() < self.config.read_batch
            && let Some(key) = self.to_read.pop()
        {
            batch.push(key);
        }
        // Every key whose read failed was forgotten meanwhile: the history alone shows when the store is there again.
        let is_left_in_doubt = self.failed > 0
            && self.reads_in_flight == 0
            && self.audit.as_ref().is_none_or(Audit::is_over);
        if !batch.is_empty() || is_left_in_doubt {
            return Ok(Next::Do(self.ticket(batch, false)));
        }
        let settles = self.to_settle.first().copied();
        loop {
            let Some(audit) = &mut self.audit else {
                return Ok(Next::Wait(settles));
            };
            let audits = match audit.wish(now) {
                Wish::Keys => {
                    audit.begin(self.table.all_keys(), now);
                    continue;
                }
                Wish::Read(keys) => {
                    let batch = keys.into_iter().map(|key| (key, Want::default()));
                    return Ok(Next::Do(self.ticket(batch.collect(), true)));
                }
                Wish::End => return Err(Doubt::Unheard),
                Wish::Nothing => None,
                Wish::Wait(until) => Some(until),
            };
            return Ok(Next::Wait([settles, audits].into_iter().flatten().min()));
        }
    }

    /// Reads ask for no session.
    fn may_read(&self) -> bool {
        self.session.is_some() || self.config.rules.keep(Rule::ReadWithoutSession)
    }

    fn ticket(&mut self, batch: Vec<(K, Want)>, is_audit: bool) -> Ticket<K> {
        self.reads_in_flight += 1;
        // What was not heard before a session was live, or in another one, is no fault of this one.
        let live_in = self.session.as_ref();
        let live_in = live_in.filter(|it| it.live_since.is_some());
        Ticket::new(&self.table, batch, is_audit, live_in.map(|it| it.number))
    }

    /// A read has returned, and was [applied](Ticket::apply).
    ///
    /// # Errors
    /// The history ended: all that waited in it has been told. The session must end.
    pub fn read(&mut self, applied: Applied<K>, now: Time) -> Result<(), Doubt> {
        self.reads_in_flight -= 1;
        let Applied { ticket, outcome } = applied;
        match outcome {
            Outcome::Failed => {
                // Several reads that were on their way fail of one cause, and count once.
                if self.resumes <= now {
                    self.resumes = now.saturating_add(pause(&self.config, self.failed));
                    self.failed = self.failed.saturating_add(1);
                }
                self.again(ticket);
            }
            Outcome::Stale => self.again(ticket),
            Outcome::Doubt(doubt) => {
                self.failed = 0;
                let keys = self.table.all_keys();
                keys.into_iter()
                    .for_each(|key| self.want(key, Want::default()));
                self.again(ticket);
                return Err(doubt);
            }
            Outcome::Sound(finds) => {
                self.failed = 0;
                if let Some(session) = &mut self.session {
                    let number = Some(session.number);
                    let owed = ticket.wants.iter().filter(|it| it.owed_by == number);
                    session.owed = session.owed.saturating_sub(owed.count());
                }
                if let Some(audit) = self.audit.as_mut().filter(|_| ticket.is_audit) {
                    let number = self.session.as_ref().map(|it| it.number);
                    let is_of_this_session = ticket.live_in.is_some() && ticket.live_in == number;
                    audit.read(
                        if is_of_this_session {
                            finds
                        } else {
                            Vec::new()
                        },
                        now,
                    );
                }
            }
        }
        self.note_progress(now);
        Ok(())
    }

    /// What a read did not show is read again.
    fn again(&mut self, ticket: Ticket<K>) {
        if let Some(audit) = self.audit.as_mut().filter(|_| ticket.is_audit) {
            return audit.again(ticket.keys);
        }
        for (key, want) in ticket.keys.into_iter().zip(ticket.wants) {
            self.want(key, want);
        }
    }

    fn note_progress(&mut self, now: Time) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.owed > 0 || session.live_since.is_some() {
            return;
        }
        session.live_since = Some(now);
        self.was_live_since = Some(now);
        // All was read a moment ago.
        if let Some(audit) = &mut self.audit {
            audit.restart(now);
        }
    }
}

/// A session was opened, and the store's `epoch` was read after that, in the generation `asked_in`. Returns the
/// generation that the session belongs to. Runs user code: no lock may be held.
///
/// # Errors
/// Another read has ended the history meanwhile.
pub fn enter<K: Key>(table: &Table<K>, epoch: Epoch, asked_in: u64) -> Result<u64, Doubt> {
    let history = table.history();
    if history.generation != asked_in {
        return Err(Doubt::Epoch);
    }
    match history.epoch {
        // ORDERING: the epoch is read before the first watch, so nothing that this session hears is of an earlier
        // history than the one it begins with.
        None if table.adopt(epoch) => Ok(asked_in),
        Some(known) if known == epoch || !table.keeps(Rule::ResetOnEpoch) => Ok(asked_in),
        Some(_) => table.reset(epoch, history).ok_or(Doubt::Epoch),
        None => Err(Doubt::Epoch),
    }
}

/// The feed tells of changes, in a session that began in the generation `of`. Runs user code: no lock may be held.
///
/// # Errors
/// One of them is of another history than is known.
pub fn hear<K: Key>(table: &Table<K>, of: u64, changes: &[Change<K>]) -> Result<(), Doubt> {
    let history = table.history();
    for change in changes {
        let is_known = change.epoch.is_none() || change.epoch == history.epoch;
        if !is_known && table.keeps(Rule::ResetOnEpoch) {
            // Not to be believed before the store says the same.
            return Err(Doubt::Epoch);
        }
        if let Some(entry) = table.entry(&change.key) {
            table.counters.heard.add(1);
            table.reached(&change.key, &entry, change.version, Learned::Heard, of);
        }
    }
    Ok(())
}

impl<K> fmt::Debug for Protocol<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protocol")
            .field("sessions", &self.sessions)
            .field("reads_in_flight", &self.reads_in_flight)
            .finish_non_exhaustive()
    }
}

/// The pause before the next session, or the next read: it doubles with each attempt that failed, and a random part of
/// up to half of it is left out.
pub(crate) fn pause(config: &Config, failed: u32) -> Duration {
    let (first, longest) = config.backoff;
    let pause = first
        .saturating_mul(2u32.saturating_pow(failed))
        .min(longest);
    pause.mul_f64(0.5 + 0.5 * fastrand::f64())
}

#[cfg(test)]
mod tests;
