//! Writing: one script counts, appends the body to the key's log, and publishes. Reading what was written.

use super::RedisEngine;
use super::config::News;
use super::connect::Connection;
use super::link::parse_epoch;
use crate::error::EngineError;
use crate::event::Event;
use crate::key::WireKey;
use crate::position::Position;
use ::redis::{Cmd, FromRedisValue, RedisError, Script, Value};
use std::sync::LazyLock;

/// Decides before it writes: whether the user may do all of it (Redis can be asked from 7.0 on), and whether the log
/// takes the version. The log refuses a version that is not above all that it has held: then the counter was
/// lost (evicted, deleted), and is restored from the log in a new history, without the event. Numbers come back as
/// text, and one is added to the text: a Lua number holds 53 bits.
const COMMIT: &str = r"
local function may(...)
    return not redis.acl_check_cmd or redis.acl_check_cmd(...)
end
if not (may('SET', KEYS[1], '') and may('SET', KEYS[3], '')) then
    return redis.error_reply('NOPERM a commit needs SET of the counter and of the epoch')
end
if ARGV[4] ~= '' and not may('PUBLISH', ARGV[4], '') then
    return redis.error_reply('NOPERM a commit needs PUBLISH on the channel of the key')
end
local epoch = redis.call('GET', KEYS[3])
local version = redis.call('GET', KEYS[1]) or '0'
if not string.match(version, '^%d+$') then
    return redis.error_reply('ERR the counter of this key is no number')
end
local digit = #version
while digit > 0 and string.sub(version, digit, digit) == '9' do
    digit = digit - 1
end
local zeros = string.rep('0', #version - digit)
local raised = digit == 0 and '1' or string.sub(version, 1, digit - 1) .. (string.byte(version, digit) - 47)
local following = raised .. zeros
local lost = 0
if ARGV[2] ~= '0' then
    local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], following .. '-0', 'body', ARGV[3])
    if type(added) == 'table' and added.err then
        if not string.find(added.err, 'equal or smaller', 1, true) then
            return added
        end
        lost = 1
        local log = redis.call('XINFO', 'STREAM', KEYS[2])
        for at = 1, #log, 2 do
            if log[at] == 'last-generated-id' then
                following = string.match(log[at + 1], '^%d+')
            end
        end
    end
end
if lost == 1 or not epoch then
    epoch = ARGV[1]
    redis.call('SET', KEYS[3], epoch)
end
redis.call('SET', KEYS[1], following)
if ARGV[4] ~= '' then
    redis.call('PUBLISH', ARGV[4], epoch .. ' ' .. following)
end
return {epoch, following, lost}
";

/// Reads counter and log in one step.
const EVENTS: &str = r"
local log = redis.call('XRANGE', KEYS[2], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
return {redis.call('GET', KEYS[3]), redis.call('GET', KEYS[1]) or '0', log}
";

static COMMIT_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(COMMIT));
static EVENTS_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(EVENTS));

type Entry = (String, Vec<(String, Vec<u8>)>);

impl RedisEngine {
    /// Commits an event of `key`: its version grows by one, and `body` is appended to the key's log, in one step of the
    /// store. Returns where the key is now.
    ///
    /// Nodes hear of it, this one included. [`Cluster::announce_position`](crate::Cluster::announce_position) lets this
    /// node know at once.
    ///
    /// # Errors
    /// The store cannot be reached, or refused. Where the connection was lost while the answer was on its way, the
    /// event may have been committed. [`EngineError::Reset`]: the key's counter was lost, and its log was not. The
    /// counter is restored from the log, in a new history, which ends all waits with `Reset`; the event was *not*
    /// committed, and the next commit succeeds.
    pub async fn commit<K: WireKey>(&self, key: &K, body: &[u8]) -> Result<Position, EngineError> {
        let inner = &self.inner;
        let names = &inner.names;
        let channel = match inner.config.news {
            News::Tracking => Vec::new(),
            News::Published => names.channel(key),
        };
        let rest = |command: &mut Cmd| {
            command.arg(3);
            command.arg(names.version(key)).arg(names.log(key));
            command.arg(&names.epoch);
            command.arg(format!("{:x}", fastrand::u64(..)));
            command.arg(count(inner.config.kept));
            command.arg(body).arg(&channel);
        };
        let commit = async |connection: Connection| {
            let answer = connection.script(&COMMIT_SCRIPT, COMMIT, rest).await;
            let (epoch, version, lost) = parse::<(Vec<u8>, u64, u8)>(answer)?;
            let position = position(&epoch, version)?;
            match lost {
                0 => Ok(position),
                _ => Err(EngineError::Reset(position)),
            }
        };
        inner.addresses.call(commit).await
    }

    /// The events of `key` after the version `seen` that the log still holds, at most `limit`, in order.
    ///
    /// # Errors
    /// The store cannot be reached, or the log is no log of [`commit`](Self::commit). [`EngineError::Reset`]: counter
    /// and log disagree, so one of them was lost; the client goes on from the position, and waits for what comes.
    pub async fn events<K: WireKey>(
        &self,
        key: &K,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, EngineError> {
        let inner = &self.inner;
        let names = &inner.names;
        let rest = |command: &mut Cmd| {
            command.arg(3);
            command.arg(names.version(key)).arg(names.log(key));
            command.arg(&names.epoch).arg(seen).arg(count(limit));
        };
        let events = async |connection: Connection| {
            let answer = connection.script(&EVENTS_SCRIPT, EVENTS, rest).await;
            let (epoch, version, log) = parse::<(Option<Vec<u8>>, u64, Vec<Entry>)>(answer)?;
            let event = |(id, fields): Entry| {
                let version = id.strip_suffix("-0")?.parse().ok()?;
                let (_, body) = fields.into_iter().next()?;
                Some(Event { version, body })
            };
            let events = log.into_iter().map(event).collect::<Option<Vec<_>>>();
            let why = "an entry of the log was not made by `commit`";
            let events = events.ok_or_else(|| EngineError::Store(why.into()))?;
            let is_whole = match events.last() {
                Some(last) => last.version <= version,
                None => version <= seen || inner.config.kept == 0 || limit == 0,
            };
            match (is_whole, epoch) {
                (false, Some(epoch)) => Err(EngineError::Reset(position(&epoch, version)?)),
                _ => Ok(events),
            }
        };
        inner.addresses.call(events).await
    }

    /// Runs a command on the connection for reads and commits, for what this crate has no method for. The client crate
    /// is [`redis::client`](crate::redis::client).
    ///
    /// # Errors
    /// What the command answers.
    pub async fn query(&self, command: &Cmd) -> Result<Value, EngineError> {
        let run = async |connection: Connection| parse(connection.run(command).await);
        self.inner.addresses.call(run).await
    }
}

/// Redis counts with 63 bits, and takes no number beyond that. More there never is.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn parse<T: FromRedisValue>(answer: Result<Value, RedisError>) -> Result<T, EngineError> {
    let store = |error: RedisError| EngineError::Store(error.into());
    T::from_redis_value(answer.map_err(store)?).map_err(|error| store(error.into()))
}

fn position(epoch: &[u8], version: u64) -> Result<Position, EngineError> {
    let epoch = parse_epoch(epoch);
    let why = "the epoch in the store is no number";
    let epoch = epoch.ok_or_else(|| EngineError::Store(why.into()))?;
    Ok(Position { epoch, version })
}
