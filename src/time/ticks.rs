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

const NANOS_PER_SEC: u64 = 1_000_000_000;
/// The most whole seconds that a duration may have, so that the sum of two such durations, in nanoseconds, fits a
/// `u64`.
const FITTING_SECS: u64 = u64::MAX / 2 / NANOS_PER_SEC - 1;

/// The tick's length and the reading that counts as tick zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickScale {
    origin: Timestamp,
    /// `origin` in nanoseconds, counted from the zero of the clock. `u64::MAX` if this is more than about 292 years.
    origin_nanos: u64,
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
        Some(Self {
            origin,
            origin_nanos: self::nanos(origin.since_origin()).unwrap_or(u64::MAX),
            nanos,
            reciprocal,
        })
    }

    /// The last tick at or before `at`.
    #[inline]
    pub(crate) fn floor(&self, at: Timestamp) -> Tick {
        self.divide(at.saturating_since(self.origin)).0
    }

    /// The first tick at or after `at`.
    pub(crate) fn ceil(&self, at: Timestamp) -> Tick {
        self.start_and_deadline(at, Duration::ZERO).1
    }

    /// The last tick at or before `at`, and the first tick at or after `at + timeout`. The second tick is [`NEVER`] if
    /// it is too large for a [`Tick`], or if the timeout is [`Duration::MAX`].
    #[inline(always)]
    pub(crate) fn start_and_deadline(&self, at: Timestamp, timeout: Duration) -> (Tick, Tick) {
        let reading = nanos(at.since_origin());
        let present = reading.and_then(|reading| reading.checked_sub(self.origin_nanos));
        let (Some(present), Some(wait)) = (present, nanos(timeout)) else {
            return self.start_and_deadline_wide(at, timeout);
        };
        self.round(present, present + wait)
    }

    /// [`start_and_deadline`](Self::start_and_deadline) for a reading that is given in nanoseconds since the clock's
    /// origin.
    #[inline(always)]
    pub(crate) fn start_and_deadline_of(&self, reading: u64, timeout: Duration) -> (Tick, Tick) {
        let present = reading.checked_sub(self.origin_nanos);
        let end = present.and_then(|present| present.checked_add(nanos(timeout)?));
        match (present, end) {
            (Some(present), Some(end)) => self.round(present, end),
            _ => {
                let at = Timestamp::from_origin(Duration::from_nanos(reading));
                self.start_and_deadline_wide(at, timeout)
            }
        }
    }

    /// Rounds `present` down and `end` up to a tick. Both are given in nanoseconds since tick zero.
    #[inline(always)]
    fn round(&self, present: u64, end: u64) -> (Tick, Tick) {
        let (ticks, exact) = self.divide_nanos(end);
        (self.divide_nanos(present).0, ticks + u64::from(!exact))
    }

    /// [`start_and_deadline`](Self::start_and_deadline) for numbers that do not fit a `u64`, and for readings before
    /// the origin.
    #[cold]
    fn start_and_deadline_wide(&self, at: Timestamp, timeout: Duration) -> (Tick, Tick) {
        let since = at.saturating_since(self.origin);
        let timeout = match timeout {
            Duration::MAX => timeout,
            // If the reading is before the origin, only the part of the timeout after the origin counts.
            _ => timeout.saturating_sub(self.origin.saturating_since(at)),
        };
        let deadline = match since.checked_add(timeout) {
            Some(deadline) if timeout != Duration::MAX => {
                let (ticks, exact) = self.divide(deadline);
                ticks.saturating_add(u64::from(!exact))
            }
            _ => NEVER,
        };
        (self.divide(since).0, deadline)
    }

    /// The reading at which `tick` begins, or the last possible reading.
    pub(crate) fn timestamp(&self, tick: Tick) -> Timestamp {
        self.origin.saturating_add(self.duration(tick))
    }

    /// Whether the clock can ever reach `tick`. `false` if the last possible reading of the clock lies before it.
    pub(crate) fn can_come(&self, tick: Tick) -> bool {
        self.floor(self.timestamp(tick)) >= tick
    }

    /// The length of this many ticks, or the longest duration.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * u128::from(self.nanos);
        let per_sec = u128::from(NANOS_PER_SEC);
        match u64::try_from(nanos / per_sec) {
            Ok(secs) => Duration::new(secs, (nanos % per_sec) as u32),
            Err(_) => Duration::MAX,
        }
    }

    /// The number of whole ticks in `since`, and whether there is no remainder.
    #[inline(always)]
    fn divide(&self, since: Duration) -> (Tick, bool) {
        if let Some(nanos) = nanos(since) {
            return self.divide_nanos(nanos);
        }
        let nanos = since.as_nanos();
        let tick = u128::from(self.nanos);
        let ticks = u64::try_from(nanos / tick).unwrap_or(NEVER);
        (ticks, nanos % tick == 0)
    }

    #[inline(always)]
    fn divide_nanos(&self, nanos: u64) -> (Tick, bool) {
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

/// The nanoseconds in `duration`. `None` from about 292 years on: the sum of two such numbers might not fit a `u64`.
#[inline]
fn nanos(duration: Duration) -> Option<u64> {
    (duration.as_secs() <= FITTING_SECS)
        .then(|| duration.as_secs() * NANOS_PER_SEC + u64::from(duration.subsec_nanos()))
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wide(since: Duration, tick: Duration) -> (u64, bool) {
        let ticks = since.as_nanos() / tick.as_nanos();
        let exact = since.as_nanos() % tick.as_nanos() == 0;
        (u64::try_from(ticks).unwrap_or(NEVER), exact)
    }

    proptest! {
        #[test]
        fn the_reciprocal_divides_exactly(
            tick in prop_oneof![1..=u64::MAX, 1..5_000_000_000_u64, Just(1), Just(1_000_000)],
            secs in prop_oneof![0..=u64::MAX, 0..100_000_u64, FITTING_SECS - 2..FITTING_SECS + 3],
            nanos in 0..1_000_000_000_u32,
        ) {
            let tick = Duration::from_nanos(tick);
            let scale = TickScale::new(tick, Timestamp::default()).unwrap();
            let since = Duration::new(secs, nanos);
            prop_assert_eq!(scale.divide(since), wide(since, tick));
        }

        #[test]
        fn a_span_is_the_floor_and_the_ceiling(
            tick in prop_oneof![1..=u64::MAX, 1..5_000_000_000_u64],
            at in prop_oneof![0..=u64::MAX, 0..100_000_u64, FITTING_SECS - 1..FITTING_SECS + 2],
            timeout in prop_oneof![0..=u64::MAX, 0..100_000_u64, FITTING_SECS - 1..FITTING_SECS + 2],
            (a, b) in (0..1_000_000_000_u32, 0..1_000_000_000_u32),
        ) {
            let tick = Duration::from_nanos(tick);
            let (at, timeout) = (Duration::new(at, a), Duration::new(timeout, b));
            let scale = TickScale::new(tick, Timestamp::default()).unwrap();
            let (now, deadline) = scale.start_and_deadline(Timestamp::from_origin(at), timeout);
            prop_assert_eq!(now, wide(at, tick).0);
            if let Ok(reading) = u64::try_from(at.as_nanos()) {
                prop_assert_eq!(scale.start_and_deadline_of(reading, timeout), (now, deadline));
            }
            let exact = at.checked_add(timeout).map(|sum| sum.as_nanos().div_ceil(tick.as_nanos()));
            prop_assert_eq!(deadline, exact.map_or(NEVER, |ticks| u64::try_from(ticks).unwrap_or(NEVER)));
        }

        #[test]
        fn ticks_turn_back_into_the_time_they_came_from(tick in 1..u64::MAX, ticks in 0..u64::MAX) {
            let scale = TickScale::new(Duration::from_nanos(tick), Timestamp::default()).unwrap();
            let at = scale.timestamp(ticks);
            prop_assert!(at.since_origin() == Duration::MAX || scale.floor(at) == ticks);
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

    /// The sum of two durations of about 292 years each just fits a `u64` of nanoseconds, or just does not.
    #[test]
    fn the_longest_readings_that_are_added_do_not_overflow() {
        let tick = Duration::from_millis(1);
        let scale = TickScale::new(tick, Timestamp::default()).unwrap();
        let border = Duration::from_nanos(u64::MAX / 2).as_secs();
        for secs in border - 3..=border + 3 {
            let since = Duration::new(secs, 999_999_999);
            let (now, deadline) = scale.start_and_deadline(Timestamp::from_origin(since), since);
            assert_eq!(now, wide(since, tick).0);
            assert_eq!(deadline, wide(since + since, tick).0 + 1);
        }
    }

    /// The tick is so long that `Duration::MAX` is a valid number of ticks. Even so, this timeout is infinite: it is
    /// compared with `Duration::MAX`, and does not depend on an overflow.
    #[test]
    fn the_longest_timeout_is_never_whatever_the_tick() {
        let origin = Timestamp::from_origin(Duration::from_millis(5));
        let scale = TickScale::new(Duration::from_nanos(u64::MAX), origin).unwrap();
        for at in [
            Duration::ZERO,
            Duration::from_millis(5),
            Duration::from_secs(1),
        ] {
            let at = Timestamp::from_origin(at);
            assert_eq!(scale.start_and_deadline(at, Duration::MAX).1, NEVER);
            assert_ne!(
                scale.start_and_deadline(at, Duration::from_secs(1)).1,
                NEVER
            );
        }
    }

    #[test]
    fn a_tick_can_come_if_some_reading_is_there() {
        let hour = Duration::from_secs(3_600);
        let scale = TickScale::new(hour, Timestamp::default()).unwrap();
        let last = (Duration::MAX.as_nanos() / hour.as_nanos()) as u64;
        assert!([0, 1, last].map(|tick| scale.can_come(tick)) == [true; 3]);
        assert!([last + 1, NEVER - 1].map(|tick| scale.can_come(tick)) == [false; 2]);
    }
}
