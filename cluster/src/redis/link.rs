//! What an engine and both halves of a session work with, and how counters are read.

use super::config::RedisConfig;
use super::connect::{Addresses, Connection, is_forbidden};
use super::names::{Names, pieces};
use super::push::{Arrived, Pushes};
use crate::error::{BoxError, FeedError};
use crate::position::Epoch;
use ::redis::{Cmd, PushInfo, RedisError, Value, cmd};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// What an engine, its reads and its sessions share.
pub(super) struct Inner {
    pub(super) config: RedisConfig,
    pub(super) names: Names,
    /// Sessions have a connection each; reads and commits share one.
    pub(super) addresses: Arc<Addresses>,
    /// The server's table of tracked keys has proved too small: sessions hear a broadcast.
    pub(super) is_outgrown: AtomicBool,
    pub(super) advice: Mutex<Option<Arc<str>>>,
}

/// How many pushes are taken at once.
const BATCH: usize = 1_000;
/// Bytes of names in one `MGET`. (What it is answered with is short.)
const READ_PIECE: usize = 256 * 1024;

/// What both halves of a session work with.
pub(super) struct Link {
    pub(super) inner: Arc<Inner>,
    pub(super) connection: Connection,
    pub(super) pushes: Arc<Pushes>,
    /// The longest silence.
    pub(super) patience: Duration,
}

impl Link {
    pub(super) fn interval(&self) -> Interval {
        let start = tokio::time::Instant::now() + self.patience;
        let mut interval = interval_at(start, self.patience);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    }

    /// Why a command failed, as the session ends of it.
    pub(super) fn failure(&self, error: RedisError) -> FeedError {
        if is_forbidden(&error) {
            let said = error.detail().unwrap_or_default();
            return FeedError::Refused(format!("the Redis user may not do what news need: {said}"));
        }
        match error.is_timeout() {
            true => FeedError::Silent(self.patience),
            false => FeedError::Cut(error.into()),
        }
    }

    /// Why a read failed, as the session ends of it.
    pub(super) fn broken(&self, error: BoxError) -> FeedError {
        match error.downcast::<RedisError>() {
            Ok(error) => self.failure(*error),
            Err(error) => FeedError::Cut(error),
        }
    }

    /// Waits for pushes, or for the moment to ask for a sign of life: then there are none.
    pub(super) async fn next(
        &self,
        ping: &mut Interval,
    ) -> Result<Option<Vec<PushInfo>>, FeedError> {
        tokio::select! {
            biased;
            arrived = self.pushes.next(BATCH) => match arrived {
                Arrived::Pushes(pushes) => Ok(Some(pushes)),
                Arrived::Lagged => Err(FeedError::Lagged),
                Arrived::Cut => Err(FeedError::Cut("the server closed the connection".into())),
            },
            _ = ping.tick() => Ok(None),
        }
    }

    /// Runs a command whose answer says nothing.
    pub(super) async fn run(&self, command: &Cmd) -> Result<(), FeedError> {
        let answer = self.connection.run(command).await;
        answer.map(drop).map_err(|error| self.failure(error))
    }
}

/// What was read in several commands.
#[derive(Default)]
pub(super) struct Whole {
    epoch: Option<Epoch>,
    versions: Vec<Option<u64>>,
}

impl Whole {
    pub(super) fn add(
        &mut self,
        (epoch, versions): (Epoch, Vec<Option<u64>>),
    ) -> Result<(), BoxError> {
        if self.epoch.is_some_and(|known| known != epoch) {
            return Err("the store lost its data while it was read".into());
        }
        self.epoch = Some(epoch);
        self.versions.extend(versions);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
        Ok((self.epoch.ok_or("nothing was read")?, self.versions))
    }
}

/// What to ask for in one command each: very long names are many bytes, which take their time.
pub(super) fn read_pieces(counters: &[Vec<u8>]) -> Vec<&[Vec<u8>]> {
    match counters {
        // The epoch alone.
        [] => vec![counters],
        counters => pieces(counters, READ_PIECE),
    }
}

/// Reads the epoch and counters on this connection.
pub(super) async fn read(
    connection: &Connection,
    names: &Names,
    counters: &[Vec<u8>],
) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
    let mut whole = Whole::default();
    for piece in read_pieces(counters) {
        whole.add(read_piece(connection, names, piece).await?)?;
    }
    whole.finish()
}

/// Reads the epoch and counters in one command. Gives the store an epoch if it has none.
pub(super) async fn read_piece(
    connection: &Connection,
    names: &Names,
    counters: &[Vec<u8>],
) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
    loop {
        let mut command = cmd("MGET");
        command.arg(&names.epoch).arg(counters);
        let Value::Array(values) = connection.run(&command).await? else {
            return Err("MGET answered something else than an array".into());
        };
        let mut values = values.into_iter();
        match values.next() {
            Some(Value::Nil) => {
                let fresh = format!("{:x}", fastrand::u64(..));
                let mut command = cmd("SET");
                command.arg(&names.epoch).arg(fresh).arg("NX");
                // Another node may have been first; the next turn reads what stands there.
                connection.run(&command).await?;
            }
            Some(Value::BulkString(epoch)) => {
                let epoch = parse_epoch(&epoch).ok_or("the epoch in the store is no number")?;
                return Ok((epoch, values.map(|value| version(&value)).collect()));
            }
            other => return Err(format!("MGET answered {other:?} for the epoch").into()),
        }
    }
}

pub(super) fn parse_epoch(text: &[u8]) -> Option<Epoch> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text, 16).ok().map(Epoch)
}

/// An absent counter is 0. One that is no number says nothing: a writer has spoiled it, and the other keys must not
/// suffer.
fn version(value: &Value) -> Option<u64> {
    match value {
        Value::Nil => Some(0),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "rules")]
    use {
        crate::redis::connect::Socket, ::redis::Arg, futures_util::FutureExt,
        futures_util::future::BoxFuture,
    };

    /// The store was flushed between two commands of one read.
    #[test]
    fn pieces_of_two_histories_are_no_reading() {
        let piece = |epoch| (Epoch(epoch), vec![Some(5)]);
        let mut whole = Whole::default();
        whole.add(piece(1)).expect("it is the first");
        whole.add(piece(1)).expect("it is of the same history");
        assert!(whole.add(piece(2)).is_err());
        let (epoch, versions) = whole.finish().expect("there is something");
        assert_eq!((epoch, versions), (Epoch(1), vec![Some(5); 2]));
    }

    /// A writer has spoiled it: it is not taken for one that went back.
    #[test]
    fn a_counter_that_is_no_number_says_nothing() {
        for (text, number) in [("7", Some(7)), ("word", None), ("", None), ("-1", None)] {
            let value = Value::BulkString(text.into());
            assert_eq!(version(&value), number, "{text:?}");
        }
        assert_eq!(version(&Value::Nil), Some(0));
        assert_eq!(version(&Value::Okay), None);
    }

    /// A store without an epoch. Right after it has said so, another node gives it one.
    #[cfg(feature = "rules")]
    #[derive(Default)]
    struct Contested(Mutex<Option<Vec<u8>>>);

    #[cfg(feature = "rules")]
    impl Socket for Contested {
        fn run(&self, command: &Cmd) -> BoxFuture<'static, Result<Value, RedisError>> {
            let words = command.args_iter().map(|it| match it {
                Arg::Simple(word) => word.to_vec(),
                other => panic!("{other:?}"),
            });
            let words = words.collect::<Vec<_>>();
            let mut epoch = self.0.lock();
            let answer = if words[0] == b"MGET" {
                let found = epoch.clone().map_or(Value::Nil, Value::BulkString);
                epoch.get_or_insert(b"7".to_vec());
                Value::Array(vec![found])
            } else {
                if epoch.is_none() || !words.contains(&b"NX".to_vec()) {
                    *epoch = Some(words[2].clone());
                }
                Value::Okay
            };
            std::future::ready(Ok(answer)).boxed()
        }
    }

    #[cfg(feature = "rules")]
    #[tokio::test]
    async fn g24_nodes_that_find_no_epoch_agree_on_one() {
        let connection = Connection::Simulated(Arc::new(Contested::default()));
        let read = read_piece(&connection, &Names::new("p:"), &[]).await;
        assert_eq!(read.expect("it reads"), (Epoch(7), Vec::new()));
    }
}
