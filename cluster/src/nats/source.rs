//! Reading the stream, through its leader.
//!
//! The leader answers requests to it one after the other, in JSON. A stream with one replica is read directly instead,
//! which takes less than half the time: the only replica is the leader. (Where there are several, any of them
//! answers a direct request, and may lag.)

use super::inner::Inner;
use super::stream;
use crate::error::{BoxError, EngineError};
use crate::source::Reading;
use async_nats::jetstream::stream::{
    Config, DirectGetErrorKind, Info, LastRawMessageErrorKind, Stream,
};
use futures_util::{StreamExt, TryStreamExt};

/// Requests of one read that are on their way at once. The server answers them one after the other; more of them only
/// wait there.
const REQUESTS: usize = 256;

pub(super) async fn read(inner: &Inner, subjects: Vec<String>) -> Result<Reading, EngineError> {
    let stream = stream::get(inner).await?;
    let before = stream.cached_info();
    let epoch = stream::epoch(before)?;
    let head = before.state.last_sequence;
    if head == 0 || subjects.is_empty() {
        return Ok(Reading {
            epoch,
            versions: vec![Some(0); subjects.len()],
            head: Some(head),
            floor: None,
        });
    }
    let absent = match stream::keeps_all_keys(&before.config) {
        true => Some(0),
        false => None,
    };
    let is_direct = allows_direct_reads(&before.config);
    let requests = subjects.into_iter().map(|subject| async {
        match is_direct {
            true => last_directly(&stream, subject).await,
            false => last(&stream, &subject).await,
        }
    });
    let found = futures_util::stream::iter(requests).buffered(REQUESTS);
    let found = found.try_collect::<Vec<_>>().await?;
    let after = stream.get_info().await;
    let after = after.map_err(|error| EngineError::Store(error.into()))?;
    // Made anew meanwhile, it would have answered for another history.
    if stream::epoch(&after)? != epoch {
        let why = "the stream was made anew while it was read";
        return Err(EngineError::Store(why.into()));
    }
    let versions = found.into_iter().map(|version| version.or(absent));
    Ok(Reading {
        epoch,
        versions: versions.collect(),
        // A key that was not found had no event in what the stream held then: at least from the first sequence of
        // afterwards to the last one of before.
        head: Some(head),
        floor: Some(after.state.first_sequence.saturating_sub(1)),
    })
}

async fn last_directly(stream: &Stream<Info>, subject: String) -> Result<Option<u64>, BoxError> {
    match stream.direct_get_last_for_subject(subject).await {
        Ok(message) => Ok(Some(message.sequence)),
        Err(error) if matches!(error.kind(), DirectGetErrorKind::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn last(stream: &Stream<Info>, subject: &str) -> Result<Option<u64>, BoxError> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Some(message.sequence)),
        Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether what the stream's servers answer directly is what its leader knows.
fn allows_direct_reads(config: &Config) -> bool {
    config.allow_direct && config.num_replicas == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_only_replica_is_read_directly() {
        let reads = |allow_direct, num_replicas| {
            allows_direct_reads(&Config {
                allow_direct,
                num_replicas,
                ..Config::default()
            })
        };
        assert!(reads(true, 1));
        assert!(!reads(false, 1));
        assert!(!reads(true, 3));
    }
}
