//! Bodies are fetched once per topic and position, for any number of waiting clients, and written as JSON once.

use crate::store::{Store, Topic};
use axum::body::Bytes;
use moka::future::Cache;
use request_purgatory_cluster::{EngineError, Event, Position};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The most events in one answer. A client that is further behind asks again, from the position of the answer.
pub const LIMIT: usize = 100;
/// The most bytes of events in one answer, in JSON, unless a single one has more: what a client that does not read its
/// answer can make this node hold.
const LARGEST: usize = 256 * 1024;
/// The polls that one event wakes come for it within milliseconds, and those of clients that were away a little later.
const KEPT_FOR: Duration = Duration::from_secs(10);
const KEPT_BYTES: u64 = 64 << 20;
/// The most fetches at once: each holds up to 100 of the largest events, however few of them fit into its answer.
const FETCHES: usize = 32;
/// How long a fetch waits for its turn: long enough for some 100,000 topics of a store that is well, which may have news
/// together. Behind one that does not answer, none waits for all before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a poll is answered with.
#[derive(Debug)]
pub struct Answer {
    /// Where the client asks from next.
    pub position: Position,
    /// The events, in JSON.
    pub json: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum FetchError {
    /// The store no longer has what the client has not seen. It goes on from here.
    Gone(Position),
    /// The store cannot be read.
    Store(EngineError),
    /// Other fetches read the store, and the turn of this one has not come.
    Busy,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(_) => f.write_str("the store no longer has the events after this position"),
            Self::Store(error) => write!(f, "the store cannot be read: {error}"),
            Self::Busy => f.write_str("too many reads of events are under way"),
        }
    }
}

impl std::error::Error for FetchError {}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wanted {
    topic: Topic,
    seen: Position,
    /// How often the store has lost data: an older copy of the store gives versions out again, for other bodies.
    resets: u64,
}

/// The answers of the last seconds.
#[derive(Debug)]
pub struct Bodies {
    store: Store,
    answers: Cache<Wanted, Arc<Answer>>,
    turns: Semaphore,
    fetches: AtomicU64,
}

impl Bodies {
    pub fn new(store: Store) -> Self {
        let weigh = |_: &Wanted, answer: &Arc<Answer>| {
            u32::try_from(answer.json.len() + 256).unwrap_or(u32::MAX)
        };
        Self {
            store,
            answers: Cache::builder()
                .max_capacity(KEPT_BYTES)
                .weigher(weigh)
                .time_to_live(KEPT_FOR)
                .build(),
            turns: Semaphore::new(FETCHES),
            fetches: AtomicU64::new(0),
        }
    }

    /// The events after `seen`, where the topic is at `found`: those that all polls which have seen as much are answered
    /// with. `resets` is how often this node has noticed that the store lost data.
    ///
    /// # Errors
    /// The store does not keep them any more, or cannot be read. Errors are shared by the polls that wait for the same
    /// fetch, and not kept.
    pub async fn after(
        &self,
        topic: Topic,
        seen: Position,
        found: u64,
        resets: u64,
    ) -> Result<Arc<Answer>, Arc<FetchError>> {
        let fetch = self.fetch(topic.clone(), seen, found);
        let wanted = Wanted {
            topic,
            seen,
            resets,
        };
        self.answers.try_get_with(wanted, fetch).await
    }

    /// How many fetches there were.
    pub fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    async fn fetch(
        &self,
        topic: Topic,
        seen: Position,
        found: u64,
    ) -> Result<Arc<Answer>, FetchError> {
        let Ok(_turn) = timeout(PATIENCE, self.turns.acquire()).await else {
            return Err(FetchError::Busy);
        };
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let (events, head) = match self.store.events(&topic, seen.version, LIMIT).await {
            Ok(events) => (events, None),
            Err(EngineError::Reset(head)) => (Vec::new(), Some(head)),
            Err(error) => return Err(FetchError::Store(error)),
        };
        // Read after the events, so that they belong to the history that the client knows, or are not given to it.
        let epoch = self.store.epoch().await.map_err(FetchError::Store)?;
        if epoch != seen.epoch {
            return Err(FetchError::Gone(Position { epoch, version: 0 }));
        }
        let head = head.unwrap_or(Position {
            epoch,
            version: found,
        });
        // As many as fit, and at least one.
        let mut bytes = 0;
        let fits = |event: &&Event| {
            let is_first = bytes == 0;
            bytes += written(event);
            is_first || bytes <= LARGEST
        };
        let events = events.iter().take_while(fits).collect::<Vec<_>>();
        let (skipped, position) = match (events.first(), events.last()) {
            (Some(first), Some(last)) => (
                first.version - seen.version - 1,
                Position {
                    epoch,
                    version: last.version,
                },
            ),
            // One that has seen nothing misses nothing that it knows of.
            _ if seen.version == 0 => (head.version, head),
            _ => return Err(FetchError::Gone(head)),
        };
        let answer = Json {
            position: position.to_string(),
            skipped: self.store.is_gapless().then_some(skipped),
            events: events.into_iter().map(JsonEvent::from).collect(),
        };
        let json = serde_json::to_vec(&answer);
        let json = json.map_err(|error| FetchError::Store(error.to_string().into()))?;
        let json = json.into();
        Ok(Arc::new(Answer { position, json }))
    }
}

#[derive(Serialize)]
struct Json<'a> {
    position: String,
    /// Events before the first that the store no longer keeps. `null`: the engine cannot tell.
    skipped: Option<u64>,
    events: Vec<JsonEvent<'a>>,
}

#[derive(Serialize)]
struct JsonEvent<'a> {
    version: u64,
    body: Cow<'a, str>,
}

impl<'a> From<&'a Event> for JsonEvent<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            version: event.version,
            // This gateway takes text only; another writer of the store may have written anything.
            body: String::from_utf8_lossy(&event.body),
        }
    }
}

/// How many bytes of JSON an event is: of a body, JSON writes some bytes as six.
fn written(event: &Event) -> usize {
    let json = serde_json::to_vec(&JsonEvent::from(event));
    json.map_or(0, |json| json.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use request_purgatory_cluster::Epoch;
    use request_purgatory_cluster::redis::{RedisConfig, RedisEngine};
    use std::net::TcpListener;

    /// With these events, and where a client is that has seen none of them.
    async fn bodies(events: &[Vec<u8>]) -> (Bodies, Position) {
        let store = Store::Memory(MemoryStore::new());
        for event in events {
            let committed = store.commit(&"a".into(), event).await;
            committed.expect("it commits");
        }
        let epoch = store.epoch().await.expect("it reads");
        (Bodies::new(store), Position { epoch, version: 0 })
    }

    #[tokio::test]
    async fn an_answer_has_as_many_events_as_fit_and_at_least_one() {
        let lengths = [10, 2 * LARGEST, 10, 0];
        let (bodies, start) = bodies(&lengths.map(|length| vec![b'x'; length])).await;
        for (version, events, position) in [(0, 1, 1), (1, 1, 2), (2, 2, 4)] {
            let seen = Position { version, ..start };
            let answer = bodies.after("a".into(), seen, 4, 0).await;
            let answer = answer.expect("there are events");
            assert_eq!(answer.position.version, position);
            let json = serde_json::from_slice::<serde_json::Value>(&answer.json);
            let json = json.expect("it is JSON");
            assert_eq!(json["events"].as_array().map(Vec::len), Some(events));
            assert_eq!(json["skipped"], 0);
        }
    }

    /// What JSON makes longer counts for as long as it is there.
    #[tokio::test]
    async fn an_answer_is_measured_in_json() {
        let events = [1, 1, b'"', 0xff, b'x', b'\n'].map(|byte| vec![byte; LARGEST / 8]);
        let (bodies, mut seen) = bodies(&events).await;
        while seen.version < 6 {
            let answer = bodies.after("a".into(), seen, 6, 0).await;
            let answer = answer.expect("there are events");
            assert!(answer.json.len() < LARGEST + 1_000, "after {seen}");
            seen = answer.position;
        }
    }

    /// The store counts on, and its events are gone.
    #[tokio::test]
    async fn who_misses_what_is_gone_goes_on_from_where_the_topic_is() {
        let (bodies, start) = bodies(&[]).await;
        let answer = bodies.after("a".into(), start, 7, 0).await;
        let answer = answer.expect("who has seen nothing misses nothing");
        let at = |epoch, version| Position { epoch, version };
        assert_eq!(answer.position, at(start.epoch, 7));
        let json = String::from_utf8_lossy(&answer.json);
        assert!(json.contains(r#""skipped":7,"events":[]"#), "{json}");
        let before = Epoch(start.epoch.0.wrapping_sub(1));
        for (seen, onward) in [
            (at(start.epoch, 3), 7),
            (at(before, 3), 0),
            (at(before, 0), 0),
        ] {
            let gone = bodies.after("a".into(), seen, 7, 0).await;
            let gone = gone.expect_err("it is gone");
            let is_it = matches!(*gone, FetchError::Gone(it) if it == at(start.epoch, onward));
            assert!(is_it, "{gone:?}");
        }
    }

    /// Clients that ask from many positions have the node hold no more bodies than a few fetches have.
    #[tokio::test]
    async fn few_fetches_are_under_way_at_once() {
        // It accepts, and does not answer.
        let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let config = RedisConfig {
            addresses: vec![format!("redis://{}", silent.local_addr().expect("bound"))],
            ..RedisConfig::default()
        };
        let engine = RedisEngine::new(config).expect("the address is sound");
        let bodies = Bodies::new(Store::Redis(engine));
        let epoch = Epoch(1);
        let seen = (0..=FETCHES as u64).map(|version| Position { epoch, version });
        let fetches = seen.map(|seen| Box::pin(bodies.after("a".into(), seen, 100, 0)));
        let mut fetches = fetches.collect::<Vec<_>>();
        for fetch in &mut fetches {
            assert!(timeout(Duration::ZERO, fetch).await.is_err());
        }
        assert_eq!(bodies.fetches(), FETCHES as u64);
        // One client leaves.
        drop(fetches.swap_remove(0));
        let _ = timeout(Duration::ZERO, &mut fetches[0]).await;
        assert_eq!(bodies.fetches(), FETCHES as u64 + 1);
    }

    /// News of many topics come together, and who comes too late is not told that the store is at fault.
    #[tokio::test(start_paused = true)]
    async fn a_fetch_waits_for_its_turn_and_is_told_if_it_does_not_come() {
        let (bodies, start) = bodies(&[b"x".to_vec()]).await;
        let turns = bodies.turns.acquire_many(FETCHES as u32).await;
        let busy = bodies.after("a".into(), start, 1, 0).await;
        let busy = busy.expect_err("there is no turn");
        assert!(matches!(*busy, FetchError::Busy), "{busy}");
        let later = async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            drop(turns);
        };
        let (answer, ()) = tokio::join!(bodies.after("a".into(), start, 1, 0), later);
        answer.expect("its turn has come");
    }

    /// An older copy of the store gives versions out again.
    #[tokio::test]
    async fn what_was_fetched_before_a_loss_is_not_given_after_it() {
        let (bodies, start) = bodies(&[b"x".to_vec()]).await;
        for (resets, fetches) in [(0, 1), (0, 1), (1, 2), (1, 2)] {
            let answer = bodies.after("a".into(), start, 1, resets).await;
            answer.expect("there is an event");
            assert_eq!(bodies.fetches(), fetches);
        }
    }
}
