//! From readings to ticks and back.
//!
//! The wheel below counts whole ticks. Here alone it is decided how a reading is rounded: a deadline goes up to the
//! next tick and the present goes down to the last one, so a timer that fires when `floor(now) >= ceil(deadline)`
//! is never early, and at most one tick late.

use super::Timestamp;
use std::time::Duration;

/// A number of ticks since the origin of a [`TickScale`].
pub(crate) type Tick = u64;

/// The deadline of a timer that never fires.
pub(crate) const NEVER: Tick = Tick::MAX;

const NANOS_PER_SEC: u64 = 1_000_000_000;
/// Durations of fewer whole seconds fit a `u64` of nanoseconds with room for one more second.
const FITTING_SECS: u64 = u64::MAX / NANOS_PER_SEC - 1;

/// The tick's length and the reading that counts as tick zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickScale {
    origin: Timestamp,
    nanos: u64,
    /// floor(2^64 / nanos), capped: turns the hot division into a multiplication.
    reciprocal: u64,
}

impl TickScale {
    /// `None` if the tick is zero or longer than `u64::MAX` nanoseconds.
    pub(crate) fn new(tick: Duration, origin: Timestamp) -> Option<Self> {
        let nanos = u64::try_from(tick.as_nanos()).ok().filter(|&n| n > 0)?;
        let reciprocal = u64::try_from((1_u128 << 64) / u128::from(nanos)).unwrap_or(u64::MAX);
        Some(Self {
            origin,
            nanos,
            reciprocal,
        })
    }

    /// The last tick at or before `at`.
    #[inline]
    pub(crate) fn floor(&self, at: Timestamp) -> Tick {
        self.divide(at.saturating_since(self.origin)).0
    }

    /// The first tick at or after `timeout` past `at`; [`NEVER`] if that is beyond all counting, or if the timeout is
    /// [`Duration::MAX`].
    #[inline]
    pub(crate) fn deadline(&self, at: Timestamp, timeout: Duration) -> Tick {
        match at.saturating_since(self.origin).checked_add(timeout) {
            Some(since) if timeout != Duration::MAX => {
                let (ticks, exact) = self.divide(since);
                ticks.saturating_add(u64::from(!exact))
            }
            _ => NEVER,
        }
    }

    /// The reading at which `tick` begins, or the last possible one.
    pub(crate) fn timestamp(&self, tick: Tick) -> Timestamp {
        self.origin.saturating_add(self.duration(tick))
    }

    /// The length of so many ticks, or the longest duration.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * u128::from(self.nanos);
        let per_sec = u128::from(NANOS_PER_SEC);
        match u64::try_from(nanos / per_sec) {
            Ok(secs) => Duration::new(secs, (nanos % per_sec) as u32),
            Err(_) => Duration::MAX,
        }
    }

    /// Whole ticks in `since`, and whether nothing is left over.
    #[inline]
    fn divide(&self, since: Duration) -> (Tick, bool) {
        if since.as_secs() > FITTING_SECS {
            return self.divide_wide(since);
        }
        let nanos = since.as_secs() * NANOS_PER_SEC + u64::from(since.subsec_nanos());
        // reciprocal <= 2^64 / nanos < reciprocal + 1, so the product's high word is the quotient or one less.
        let low = ((u128::from(nanos) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = nanos - low * self.nanos;
        if rest >= self.nanos {
            (low + 1, rest == self.nanos)
        } else {
            (low, rest == 0)
        }
    }

    #[cold]
    fn divide_wide(&self, since: Duration) -> (Tick, bool) {
        let nanos = since.as_nanos();
        let tick = u128::from(self.nanos);
        let ticks = u64::try_from(nanos / tick).unwrap_or(NEVER);
        (ticks, nanos % tick == 0)
    }
}

#[cfg(all(test, not(loom)))]
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
        assert_eq!(scale.deadline(at(15), Duration::ZERO), 1);
        assert_eq!(scale.deadline(at(15), Duration::from_nanos(1)), 2);
        assert_eq!(scale.deadline(at(15), Duration::from_millis(10)), 2);
        assert_eq!(scale.deadline(at(15), Duration::MAX), NEVER);
        assert_eq!(scale.timestamp(2), at(25));
    }

    #[test]
    fn absurd_ticks_are_refused() {
        assert!(TickScale::new(Duration::ZERO, Timestamp::default()).is_none());
        assert!(TickScale::new(Duration::MAX, Timestamp::default()).is_none());
    }
}
