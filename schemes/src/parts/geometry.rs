//! The slot arithmetic of a hierarchical wheel: computes the level and the slot in which a timer lies.
//!
//! The number of slots per level is a power of two. Write ticks as numbers in this base, so that a digit is a group of
//! bits. Compare the timer's deadline with the present:
//!
//! * The *level* of the timer is the position of the highest digit in which the two ticks differ.
//! * The *slot* of the timer is this digit of the deadline.
//! * A *bucket* is a slot of a level, with its timers. Their deadlines agree in this digit and in all higher digits. So
//!   the *window* of the bucket, its range of deadlines, starts at any of these deadlines, with all lower digits set to
//!   zero.
//!
//! For example, take base 64. If the present is (0, 5, 10) and the deadline is (0, 10, 60), then the timer is on level
//! 1, in slot 10, and the window of its bucket starts at (0, 10, 0).

use crate::record::Tick;

/// A bucket of the wheel: its level, its number, and the start of its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) level: u32,
    /// The number of the bucket. Buckets are numbered from slot to slot, and level by level from the lowest level up.
    pub(crate) bucket: u32,
    /// The first tick of the bucket's window (its range of deadlines). Also called the deadline of the bucket.
    pub(crate) start: Tick,
}

/// The number 1 in a fixed-point format with 12 bits after the point. [`Geometry::locate`] has to divide by `bits`, the
/// number of bits in a digit of a tick. Instead of a division, it multiplies by `RECIPROCAL / bits`, the reciprocal of
/// `bits` in this format.
const RECIPROCAL: u32 = 1 << 12;

/// A level has at most `1 << MOST_BITS` slots. So the number of every bucket fits a `u32`, whatever the deadlines are.
const MOST_BITS: u32 = 30;

/// The number of slots per level, with what [`locate`](Self::locate) needs to compute fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// The number of bits in a digit: a level has `1 << bits` slots.
    bits: u32,
    /// The reciprocal of `bits` in fixed-point format, rounded up. With this reciprocal, the division of a number below
    /// 64 is exact.
    reciprocal: u32,
}

impl Geometry {
    /// Prepares the arithmetic for `slots` slots per level, rounded up to a power of two. Less than 2 counts as 2, and
    /// more than `1 << MOST_BITS` as this number.
    pub(crate) fn new(slots: u32) -> Self {
        let size = slots.clamp(2, 1 << MOST_BITS).next_power_of_two();
        let bits = size.trailing_zeros();
        Self {
            bits,
            reciprocal: RECIPROCAL.div_ceil(bits),
        }
    }

    /// Slots per level.
    pub(crate) fn size(self) -> u32 {
        1 << self.bits
    }

    /// The number of levels whose slots are at most `width` ticks wide.
    pub(crate) fn levels_within(self, width: Tick) -> u32 {
        width.ilog2() / self.bits + 1
    }

    /// The first tick of the slot that follows the slot of `current` in `level`. The result must fit a [`Tick`].
    pub(crate) fn next_slot(self, current: Tick, level: u32) -> Tick {
        let shift = level * self.bits;
        ((current >> shift) + 1) << shift
    }

    /// The bucket for `deadline` in a wheel that has reached the tick `current`. `current` must be earlier than
    /// `deadline`.
    #[inline(always)]
    pub(crate) fn locate(self, current: Tick, deadline: Tick) -> Location {
        debug_assert!(current < deadline);
        let highest = 63 - (current ^ deadline).leading_zeros();
        let level = highest * self.reciprocal / RECIPROCAL;
        let shift = level * self.bits;
        let digits = deadline >> shift;
        let slot = (digits & ((1 << self.bits) - 1)) as u32;
        Location {
            level,
            bucket: (level << self.bits) + slot,
            start: digits << shift,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The level and the slot of the bucket in which a timer lies, and the first tick of the bucket, computed from the
    /// digits of both ticks in base `size`. The level is the position of the highest digit that differs. The slot is
    /// this digit of the deadline. The first tick is the deadline with all lower digits set to zero.
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
        for bits in 1..=MOST_BITS {
            let reciprocal = Geometry::new(1 << bits).reciprocal;
            assert!((0..64).all(|bit| bit * reciprocal / RECIPROCAL == bit / bits));
        }
    }

    #[test]
    fn the_number_of_slots_is_rounded_up_to_a_power_of_two() {
        const MOST: u32 = 1 << MOST_BITS;
        let small = [
            (0, 2),
            (1, 2),
            (2, 2),
            (3, 4),
            (20, 32),
            (64, 64),
            (65, 128),
        ];
        let large = [
            (65_535, 65_536),
            (MOST - 1, MOST),
            (MOST + 1, MOST),
            (u32::MAX, MOST),
        ];
        for (slots, size) in small.into_iter().chain(large) {
            assert_eq!(Geometry::new(slots).size(), size, "{slots} slots");
        }
    }

    /// The slots of a level lie side by side, and each is as wide as the whole level below.
    #[test]
    fn levels_are_powers_of_the_base() {
        for size in [2_u32, 4, 16, 64, 65_536] {
            let (geometry, base) = (Geometry::new(size), Tick::from(size));
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
            size in (1..=MOST_BITS).prop_map(|bits| 1 << bits),
            (a, b) in two_ticks().prop_filter("one is later", |(a, b)| a != b),
        ) {
            let (current, deadline) = (a.min(b), a.max(b));
            let location = Geometry::new(size).locate(current, deadline);
            let (level, slot, start) = by_digits(u64::from(size), current, deadline);
            let bucket = level * size + slot as u32;
            prop_assert_eq!(location, Location { level, bucket, start });
            prop_assert!(current < location.start && location.start <= deadline);
        }
    }
}
