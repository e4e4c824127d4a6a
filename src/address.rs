//! The name of one parked payload.

/// Names one payload for as long as it is parked: its home, its slot there, and the slot's generation, in 64 bits. It
/// is all that watch lists and handles keep of an operation; a stale one names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Address {
    /// The home's number in the low bits, the slot's index above.
    id: u32,
    generation: u32,
}

/// Bits for the home's number.
pub(crate) const HOME_BITS: u32 = 4;
/// Slots that one home can name. (One less than the bits could: so no address has all bits of its id set.)
pub(crate) const SLOTS: u32 = (1 << (u32::BITS - HOME_BITS)) - 1;

impl Address {
    /// The last one in their order.
    pub(crate) const LAST: Self = Self {
        id: u32::MAX,
        generation: u32::MAX,
    };

    #[inline(always)]
    pub(crate) fn new(home: usize, index: u32, generation: u32) -> Self {
        debug_assert!(home < 1 << HOME_BITS && index < SLOTS);
        Self {
            id: index << HOME_BITS | home as u32,
            generation,
        }
    }

    #[inline(always)]
    pub(crate) fn home(self) -> usize {
        (self.id & ((1 << HOME_BITS) - 1)) as usize
    }

    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.id >> HOME_BITS
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }

    /// The address as a number, of which the low 32 bits are never all set.
    #[inline(always)]
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.id)
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            id: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}
