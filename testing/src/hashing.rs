//! Hashers of small keys that let them collide.

use proptest::prelude::*;
use std::hash::{BuildHasher, Hasher};

/// Which keys have the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hashing {
    #[default]
    None,
    /// None: their hashes are the keys themselves, and differ in the low bits only.
    Low,
    /// None: their hashes differ in the high bits only.
    High,
    /// Those with the same parity.
    ByParity,
    All,
}

impl BuildHasher for Hashing {
    type Hasher = Hashed;

    fn build_hasher(&self) -> Hashed {
        Hashed(*self, 0)
    }
}

pub struct Hashed(Hashing, u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.1 = self.1 << 8 | u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        match self.0 {
            Hashing::None => self.1.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            Hashing::Low => self.1,
            Hashing::High => self.1.reverse_bits(),
            Hashing::ByParity => self.1 % 2,
            Hashing::All => 0,
        }
    }
}

pub fn hashing() -> impl Strategy<Value = Hashing> {
    prop_oneof![
        Just(Hashing::None),
        Just(Hashing::ByParity),
        Just(Hashing::All)
    ]
}
