//! Writing: one script counts, appends the body to the key's log, and publishes.

use super::{News, RedisEngine};
use crate::error::BoxError;
use crate::event::Event;
use crate::key::WireKey;
use crate::redis::session::parse_epoch;
use crate::source::Position;
use ::redis::{Script, Value, cmd};
use std::sync::LazyLock;

/// The version and the epoch come back as text: a Lua number holds 53 bits.
static COMMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local epoch = redis.call('GET', KEYS[3])
        if not epoch then
            epoch = ARGV[1]
            redis.call('SET', KEYS[3], epoch)
        end
        redis.call('INCR', KEYS[1])
        local version = redis.call('GET', KEYS[1])
        if ARGV[2] ~= '0' then
            redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], version .. '-0', 'body', ARGV[3])
        end
        if ARGV[4] ~= '' then
            redis.call('PUBLISH', ARGV[4], epoch .. ' ' .. version)
        end
        return {epoch, version}
        ",
    )
});

impl RedisEngine {
    /// Commits an event of `key`: its version grows by one, and `body` is appended to the key's log, in one step of the
    /// store. Returns where the key is now.
    ///
    /// Nodes hear of it, this one included. [`Cluster::announce_position`](crate::Cluster::announce_position) lets this
    /// node know at once.
    ///
    /// # Errors
    /// The store cannot be reached, or refused. Where the connection was lost while the answer was on its way, the
    /// event may have been committed.
    pub async fn commit<K: WireKey>(&self, key: &K, body: &[u8]) -> Result<Position, BoxError> {
        let committed = self.try_commit(key, body).await;
        if committed.is_err() {
            self.forget_connection().await;
        }
        committed
    }

    async fn try_commit<K: WireKey>(&self, key: &K, body: &[u8]) -> Result<Position, BoxError> {
        let names = &self.inner.names;
        let channel = match self.inner.config.news {
            News::Tracking => Vec::new(),
            News::Published => names.channel(key),
        };
        let mut connection = self.connection().await?;
        let (epoch, version) = COMMIT
            .key(names.version(key))
            .key(names.log(key))
            .key(&names.epoch)
            .arg(format!("{:x}", fastrand::u64(..)))
            .arg(self.inner.config.kept)
            .arg(body)
            .arg(channel)
            .invoke_async::<(Vec<u8>, u64)>(&mut connection)
            .await?;
        let epoch = parse_epoch(&epoch).ok_or("the epoch in the store is no number")?;
        Ok(Position { epoch, version })
    }

    /// The events of `key` after the version `seen` that the log still holds, at most `limit`, in order.
    ///
    /// # Errors
    /// The store cannot be reached, or the log is no log of [`commit`](Self::commit).
    pub async fn events<K: WireKey>(
        &self,
        key: &K,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, BoxError> {
        let mut connection = self.connection().await?;
        let mut range = cmd("XRANGE");
        range
            .arg(self.inner.names.log(key))
            .arg(format!("({seen}-0"))
            .arg("+")
            .arg("COUNT")
            .arg(limit);
        let found = range
            .query_async::<Vec<(String, Vec<(String, Vec<u8>)>)>>(&mut connection)
            .await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.forget_connection().await;
                return Err(error.into());
            }
        };
        let event = |(id, fields): (String, Vec<(String, Vec<u8>)>)| {
            let version = id.strip_suffix("-0")?.parse().ok()?;
            let (_, body) = fields.into_iter().next()?;
            Some(Event { version, body })
        };
        let events = found.into_iter().map(event).collect::<Option<Vec<_>>>();
        Ok(events.ok_or("an entry of the log was not made by `commit`")?)
    }

    /// Runs a command on the connection for reads and commits, for what this crate has no method for.
    ///
    /// # Errors
    /// What the command answers.
    pub async fn query(&self, command: &::redis::Cmd) -> Result<Value, BoxError> {
        let mut connection = self.connection().await?;
        Ok(command.query_async(&mut connection).await?)
    }
}
