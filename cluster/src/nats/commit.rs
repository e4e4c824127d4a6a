//! Writing to the stream, and reading bodies.

use super::inner::Inner;
use super::{NatsEngine, stream};
use crate::error::{BoxError, EngineError};
use crate::event::Event;
use crate::key::WireKey;
use crate::position::{Epoch, Position};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use std::time::Instant;

/// Ends a call whatever its error.
fn store(error: impl Into<BoxError>) -> EngineError {
    EngineError::Store(error.into())
}

impl Inner {
    /// The history that was seen last. It may be over, if the stream was made anew a moment ago: a position in it is
    /// answered with `Reset` then, which loses nothing.
    async fn known_epoch(&self) -> Result<Epoch, EngineError> {
        let known = *self.epoch.lock();
        match known {
            Some(epoch) => Ok(epoch),
            None => Ok(stream::epoch(stream::get(self).await?.cached_info())?),
        }
    }

    async fn publish(&self, subject: String, body: &[u8]) -> Result<u64, EngineError> {
        let context = self.context().await?;
        let sent = context.publish(subject, body.to_vec().into());
        Ok(sent.await.map_err(store)?.await.map_err(store)?.sequence)
    }
}

/// Whether no stream has taken the event.
fn is_gone(error: &EngineError) -> bool {
    let EngineError::Store(error) = error else {
        return false;
    };
    let error = error.downcast_ref::<PublishError>();
    error.is_some_and(|error| error.kind() == PublishErrorKind::StreamNotFound)
}

impl NatsEngine {
    /// Commits an event of `key`: `body` is appended to the stream. Returns when the stream's leader has acknowledged
    /// it, with where the key is now. A stream that is gone is made again first.
    ///
    /// Nodes hear of it, this one included. [`Cluster::announce_position`](crate::Cluster::announce_position) lets this
    /// node know at once.
    ///
    /// # Errors
    /// The stream did not acknowledge within [`NatsConfig::timeout`](super::NatsConfig::timeout). The event may have
    /// been committed nevertheless.
    pub async fn commit<K: WireKey>(&self, key: &K, body: &[u8]) -> Result<Position, EngineError> {
        let inner = &self.inner;
        let commit = async {
            let subject = inner.subjects.event(key);
            let epoch = inner.known_epoch().await?;
            match inner.publish(subject.clone(), body).await {
                Err(error) if is_gone(&error) => {
                    let epoch = stream::epoch(stream::get(inner).await?.cached_info())?;
                    let version = inner.publish(subject, body).await?;
                    Ok(Position { epoch, version })
                }
                version => Ok(Position {
                    epoch,
                    version: version?,
                }),
            }
        };
        inner.call(commit).await
    }

    /// The events of `key` after the version `seen` that the stream still holds, at most `limit`, in order. Each takes a
    /// request, one after the other: where these take longer than half of
    /// [`NatsConfig::timeout`](super::NatsConfig::timeout), the first events are returned. Ask for the others from the
    /// last one on.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub async fn events<K: WireKey>(
        &self,
        key: &K,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, EngineError> {
        let inner = &self.inner;
        let read = async {
            let context = inner.context().await?;
            let stream = context.get_stream_no_info(&inner.config.stream);
            let stream = stream.await.map_err(store)?;
            let subject = inner.subjects.event(key);
            let mut events = Vec::new();
            let (mut seen, begun) = (seen, Instant::now());
            let has_time = || begun.elapsed() < inner.config.timeout / 2;
            while events.len() < limit && (events.is_empty() || has_time()) {
                let next = stream
                    .raw_message_builder()
                    .sequence(seen.saturating_add(1))
                    .next_by_subject(&*subject)
                    .send()
                    .await;
                match next {
                    Ok(message) => {
                        seen = message.sequence;
                        events.push(Event {
                            version: seen,
                            body: message.payload.to_vec(),
                        });
                    }
                    Err(error)
                        if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) =>
                    {
                        break;
                    }
                    Err(error) => return Err(store(error)),
                }
            }
            Ok(events)
        };
        inner.call(read).await
    }
}
