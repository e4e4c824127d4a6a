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
}
