//! Writing to the stream, and reading bodies.

use super::NatsEngine;
use crate::error::BoxError;
use crate::event::Event;
use crate::key::WireKey;
use async_nats::jetstream::stream::LastRawMessageErrorKind;

impl NatsEngine {
    /// Commits an event of `key`: `body` is appended to the stream. Returns when the stream's leader has acknowledged
    /// it, with the key's new version.
    ///
    /// Nodes hear of it, this one included. [`Cluster::announce`](crate::Cluster::announce) lets this node know at
    /// once.
    ///
    /// # Errors
    /// The stream did not acknowledge within [`NatsConfig::timeout`](super::NatsConfig::timeout). The event may have
    /// been committed nevertheless.
    pub async fn commit<K: WireKey>(&self, key: &K, body: &[u8]) -> Result<u64, BoxError> {
        let subject = self.inner.subjects.event(key);
        let sent = self.inner.context.publish(subject, body.to_vec().into());
        Ok(sent.await?.await?.sequence)
    }

    /// The events of `key` after the version `seen` that the stream still holds, at most `limit`, in order. One request
    /// for each.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub async fn events<K: WireKey>(
        &self,
        key: &K,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, BoxError> {
        let inner = &self.inner;
        let stream = inner
            .context
            .get_stream_no_info(&inner.config.stream)
            .await?;
        let subject = inner.subjects.event(key);
        let mut events = Vec::new();
        let mut seen = seen;
        while events.len() < limit {
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
                Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => {
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(events)
    }
}
