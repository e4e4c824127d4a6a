//! What nodes watch.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

/// A key that a cluster can watch: a topic, a partition, a job. Implemented by every type with these traits.
///
/// `Hash`, `Eq` and `Clone` run under the lock of one shard of the node's table; keep them plain.
pub trait Key: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Key for K {}

/// A key that the engines can put into the names of a store: any bytes, and back.
pub trait WireKey: Key {
    /// The bytes of the key. Different keys have different bytes.
    fn to_bytes(&self) -> Cow<'_, [u8]>;

    /// The key of these bytes. `None` if no key has them.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl WireKey for Vec<u8> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl WireKey for Arc<[u8]> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.into())
    }
}

impl WireKey for String {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl WireKey for Arc<str> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(Arc::from)
    }
}

/// In decimal digits.
impl WireKey for u64 {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.to_string().into_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = std::str::from_utf8(bytes).ok()?.parse::<Self>().ok()?;
        // "+7" and "007" parse, and are no key's bytes.
        (number.to_bytes() == bytes).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_no_number_has_is_no_key() {
        for text in ["007", "+7", " 7", "-7", "7.0", "", "18446744073709551616"] {
            assert_eq!(u64::from_bytes(text.as_bytes()), None, "{text:?}");
        }
        for number in [0, 7, u64::MAX] {
            assert_eq!(u64::from_bytes(&number.to_bytes()), Some(number));
        }
    }

    /// The bytes that come of these bytes by way of a key.
    fn by_way_of<K: WireKey>(bytes: &[u8]) -> Option<Vec<u8>> {
        K::from_bytes(bytes).map(|key| key.to_bytes().into_owned())
    }

    #[test]
    fn g24_bytes_are_those_of_one_key_or_of_none() {
        for bytes in [&b""[..], b"7", "\u{e4} \u{1f980}".as_bytes(), b"\xff7"] {
            let whole = Some(bytes.to_vec());
            assert_eq!(by_way_of::<Vec<u8>>(bytes), whole);
            assert_eq!(by_way_of::<Arc<[u8]>>(bytes), whole);
            let is_text = bytes != b"\xff7";
            assert_eq!(
                by_way_of::<String>(bytes),
                whole.clone().filter(|_| is_text)
            );
            assert_eq!(by_way_of::<Arc<str>>(bytes), whole.filter(|_| is_text));
        }
    }
}
