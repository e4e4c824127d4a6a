//! One session with NATS: a connection that is given up at the first sign of trouble.

mod echo;

use super::connect::{Connection, Subscription};
use super::inner::Inner;
use crate::config::{Config, channel_capacity};
use crate::error::FeedError;
use crate::feed::{Change, Changes, Interests};
use crate::key::WireKey;
use async_nats::header::NATS_SEQUENCE;
use async_nats::{Event, Message};
use echo::Echo;
use futures_util::stream::{AbortHandle, Abortable, SelectAll};
use futures_util::{FutureExt, StreamExt};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::task::unconstrained;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// How many messages are taken at once.
const BATCH: usize = 256;

pub(super) async fn open<K: WireKey>(
    inner: &Arc<Inner>,
    config: &Config,
) -> Result<(NatsInterests<K>, NatsChanges<K>), FeedError> {
    let (troubles, mut trouble) = mpsc::unbounded_channel();
    let limits = inner.clone();
    let tell = move |event| {
        let error = match event {
            Event::Connected | Event::LameDuckMode | Event::Draining => None,
            Event::SlowConsumer(_) => Some(FeedError::Lagged),
            Event::ServerError(error) => Some(refusal(&limits, &error.to_string())),
            other => Some(FeedError::Cut(other.to_string().into())),
        };
        // If the session is over, it need not hear.
        error.map(|error| troubles.send(error));
    };
    let connection = connect(inner, config, tell).await?;
    let opened = open_on(inner, config, &connection).await;
    let (interests, echo, advisories, add) = match opened {
        Ok(opened) => opened,
        // What the server has said explains a silence.
        Err(error) => return Err(trouble.try_recv().unwrap_or(error)),
    };
    let start = tokio::time::Instant::now() + config.ping;
    let mut ping = interval_at(start, config.ping);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let changes = NatsChanges {
        inner: inner.clone(),
        echo,
        ping,
        advisories,
        trouble,
        add,
        news: SelectAll::new(),
        key: PhantomData,
    };
    Ok((interests, changes))
}

/// Opens a connection that is not made again.
async fn connect(
    inner: &Inner,
    config: &Config,
    tell: impl Fn(Event) + Send + Sync + 'static,
) -> Result<Connection, FeedError> {
    #[cfg(feature = "rules")]
    if let Some(wire) = &inner.wire {
        let socket = wire.connect(Box::new(tell)).await?;
        return Ok(Connection::Simulated(socket));
    }
    let options = inner.config.options.clone();
    let options = options
        .connection_timeout(inner.config.timeout)
        .ping_interval(config.ping)
        .subscription_capacity(channel_capacity(inner.config.capacity))
        .event_callback(move |event| {
            tell(event);
            std::future::ready(())
        });
    let client = inner
        .dial(options)
        .await
        .map_err(|error| FeedError::Connect(error.into()));
    Ok(Connection::Real(client?))
}

type Opened<K> = (
    NatsInterests<K>,
    Echo,
    Subscription,
    mpsc::UnboundedReceiver<Added>,
);

async fn open_on<K: WireKey>(
    inner: &Arc<Inner>,
    config: &Config,
    connection: &Connection,
) -> Result<Opened<K>, FeedError> {
    let advisories = format!("$JS.EVENT.ADVISORY.STREAM.*.{}", inner.config.stream);
    let advisories = connection.subscribe(advisories).await?;
    let (added, add) = mpsc::unbounded_channel();
    let interests = NatsInterests {
        inner: inner.clone(),
        echo: Echo::open(connection, config.ping).await?,
        subscriptions: HashMap::new(),
        has_wildcard: false,
        // ORDERING: Relaxed: the flag guards nothing, and a session that does not see it yet finds out for itself.
        max_subscriptions: match inner.needs_wildcard.load(Ordering::Relaxed) {
            true => 0,
            false => config.max_subscriptions,
        },
        added,
        key: PhantomData,
    };
    // The messages to itself come over the connection that the news come over.
    let mut echo = Echo::open(connection, config.ping).await?;
    // The server knows of all of these now.
    echo.round_trip().await?;
    Ok((interests, echo, advisories, add))
}

/// Why the server has refused something.
fn refusal(inner: &Inner, said: &str) -> FeedError {
    let lower = said.to_lowercase();
    if lower.contains("maximum subscriptions exceeded") {
        // ORDERING: Relaxed: as in `open_on`.
        inner.needs_wildcard.store(true, Ordering::Relaxed);
        return FeedError::Refused(format!(
            "NATS allows fewer subscriptions than `Config::max_subscriptions` ({said}): from now on this node uses one \
             wildcard"
        ));
    }
    match lower.contains("permissions violation") {
        true => FeedError::Refused(format!("the NATS user may not do what news need: {said}")),
        false => FeedError::cut(said),
    }
}

type News = Abortable<Subscription>;

/// What the session hears from now on.
enum Added {
    Key(News),
    /// The wildcard, instead of all others.
    All(News),
}

/// What one session watches.
pub struct NatsInterests<K> {
    inner: Arc<Inner>,
    echo: Echo,
    /// By subject. Empty once there is a wildcard.
    subscriptions: HashMap<String, AbortHandle>,
    has_wildcard: bool,
    max_subscriptions: usize,
    added: mpsc::UnboundedSender<Added>,
    key: PhantomData<fn() -> K>,
}

impl<K> NatsInterests<K> {
    async fn subscribe(&self, subject: String) -> Result<(News, AbortHandle), FeedError> {
        let subscription = self.echo.connection().subscribe(subject).await?;
        let (handle, registration) = AbortHandle::new_pair();
        Ok((Abortable::new(subscription, registration), handle))
    }

    fn add(&self, added: Added) -> Result<(), FeedError> {
        let sent = self.added.send(added);
        sent.map_err(|_| FeedError::cut("the session is over"))
    }
}

impl<K: WireKey> Interests<K> for NatsInterests<K> {
    async fn watch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        if self.has_wildcard {
            return Ok(());
        }
        if self.subscriptions.len() + keys.len() > self.max_subscriptions {
            let all = self.inner.subjects.all_news();
            // Kept until the session is over.
            let (news, _) = self.subscribe(all).await?;
            self.echo.round_trip().await?;
            self.has_wildcard = true;
            // Only now: until the wildcard is heard, the keys are heard one by one.
            self.add(Added::All(news))?;
            self.subscriptions.clear();
            return Ok(());
        }
        for key in keys {
            let subject = self.inner.subjects.news(key);
            if !self.subscriptions.contains_key(&subject) {
                let (news, handle) = self.subscribe(subject.clone()).await?;
                self.add(Added::Key(news))?;
                self.subscriptions.insert(subject, handle);
            }
        }
        self.echo.round_trip().await
    }

    async fn unwatch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        for key in keys {
            let subject = self.inner.subjects.news(key);
            if let Some(handle) = self.subscriptions.remove(&subject) {
                handle.abort();
            }
        }
        Ok(())
    }

    /// In a cluster of servers, the others learn of a subscription a little later.
    fn is_exact(&self) -> bool {
        !self.echo.connection().is_clustered()
    }
}

/// What one session hears.
pub struct NatsChanges<K> {
    inner: Arc<Inner>,
    echo: Echo,
    ping: Interval,
    advisories: Subscription,
    trouble: mpsc::UnboundedReceiver<FeedError>,
    add: mpsc::UnboundedReceiver<Added>,
    news: SelectAll<News>,
    key: PhantomData<fn() -> K>,
}

impl<K: WireKey> NatsChanges<K> {
    fn change(&self, message: &Message) -> Option<Change<K>> {
        let key = self.inner.subjects.key(&message.subject)?;
        let version = message.headers.as_ref()?.get_last(NATS_SEQUENCE)?;
        Some(Change {
            key,
            version: version.as_str().parse().ok()?,
            epoch: None,
        })
    }
}

impl<K: WireKey> Changes<K> for NatsChanges<K> {
    async fn next(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        let mut changes = Vec::new();
        while changes.is_empty() {
            let message = tokio::select! {
                biased;
                trouble = self.trouble.recv() => {
                    return Err(trouble.unwrap_or_else(|| FeedError::cut("the connection is closed")));
                }
                Some(added) = self.add.recv() => {
                    match added {
                        Added::Key(news) => self.news.push(news),
                        Added::All(news) => {
                            // What was sent before the wildcard was heard is here by now, and is heard by these alone.
                            for mut of_key in std::mem::take(&mut self.news) {
                                let mut next = || unconstrained(of_key.next()).now_or_never();
                                while let Some(Some(message)) = next() {
                                    changes.extend(self.change(&message));
                                }
                            }
                            self.news.push(news);
                        }
                    }
                    continue;
                }
                _ = self.advisories.next() => return Err(FeedError::cut("the stream was changed")),
                Some(message) = self.news.next() => message,
                _ = self.ping.tick() => {
                    self.echo.round_trip().await?;
                    continue;
                }
            };
            changes.extend(self.change(&message));
            while changes.len() < BATCH
                && let Some(Some(message)) = self.news.next().now_or_never()
            {
                changes.extend(self.change(&message));
            }
        }
        Ok(changes)
    }
}

impl<K> fmt::Debug for NatsInterests<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsInterests")
            .field("subscriptions", &self.subscriptions.len())
            .field("has_wildcard", &self.has_wildcard)
            .finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for NatsChanges<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsChanges")
            .field("subscriptions", &self.news.len())
            .finish_non_exhaustive()
    }
}
