//! News by `PUBLISH`: the script that commits says the version on the key's channel.

use super::link::{Link, parse_epoch};
use super::names::pieces;
use crate::error::FeedError;
use crate::feed::Change;
use crate::key::WireKey;
use crate::position::Epoch;
use ::redis::{PushInfo, PushKind, Value, cmd};
use tokio::time::Interval;

/// Bytes of channels in one `SUBSCRIBE`: the server holds back its confirmations of all of them. Half of the smallest
/// `client-output-buffer-limit` that anyone may sensibly set.
const PIECE: usize = 16 * 1024;

pub(super) struct Subscriber(Link);

pub(super) struct Listener {
    link: Link,
    ping: Interval,
    /// The channel on which the session hears itself, so that a subscription that fell silent is noticed too.
    echo: Vec<u8>,
    /// The echo to the last ping has not come.
    is_owed: bool,
}

pub(super) async fn open(link: Link, other: Link) -> Result<(Subscriber, Listener), FeedError> {
    let mut echo = link.inner.names.echo.clone();
    echo.extend(format!("{:x}", fastrand::u128(..)).bytes());
    let channel = std::slice::from_ref(&echo);
    let subscribed = link.connection.listen_to(channel, true).await;
    subscribed.map_err(|error| link.failure(error))?;
    let listener = Listener {
        ping: other.interval(),
        link: other,
        echo,
        is_owed: false,
    };
    Ok((Subscriber(link), listener))
}

impl Subscriber {
    fn channels<K: WireKey>(&self, keys: &[K]) -> Vec<Vec<u8>> {
        let names = &self.0.inner.names;
        keys.iter().map(|key| names.channel(key)).collect()
    }

    /// The server confirms each channel: from then on it delivers. (It serves one command at a time.)
    pub(super) async fn watch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        self.tell(keys, true).await
    }

    pub(super) async fn unwatch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        self.tell(keys, false).await
    }

    async fn tell<K: WireKey>(&self, keys: &[K], listens: bool) -> Result<(), FeedError> {
        for channels in pieces(&self.channels(keys), PIECE) {
            let told = self.0.connection.listen_to(channels, listens).await;
            told.map_err(|error| self.0.failure(error))?;
        }
        Ok(())
    }
}

impl Listener {
    pub(super) async fn next<K: WireKey>(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        loop {
            let Some(pushes) = self.link.next(&mut self.ping).await? else {
                if std::mem::replace(&mut self.is_owed, true) {
                    return Err(FeedError::Silent(self.link.patience));
                }
                let mut publish = cmd("PUBLISH");
                publish.arg(&*self.echo).arg("");
                self.link.run(&publish).await?;
                continue;
            };
            let mut changes = Vec::with_capacity(pushes.len());
            for push in pushes {
                changes.extend(self.change(push)?);
            }
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn change<K: WireKey>(&mut self, push: PushInfo) -> Result<Option<Change<K>>, FeedError> {
        if push.kind != PushKind::Message {
            return Ok(None);
        }
        let [Value::BulkString(channel), Value::BulkString(text)] = &*push.data else {
            return Err(FeedError::Protocol(format!("a message of {:?}", push.data)));
        };
        if *channel == self.echo {
            self.is_owed = false;
            return Ok(None);
        }
        // Every client that may publish on the channel may write anything. A text that is no version is ignored.
        let Some((epoch, version)) = parse(text) else {
            return Ok(None);
        };
        let key = self.link.inner.names.key_of_channel(channel);
        Ok(key.map(|key| Change {
            key,
            version,
            epoch: Some(epoch),
        }))
    }
}

/// The epoch in hexadecimal digits, a blank, and the version.
fn parse(text: &[u8]) -> Option<(Epoch, u64)> {
    let blank = text.iter().position(|byte| *byte == b' ')?;
    let version = std::str::from_utf8(&text[blank + 1..]).ok()?;
    Some((parse_epoch(&text[..blank])?, version.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_version_is_none() {
        assert_eq!(parse(b"1f 42"), Some((Epoch(0x1f), 42)));
        for text in [
            "", " ", "42", " 42", "x 42", "1f ", "1f x", "1f -42", "1f 42 7", "1f-42",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
