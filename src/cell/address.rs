//! The address: the name of one parked payload.

#![allow(unreachable_pub, reason = "the models see it")]

/// The 64-bit name of one parked payload (an operation, or the value of a timer): its timer shard, its slot in that
/// shard, and its generation (how many occupants the slot had before). Watch lists and handles refer to an operation
/// only by its address. Once the payload has ended, its address is *stale*: it names no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub(crate) u64);

/// The number of bits that hold the timer shard.
pub(crate) const SHARD_BITS: u32 = 6;
/// The number of slots that addresses can name in one timer shard. The low 32 bits of an address are the shard and the
/// slot's index. The index whose bits are all set is not used. So no address has all of its low 32 bits set, and none
/// is equal to [`Address::NONE`].
pub(crate) const SLOTS: u32 = (1 << (u32::BITS - SHARD_BITS)) - 1;

impl Address {
    /// The address that names no payload: all bits are set. Every other address has a zero among its low 32 bits.
    pub(crate) const NONE: Self = Self(u64::MAX);

    pub(crate) fn new(shard: usize, index: u32, generation: u32) -> Self {
        debug_assert!(shard < 1 << SHARD_BITS && index < SLOTS);
        let id = index << SHARD_BITS | shard as u32;
        Self(u64::from(generation) << 32 | u64::from(id))
    }

    pub(crate) fn shard(self) -> usize {
        (self.0 & ((1 << SHARD_BITS) - 1)) as usize
    }

    pub(crate) fn index(self) -> u32 {
        self.0 as u32 >> SHARD_BITS
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g18_an_address_tells_all_that_it_is_made_of() {
        for (shard, index, generation) in [
            (0, 0, 0),
            (63, SLOTS - 1, u32::MAX),
            (1, 1 << 20, 7),
            (32, 1 << 25, 1 << 31),
        ] {
            let at = Address::new(shard, index, generation);
            assert_eq!(
                (at.shard(), at.index(), at.generation()),
                (shard, index, generation)
            );
        }
    }
}
