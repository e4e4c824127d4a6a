//! NATS JetStream: versions are the sequences of one stream, and news come on the subject that the stream republishes
//! to.
//!
//! An event of a key is published to `PREFIX.in.KEY`, which the stream stores; once it is stored, the stream says so on
//! `PREFIX.out.KEY`, with the sequence in the headers and without the body. (What is heard on the ingest subject is not
//! ordered after the commit, so no node listens there.) The version of a key is the sequence of its last event:
//! versions of one key have gaps.
//!
//! `subscribe` and `flush` of the client return before the server knows of a subscription. So a watch is a subscription
//! and then a message of the session to itself on the same connection: the server handles one after the other, and when
//! the echo comes, it knows. Other servers of a cluster learn of it a little later, so there the watch is
//! [not exact](crate::Interests::is_exact), and the cluster reads the keys once more.
//!
//! Reads ask the leader of the stream, one request per key. A stream with one replica had better allow direct
//! requests, as one that [`NatsEngine::connect`] makes does: the server answers these sooner. The epoch is the time
//! at which the stream was created. A stream that is made anew, changed or deleted ends the session, by an advisory of
//! the server. A version of an earlier stream and one of a new stream look the same to this engine until then.
//!
//! A user with permissions needs to publish to `PREFIX.in.>`, `$JS.API.>` and `_INBOX.>`, and to subscribe to
//! `PREFIX.out.>`, `_INBOX.>` and `$JS.EVENT.ADVISORY.STREAM.*.STREAM`.
//!
//! A stream that is gone is made again by the next read or commit, as [`NatsEngine::connect`] makes it; where the user
//! may not, the error says what to run. All waits end with `Reset` then: it is another history.
//!
//! Give the stream no limits that drop the last event of a key (age, bytes, number of messages, a TTL of messages), and
//! the retention `limits`; a limit per subject is fine. A node that finds such limits says so
//! ([`Stats::advice`](crate::Stats::advice)). A key whose last event was removed has no known version. A wait for it
//! ends with `Reset` if events were discarded that its client has not seen, at every node, and also if it begins later;
//! the client goes on from the stream's head. (If the key has had an event since, a later wait ends with that one.)
//! For a client that has seen nothing at all, only what was discarded while it waited counts.

mod commit;
mod config;
mod connect;
mod inner;
mod session;
mod source;
mod stream;
mod subjects;

use crate::config::Config;
use crate::error::{EngineError, FeedError, KeyError};
use crate::feed::Feed;
use crate::key::WireKey;
use crate::source::{Reading, Source};
pub use async_nats as client;
pub use config::NatsConfig;
#[cfg(feature = "rules")]
#[doc(hidden)]
pub use connect::{Socket, Wire};
use inner::Inner;
use parking_lot::Mutex;
pub use session::{NatsChanges, NatsInterests};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use subjects::Subjects;
use tokio::sync::OnceCell;

/// A JetStream stream as source and feed of a cluster. Cloning is cheap, and clones share a connection for reads and
/// commits.
#[derive(Clone)]
pub struct NatsEngine {
    inner: Arc<Inner>,
}

impl NatsEngine {
    /// An engine on these servers, which connects when it is first used, and then makes the stream if it is not there.
    pub fn new(config: NatsConfig) -> Self {
        Self::on(
            #[cfg(feature = "rules")]
            None,
            config,
        )
    }

    /// An engine whose sessions use a simulated client crate.
    #[cfg(feature = "rules")]
    #[doc(hidden)]
    pub fn simulated(wire: Arc<dyn Wire>, config: NatsConfig) -> Self {
        Self::on(Some(wire), config)
    }

    fn on(#[cfg(feature = "rules")] wire: Option<Arc<dyn Wire>>, config: NatsConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                subjects: Subjects::new(&config.prefix),
                config,
                context: OnceCell::new(),
                epoch: Mutex::default(),
                needs_wildcard: AtomicBool::new(false),
                #[cfg(feature = "rules")]
                wire,
                advice: Mutex::default(),
            }),
        }
    }

    /// Connects, and makes the stream if it is not there, so that a wrong address shows at the start.
    ///
    /// # Errors
    /// No server can be reached, JetStream is off, or a stream of this name exists that does not republish as this
    /// engine needs it.
    pub async fn connect(config: NatsConfig) -> Result<Self, EngineError> {
        let engine = Self::new(config);
        let inner = &engine.inner;
        let connect = || inner.connect(inner.options());
        inner.context.get_or_try_init(connect).await?;
        stream::get(inner).await?;
        Ok(engine)
    }
}

impl<K: WireKey> Source<K> for NatsEngine {
    async fn versions(&self, keys: &[K]) -> Result<Reading, EngineError> {
        let subjects = keys.iter().map(|key| self.inner.subjects.event(key));
        source::read(&self.inner, subjects.collect()).await
    }

    fn admit(&self, key: &K) -> Result<(), KeyError> {
        self.inner.subjects.admit(key)
    }
}

impl<K: WireKey> Feed<K> for NatsEngine {
    type Interests = NatsInterests<K>;
    type Changes = NatsChanges<K>;

    async fn open(&self, config: &Config) -> Result<(NatsInterests<K>, NatsChanges<K>), FeedError> {
        session::open(&self.inner, config).await
    }

    fn advice(&self) -> Option<Arc<str>> {
        self.inner.advice.lock().clone()
    }
}

impl fmt::Debug for NatsEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NatsEngine")
            .field(&self.inner.config)
            .finish()
    }
}
