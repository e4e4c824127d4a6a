//! The names of things in the store. Redis takes any bytes, so a key is written as it is.

use crate::error::KeyError;
use crate::key::WireKey;

/// A name may be 512 MB long. A key that long would stop the server for all clients; so the bound is one that no
/// sensible key meets.
const LONGEST: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) version: Vec<u8>,
    log: Vec<u8>,
    channel: Vec<u8>,
    pub(super) epoch: Vec<u8>,
    /// For a session to hear itself.
    pub(super) echo: Vec<u8>,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        let name = |kind: &str| [prefix, kind].concat().into_bytes();
        Self {
            version: name("v:"),
            log: name("l:"),
            channel: name("c:"),
            epoch: name("epoch"),
            echo: name("echo:"),
        }
    }

    pub(super) fn version(&self, key: &impl WireKey) -> Vec<u8> {
        join(&self.version, key)
    }

    pub(super) fn log(&self, key: &impl WireKey) -> Vec<u8> {
        join(&self.log, key)
    }

    pub(super) fn channel(&self, key: &impl WireKey) -> Vec<u8> {
        join(&self.channel, key)
    }

    /// The key of a counter's name.
    pub(super) fn key_of_version<K: WireKey>(&self, name: &[u8]) -> Option<K> {
        K::from_bytes(name.strip_prefix(&*self.version)?)
    }

    /// The key of a channel's name.
    pub(super) fn key_of_channel<K: WireKey>(&self, name: &[u8]) -> Option<K> {
        K::from_bytes(name.strip_prefix(&*self.channel)?)
    }

    pub(super) fn admit(&self, key: &impl WireKey) -> Result<(), KeyError> {
        let length = self.version.len() + key.to_bytes().len();
        match length <= LONGEST {
            true => Ok(()),
            false => Err(KeyError::TooLong {
                length,
                limit: LONGEST,
            }),
        }
    }
}

/// Names in pieces of about `bytes`: what a server answers one command with must fit into the room that it gives a
/// connection (`client-output-buffer-limit`).
pub(super) fn pieces(names: &[Vec<u8>], bytes: usize) -> Vec<&[Vec<u8>]> {
    let mut pieces = Vec::new();
    let (mut from, mut sum) = (0, 0);
    for (at, name) in names.iter().enumerate() {
        // What stands around a name in an answer.
        let length = name.len() + 32;
        if at > from && sum + length > bytes {
            pieces.push(&names[from..at]);
            (from, sum) = (at, 0);
        }
        sum += length;
    }
    if from < names.len() {
        pieces.push(&names[from..]);
    }
    pieces
}

fn join(kind: &[u8], key: &impl WireKey) -> Vec<u8> {
    [kind, &key.to_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_bytes_come_back() {
        let names = Names::new("p:");
        for key in [
            vec![],
            vec![0, 255, b'\r', b'\n', b' ', b'*'],
            b"v:x".to_vec(),
        ] {
            assert_eq!(
                names.key_of_version(&names.version(&key)),
                Some(key.clone())
            );
            assert_eq!(names.key_of_channel(&names.channel(&key)), Some(key));
        }
        assert_eq!(names.key_of_version::<Vec<u8>>(b"p:epoch"), None);
    }

    /// What counts is the length of its name.
    #[test]
    fn a_key_without_end_is_refused() {
        let names = Names::new("p:");
        let (prefix, limit) = ("p:v:".len(), LONGEST);
        for length in [limit, limit + 1, limit + prefix] {
            let too_long = (length > limit).then_some(KeyError::TooLong { length, limit });
            let key = vec![0_u8; length - prefix];
            assert_eq!(names.admit(&key).err(), too_long);
        }
    }
}
