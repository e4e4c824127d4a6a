//! Turns readings of the clock into ticks, and ticks into readings.
//!
//! The timing wheel counts whole ticks. This file alone decides how a reading is rounded: a deadline goes up to the
//! next tick, and the present goes down to the last tick. So a timer that fires when `floor(now) >= ceil(deadline)` is
//! never early, and at most one tick late.

use super::Timestamp;
use crate::scheme::Tick;
use std::time::Duration;

/// The deadline of a timer that never fires.
pub(crate) const NEVER: Tick = Tick::MAX;

/// The tick's length and the reading that counts as tick zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickScale {
    origin: Timestamp,
    /// The reading at which the last tick begins that a clock can reach before its last reading.
    last: Timestamp,
    /// The length of a tick in nanoseconds.
    nanos: u64,
    /// floor(2^64 / nanos), at most `u64::MAX`. With it, the division by `nanos`, which every park needs, is a
    /// multiplication.
    reciprocal: u64,
}

impl TickScale {
    /// Ticks of the length `tick`, counted from `origin`. `None` if the tick is zero or longer than `u64::MAX`
    /// nanoseconds.
    pub(crate) fn new(tick: Duration, origin: Timestamp) -> Option<Self> {
        let nanos = u64::try_from(tick.as_nanos()).ok().filter(|&n| n > 0)?;
        let reciprocal = u64::try_from((1_u128 << 64) / u128::from(nanos)).unwrap_or(u64::MAX);
        let rest = Timestamp::LAST.nanos_since(origin).saturating_sub(1) % nanos;
        Some(Self {
            origin,
            last: Timestamp::from_nanos(u64::MAX - 1 - rest),
            nanos,
            reciprocal,
        })
    }

    /// The last tick at or before `at`. Zero if `at` is before the origin.
    #[inline(always)]
    pub(crate) fn floor(&self, at: Timestamp) -> Tick {
        self.divide(at.nanos_since(self.origin)).0
    }

    /// Whether a deadline at `at` ever comes: whether a tick begins at or after `at`, before the clock's last reading.
    #[inline(always)]
    pub(crate) fn can_come(&self, at: Timestamp) -> bool {
        at <= self.last
    }

    /// The first tick at or after `at`. Zero if `at` is before the origin, and [`NEVER`] if `at` [never
    /// comes](Self::can_come).
    #[inline(always)]
    pub(crate) fn ceil(&self, at: Timestamp) -> Tick {
        if !self.can_come(at) {
            return NEVER;
        }
        let (ticks, exact) = self.divide(at.nanos_since(self.origin));
        ticks + u64::from(!exact)
    }

    /// The last tick at or before `at`, and the first tick at or after `at + timeout`. The second tick may be
    /// [`NEVER`], as that of [`ceil`](Self::ceil).
    #[inline(always)]
    pub(crate) fn start_and_deadline(&self, at: Timestamp, timeout: Duration) -> (Tick, Tick) {
        (self.floor(at), self.ceil(at.saturating_add(timeout)))
    }

    /// The tick after `tick`, or [`NEVER`] if that tick [never comes](Self::can_come).
    pub(crate) fn next(&self, tick: Tick) -> Tick {
        self.ceil(self.timestamp(tick.saturating_add(1)))
    }

    /// The reading at which `tick` begins, or the last possible reading.
    pub(crate) fn timestamp(&self, tick: Tick) -> Timestamp {
        self.origin.saturating_add(self.duration(tick))
    }

    /// The length of this many ticks, at most `u64::MAX` nanoseconds.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        Duration::from_nanos(ticks.saturating_mul(self.nanos))
    }

    /// The number of whole ticks in this many nanoseconds, and whether there is no remainder.
    #[inline(always)]
    fn divide(&self, nanos: u64) -> (Tick, bool) {
        // `reciprocal` <= 2^64 / `self.nanos` <= `reciprocal` + 1. So the high word of the product is the quotient of
        // `nanos` by `self.nanos`, or one less. `rest` shows which of the two it is.
        let low = ((u128::from(nanos) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = nanos - low * self.nanos;
        if rest >= self.nanos {
            (low + 1, rest == self.nanos)
        } else {
            (low, rest == 0)
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The last whole second after its origin that a clock can read.
    const LAST_SECOND: u64 = u64::MAX / 1_000_000_000;

    proptest! {
        #[test]
        fn the_reciprocal_divides_exactly(
            tick in prop_oneof![1..=u64::MAX, 1..5_000_000_000_u64, Just(1), Just(1_000_000)],
            nanos in prop_oneof![0..=u64::MAX, 0..100_000_000_000_000_u64, Just(u64::MAX)],
        ) {
            let scale = TickScale::new(Duration::from_nanos(tick), Timestamp::default()).unwrap();
            prop_assert_eq!(scale.divide(nanos), (nanos / tick, nanos % tick == 0));
        }

        #[test]
        fn a_span_is_the_floor_and_the_ceiling(
            tick in prop_oneof![1..=u64::MAX, 1..5_000_000_000_u64],
            at in prop_oneof![0..=u64::MAX, 0..100_000_000_000_000_u64],
            secs in prop_oneof![0..=u64::MAX, 0..100_000_u64, LAST_SECOND - 2..LAST_SECOND + 2],
            nanos in 0..1_000_000_000_u32,
        ) {
            let scale = TickScale::new(Duration::from_nanos(tick), Timestamp::default()).unwrap();
            let timeout = Duration::new(secs, nanos);
            let (now, deadline) = scale.start_and_deadline(Timestamp::from_nanos(at), timeout);
            prop_assert_eq!(now, at / tick);
            let ticks = (u128::from(at) + timeout.as_nanos()).div_ceil(u128::from(tick));
            let can_come = ticks * u128::from(tick) < u128::from(u64::MAX);
            prop_assert_eq!(deadline, if can_come { ticks as u64 } else { NEVER });
        }

        #[test]
        fn ticks_turn_back_into_the_time_they_came_from(
            tick in prop_oneof![1..u64::MAX, 1..5_000_000_000_u64],
            ticks in prop_oneof![0..u64::MAX, 0..5_000_000_000_u64],
        ) {
            let scale = TickScale::new(Duration::from_nanos(tick), Timestamp::default()).unwrap();
            let at = scale.timestamp(ticks);
            let can_come = ticks.checked_mul(tick).is_some_and(|nanos| nanos < u64::MAX);
            prop_assert_eq!(scale.ceil(at), if can_come { ticks } else { NEVER });
            prop_assert!(!can_come || scale.floor(at) == ticks);
        }
    }

    #[test]
    fn the_present_rounds_down_and_a_deadline_up() {
        let origin = Timestamp::from_origin(Duration::from_millis(5));
        let scale = TickScale::new(Duration::from_millis(10), origin).unwrap();
        let at = |millis| Timestamp::from_origin(Duration::from_millis(millis));
        assert_eq!(scale.floor(at(3)), 0, "before the origin");
        assert_eq!(scale.floor(at(14)), 0);
        assert_eq!(scale.floor(at(15)), 1);
        assert_eq!(scale.start_and_deadline(at(15), Duration::ZERO).1, 1);
        assert_eq!(
            scale.start_and_deadline(at(15), Duration::from_nanos(1)).1,
            2
        );
        assert_eq!(
            scale
                .start_and_deadline(at(15), Duration::from_millis(10))
                .1,
            2
        );
        assert_eq!(scale.start_and_deadline(at(15), Duration::MAX).1, NEVER);
        assert_eq!(
            scale.start_and_deadline(at(2), Duration::from_millis(13)),
            (0, 1)
        );
        assert_eq!(
            scale.start_and_deadline(at(2), Duration::from_millis(14)),
            (0, 2)
        );
        assert_eq!(
            scale.start_and_deadline(at(2), Duration::from_millis(2)),
            (0, 0)
        );
        assert_eq!(scale.start_and_deadline(at(2), Duration::MAX).1, NEVER);
        assert_eq!(scale.timestamp(2), at(25));
    }

    #[test]
    fn absurd_ticks_are_errors() {
        assert!(TickScale::new(Duration::ZERO, Timestamp::default()).is_none());
        assert!(TickScale::new(Duration::MAX, Timestamp::default()).is_none());
    }
}
