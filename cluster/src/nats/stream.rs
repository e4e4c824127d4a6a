//! The stream: found, checked, and made if it is not there.

use super::inner::Inner;
use crate::error::{BoxError, EngineError};
use crate::position::Epoch;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, Info, Republish, RetentionPolicy, Stream};
use tokio::time::{sleep, timeout};

/// The stream as it is now. One that is gone is made again.
pub(super) async fn get(inner: &Inner) -> Result<Stream<Info>, EngineError> {
    let context = inner.context().await?;
    let name = &inner.config.stream;
    let stream = match context.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(why)
                if why.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                // A server that says so may be about to remove the files of the one that was deleted, and would remove
                // those of a new one of the same name with them: each commit to that would fail, or be lost (nats-server
                // 2.9). A busy server takes its time.
                sleep(inner.config.timeout.mul_f64(0.25)).await;
                make(inner).await?
            }
            _ => return Err(EngineError::Store(error.into())),
        },
    };
    check(inner, stream.cached_info())?;
    *inner.epoch.lock() = Some(epoch(stream.cached_info())?);
    Ok(stream)
}

fn republish(inner: &Inner) -> Republish {
    Republish {
        source: inner.subjects.all_events(),
        destination: inner.subjects.all_news(),
        headers_only: true,
    }
}

async fn make(inner: &Inner) -> Result<Stream<Info>, EngineError> {
    let (context, config) = (inner.context().await?, &inner.config);
    let republish = republish(inner);
    // (Another node may make it at the same time: then this finds the same one.)
    let made = context.get_or_create_stream(Config {
        name: config.stream.clone(),
        subjects: vec![republish.source.clone()],
        num_replicas: config.replicas,
        max_messages_per_subject: config.kept,
        allow_direct: config.replicas == 1,
        republish: Some(republish.clone()),
        ..Config::default()
    });
    // A user who may not is not answered at all. What to do is said within the time that the caller has.
    let made = timeout(config.timeout.mul_f64(0.6), made).await;
    let made = match made {
        Ok(made) => made.map_err(|error| error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    };
    made.map_err(|error| {
        let why = format!(
            "the stream {name} is gone, and was not made again ({error}); if this user may not, run: nats stream add \
             {name} --subjects '{source}' --republish-source '{source}' --republish-destination '{destination}' \
             --republish-headers --max-msgs-per-subject {kept} --replicas {replicas} --allow-direct --defaults",
            name = config.stream,
            source = republish.source,
            destination = republish.destination,
            kept = config.kept,
            replicas = config.replicas,
        );
        EngineError::Store(why.into())
    })
}

/// Whether the stream is one that this engine can work with, and what its operator should know.
fn check(inner: &Inner, info: &Info) -> Result<(), BoxError> {
    let (name, wanted) = (&inner.config.stream, republish(inner));
    let found = info.config.republish.as_ref();
    if !found.is_some_and(|it| it.source == wanted.source && it.destination == wanted.destination) {
        return Err(format!(
            "the stream {name} does not republish {} to {}",
            wanted.source, wanted.destination
        )
        .into());
    }
    let advice = match keeps_all_keys(&info.config) {
        true => None,
        false => Some(
            format!(
                "the stream {name} has limits (age, bytes, messages, a TTL of messages, or a retention by interest or as a \
                 work queue) that discard last events of keys: waits for what was discarded end with Reset"
            )
            .into(),
        ),
    };
    *inner.advice.lock() = advice;
    Ok(())
}

/// Whether a key without an event never had one (or lost it by a purge, which is a loss of data).
pub(super) fn keeps_all_keys(config: &Config) -> bool {
    config.retention == RetentionPolicy::Limits
        && config.max_age.is_zero()
        && config.max_bytes <= 0
        && config.max_messages <= 0
        && !config.allow_message_ttl
}

pub(super) fn epoch(info: &Info) -> Result<Epoch, BoxError> {
    let nanos = info.created.unix_timestamp_nanos();
    Ok(Epoch(u64::try_from(nanos)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_discards_a_last_event_is_told_from_what_does_not() {
        let keeps = |change: fn(&mut Config)| {
            let mut config = Config {
                max_messages_per_subject: 10,
                ..Config::default()
            };
            change(&mut config);
            keeps_all_keys(&config)
        };
        assert!(keeps(|_| ()));
        // The server says -1 of what has no limit.
        assert!(keeps(|it| (it.max_bytes, it.max_messages) = (-1, -1)));
        assert!(!keeps(|it| it.max_bytes = 1));
        assert!(!keeps(|it| it.max_messages = 1));
        assert!(!keeps(|it| it.max_age = Duration::from_nanos(1)));
        assert!(!keeps(|it| it.retention = RetentionPolicy::Interest));
        assert!(!keeps(|it| it.retention = RetentionPolicy::WorkQueue));
        assert!(!keeps(|it| it.allow_message_ttl = true));
    }
}
