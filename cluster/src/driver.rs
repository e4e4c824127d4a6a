//! Carries out the protocol: opens sessions, tells the feed what to watch, reads the store, listens.
//!
//! Three loops run for the life of the cluster, side by side: one takes orders from the table, one reads, one opens one
//! session after the other. None waits for another: reads go on without a session, and a session without reads. A
//! session and each read are tasks of their own, so that a panic of a feed's or a source's code ends that, and not the
//! cluster. No lock is held while user code runs.

use crate::error::{EngineError, FeedError};
use crate::feed::{Changes, Feed, Interests};
use crate::key::Key;
use crate::observe::SessionSpan;
use crate::protocol::{Doubt, Next, Protocol, Tell, Ticket, enter, hear, pause};
use crate::shared::Shared;
use crate::source::{Reading, Source};
use crate::sync::Arc;
use crate::table::{Table, Time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinSet};
use tokio::time::{sleep, sleep_until};

/// Idle keys are not looked at more often than this, however short the linger.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Why a session ended.
#[derive(Debug)]
pub(crate) enum End {
    Feed(FeedError),
    Source(EngineError),
    Doubt(Doubt),
    Panicked,
}

impl End {
    /// One word for it, for a metric.
    fn word(&self) -> &'static str {
        match self {
            Self::Feed(error) => error.word(),
            Self::Source(_) => "unread",
            Self::Doubt(Doubt::Unheard) => "unheard",
            Self::Doubt(_) => "reset",
            Self::Panicked => "panicked",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feed(error) => error.fmt(f),
            Self::Source(error) => write!(f, "the store could not be read: {error}"),
            Self::Doubt(doubt) => doubt.fmt(f),
            Self::Panicked => f.write_str("the code of the feed or of the source panicked"),
        }
    }
}

impl From<FeedError> for End {
    fn from(error: FeedError) -> Self {
        Self::Feed(error)
    }
}

impl From<Doubt> for End {
    fn from(doubt: Doubt) -> Self {
        Self::Doubt(doubt)
    }
}

/// Runs until the cluster is shut down. (`_closes` is an argument, because the runtime may end before it has run this
/// once.)
pub(crate) async fn drive<K, S, F>(
    _closes: Closes<K>,
    shared: Arc<Shared<K>>,
    source: Arc<S>,
    feed: Arc<F>,
    mut closed: watch::Receiver<bool>,
) where
    K: Key,
    S: Source<K>,
    F: Feed<K>,
{
    let driver = Arc::new(Driver::new(shared, source, feed));
    let mut sessions = JoinSet::new();
    let mut reads = JoinSet::new();
    tokio::select! {
        biased;
        // An error: the handle was dropped.
        _ = closed.wait_for(|closed| *closed) => {}
        never = driver.tend() => never,
        never = driver.read(&mut reads) => never,
        never = driver.keep_a_session(&mut sessions) => never,
        never = driver.report() => never,
    }
    // Aborts what is under way.
    sessions.shutdown().await;
    reads.shutdown().await;
    // What the last second brought.
    driver.shared.report();
}

/// Closes the table, however the driver ends: by a panic of the user's `Hash`, `Eq` or `Clone` of a key, or with the
/// runtime. Nothing more would be heard or read.
pub(crate) struct Closes<K: Key>(pub(crate) Arc<Table<K>>);

impl<K: Key> Drop for Closes<K> {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Driver<K: Key, S, F> {
    shared: Arc<Shared<K>>,
    source: Arc<S>,
    feed: Arc<F>,
    protocol: Mutex<Protocol<K>>,
    /// There may be something to read.
    readable: Notify,
    /// There may be something to tell the feed.
    tellable: Notify,
    /// Why the session is to end, by what was read.
    doubt: Mutex<Option<Doubt>>,
    doubted: Notify,
}

impl<K: Key, S: Source<K>, F: Feed<K>> Driver<K, S, F> {
    fn new(shared: Arc<Shared<K>>, source: Arc<S>, feed: Arc<F>) -> Self {
        let protocol = Protocol::new(shared.table.clone(), &shared.config, shared.now());
        Self {
            shared,
            source,
            feed,
            protocol: Mutex::new(protocol),
            readable: Notify::new(),
            tellable: Notify::new(),
            doubt: Mutex::default(),
            doubted: Notify::new(),
        }
    }

    fn now(&self) -> Time {
        self.shared.now()
    }

    async fn report(&self) {
        loop {
            sleep(Duration::from_secs(1)).await;
            let has_proved = self.protocol.lock().has_proved(self.now());
            if has_proved {
                self.shared.feed_trouble.clear();
            }
            self.shared.report();
        }
    }

    /// Takes the table's orders.
    async fn tend(&self) {
        // Lingers begin and end when this looks: many at once, instead of each with a timer of its own.
        let look = (self.shared.config.linger / 8).max(SHORTEST_LOOK);
        loop {
            self.protocol.lock().tend(self.now());
            self.readable.notify_one();
            // What was forgotten may be all that the session still owed.
            self.note_step();
            tokio::select! {
                biased;
                () = self.shared.ordered.notified() => {}
                () = sleep(look) => {}
            }
        }
    }

    async fn read(&self, reads: &mut JoinSet<Result<Reading, EngineError>>) {
        let mut tickets = HashMap::<task::Id, Ticket<K>>::new();
        loop {
            let next = self.protocol.lock().next_read(self.now());
            let until = match next {
                Ok(Next::Do(ticket)) => {
                    let source = self.source.clone();
                    let keys = ticket.keys.clone();
                    let read = reads.spawn(async move { source.versions(&keys).await });
                    tickets.insert(read.id(), ticket);
                    continue;
                }
                Ok(Next::Wait(until)) => until,
                Err(doubt) => {
                    self.end_session(doubt);
                    continue;
                }
            };
            tokio::select! {
                biased;
                Some(read) = reads.join_next_with_id() => {
                    let (id, reading) = match read {
                        Ok((id, reading)) => (id, reading),
                        Err(error) => (error.id(), Err("the code of the source panicked".into())),
                    };
                    if let Some(ticket) = tickets.remove(&id) {
                        self.returned(ticket, reading);
                    }
                }
                () = self.readable.notified() => {}
                () = self.until(until) => {}
            }
        }
    }

    async fn until(&self, time: Option<Time>) {
        match time.and_then(|time| self.shared.started.checked_add(time)) {
            Some(time) => sleep_until(time).await,
            None => std::future::pending().await,
        }
    }

    /// A read has returned.
    fn returned(&self, ticket: Ticket<K>, reading: Result<Reading, EngineError>) {
        let asked = ticket.keys.len();
        let reading = reading.and_then(|reading| match reading.versions.len() == asked {
            true => Ok(reading),
            false => {
                Err("the source returned another number of versions than it was asked for".into())
            }
        });
        let applied = match reading {
            Ok(reading) => {
                self.shared.table.counters.reads.add(1);
                self.shared.store_trouble.clear();
                ticket.apply(&self.shared.table, &reading)
            }
            Err(error) => {
                let cause = error.to_string();
                let times = self.shared.store_trouble.note("unread", &cause);
                let then = "the store cannot be read, again and again: waits end by news of the feed, or by their timeouts";
                self.shared.observer.trouble(&cause, times, then);
                ticket.fail()
            }
        };
        let read = self.protocol.lock().read(applied, self.now());
        if let Err(doubt) = read {
            self.end_session(doubt);
        }
        self.note_step();
    }

    fn end_session(&self, doubt: Doubt) {
        let mut protocol = self.protocol.lock();
        if protocol.has_session() {
            *self.doubt.lock() = Some(doubt);
            // What it hears is of a history that is over, or not to be trusted; and so is what it watches.
            protocol.end();
            self.doubted.notify_one();
        }
    }

    fn note_step(&self) {
        let has_changed = {
            // With the lock held: the session notes steps as well, and the later one has to be the last that is kept.
            let protocol = self.protocol.lock();
            self.shared.in_step(protocol.is_in_step())
        };
        self.tellable.notify_one();
        if has_changed {
            self.shared.report();
        }
    }

    /// Opens one session after the other.
    async fn keep_a_session(self: &Arc<Self>, sessions: &mut JoinSet<End>) {
        let mut failed = 0_u32;
        loop {
            let counters = &self.shared.table.counters;
            let opened = counters.sessions.read();
            let span = SessionSpan::new(&self.shared.observer);
            sessions.spawn(self.clone().session(span.clone()));
            let end = match sessions.join_next().await {
                Some(Ok(end)) => end,
                Some(Err(_)) | None => End::Panicked,
            };
            span.ended(&end);
            // No session was opened: the attempt failed, or panicked.
            if counters.sessions.read() == opened {
                counters.failed.add(1);
            }
            let was_live_since = {
                let mut protocol = self.protocol.lock();
                protocol.end();
                // With the lock held: a read that returns later finds no session to doubt.
                *self.doubt.lock() = None;
                protocol.take_was_live_since()
            };
            let longest = self.shared.config.backoff.1;
            let has_lasted = was_live_since.is_some_and(|since| since + longest < self.now());
            failed = if has_lasted { 0 } else { failed + 1 };
            let cause = end.to_string();
            let times = self.shared.feed_trouble.note(end.word(), &cause);
            let then = "sessions fail again and again: waits end by reads alone";
            self.shared.observer.trouble(&cause, times, then);
            self.note_step();
            sleep(pause(&self.shared.config, failed.saturating_sub(1))).await;
        }
    }

    /// One session.
    async fn session(self: Arc<Self>, span: SessionSpan) -> End {
        let counters = &self.shared.table.counters;
        let asked_in = self.shared.table.history().generation;
        let opened = self.open().await;
        self.shared.advise(self.feed.advice());
        let (interests, changes, reading) = match opened {
            Ok(opened) => opened,
            Err(end) => return end,
        };
        counters.sessions.add(1);
        // Counts the gap also when the session panics or is aborted.
        let _gap = Gap(&self.shared);
        span.opened(self.shared.table.watched_keys());
        let of = match enter(&self.shared.table, reading.epoch, asked_in) {
            Ok(generation) => generation,
            Err(doubt) => return doubt.into(),
        };
        let is_exact = interests.is_exact();
        self.protocol.lock().begin(is_exact, self.now());
        // A read that has ended the history a moment ago found no session to end.
        if self.shared.table.history().generation != of {
            return Doubt::Epoch.into();
        }
        self.note_step();
        let Err(end) = tokio::select! {
            biased;
            doubt = self.doubted() => Err(doubt),
            end = self.listen(changes, of) => end,
            end = self.tell(interests, &span) => end,
        };
        end
    }

    async fn open(&self) -> Result<(F::Interests, F::Changes, Reading), End> {
        let (interests, changes) = self.feed.open(&self.shared.config).await?;
        // Also shows whether the store can be read at all, before many keys are watched in vain.
        let reading = self.source.versions(&[]).await.map_err(End::Source)?;
        Ok((interests, changes, reading))
    }

    async fn doubted(&self) -> End {
        loop {
            self.doubted.notified().await;
            if let Some(doubt) = self.doubt.lock().take() {
                return doubt.into();
            }
        }
    }

    async fn listen(&self, mut changes: F::Changes, of: u64) -> Result<Infallible, End> {
        loop {
            let changes = changes.next().await?;
            hear(&self.shared.table, of, &changes)?;
        }
    }

    async fn tell(
        &self,
        mut interests: F::Interests,
        span: &SessionSpan,
    ) -> Result<Infallible, End> {
        let mut is_live = false;
        loop {
            if !is_live && self.protocol.lock().live_since().is_some() {
                is_live = true;
                span.live();
            }
            let next = self.protocol.lock().next_tell();
            match next {
                Some(Tell::Watch(keys)) => {
                    interests.watch(&keys).await?;
                    self.protocol.lock().watched(keys, self.now());
                    self.readable.notify_one();
                    self.note_step();
                }
                Some(Tell::Unwatch(keys)) => interests.unwatch(&keys).await?,
                None => self.tellable.notified().await,
            }
        }
    }
}

/// Counts a session that ended, however it did.
struct Gap<'a, K: Key>(&'a Shared<K>);

impl<K: Key> Drop for Gap<'_, K> {
    fn drop(&mut self) {
        if !self.0.table.is_closed() {
            self.0.table.counters.gaps.add(1);
        }
    }
}
