//! The names of things: keys as one token of a subject.
//!
//! A token may not be empty, and has no blanks, dots, wildcards or control characters. Letters, digits, `-` and `_`
//! stand for themselves, every other byte is `=` and two hexadecimal digits; the empty key is `=`.

use crate::error::KeyError;
use crate::key::WireKey;
use std::fmt::Write;

/// The server takes control lines of up to 4,096 bytes, which hold two subjects (or a subject and an inbox) and some
/// numbers; and a stream keeps the subjects of its events in memory.
const LONGEST: usize = 1_024;

#[derive(Debug, Clone)]
pub(super) struct Subjects {
    events: String,
    news: String,
}

impl Subjects {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            events: format!("{prefix}.in."),
            news: format!("{prefix}.out."),
        }
    }

    /// Where events of `key` are published.
    pub(super) fn event(&self, key: &impl WireKey) -> String {
        with_token(&self.events, key)
    }

    /// Where the stream says that it has stored one.
    pub(super) fn news(&self, key: &impl WireKey) -> String {
        with_token(&self.news, key)
    }

    pub(super) fn all_events(&self) -> String {
        format!("{}>", self.events)
    }

    pub(super) fn all_news(&self) -> String {
        format!("{}>", self.news)
    }

    /// The key of a subject of news. (A client may publish to subjects that are no key's, and the stream stores it.)
    pub(super) fn key<K: WireKey>(&self, subject: &str) -> Option<K> {
        let key = K::from_bytes(&decode(subject.strip_prefix(&self.news)?)?)?;
        (self.news(&key) == subject).then_some(key)
    }

    pub(super) fn admit(&self, key: &impl WireKey) -> Result<(), KeyError> {
        let length = self.news.len() + token_length(key);
        match length <= LONGEST {
            true => Ok(()),
            false => Err(KeyError::TooLong {
                length,
                limit: LONGEST,
            }),
        }
    }
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_')
}

fn token_length(key: &impl WireKey) -> usize {
    let length = |&byte: &u8| if stands_for_itself(byte) { 1 } else { 3 };
    key.to_bytes().iter().map(length).sum::<usize>().max(1)
}

fn with_token(prefix: &str, key: &impl WireKey) -> String {
    let bytes = key.to_bytes();
    let mut subject = String::with_capacity(prefix.len() + bytes.len().max(1));
    subject.push_str(prefix);
    if bytes.is_empty() {
        subject.push('=');
    }
    for &byte in &*bytes {
        match stands_for_itself(byte) {
            true => subject.push(byte.into()),
            // Writing to a string does not fail.
            false => drop(write!(subject, "={byte:02x}")),
        }
    }
    subject
}

fn decode(token: &str) -> Option<Vec<u8>> {
    if token == "=" {
        return Some(Vec::new());
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'=' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_bytes_come_back() {
        let subjects = Subjects::new("p");
        let all = (0..=255).collect::<Vec<u8>>();
        for key in [vec![], all, b"a.b>*= \r\n".to_vec(), b"=".to_vec()] {
            let news = subjects.news(&key);
            let token = news.strip_prefix("p.out.").expect("it has the prefix");
            assert_eq!(token.len(), token_length(&key));
            assert!(!token.is_empty());
            assert!(
                token
                    .bytes()
                    .all(|it| it.is_ascii_alphanumeric() || b"=-_".contains(&it))
            );
            assert_eq!(subjects.key(&news), Some(key));
        }
        for of_none in ["in.x", "out.=f", "out.a.b", "out.=61", "out.=2E", "out.=+f"] {
            let subject = format!("p.{of_none}");
            assert_eq!(subjects.key::<Vec<u8>>(&subject), None, "{subject}");
        }
    }

    /// What counts is the length of its subject.
    #[test]
    fn a_key_without_end_is_refused() {
        let subjects = Subjects::new("p");
        let prefix = "p.out.".len();
        for (key, length) in [
            (vec![b'a'; LONGEST - prefix], LONGEST),
            (vec![b'a'; LONGEST - prefix + 1], LONGEST + 1),
            (vec![b' '; 400], prefix + 3 * 400),
            (vec![0; LONGEST], prefix + 3 * LONGEST),
        ] {
            let limit = LONGEST;
            let too_long = (length > limit).then_some(KeyError::TooLong { length, limit });
            assert_eq!(subjects.admit(&key).err(), too_long);
        }
    }
}
