//! Slot arithmetic of a hierarchical wheel.
//!
//! Write ticks as numbers in base `size` (slots per level). A timer belongs to the level of the highest digit in
//! which its deadline differs from the present, and to the slot that this digit of the deadline names. All timers of
//! a bucket agree in that digit and in all higher ones, so the bucket's window starts at the deadline with all lower
//! digits set to zero.

use crate::time::ticks::Tick;

/// Place of a bucket in the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) level: u32,
    pub(crate) slot: u32,
    /// The first tick of the bucket's window: when it is due.
    pub(crate) start: Tick,
}

/// One, in the fixed-point numbers that replace the division by a digit's width.
const RECIPROCAL: u32 = 1 << 12;

/// The base of the wheel's digits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Radix {
    /// A power of two: digits are groups of so many bits. Beside it, the rounded-up reciprocal that divides numbers
    /// below 64 by it.
    Bits(u32, u32),
    /// Any other base, from 3 up.
    Any(u32),
}

impl Radix {
    /// `size` is at least 2.
    pub(crate) fn new(size: u32) -> Self {
        debug_assert!(size >= 2);
        if size.is_power_of_two() {
            let bits = size.trailing_zeros();
            Self::Bits(bits, RECIPROCAL.div_ceil(bits))
        } else {
            Self::Any(size)
        }
    }

    /// Slots per level.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::Bits(bits, _) => 1 << bits,
            Self::Any(size) => size,
        }
    }

    /// Ticks in a slot of `level`, which must be a level of some tick that can be counted to.
    fn width(self, level: u32) -> Tick {
        match self {
            Self::Bits(bits, _) => 1 << (level * bits),
            Self::Any(size) => Tick::from(size).pow(level),
        }
    }

    /// How many levels have slots of at most `width` ticks, up to 2^32.
    pub(crate) fn levels_within(self, width: Tick) -> u32 {
        let mut levels = 1;
        while self.width(levels) <= width {
            levels += 1;
        }
        levels
    }

    /// The first tick of the slot after that of `current`, in `level`. It must be one that can be counted to.
    pub(crate) fn next_slot(self, current: Tick, level: u32) -> Tick {
        let width = self.width(level);
        current - current % width + width
    }

    /// The bucket for `deadline`, seen from `current`, which is earlier.
    #[inline(always)]
    pub(crate) fn locate(self, current: Tick, deadline: Tick) -> Place {
        debug_assert!(current < deadline);
        match self {
            Self::Bits(bits, reciprocal) => {
                let highest = 63 - (current ^ deadline).leading_zeros();
                let level = highest * reciprocal / RECIPROCAL;
                let shift = level * bits;
                let digits = deadline >> shift;
                Place {
                    level,
                    slot: (digits & ((1 << bits) - 1)) as u32,
                    start: digits << shift,
                }
            }
            Self::Any(size) => {
                let base = Tick::from(size);
                let (mut level, mut width) = (0, 1);
                let (mut here, mut there) = (current, deadline);
                while here / base != there / base {
                    here /= base;
                    there /= base;
                    // The level's width divides a tick count, so it fits.
                    width *= base;
                    level += 1;
                }
                Place {
                    level,
                    slot: (there % base) as u32,
                    start: there * width,
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, digit by digit.
    fn by_digits(size: u64, current: u64, deadline: u64) -> (u32, u64, u64) {
        let digits = |mut n: u64| {
            std::iter::repeat_with(|| {
                let digit = n % size;
                n /= size;
                digit
            })
            .take(64)
            .collect::<Vec<_>>()
        };
        let (here, there) = (digits(current), digits(deadline));
        let level = (0..64).rev().find(|&i| here[i] != there[i]).unwrap();
        let start = (0..level).fold(deadline, |start, i| start - there[i] * size.pow(i as u32));
        (level as u32, there[level], start)
    }

    fn tick() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..200_u64,
            any::<u64>(),
            (0..64_u32, 0..5_u64)
                .prop_map(|(bit, by)| (1_u64 << bit).wrapping_add(by).wrapping_sub(2)),
        ]
    }

    /// Anywhere, or so close that their highest digits agree.
    fn two_ticks() -> impl Strategy<Value = (u64, u64)> {
        prop_oneof![
            (tick(), tick()),
            (tick(), 0..100_000_u64).prop_map(|(a, by)| (a, a.saturating_add(by))),
        ]
    }

    #[test]
    fn the_reciprocal_divides_every_bit_number() {
        for bits in 1..=16 {
            let Radix::Bits(_, reciprocal) = Radix::new(1 << bits) else {
                panic!("a power of two")
            };
            assert!((0..64).all(|bit| bit * reciprocal / RECIPROCAL == bit / bits));
        }
    }

    /// The slots of a level lie side by side, each as wide as the level below.
    #[test]
    fn levels_are_powers_of_the_base() {
        for size in [2_u32, 3, 10, 64, 65_536] {
            let (radix, base) = (Radix::new(size), Tick::from(size));
            assert_eq!(radix.size(), size);
            for level in 0..4 {
                let Some(width) = base.checked_pow(level).filter(|width| *width < 1 << 40) else {
                    break;
                };
                for slot in [0, 1, 7] {
                    for current in [slot * width, slot * width + width - 1] {
                        assert_eq!(radix.next_slot(current, level), (slot + 1) * width);
                    }
                }
                for most in [width, width * base - 1] {
                    assert_eq!(radix.levels_within(most), level + 1);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_base_agrees_with_the_definition(
            size in prop_oneof![(1..=16_u32).prop_map(|bits| 1 << bits), 2..70_u32, 2..65_537_u32],
            (a, b) in two_ticks().prop_filter("one is later", |(a, b)| a != b),
        ) {
            let (current, deadline) = (a.min(b), a.max(b));
            let place = Radix::new(size).locate(current, deadline);
            let (level, slot, start) = by_digits(u64::from(size), current, deadline);
            prop_assert_eq!(place, Place { level, slot: slot as u32, start });
            prop_assert!(current < place.start && place.start <= deadline);
        }
    }
}
