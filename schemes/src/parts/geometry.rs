//! The slot arithmetic of a hierarchical wheel.
//!
//! Write ticks as numbers in base `size`, the number of slots per level. The level of a timer is the position of the
//! highest digit in which the timer's deadline differs from the present. The slot is this digit of the deadline. All
//! timers of a bucket agree in this digit and in all higher digits. So the window of the bucket starts at the deadline
//! with all lower digits set to zero.

use crate::record::Tick;

/// A bucket of the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) level: u32,
    pub(crate) slot: u32,
    /// The first tick of the bucket's window, which is the deadline of the bucket.
    pub(crate) start: Tick,
}

/// The number one as a fixed-point number. [`Geometry::locate`] must divide by the number of bits in a digit. It
/// multiplies by the fixed-point reciprocal instead.
const RECIPROCAL: u32 = 1 << 12;

/// The number of slots per level, prepared for arithmetic.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Geometry {
    /// A power of two: a digit is a group of bits. The first field is the number of bits in a digit. The second field
    /// is the fixed-point reciprocal of that number, rounded up; with it the division is exact for numbers below 64.
    Bits(u32, u32),
    /// Any other number, from 3 up.
    Any(u32),
}

impl Geometry {
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

    /// The width of a slot of `level`, in ticks. The width must fit a [`Tick`].
    fn width(self, level: u32) -> Tick {
        match self {
            Self::Bits(bits, _) => 1 << (level * bits),
            Self::Any(size) => Tick::from(size).pow(level),
        }
    }

    /// The number of levels whose slots are at most `width` ticks wide. `width` is at most 2^32.
    pub(crate) fn levels_within(self, width: Tick) -> u32 {
        let mut levels = 1;
        while self.width(levels) <= width {
            levels += 1;
        }
        levels
    }

    /// The first tick of the slot that follows the slot of `current` in `level`. The result must fit a [`Tick`].
    pub(crate) fn next_slot(self, current: Tick, level: u32) -> Tick {
        let width = self.width(level);
        current - current % width + width
    }

    /// The bucket for `deadline` as seen from the present `current`, which must be earlier than `deadline`.
    #[inline(always)]
    pub(crate) fn locate(self, current: Tick, deadline: Tick) -> Location {
        debug_assert!(current < deadline);
        match self {
            Self::Bits(bits, reciprocal) => {
                let highest = 63 - (current ^ deadline).leading_zeros();
                let level = highest * reciprocal / RECIPROCAL;
                let shift = level * bits;
                let digits = deadline >> shift;
                Location {
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
                    // The width is at most `deadline`, so it fits a `Tick`.
                    width *= base;
                    level += 1;
                }
                Location {
                    level,
                    slot: (there % base) as u32,
                    start: there * width,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition at the head of this file, digit by digit.
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

    /// Two ticks far apart, or so close that their highest digits agree.
    fn two_ticks() -> impl Strategy<Value = (u64, u64)> {
        prop_oneof![
            (tick(), tick()),
            (tick(), 0..100_000_u64).prop_map(|(a, by)| (a, a.saturating_add(by))),
        ]
    }

    #[test]
    fn the_reciprocal_divides_every_bit_number() {
        for bits in 1..=16 {
            let Geometry::Bits(_, reciprocal) = Geometry::new(1 << bits) else {
                panic!("a power of two")
            };
            assert!((0..64).all(|bit| bit * reciprocal / RECIPROCAL == bit / bits));
        }
    }

    /// The slots of a level lie side by side, and each is as wide as the whole level below.
    #[test]
    fn levels_are_powers_of_the_base() {
        for size in [2_u32, 3, 10, 64, 65_536] {
            let (geometry, base) = (Geometry::new(size), Tick::from(size));
            assert_eq!(geometry.size(), size);
            for level in 0..4 {
                let Some(width) = base.checked_pow(level).filter(|width| *width < 1 << 40) else {
                    break;
                };
                for slot in [0, 1, 7] {
                    for current in [slot * width, slot * width + width - 1] {
                        assert_eq!(geometry.next_slot(current, level), (slot + 1) * width);
                    }
                }
                for most in [width, width * base - 1] {
                    assert_eq!(geometry.levels_within(most), level + 1);
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
            let location = Geometry::new(size).locate(current, deadline);
            let (level, slot, start) = by_digits(u64::from(size), current, deadline);
            prop_assert_eq!(location, Location { level, slot: slot as u32, start });
            prop_assert!(current < location.start && location.start <= deadline);
        }
    }
}
