//! Reading the stream, through its leader.
//!
//! The leader answers requests to it one after the other, in JSON. A stream with one replica is read directly instead,
//! which takes less than half the time: the only replica is the leader. (Where there are several, any of them
//! answers a direct request, and may lag.)

use super::Inner;
use crate::error::BoxError;
use crate::source::{Epoch, Reading};
use async_nats::jetstream::stream::{
    Config, DirectGetErrorKind, Info, LastRawMessageErrorKind, Stream,
};
use futures_util::{StreamExt, TryStreamExt, stream};

/// Requests of one read that are on their way at once. The server answers them one after the other; more of them only
/// wait there.
const REQUESTS: usize = 256;

pub(super) async fn read(inner: &Inner, subjects: Vec<String>) -> Result<Reading, BoxError> {
    let stream = inner
        .context
        .get_stream_no_info(&inner.config.stream)
        .await?;
    let before = stream.get_info().await?;
    let epoch = epoch(&before)?;
    let head = before.state.last_sequence;
    if head == 0 || subjects.is_empty() {
        return Ok(Reading {
            epoch,
            versions: vec![Some(0); subjects.len()],
            head: Some(head),
        });
    }
    let absent = match keeps_all_keys(&before) {
        true => Some(0),
        false => None,
    };
    let is_direct = allows_direct_reads(&before.config);
    let requests = subjects.into_iter().map(|subject| {
        let stream = stream.clone();
        async move {
            match is_direct {
                true => last_directly(&stream, subject).await,
                false => last(&stream, &subject).await,
            }
        }
    });
    let found = stream::iter(requests).buffered(REQUESTS);
    let found = found.try_collect::<Vec<_>>().await?;
    // Made anew meanwhile, it would have answered for another history.
    if self::epoch(&stream.get_info().await?)? != epoch {
        return Err("the stream was made anew while it was read".into());
    }
    Ok(Reading {
        epoch,
        versions: found
            .into_iter()
            .map(|version| version.or(absent))
            .collect(),
        head: Some(head),
    })
}

async fn last_directly(stream: &Stream<()>, subject: String) -> Result<Option<u64>, BoxError> {
    match stream.direct_get_last_for_subject(subject).await {
        Ok(message) => Ok(Some(message.sequence)),
        Err(error) if matches!(error.kind(), DirectGetErrorKind::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn last(stream: &Stream<()>, subject: &str) -> Result<Option<u64>, BoxError> {
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

/// Whether a key without an event never had one (or lost it by a purge, which is a loss of data).
fn keeps_all_keys(info: &Info) -> bool {
    let config = &info.config;
    config.max_age.is_zero() && config.max_bytes <= 0 && config.max_messages <= 0
}

fn epoch(info: &Info) -> Result<Epoch, BoxError> {
    let nanos = info.created.unix_timestamp_nanos();
    Ok(Epoch(u64::try_from(nanos)?))
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
