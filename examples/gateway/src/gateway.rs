//! One node without its protocol: posts commit, polls wait.

use crate::bodies::{Answer, Bodies, FetchError};
use crate::cpu::Cpu;
use crate::deaf_switch::DeafSwitch;
use crate::prometheus;
use crate::stats::{Counts, Stats};
use crate::store::{Store, Topic};
use anyhow::Result;
use metrics_exporter_prometheus::PrometheusHandle;
use request_purgatory_cluster::request_purgatory::Waits;
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, EngineError, Epoch, Position, Reading, WaitError,
};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a client may keep a connection without getting on.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Between two requests, and from the first byte of a request's head to its last one.
    pub head: Duration,
    /// Without a byte of a request's body.
    pub body: Duration,
    /// Without reading a byte of its answer. A client that has left is noticed within an eighth of this.
    pub unread: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            body: Duration::from_secs(10),
            unread: Duration::from_secs(16),
        }
    }
}

/// How long a client still waits that sends no more. It may have closed its sending half only, and is answered; or it
/// has gone, which looks the same. What the store has is known by then.
const GRACE: Duration = Duration::from_secs(1);

/// The client of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    /// It has closed its sending half, or all.
    pub(crate) sends_no_more: CancellationToken,
}

/// The settings of a node.
#[derive(Debug)]
pub struct Settings {
    pub name: String,
    pub max_wait: Duration,
    pub max_polls: usize,
    pub cluster: Config,
    /// Whose CPU time `/stats` shows.
    pub cpu: Cpu,
    /// With clients.
    pub patience: Patience,
    /// For a node that is to be made deaf.
    pub deaf: Option<DeafSwitch>,
}

/// What a client has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A version of the store's present history.
    Version(u64),
    /// A position of an earlier answer: it shows when the store was lost and filled again.
    Position(Position),
}

/// Why a poll has no events.
#[derive(Debug)]
pub enum PollError {
    /// There were none in this time.
    Expired,
    /// What the client has seen is no longer in the store's history, or what it has not seen is no longer in the store.
    /// It goes on from the position.
    Gone(String, Position),
    /// This node takes no more polls, or cannot read the store.
    Refused(String),
}

/// The store did not acknowledge a post.
#[derive(Debug)]
pub struct PostError(EngineError);

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the store did not acknowledge the event, and may have taken it: {}",
            self.0
        )
    }
}

impl std::error::Error for PostError {}

/// A node.
#[derive(Debug)]
pub struct Gateway {
    store: Store,
    waits: ClusterWaits<Topic>,
    bodies: Bodies,
    counts: Counts,
    peers: Mutex<Vec<String>>,
    name: String,
    cpu: Cpu,
    max_wait: Duration,
    max_polls: usize,
    patience: Patience,
    since: Instant,
    figures: PrometheusHandle,
}

impl Gateway {
    /// Starts a node on `store`. It connects in the background.
    ///
    /// # Errors
    /// The thread is in no tokio runtime, a setting is zero, the system refused a thread, or the process has a recorder of
    /// metrics that is not this crate's.
    pub fn start(store: Store, settings: Settings) -> Result<Arc<Self>> {
        let figures = prometheus::recorder()?;
        let cluster = store.start(settings.cluster, settings.deaf)?;
        let waits = Waits::<Topic>::builder(&settings.name)
            .max_parked(settings.max_polls)
            .build()?;
        Ok(Arc::new(Self {
            waits: ClusterWaits::parked_in(&cluster, waits),
            bodies: Bodies::new(store.clone()),
            store,
            counts: Counts::default(),
            peers: Mutex::default(),
            name: settings.name,
            cpu: settings.cpu,
            max_wait: settings.max_wait,
            max_polls: settings.max_polls,
            patience: settings.patience,
            since: Instant::now(),
            figures,
        }))
    }

    /// Commits an event. Polls on this node are answered before this returns; those on others as soon as they hear.
    ///
    /// # Errors
    /// The store did not acknowledge. The event may have been committed.
    pub async fn post(&self, topic: &Topic, body: &str) -> Result<Position, PostError> {
        let position = self.store.commit(topic, body.as_bytes()).await;
        match &position {
            Ok(position) => {
                self.counts.posts.one();
                self.cluster().announce_position(topic, *position);
            }
            Err(_) => self.counts.posts_failed.one(),
        }
        position.map_err(PostError)
    }

    /// Waits for events of `topic` after `seen`, for at most `wait`. Zero reads the store, and does not wait.
    ///
    /// Dropping the future ends the wait. A client that sends no more waits for a second at most.
    ///
    /// # Errors
    /// See [`PollError`].
    pub(crate) async fn poll(
        &self,
        topic: Topic,
        seen: Seen,
        wait: Duration,
        client: &Client,
    ) -> Result<Arc<Answer>, PollError> {
        let answer = match wait.is_zero() {
            true => self.look(topic, seen).await,
            false => self.wait(topic, seen, wait, client).await,
        };
        let count = match &answer {
            Ok(_) => &self.counts.woken,
            Err(PollError::Expired) => &self.counts.expired,
            Err(PollError::Gone(..)) => &self.counts.gone,
            Err(PollError::Refused(_)) => &self.counts.refused,
        };
        count.one();
        answer
    }

    async fn wait(
        &self,
        topic: Topic,
        seen: Seen,
        wait: Duration,
        client: &Client,
    ) -> Result<Arc<Answer>, PollError> {
        let mut found = pin!(self.found(topic.clone(), seen, wait));
        let (seen, found) = tokio::select! {
            biased;
            found = &mut found => found,
            () = client.sends_no_more.cancelled() => {
                let found = timeout(GRACE, found).await;
                found.unwrap_or(Err(PollError::Expired))
            }
        }?;
        self.fetch(topic, seen, found).await
    }

    /// Waits for news. Returns what the client has seen, and where the topic is.
    async fn found(
        &self,
        topic: Topic,
        seen: Seen,
        wait: Duration,
    ) -> Result<(Position, u64), PollError> {
        match seen {
            Seen::Position(seen) => {
                let found = self.waits.wait_past_position(topic, seen, wait).await?;
                Ok((seen, found.version))
            }
            Seen::Version(version) => {
                let found = self.waits.wait_past(topic, version, wait).await?;
                let epoch = self.epoch().await?;
                Ok((Position { epoch, version }, found))
            }
        }
    }

    async fn look(&self, topic: Topic, seen: Seen) -> Result<Arc<Answer>, PollError> {
        let reading = self.store.read(std::slice::from_ref(&topic)).await?;
        let epoch = reading.epoch;
        let seen = match seen {
            Seen::Position(seen) if seen.epoch != epoch => seen,
            Seen::Position(Position { version, .. }) | Seen::Version(version) => {
                Position { epoch, version }
            }
        };
        match compare(&reading, seen, self.store.is_gapless()) {
            Found::News(version) => self.fetch(topic, seen, version).await,
            Found::Nothing => Err(PollError::Expired),
            Found::Loss(version) => Err(WaitError::Reset(Position { epoch, version }).into()),
        }
    }

    async fn fetch(
        &self,
        topic: Topic,
        seen: Position,
        found: u64,
    ) -> Result<Arc<Answer>, PollError> {
        let resets = self.cluster().stats().resets;
        let fetched = self.bodies.after(topic.clone(), seen, found, resets).await;
        fetched.map_err(|error| match &*error {
            FetchError::Gone(position) => {
                // The node may not know of the loss yet, and would answer the client's next poll with what is lost.
                self.cluster().read_again(&topic);
                PollError::Gone(error.to_string(), *position)
            }
            FetchError::Store(_) | FetchError::Busy => PollError::Refused(error.to_string()),
        })
    }

    async fn epoch(&self) -> Result<Epoch, EngineError> {
        match self.cluster().epoch() {
            Some(epoch) => Ok(epoch),
            None => self.store.epoch().await,
        }
    }

    fn cluster(&self) -> &Cluster<Topic> {
        self.waits.cluster()
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// How many connections this node serves: one for each poll, and some for posts.
    pub(crate) fn max_connections(&self) -> usize {
        self.max_polls.saturating_add(self.max_polls / 10 + 64)
    }

    /// The longest time that a poll may ask for.
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Answers every parked poll with [`PollError::Refused`], and every later one.
    pub fn shut_down(&self) {
        self.cluster().shutdown();
    }

    /// The base URLs of the other nodes, for the page.
    pub fn set_peers(&self, peers: Vec<String>) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    pub fn peers(&self) -> Vec<String> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.clone()
    }

    /// What Prometheus reads.
    pub(crate) fn metrics(&self) -> String {
        prometheus::tell(&self.stats());
        self.figures.render()
    }

    pub fn stats(&self) -> Stats {
        let cluster = self.cluster().stats();
        let counts = &self.counts;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Stats {
            name: self.name.clone(),
            engine: self.store.kind().to_string(),
            peers: self.peers(),
            uptime_ms: millis(self.since.elapsed()),
            cpu_ms: self.cpu.used().as_secs_f64() * 1e3,
            parked: self.waits.purgatory().stats().parked,
            posts: counts.posts.read(),
            posts_failed: counts.posts_failed.read(),
            woken: counts.woken.read(),
            expired: counts.expired.read(),
            gone: counts.gone.read(),
            refused: counts.refused.read(),
            fetches: self.bodies.fetches(),
            watched_topics: cluster.watched_keys,
            sessions: cluster.sessions,
            gaps: cluster.gaps,
            failed: cluster.failed,
            heard: cluster.heard,
            healed: cluster.healed,
            resets: cluster.resets,
            reads: cluster.reads,
            lag_ms: millis(cluster.lag),
        }
    }
}

/// What a read of one topic is to a client.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// There are events up to this version.
    News(u64),
    Nothing,
    /// What it has seen is lost, or what it has not seen: it goes on from this version.
    Loss(u64),
}

fn compare(reading: &Reading, seen: Position, is_gapless: bool) -> Found {
    if seen.epoch != reading.epoch {
        return Found::Loss(0);
    }
    let version = reading.versions.first().copied().flatten();
    match (version, reading.head, reading.floor) {
        (_, Some(head), _) if head < seen.version => Found::Loss(head),
        (Some(version), ..) if version > seen.version => Found::News(version),
        (Some(version), ..) if version < seen.version && is_gapless => Found::Loss(version),
        // Of this topic there is no event at all: what was seen of it was purged.
        (Some(0), ..) if seen.version > 0 => Found::Loss(0),
        // Discarded are events that may have been of this topic.
        (None, Some(head), Some(floor)) if floor > seen.version => Found::Loss(head),
        _ => Found::Nothing,
    }
}

impl From<WaitError> for PollError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Expired => Self::Expired,
            WaitError::Reset(position) => Self::Gone(error.to_string(), position),
            WaitError::ShutDown => Self::Refused("this node is shutting down".into()),
            WaitError::Full => Self::Refused(
                "this node has no room for another poll (`--max-polls`), or no thread for it"
                    .into(),
            ),
            error => Self::Refused(error.to_string()),
        }
    }
}

impl From<EngineError> for PollError {
    fn from(error: EngineError) -> Self {
        Self::Refused(format!("the store cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch(1);

    fn found(version: Option<u64>, head: Option<u64>, floor: Option<u64>, seen: u64) -> Found {
        let reading = Reading {
            epoch: EPOCH,
            versions: vec![version],
            head,
            floor,
        };
        let seen = Position {
            epoch: EPOCH,
            version: seen,
        };
        compare(&reading, seen, head.is_none())
    }

    /// A stream discards what came before sequence 51.
    #[test]
    fn what_a_stream_has_discarded_is_a_loss_until_the_client_has_gone_on_from_the_head() {
        let limited = |version, seen| found(version, Some(90), Some(50), seen);
        for seen in [0, 7, 49] {
            assert_eq!(limited(None, seen), Found::Loss(90), "{seen} was seen");
        }
        for seen in [50, 90] {
            assert_eq!(limited(None, seen), Found::Nothing, "{seen} was seen");
        }
        assert_eq!(limited(Some(60), 7), Found::News(60));
        assert_eq!(limited(Some(60), 70), Found::Nothing);
        assert_eq!(limited(Some(60), 91), Found::Loss(90));
    }

    #[test]
    fn a_topic_that_was_purged_is_a_loss() {
        assert_eq!(found(Some(0), Some(90), Some(50), 7), Found::Loss(0));
    }

    #[test]
    fn a_topic_that_was_never_written_is_quiet() {
        assert_eq!(found(Some(0), None, None, 0), Found::Nothing);
        // In a stream that keeps all, or is new.
        assert_eq!(found(Some(0), Some(90), Some(50), 0), Found::Nothing);
        assert_eq!(found(Some(0), Some(0), None, 0), Found::Nothing);
    }

    #[test]
    fn a_version_that_went_back_is_a_loss() {
        assert_eq!(found(Some(3), None, None, 4), Found::Loss(3));
        assert_eq!(found(Some(3), None, None, 3), Found::Nothing);
        assert_eq!(found(Some(3), None, None, 2), Found::News(3));
    }
}
