//! Carries out the protocol: opens sessions, tells the feed what to watch, reads the store, listens.
//!
//! One task for the life of the cluster opens one session after the other. A session is a task of its own, so that a
//! panic of a feed's or a source's code ends that session, and not the cluster; within it three loops run side by side,
//! each of which owns its part and none of which is interrupted before the session ends. The first that ends ends the
//! session.

use crate::config::Config;
use crate::error::{BoxError, FeedError};
use crate::feed::{Changes, Feed, Interests};
use crate::key::Key;
use crate::observe::{Observer, SessionSpan};
use crate::session::{Doubt, Next, Session, Tell, Ticket, pause};
use crate::source::{Reading, Source};
use crate::sync::Arc;
use crate::table::{Table, Time};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Idle keys are not looked at more often than this, however short the linger.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Why a session ended.
#[derive(Debug)]
pub(crate) enum End {
    Feed(FeedError),
    Source(BoxError),
    Doubt(Doubt),
    Panicked,
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

/// What the cluster's handle and its driver share.
pub(crate) struct Shared<K: Key> {
    pub(crate) config: Config,
    pub(crate) table: Arc<Table<K>>,
    /// The table has orders.
    pub(crate) ordered: Arc<Notify>,
    started: Instant,
    /// Until when this node was in step; `None` while it is.
    out_of_step_since: Mutex<Option<Instant>>,
    pub(crate) observer: Observer,
}

impl<K: Key> Shared<K> {
    pub(crate) fn new(config: Config) -> Self {
        let ordered = Arc::new(Notify::new());
        let wake = ordered.clone();
        let now = Instant::now();
        Self {
            table: Arc::new(Table::new(config.max_keys, config.rules, move || {
                wake.notify_one();
            })),
            ordered,
            started: now,
            out_of_step_since: Mutex::new(Some(now)),
            observer: Observer::new(&config.name),
            config,
        }
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn in_step(&self, is_in_step: bool) {
        let mut since = self.out_of_step_since.lock();
        match is_in_step {
            true => *since = None,
            false if since.is_none() => *since = Some(Instant::now()),
            false => {}
        }
    }

    pub(crate) fn lag(&self) -> Duration {
        let since = *self.out_of_step_since.lock();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(crate) fn report(&self) {
        self.observer.report(&self.stats());
    }
}

/// Runs until the cluster is shut down.
pub(crate) async fn drive<K, S, F>(
    shared: Arc<Shared<K>>,
    source: Arc<S>,
    feed: Arc<F>,
    mut closed: watch::Receiver<bool>,
) where
    K: Key,
    S: Source<K>,
    F: Feed<K>,
{
    let mut sessions = JoinSet::new();
    let report = async {
        loop {
            sleep(Duration::from_secs(1)).await;
            shared.report();
        }
    };
    let run = async {
        let mut failed = 0;
        loop {
            sessions.spawn(run(shared.clone(), source.clone(), feed.clone()));
            let was_live = match sessions.join_next().await {
                Some(Ok(was_live)) => was_live,
                Some(Err(_)) => {
                    SessionSpan::new(&shared.observer).ended(&End::Panicked);
                    false
                }
                None => false,
            };
            shared.in_step(false);
            shared.report();
            failed = if was_live { 0 } else { failed + 1 };
            sleep(pause(&shared.config, failed)).await;
        }
    };
    tokio::select! {
        never = run => never,
        never = report => never,
        // An error: the handle was dropped.
        _ = closed.wait_for(|closed| *closed) => {}
    }
    // Aborts the session.
    sessions.shutdown().await;
    // What the last second brought.
    shared.report();
}

/// One session. Returns whether it had caught up.
async fn run<K, S, F>(shared: Arc<Shared<K>>, source: Arc<S>, feed: Arc<F>) -> bool
where
    K: Key,
    S: Source<K>,
    F: Feed<K>,
{
    let span = SessionSpan::new(&shared.observer);
    let counters = &shared.table.counters;
    let (opened, exact, epoch) = match open(&shared, &*source, &*feed).await {
        Ok(opened) => opened,
        Err(end) => {
            counters.failed.add(1);
            span.ended(&end);
            return false;
        }
    };
    let (interests, changes) = opened;
    counters.sessions.add(1);
    // Counts the gap also when the session panics or is aborted.
    let gap = Gap(&shared);
    span.opened(shared.table.watched_keys());
    let session = Session::begin(
        shared.table.clone(),
        &shared.config,
        epoch,
        exact,
        shared.now(),
    );
    let running = Running {
        shared: &shared,
        session: Mutex::new(session),
        readable: Notify::new(),
        span: &span,
    };
    let end = tokio::select! {
        end = running.listen(changes) => end,
        end = running.tend(interests) => end,
        end = running.read(source) => end,
    };
    let Err(end) = end;
    span.ended(&end);
    drop(gap);
    let session = running.session.into_inner();
    session.live_since().is_some()
}

struct Gap<'a, K: Key>(&'a Shared<K>);

impl<K: Key> Drop for Gap<'_, K> {
    fn drop(&mut self) {
        if !self.0.table.is_closed() {
            self.0.table.counters.gaps.add(1);
        }
        self.0.in_step(false);
    }
}

type Opened<I, C> = ((I, C), bool, crate::source::Epoch);

async fn open<K: Key, S: Source<K>, F: Feed<K>>(
    shared: &Shared<K>,
    source: &S,
    feed: &F,
) -> Result<Opened<F::Interests, F::Changes>, End> {
    let halves = feed.open(&shared.config).await?;
    // Also shows whether the store can be read at all, before many keys are watched in vain.
    let reading = source.versions(&[]).await.map_err(End::Source)?;
    let exact = halves.0.is_exact();
    Ok((halves, exact, reading.epoch))
}

struct Running<'a, K: Key> {
    shared: &'a Shared<K>,
    session: Mutex<Session<K>>,
    /// There may be something to read.
    readable: Notify,
    span: &'a SessionSpan,
}

impl<K: Key> Running<'_, K> {
    async fn listen(&self, mut changes: impl Changes<K>) -> Result<Infallible, End> {
        loop {
            let changes = changes.next().await?;
            self.session.lock().heard(&changes)?;
        }
    }

    async fn tend(&self, mut interests: impl Interests<K>) -> Result<Infallible, End> {
        let look = (self.shared.config.linger / 8).max(SHORTEST_LOOK);
        loop {
            let next = self.session.lock().next_tell(self.shared.now());
            // Orders to verify are reads.
            self.readable.notify_one();
            match next {
                Next::Do(Tell::Watch(keys)) => {
                    interests.watch(&keys).await?;
                    self.session.lock().watched(keys, self.shared.now());
                    self.note_live();
                }
                Next::Do(Tell::Unwatch(keys)) => interests.unwatch(&keys).await?,
                Next::Wait(_) => {
                    self.note_live();
                    // Lingers begin and end when this looks: many at once, instead of each with a timer of its own.
                    tokio::select! {
                        () = self.shared.ordered.notified() => {}
                        () = sleep(look) => {}
                    }
                }
            }
        }
    }

    async fn read<S: Source<K>>(&self, source: Arc<S>) -> Result<Infallible, End> {
        let mut reads = JoinSet::<(Ticket<K>, Result<Reading, BoxError>)>::new();
        loop {
            let next = self.session.lock().next_read(self.shared.now())?;
            let until = match next {
                Next::Do(ticket) => {
                    let source = source.clone();
                    reads.spawn(async move {
                        let reading = source.versions(&ticket.keys).await;
                        (ticket, reading)
                    });
                    continue;
                }
                Next::Wait(until) => until,
            };
            tokio::select! {
                Some(read) = reads.join_next() => {
                    let (ticket, reading) = read.map_err(|_| End::Panicked)?;
                    let reading = reading.map_err(End::Source)?;
                    self.shared.table.counters.reads.add(1);
                    self.session.lock().read(ticket, &reading, self.shared.now())?;
                    self.note_live();
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

    fn note_live(&self) {
        let is_live = self.session.lock().live_since().is_some();
        if is_live && self.shared.out_of_step_since.lock().is_some() {
            self.shared.in_step(true);
            self.span.live();
            self.shared.report();
        }
    }
}

/// Starts the driver, on the runtime of the calling thread.
pub(crate) fn spawn(
    driver: impl Future<Output = ()> + Send + 'static,
    runtime: &tokio::runtime::Handle,
) {
    drop(runtime.spawn(driver));
}
